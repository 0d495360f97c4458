"""Output capped: the head and the tail are kept, what lies between is counted, and all of it goes to a file.

Memory is bounded by the cap whatever the command prints; bytes that are no UTF-8 become U+FFFD.
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

from .spill import Spill, SpillFile


class Captured(NamedTuple):
    """``left_out`` in bytes; ``file`` holds the full output (its beginning, if not ``complete``) once it was cut."""

    text: str
    left_out: int
    file: str | None
    complete: bool


class Capture:
    def __init__(self, limit: int, spill: Spill | None = None) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._limit = limit
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head = ""
        self._tail: list[str] = []
        self._tail_length = 0
        self._chars = 0
        self._bytes = 0
        self._spill = spill
        self._raw: list[bytes] = []  # until the cap is passed
        self._file: SpillFile | None = None

    def add(self, data: bytes, final: bool = False) -> None:
        self._bytes += len(data)
        text = self._decoder.decode(data, final)
        self._chars += len(text)
        self._keep(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text:
            self._tail.append(text)
            self._tail_length += len(text)
            if self._tail_length > 4 * self._tail_limit + 65536:
                self._squeeze()

    def _keep(self, data: bytes) -> None:
        if self._file:
            self._file.write(data)
        elif self._spill:
            self._raw.append(data)
            if self._chars > self._limit:
                self._file = self._spill.open(self._raw)
                self._spill = None
                self._raw = []

    def _squeeze(self) -> str:
        tail = "".join(self._tail)
        tail = tail[max(0, len(tail) - self._tail_limit) :]
        self._tail = [tail]
        self._tail_length = len(tail)
        return tail

    def finish(self) -> Captured:
        self.add(b"", final=True)
        tail = self._squeeze()
        path, complete = None, False
        if self._file:
            path, complete = self._file.path, self._file.complete
            self._file.close()
            self._file = None
        left_out = self._chars - len(self._head) - len(tail)
        if left_out == 0:
            return Captured(self._head + tail, 0, None, False)
        kept = len(self._head.encode()) + len(tail.encode())
        note = f"\n[... {left_out} characters left out ...]\n"
        return Captured(self._head + note + tail, max(1, self._bytes - kept), path, complete)
