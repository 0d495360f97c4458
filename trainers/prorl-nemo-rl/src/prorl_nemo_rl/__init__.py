"""Rollouts of ProRL Agent for NeMo RL: behind NeMo Gym's ``/run``, or as the environment actor itself.

:mod:`~prorl_nemo_rl.agent` needs nemo-gym, :mod:`~prorl_nemo_rl.actor` what NeMo RL has; the rest needs neither.
"""

from prorl_nemo_rl.rollouts import Rollouts
from prorl_nemo_rl.rows import BadRow
from prorl_nemo_rl.settings import RolloutSettings

__all__ = ["BadRow", "RolloutSettings", "Rollouts"]
