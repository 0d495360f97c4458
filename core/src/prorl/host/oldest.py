"""What goes from a cache that grows: what was used longest ago, and nothing that its owner will not let go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class Kept(Protocol):
    """Something in a cache: its ``size`` in bytes, and when it was last ``used`` (since 1970)."""

    @property
    def size(self) -> int: ...

    @property
    def used(self) -> float: ...


K = TypeVar("K", bound=Kept)


def remove_oldest(
    kept: Iterable[K], remove: Callable[[K], bool], *, max_bytes: int | None, max_age: float | None
) -> tuple[K, ...]:
    """Remove what was not used for ``max_age`` seconds, and then until the rest fits into ``max_bytes``. ``kept``: what
    was used last first. ``remove`` says whether it could be removed; what is in use cannot. Returns what was.
    """
    size, removed = 0, []
    for one in kept:
        too_old = max_age is not None and time.time() - one.used > max_age
        too_much = max_bytes is not None and size + one.size > max_bytes
        if (too_old or too_much) and remove(one):
            removed.append(one)
        else:
            size += one.size
    return tuple(removed)
