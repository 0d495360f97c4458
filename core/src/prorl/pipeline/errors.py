"""Why the pipeline says no to a request, before there is a job.

::

    ProrlError
    ├── NotAccepting     the server was stopped, or has as many jobs as it may
    ├── NoBackend        no LLM server, and the request (or the settings) said not to wait for one
    ├── HandlerBroken    the handler could not be made
    ├── JobConflict      the same job_id with another body
    └── UnknownJob       no such job, or no longer
"""

from __future__ import annotations

from prorl.api.errors import ProrlError


class NotAccepting(ProrlError):  # noqa: N818 - named as the request's fate, like Fault
    """``retry_s`` is when to try again, where that makes sense."""

    def __init__(self, message: str, *, retry_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class NoBackend(ProrlError):  # noqa: N818
    pass


class HandlerBroken(ProrlError):  # noqa: N818
    """The handler's factory raised when the server started."""

    def __init__(self, handler: str, reason: str) -> None:
        super().__init__(f"the handler {handler!r} could not be made: {reason}; repair its plugin, restart the server")
        self.handler = handler
        self.reason = reason


class JobConflict(ProrlError):  # noqa: N818
    """``digest`` is that of the body which the id belongs to."""

    def __init__(self, job_id: str, digest: str) -> None:
        super().__init__(
            f"job_id {job_id!r} belongs to a job with another body (digest {digest}): send that body to attach to it, "
            "or take a new id"
        )
        self.job_id = job_id
        self.digest = digest


class UnknownJob(ProrlError):  # noqa: N818
    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}: it was never accepted here, or its result has been dropped by now")
        self.job_id = job_id
