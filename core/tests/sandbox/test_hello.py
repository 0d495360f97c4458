"""Both ends show what they know before they are believed: the protocol's version, and each its half of a token."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import msgspec
import pytest

from prorl.api import Limits, SandboxFault
from prorl.sandbox.channel import Channel, Token
from prorl.sandbox.inside import frames
from prorl.sandbox.local import BOOT


async def served_with_a_token(tmp_path, hello_token: str | None, **settings):
    """A real server that knows a token, greeted with another one; what it answers."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    token = Token()
    token_fd = token.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", BOOT, str(theirs.fileno()), str(token_fd)),
        pass_fds=[theirs.fileno(), token_fd],
        start_new_session=True,
    )
    theirs.close()
    os.close(token_fd)
    channel = await Channel.open(ours)
    hello = {
        "protocol": frames.PROTOCOL,
        "uid": None,
        "limits": msgspec.to_builtins(Limits(processes=None)),
        "env": {"PATH": "/usr/bin:/bin"},
        "workdir": str(tmp_path),
        "python": sys.executable,
        **settings,
    }
    shown = Token()
    shown.host, shown.server = hello_token if hello_token is not None else token.host, token.server
    try:
        return await channel.hello(hello, 60, shown)
    finally:
        await channel.close()
        await process.wait()


async def test_the_token_opens(tmp_path) -> None:
    hello = await served_with_a_token(tmp_path, None)
    assert (hello.protocol, hello.server) == (frames.PROTOCOL, "python")


@pytest.mark.parametrize("shown", ["", "0" * 32, "0" * 31, "\u20ac", "x" * 100_000])
async def test_who_does_not_know_the_token_is_turned_away(tmp_path, shown: str) -> None:
    with pytest.raises(SandboxFault, match="not authenticated"):
        await served_with_a_token(tmp_path, shown)


async def test_a_server_that_does_not_know_its_half_is_an_impostor(channel_against) -> None:
    channel, theirs = await channel_against()
    with pytest.raises(SandboxFault, match="not the action server") as caught:
        await channel.hello({}, 30, Token())
    assert caught.value.code == "protocol"
    await channel.close()
    theirs.close()


async def test_a_silent_server_is_a_fault_in_time(channel_against) -> None:
    channel, theirs = await channel_against(greet=False)
    with pytest.raises(SandboxFault, match="no hello"):
        await channel.hello({}, 0.05)
    await channel.close()
    theirs.close()


async def test_another_protocol_is_refused(server) -> None:
    answers, _, _ = await server(frames.pack(frames.HELLO, 0, b'{"protocol": 2}'), greet=False)
    assert answers[0].type == frames.FAULT
    assert b"protocol 1" in answers[0].payload


@pytest.mark.parametrize("version", [0, 2, -1, "1", None, 1.5, True, [1]])
async def test_versions_must_agree(channel_against, server, version) -> None:
    answers, code, _ = await server(
        frames.pack(frames.HELLO, 0, msgspec.json.encode({"protocol": version})), greet=False
    )
    if version is not True:  # which is 1
        assert [answer.type for answer in answers] == [frames.FAULT]
        assert b"speaks protocol 1" in answers[0].payload
    assert code == 0
    channel, theirs = await channel_against(
        frames.pack(frames.HELLO, 0, msgspec.json.encode({"protocol": version, "python": "3", "uid": 1})), greet=False
    )
    with pytest.raises(SandboxFault) as caught:
        await channel.hello({}, 30)
    assert caught.value.code == "protocol"
    await channel.close()
    theirs.close()
