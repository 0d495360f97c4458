"""LLM servers as a trainer registers them."""

from __future__ import annotations

from typing import Annotated

import msgspec


class BackendSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /add_llm_server``.

    ``url`` is the server's root (``http://host:port``). ``dialect`` is found by asking the server when not given.
    ``tokenizer`` is a local folder or hub name; without it the engine's own tokenizer endpoint is used.
    ``policy_version`` names the weights that are loaded; without it the pool counts versions itself (one more after
    every ``/clear_llm_server``). ``max_context`` bounds the context in tokens, and must be given where the server does
    not say its own. ``api_key_env`` names a variable in the environment of *this* service, never a key itself: it is
    sent to the server as a bearer token. Its name begins with ``PRORL_LLM_KEY``, so that no other secret of the service
    can be sent anywhere.
    """

    url: Annotated[
        str, msgspec.Meta(pattern=r"^https?://[^\s]+$(?!\n)", max_length=2000, examples=["http://host:port"])
    ]
    dialect: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    policy_version: Annotated[str, msgspec.Meta(min_length=1)] | None = None  # tokens of no version are rendered ones
    max_context: Annotated[int, msgspec.Meta(ge=1)] | None = None
    api_key_env: Annotated[str, msgspec.Meta(pattern=r"^PRORL_LLM_KEY[A-Z0-9_]{0,100}$(?!\n)")] | None = None


class ClearRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /clear_llm_server``: ``urls`` removes only those; empty removes all and begins a new policy version."""

    urls: tuple[str, ...] = ()


class BackendStatus(msgspec.Struct, kw_only=True):
    """A backend as ``GET /status`` shows it.

    ``assigned``: tasks given to it since it joined. ``in_flight``: calls now. ``reason``: why it is set aside, when it
    is not ``healthy``.
    """

    url: str
    dialect: str
    model: str
    policy_version: str
    healthy: bool
    assigned: int
    in_flight: int
    calls: int
    failures: int
    reason: str | None = None


class PoolStatus(msgspec.Struct, kw_only=True):
    policy_version: str
    paused: bool
    waiting: int
    backends: list[BackendStatus]

    @property
    def trouble(self) -> str | None:
        """Why no model can be called now and what to do about it, or ``None``."""
        if self.paused:
            return "the LLM pool is paused for an update of the weights"
        if any(backend.healthy for backend in self.backends):
            return None
        reasons = [f"{backend.url}: {backend.reason or 'does not answer'}" for backend in self.backends]
        if not reasons:
            return "no LLM server is registered: start one that the settings name, or POST /add_llm_server"
        return f"no LLM server works ({'; '.join(reasons)}): start it again, or POST /add_llm_server"
