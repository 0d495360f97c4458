"""What a call to the server can end in besides its answer. A rollout that went wrong is not among them: it's a result.

::

    ClientError
    ├── ServiceError         the server said no (problem+json): ask differently, or later
    ├── NotARolloutServer    something answers at that URL, but no ProRL server
    ├── ServerUnreachable    nobody answered for as long as the client was told to keep trying
    └── BadAddress           the URL is none
"""

from __future__ import annotations

import copyreg
from typing import Any

from prorl.wire.service import Problem


class Portable(Exception):  # noqa: N818 - a base
    """An exception that is the same after pickling, whatever its class is called with: trainers raise across processes,
    and ``Exception`` alone would call the class with its finished message."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ClientError(Portable):
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
        tried = f" (tried for {tried_s:.0f} s)" if tried_s else ""
        super().__init__(f"no rollout server answers at {url}{tried}: {cause.rstrip('.')}; is it running?")
        self.url = url
        self.cause = cause


class NotARolloutServer(ClientError):  # noqa: N818
    """What answers at ``url`` does not speak this API: asking again will not help."""

    def __init__(self, url: str, said: str) -> None:
        super().__init__(
            f"{url} answers, but it is no ProRL rollout server ({said}): is the URL that of `prorl serve`?"
        )
        self.url = url


class BadAddress(ClientError):  # noqa: N818
    def __init__(self, url: str) -> None:
        bare = url.rpartition("://")[2]
        host = bare.partition("/")[0] or "localhost:8089"
        super().__init__(f"{url!r} is not the URL of a server: write {_example(host)}")
        self.url = url


def _example(host: str) -> str:
    name, _, port = host.rpartition(":")
    usable = port.isascii() and port.isdigit() and 0 < int(port) < 65_536 and name != ""
    return f"http://{host}" if usable else f"http://{(name or host).strip(':')}:8089"
