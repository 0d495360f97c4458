"""What an agent changed, as ``git apply`` takes it: bytes, for a file may be in any encoding, or binary."""

from __future__ import annotations

import msgspec


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """``data`` is empty when nothing was changed. ``files`` are the paths in it. ``problem`` says why there is none
    (too large, the working tree is gone): nothing is cut off, for half a patch is another patch.
    """

    data: bytes = b""
    files: tuple[str, ...] = ()
    problem: str | None = None
