"""What a call to the server can end in besides its answer. A rollout that went wrong is not among them: it's a result.

::

    ClientError
    ├── ServiceError         the server said no (problem+json): ask differently, or later
    └── ServerUnreachable    nobody answered for as long as the client was told to keep trying
"""

from __future__ import annotations

from prorl.wire.service import Problem


class ClientError(Exception):
    """Base of what this client raises on purpose."""


class ServiceError(ClientError):
    """The server's problem details, typed. ``retry_after_s`` is set when it says that a later try may work."""

    def __init__(self, problem: Problem, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{problem.title} ({problem.status}): {problem.detail}")
        self.problem = problem
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return self.problem.status


class ServerUnreachable(ClientError):  # noqa: N818 - says what happened, like ServiceError's problem does
    """No contact with ``url``; ``cause`` is the last try's error."""

    def __init__(self, url: str, cause: str, *, tried_s: float) -> None:
        super().__init__(f"no rollout server answers at {url} (tried for {tried_s:.0f} s): {cause}; is it running?")
        self.url = url
        self.cause = cause
