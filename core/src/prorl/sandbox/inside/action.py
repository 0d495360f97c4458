"""An action under way: what it printed so far, and its one end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import tree
from .capture import Capture
from .spill import Spill

DEFAULT_OUTPUT_CHARS = 30_000
MAX_OUTPUT_CHARS = 120_000  # its JSON, escapes and all, fits a frame


class BadArgumentsError(Exception):
    """The caller's arguments make no sense; the message says which."""


def argument(arguments: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """An argument of a known type; raises :class:`BadArgumentsError`."""
    value = arguments.get(name, default)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise BadArgumentsError(f"{name!r} must be {' or '.join(known.__name__ for known in kinds)}")
    return value


class Action:
    """One request of the host. ``finish`` counts once: whatever comes later is too late and is dropped."""

    def __init__(
        self,
        request: int,
        arguments: dict[str, Any],
        timeout: float,
        *,
        on_output: Callable[[int, bytes], None] | None,
        on_end: Callable[[int, dict[str, Any]], None],
        spill: Spill | None = None,
    ) -> None:
        chars = argument(arguments, "output_chars", int, DEFAULT_OUTPUT_CHARS)
        self.request = request
        self.arguments = arguments
        self.timeout = timeout
        self.done = False
        self.begin()
        self._capture = Capture(max(0, min(chars, MAX_OUTPUT_CHARS)), spill)
        self._on_output = on_output
        self._on_end = on_end

    def begin(self) -> None:
        """Its time runs from now on, and what starts after this moment may be its doing."""
        self.since = tree.Moment.now()
        self._began = time.monotonic()

    def emit(self, data: bytes) -> None:
        if data and not self.done:
            self._capture.add(data)
            if self._on_output:
                self._on_output(self.request, data)

    def stream(self, data: bytes) -> None:
        """Bytes that are for the host as they are, and no text to be kept."""
        if data and not self.done and self._on_output:
            self._on_output(self.request, data)

    def welcome(self) -> None:
        """Have the host send its input: an empty piece of output says so."""
        if self._on_output:
            self._on_output(self.request, b"")

    def finish(self, outcome: str, data: dict[str, Any] | None = None, error: str | None = None) -> None:
        if self.done:
            return
        self.done = True
        captured = self._capture.finish()
        end: dict[str, Any] = {
            "outcome": outcome,
            "output": captured.text,
            "data": data or {},
            "error": error,
            "seconds": time.monotonic() - self._began,
            "truncated_bytes": captured.left_out,
            "output_file": captured.file,
            "output_file_complete": captured.complete,
        }
        self._on_end(self.request, end)
