"""The door for agents that we did not write: their model calls, captured on the job's own token streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from prorl.api.errors import Fault


class Capture(Protocol):
    """One job's door. ``url`` speaks OpenAI's chat completions and responses and Anthropic's messages, to whoever has
    ``key``. ``calls`` counts the replies that were sampled, or are being; ``fault`` is what met the latest model call,
    if it failed.
    """

    @property
    def url(self) -> str:
        """``http://127.0.0.1:8089/proxy/<job>``; OpenAI's clients take it with ``/v1`` behind it."""
        ...

    @property
    def key(self) -> str: ...

    @property
    def calls(self) -> int: ...

    @property
    def fault(self) -> Fault | None: ...

    def environment(self, origin: str | None = None) -> dict[str, str]:
        """The variables that SDKs and harnesses read (``OPENAI_BASE_URL``, ``ANTHROPIC_API_KEY``, ...). ``origin``
        (``http://127.0.0.1:4000``) replaces the server's own, where the agent reaches it through a relay."""
        ...

    async def socket(self) -> Path:
        """A Unix socket, alone in a folder, that leads to this job's door and nowhere else; any user may connect who
        can reach the folder. Made when first asked for, gone with the job."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Calls, segments, retries and ignored fields, as counts for a result's metrics."""
        ...

    def refusals(self) -> list[str]:
        """The latest requests that were refused, and why: for whoever wonders why nothing was captured."""
        ...

    async def exhausted(self) -> None:
        """Returns once a call beyond ``max_calls`` was asked for, and refused."""
        ...

    async def close(self) -> None:
        """No more calls; those under way end. Harmless twice; the job's end does it too."""
        ...
