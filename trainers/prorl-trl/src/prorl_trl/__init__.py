"""TRL trains on rollouts it knows nothing about: ProRL Agent servers run them.

:class:`RolloutServiceFunc` is a ``rollout_func`` for ``GRPOTrainer``, :class:`RolloutServiceWorker` a
``rollout_worker`` for ``AsyncGRPOTrainer``. Nothing here imports torch or TRL before it is used.
"""

from prorl_trl.func import NoRollouts, RolloutServiceFunc, service_reward
from prorl_trl.weights import FolderPublisher, FolderWeights
from prorl_trl.worker import RolloutServiceWorker

__all__ = [
    "FolderPublisher",
    "FolderWeights",
    "NoRollouts",
    "RolloutServiceFunc",
    "RolloutServiceWorker",
    "service_reward",
]
