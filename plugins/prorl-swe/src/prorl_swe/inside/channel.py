"""From a process of tests to the supervisor: one packet per event, behind a secret word and a number.

Packets, so that whatever else is written to the descriptor spoils nothing that is ours, and is seen.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006, UP045
import json
import os
import socket
import typing

Event = typing.Dict[str, typing.Any]
PACKET = 60000


def pair() -> typing.Tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def give(channel: socket.socket, text: bytes) -> None:
    """A long text in pieces, ended by an empty line."""
    for start in range(0, len(text), PACKET):
        channel.sendall(text[start : start + PACKET])
    channel.sendall(b"\n")


def take(channel: socket.socket) -> bytes:
    text = b""
    while True:
        piece = channel.recv(PACKET + 1)
        if piece == b"\n":
            return text
        if not piece:
            raise EOFError("the supervisor is gone")
        text += piece


Send = typing.Callable[[Event], None]


def sender(fd: int, word: str) -> Send:
    """What it needs it takes now, before anybody could have put something else in its place."""
    mark, ours, number = word.encode() + b" ", os.getpid(), 0
    getpid, write, dumps = os.getpid, os.write, json.JSONEncoder().encode

    def send(event: Event) -> None:
        nonlocal number
        if getpid() == ours:  # and no child that was forked amidst the tests
            number += 1
            write(fd, mark + dumps(dict(event, n=number)).encode("ascii"))

    return send


def opened(packet: bytes, word: str, number: int) -> typing.Optional[Event]:
    """The event in a packet, if it is the one with this number; ``None`` for what our reporter did not send."""
    mark = word.encode() + b" "
    if not packet.startswith(mark):
        return None
    try:
        event = json.loads(packet[len(mark) :].decode("ascii"))
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.get("n") == number else None
