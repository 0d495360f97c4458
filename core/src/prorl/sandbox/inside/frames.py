"""The frames both ends speak: ``u32 length, u8 type, u32 request, payload``, all big-endian.

The length is that of the payload and is checked against the cap before anything is allocated. Control payloads are
JSON objects, ``OUTPUT`` and ``INPUT`` are raw bytes. Per action: one ``START``, any number of ``OUTPUT``, one ``END``.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

PROTOCOL = 1
MAX_PAYLOAD = 1 << 20
HEADER = struct.Struct("!IBI")

HELLO = 1  # host: settings of the sandbox; server: what it is. Request 0, first frame of either side
START = 2  # host: begin an action
CANCEL = 3  # host: end an action and everything it started
OUTPUT = 4  # server: what an action printed; an empty one says that it takes input now
END = 5  # server: the one typed end of an action
BYE = 6  # host: end everything and exit
FAULT = 7  # server: why it gives up; the last frame it sends
INPUT = 8  # host: bytes for an action that takes some; an empty one ends them

TYPES = frozenset((HELLO, START, CANCEL, OUTPUT, END, BYE, FAULT, INPUT))


class ProtocolError(Exception):
    """The peer sent what no honest peer sends. There is no way back: close."""


class Frame(NamedTuple):
    type: int
    request: int
    payload: bytes


def check_header(header: bytes) -> tuple[int, int, int]:
    """``(length, type, request)``; raises :class:`ProtocolError`."""
    length, kind, request = HEADER.unpack(header)
    if length > MAX_PAYLOAD:
        raise ProtocolError(f"a frame of {length} bytes is over the cap of {MAX_PAYLOAD}")
    if kind not in TYPES:
        raise ProtocolError(f"unknown frame type {kind}")
    return length, kind, request


def pack(kind: int, request: int, payload: bytes = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(f"a payload of {len(payload)} bytes is over the cap of {MAX_PAYLOAD}")
    return HEADER.pack(len(payload), kind, request) + payload


def pack_json(kind: int, request: int, value: dict[str, Any]) -> bytes:
    return pack(kind, request, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def unpack_json(payload: bytes) -> dict[str, Any]:
    """Raises :class:`ProtocolError` for anything but a JSON object."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError("expected a JSON object")
    return value


class FrameReader:
    """Cuts a byte stream into frames. Holds at most one frame and what one read brought."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are now complete; raises :class:`ProtocolError` at the first impossible header."""
        self._buffer += data
        frames = []
        at = 0
        while len(self._buffer) - at >= HEADER.size:
            length, kind, request = check_header(bytes(self._buffer[at : at + HEADER.size]))
            end = at + HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(kind, request, bytes(self._buffer[at + HEADER.size : end])))
            at = end
        del self._buffer[:at]
        return frames
