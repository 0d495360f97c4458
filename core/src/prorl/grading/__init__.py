"""Graders that may never return, run out of memory or crash: in processes that can be killed.

:class:`GraderPool` is all a handler needs; ``prorl.grading.worker`` is the program on the other side.
"""

from prorl.grading.pool import GraderPool

__all__ = ["GraderPool"]
