"""The ``[sandbox]`` table of prorl.toml."""

from __future__ import annotations

import msgspec


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sandboxes are started.

    ``runtime=None`` takes the best one that works here. When the server runs as root, sandboxes run as a uid of their
    own out of ``first_uid ... first_uid + uids - 1``, so that process limits count per sandbox and nothing inside is
    uid 0; an ordinary user's sandboxes run as that user. ``python`` is the interpreter inside (default: the server's,
    with its packages), ``bwrap`` the binary to use, ``scratch`` where the local runtime keeps its folders.
    """

    runtime: str | None = None
    bwrap: str | None = None
    python: str | None = None
    first_uid: int = 0x70000000
    uids: int = 1 << 20
    start_timeout: float = 30.0
    scratch: str | None = None
