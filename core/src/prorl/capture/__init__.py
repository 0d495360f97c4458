"""The capturing proxy: agents that we did not write, served from the job's own token ledger.

::

    HTTP body ─ apis/ ─▶ Asked ─ trace ─▶ which stream, from where ─ door ─▶ chat ─▶ Answer ─ apis/ ─▶ HTTP body, or SSE

An agent sends its whole conversation with every call. It is matched against what this job has heard and said before
(:mod:`prorl.capture.trace`), so that only what is new is rendered: no token is ever encoded again.
"""

from prorl.capture.doors import Doors

__all__ = ["Doors"]
