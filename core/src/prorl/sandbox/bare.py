"""What is sent to the action server of an image without Python (inside/bare.sh): shell assignments instead of JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def assignments(values: Mapping[str, Any]) -> bytes:
    """``name=value`` words for ``eval``, for values that have a text; NUL, which no shell can hold, is left out."""
    words = [f"{name}={_word(value)}" for name, value in values.items() if isinstance(value, str | int | float)]
    return " ".join(words).encode("utf-8", "replace")


def hello(settings: Mapping[str, Any]) -> str:
    """The hex of a hello's settings, to be looked for in its JSON."""
    limits = settings.get("limits") or {}
    plain = {
        "protocol": settings.get("protocol"),
        "workdir": settings.get("workdir"),
        "uid": settings.get("uid"),
        "host_token": settings.get("token"),
        "memory_kb": _kb(limits.get("memory_mb")),
        "file_kb": _kb(limits.get("file_mb")),
        "processes": limits.get("processes"),
    }
    exported = [b"export " + assignments({name: value}) for name, value in (settings.get("env") or {}).items()]
    return b"\n".join([assignments(plain), *exported]).hex()


def _word(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return shlex.quote(str(value).replace("\0", ""))


def _kb(megabytes: int | None) -> int | None:
    return megabytes << 10 if megabytes else None
