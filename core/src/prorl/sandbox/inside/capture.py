"""Output capped: the head and the tail are kept, what lies between is counted.

Memory is bounded by the cap whatever the command prints; bytes that are no UTF-8 become U+FFFD.
"""

from __future__ import annotations

import codecs


class Capture:
    def __init__(self, limit: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head = ""
        self._tail: list[str] = []
        self._tail_length = 0
        self._chars = 0
        self._bytes = 0

    def add(self, data: bytes, final: bool = False) -> None:
        self._bytes += len(data)
        text = self._decoder.decode(data, final)
        self._chars += len(text)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text:
            self._tail.append(text)
            self._tail_length += len(text)
            if self._tail_length > 4 * self._tail_limit + 65536:
                self._squeeze()

    def _squeeze(self) -> str:
        tail = "".join(self._tail)
        tail = tail[max(0, len(tail) - self._tail_limit) :]
        self._tail = [tail]
        self._tail_length = len(tail)
        return tail

    def finish(self) -> tuple[str, int]:
        """``(text, bytes left out)``."""
        self.add(b"", final=True)
        tail = self._squeeze()
        left_out = self._chars - len(self._head) - len(tail)
        if left_out == 0:
            return self._head + tail, 0
        kept = len(self._head.encode()) + len(tail.encode())
        note = f"\n[... {left_out} characters left out ...]\n"
        return self._head + note + tail, max(1, self._bytes - kept)
