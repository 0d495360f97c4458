"""Both ends of the frames against peers that lie: no crash, no hang, no memory beyond one frame."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from prorl.api import SandboxFault, SandboxSpec
from prorl.sandbox.inside import frames, tree
from prorl.sandbox.inside.frames import FrameReader, ProtocolError


@pytest.mark.parametrize("length", [frames.MAX_PAYLOAD + 1, 2**32 - 1])
def test_the_cap_is_checked_on_the_header_alone(length: int) -> None:
    with pytest.raises(ProtocolError, match="over the cap"):
        FrameReader().feed(frames.HEADER.pack(length, frames.START, 1))


@pytest.mark.parametrize("payload", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000, b'"x"'])
def test_only_objects_are_control(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.unpack_json(payload)


@pytest.mark.parametrize(
    "frame",
    [
        frames.HEADER.pack(2**32 - 1, frames.END, 1),
        frames.HEADER.pack(0, 99, 1),
        frames.pack(frames.END, 77, b'{"outcome": "ok"}'),
        frames.pack(frames.OUTPUT, 77, b"x"),
        frames.pack(frames.END, 1, b'{"outcome": "splendid"}'),
        frames.pack(frames.END, 1, b'{"outcome": "ok", "output": 5}'),
        frames.pack(frames.END, 1, b'{"outcome": "ok", "data": ' + b"[" * 5000),
        frames.pack(frames.END, 1, b"\xff\xfe"),
        frames.pack(frames.START, 1, b"{}"),
        frames.pack(frames.HELLO, 0, b"{}"),
        frames.pack(frames.FAULT, 0, b'{"message": "I give up"}'),
        frames.pack(frames.FAULT, 0, b"not even that"),
    ],
)
async def test_what_no_honest_server_sends_ends_the_sandbox(channel_against, frame: bytes) -> None:
    channel, theirs = await channel_against()
    await channel.hello({}, 30)
    action = asyncio.create_task(channel.act("bash", {"command": "x"}, timeout=30))
    await asyncio.sleep(0)
    await asyncio.get_running_loop().sock_sendall(theirs, frame)
    with pytest.raises(SandboxFault) as caught:
        await action
    assert caught.value.code == "protocol"
    with pytest.raises(SandboxFault):
        await channel.act("bash", {"command": "x"}, timeout=30)
    await channel.close()
    theirs.close()


async def test_a_second_end_is_a_breach(channel_against) -> None:
    end = frames.pack(frames.END, 1, b'{"outcome": "ok"}')
    channel, theirs = await channel_against()
    await channel.hello({}, 30)
    action = asyncio.create_task(channel.act("bash", {"command": "x"}, timeout=30))
    await asyncio.sleep(0)
    await asyncio.get_running_loop().sock_sendall(theirs, end)
    assert (await action).outcome == "ok"
    await asyncio.get_running_loop().sock_sendall(theirs, end)
    await channel.ended()
    assert channel.lost
    await channel.close()
    theirs.close()


async def test_the_server_says_why_it_gives_up(server) -> None:
    answers, code, _ = await server(frames.HEADER.pack(2**31, frames.START, 1))
    assert answers[-1].type == frames.FAULT
    assert b"over the cap" in answers[-1].payload
    assert code == 0


async def test_a_reader_that_stops_holds_up_the_server_and_costs_no_memory(local) -> None:
    """Neither end grows: 2 GB are to be printed, the watcher takes nothing, and then the rest is cancelled."""
    sandbox = await local.start(SandboxSpec())
    stuck = asyncio.Event()

    async def take(data: bytes) -> None:
        stuck.set()
        await asyncio.Event().wait()

    action = asyncio.create_task(
        sandbox.act("bash", {"command": "head -c 2000000000 /dev/zero"}, timeout=60, on_output=take)
    )
    async with asyncio.timeout(60):
        await stuck.wait()
    mine, servers = tree.read_process(os.getpid()), tree.descendants(os.getpid())
    assert mine
    await asyncio.sleep(1.0)  # time in which an end without back-pressure would take in hundreds of megabytes
    for process in servers:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()  # noqa: ASYNC240
            for line in status.splitlines():
                if line.startswith("VmRSS:"):
                    assert int(line.split()[1]) < 100_000, status
    assert sandbox._channel._reader._buffer.__len__() < 1_000_000
    action.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await action
    await sandbox.stop(grace=0)
