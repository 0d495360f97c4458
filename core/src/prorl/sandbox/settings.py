"""The ``[sandbox]`` table of prorl.toml."""

from __future__ import annotations

import msgspec

from prorl.api.names import RuntimeName
from prorl.sandbox.images.settings import ImageSettings


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sandboxes are started.

    ``runtime=None`` takes the best one that works here. When the server runs as root, sandboxes run as a uid of their
    own out of ``first_uid ... first_uid + uids - 1``, so that process limits count per sandbox and nothing inside is
    uid 0; an ordinary user's sandboxes run as that user. ``python`` is the interpreter inside (default: the server's,
    with its packages; an image is run with its own python3). ``bwrap`` and ``apptainer`` are the binaries to use
    (default: found on PATH).

    ``scratch`` is where sandboxes keep files while they live (default: where temporary files go; a local disk, please).
    ``state`` is where it is written down what was started, so that a later server can end what a killed one left
    (default: ``$XDG_STATE_HOME/prorl`` or ``~/.local/state/prorl``). ``addresses`` is the folder of loopback address
    leases, one for all users of the machine. ``images`` is the table ``[sandbox.images]``.
    """

    runtime: RuntimeName | None = None
    bwrap: str | None = None
    apptainer: str | None = None
    python: str | None = None
    first_uid: int = 0x70000000
    uids: int = 1 << 20
    start_timeout: float = 30.0
    scratch: str | None = None
    state: str | None = None
    addresses: str = "/tmp/prorl-addresses"  # noqa: S108
    images: ImageSettings = ImageSettings()
