"""Both ends of the frames against peers that lie: no crash, no hang, no memory beyond one frame."""

from __future__ import annotations

import asyncio
import socket
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import Limits, SandboxFault
from prorl.sandbox.channel import Channel
from prorl.sandbox.inside import frames
from prorl.sandbox.inside.frames import Frame, FrameReader, ProtocolError
from prorl.sandbox.local import BOOT

# A machine under load is no reason to fail.
PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck))
FIELDS = ["action", "arguments", "timeout", "outcome", "output", "data", "error", "seconds", "protocol", "x"]
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8)
NESTED = st.lists(LEAVES, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), LEAVES, max_size=5)
VALUES = LEAVES | st.dictionaries(st.sampled_from(FIELDS), LEAVES | NESTED, max_size=6)
JUNK = st.one_of(
    st.binary(max_size=300),
    st.builds(frames.pack, st.sampled_from(sorted(frames.TYPES)),
              st.integers(0, 5), st.binary(max_size=60)),
    st.builds(
        lambda kind, request, value: frames.pack(kind, request, msgspec.json.encode(value)),
        st.sampled_from(sorted(frames.TYPES)),
        st.integers(0, 5),
        VALUES,
    ),
    st.builds(lambda length, kind: frames.HEADER.pack(length, kind, 1), st.integers(0, 2**32 - 1), st.integers(0, 255)),
)  # fmt: skip
FRAMES = st.lists(
    st.builds(Frame, st.sampled_from(sorted(frames.TYPES)), st.integers(0, 2**32 - 1), st.binary(max_size=50)),
    max_size=8,
)


@PATIENT
@given(FRAMES, st.data())
def test_frames_survive_any_cutting(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(frames.pack(*frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[start:end])
    assert received == sent


@PATIENT
@given(st.lists(JUNK, max_size=10))
def test_the_reader_takes_anything_or_refuses_it(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            for frame in reader.feed(chunk):
                assert frame.type in frames.TYPES
                assert len(frame.payload) <= frames.MAX_PAYLOAD
    except ProtocolError:
        pass


@pytest.mark.parametrize("length", [frames.MAX_PAYLOAD + 1, 2**32 - 1])
def test_the_cap_is_checked_on_the_header_alone(length: int) -> None:
    with pytest.raises(ProtocolError, match="over the cap"):
        FrameReader().feed(frames.HEADER.pack(length, frames.START, 1))


@pytest.mark.parametrize("payload", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000, b'"x"'])
def test_only_objects_are_control(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.unpack_json(payload)


HELLO = frames.pack(frames.HELLO, 0, b'{"protocol": 1, "python": "3.11.7", "uid": 1}')


async def channel_against(sent: bytes) -> tuple[Channel, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(theirs, sent)
    return await Channel.open(ours), theirs


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(JUNK, max_size=6), st.booleans())
def test_a_hostile_sandbox_is_a_fault_or_an_answer(chunks: list[bytes], greet: bool) -> None:
    async def main() -> None:
        channel, theirs = await channel_against((HELLO if greet else b"") + b"".join(chunks))
        theirs.shutdown(socket.SHUT_WR)
        try:
            await channel.hello({}, 30)
            result = await channel.act("bash", {"command": "x"}, timeout=30)
            assert result.outcome in ("ok", "timeout", "cancelled", "error")
        except SandboxFault:
            pass
        finally:
            await channel.close()
            theirs.close()

    asyncio.run(main())


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
async def test_what_no_honest_server_sends_ends_the_sandbox(frame: bytes) -> None:
    channel, theirs = await channel_against(HELLO)
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


async def test_a_silent_server_is_a_fault_in_time() -> None:
    channel, theirs = await channel_against(b"")
    with pytest.raises(SandboxFault, match="no hello"):
        await channel.hello({}, 0.05)
    await channel.close()
    theirs.close()


async def test_a_second_end_is_a_breach() -> None:
    end = frames.pack(frames.END, 1, b'{"outcome": "ok"}')
    channel, theirs = await channel_against(HELLO)
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


@pytest.fixture
def server(tmp_path):
    """The action server as a plain process; returns what it answers until it closes, and how it exited."""

    async def talk(*chunks: bytes, greet: bool = True) -> tuple[list[Frame], int, str]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        hello = {
            "protocol": 1,
            "uid": None,
            "limits": msgspec.to_builtins(Limits(processes=None)),
            "env": {"PATH": "/usr/bin:/bin"},
            "workdir": str(tmp_path),
            "python": sys.executable,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", BOOT, str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        if greet:
            writer.write(frames.pack(frames.HELLO, 0, msgspec.json.encode(hello)))
        for chunk in chunks:
            writer.write(chunk)
        writer.write_eof()
        parser, answers = FrameReader(), []
        async with asyncio.timeout(60):
            try:
                while data := await reader.read(65536):
                    answers += parser.feed(data)
            except ConnectionResetError:
                pass  # it closed with something of ours unread
            _, errors = await process.communicate()
        writer.close()
        assert process.returncode is not None
        return answers, process.returncode, errors.decode()

    return talk


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(JUNK, max_size=6), st.booleans())
def test_the_server_survives_a_hostile_host(server, chunks: list[bytes], greet: bool) -> None:
    answers, code, errors = asyncio.run(server(*chunks, greet=greet))
    assert (code, errors) == (0, "")
    assert all(frame.type in (frames.HELLO, frames.END, frames.FAULT) for frame in answers)
    ends = [frame.request for frame in answers if frame.type == frames.END]
    assert len(ends) <= len(chunks)


async def test_the_server_says_why_it_gives_up(server) -> None:
    answers, code, _ = await server(frames.HEADER.pack(2**31, frames.START, 1))
    assert answers[-1].type == frames.FAULT
    assert b"over the cap" in answers[-1].payload
    assert code == 0


async def test_another_protocol_is_refused(server) -> None:
    answers, _, _ = await server(frames.pack(frames.HELLO, 0, b'{"protocol": 2}'), greet=False)
    assert answers[0].type == frames.FAULT
    assert b"protocol 1" in answers[0].payload
