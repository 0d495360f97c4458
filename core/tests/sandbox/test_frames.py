"""Both ends of the frames against peers that lie: no crash, no hang, no memory beyond one frame."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import Limits, SandboxFault, SandboxSpec
from prorl.sandbox.channel import Channel, Token
from prorl.sandbox.inside import frames, tree
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


# -- who is who


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


async def test_a_server_that_does_not_know_its_half_is_an_impostor() -> None:
    channel, theirs = await channel_against(HELLO)
    with pytest.raises(SandboxFault, match="not the action server") as caught:
        await channel.hello({}, 30, Token())
    assert caught.value.code == "protocol"
    await channel.close()
    theirs.close()


@pytest.mark.parametrize("version", [0, 2, -1, "1", None, 1.5, True, [1]])
async def test_versions_must_agree(server, version) -> None:
    answers, code, _ = await server(
        frames.pack(frames.HELLO, 0, msgspec.json.encode({"protocol": version})), greet=False
    )
    if version is not True:  # which is 1
        assert [answer.type for answer in answers] == [frames.FAULT]
        assert b"speaks protocol 1" in answers[0].payload
    assert code == 0
    channel, theirs = await channel_against(
        frames.pack(frames.HELLO, 0, msgspec.json.encode({"protocol": version, "python": "3", "uid": 1}))
    )
    with pytest.raises(SandboxFault) as caught:
        await channel.hello({}, 30)
    assert caught.value.code == "protocol"
    await channel.close()
    theirs.close()


# -- whole conversations

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("start"), st.integers(1, 6), st.sampled_from(["bash", "ipython?", "read", "transfer", "edit"])
        ),
        st.tuples(st.just("cancel"), st.integers(0, 7), st.none()),
        st.tuples(st.just("input"), st.integers(0, 7), st.binary(max_size=40)),
        st.tuples(st.just("output"), st.integers(0, 7), st.none()),
        st.tuples(st.just("hello"), st.just(0), st.none()),
    ),
    max_size=14,
)
STARTS = {
    "bash": {"command": "echo out; sleep 0.05"},
    "ipython?": {},
    "read": {"path": "/etc/hostname"},
    "transfer": {"direction": "unpack", "path": "x", "max_bytes": 1000},
    "edit": {"command": "view", "path": "."},
}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_any_conversation_gives_each_action_one_end(server, steps) -> None:
    """Whatever order starts, cancels, input and nonsense come in: at most one end each, and nothing after a fault."""
    sent, chunks = [], []
    for what, request, more in steps:
        if what == "start":
            start = {"action": more, "arguments": STARTS[more], "timeout": 20, "stream": True}
            chunks.append(frames.pack(frames.START, request, msgspec.json.encode(start)))
            sent.append(request)
        else:
            kind = {"cancel": frames.CANCEL, "input": frames.INPUT, "output": frames.OUTPUT, "hello": frames.HELLO}[
                what
            ]
            chunks.append(frames.pack(kind, request, more or b""))
    answers, code, errors = asyncio.run(server(*chunks))
    assert (code, errors) == (0, "")
    ends = [frame.request for frame in answers if frame.type == frames.END]
    for request in set(ends):
        assert ends.count(request) <= sent.count(request)
    faults = [index for index, frame in enumerate(answers) if frame.type == frames.FAULT]
    assert faults in ([], [len(answers) - 1])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.sampled_from(["end", "output", "empty", "end other", "output other", "fault", "start", "input"]), max_size=6
    )
)
def test_a_channel_gives_each_call_one_answer(steps) -> None:
    made = {
        "end": (frames.END, 1, b'{"outcome": "ok"}'),
        "output": (frames.OUTPUT, 1, b"x"),
        "empty": (frames.OUTPUT, 1, b""),
        "end other": (frames.END, 9, b'{"outcome": "ok"}'),
        "output other": (frames.OUTPUT, 9, b"x"),
        "fault": (frames.FAULT, 0, b'{"message": "no"}'),
        "start": (frames.START, 1, b"{}"),
        "input": (frames.INPUT, 1, b""),
    }

    async def main() -> None:
        channel, theirs = await channel_against(HELLO)
        await channel.hello({}, 30)
        got: list[bytes] = []

        async def take(data: bytes) -> None:
            got.append(data)

        action = asyncio.create_task(channel.act("bash", {"command": "x"}, timeout=30, on_output=take))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().sock_sendall(theirs, b"".join(frames.pack(*made[step]) for step in steps))
        theirs.shutdown(socket.SHUT_WR)
        before = []
        for step in steps:
            if step not in ("output", "empty"):
                break
            before.append(step)
        try:
            result = await action
            assert steps[len(before)] == "end"
            assert result.outcome == "ok"
        except SandboxFault:
            assert len(before) == len(steps) or steps[len(before)] != "end"
        assert got == [b"x"] * before.count("output")
        await channel.close()
        theirs.close()

    asyncio.run(main())


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


async def test_one_sandbox_cannot_reach_another(bubblewrap) -> None:
    """No socket in the file system, none of the other's processes to be seen, and no descriptor that leads to it."""
    ours, theirs = [await bubblewrap.start(SandboxSpec()) for _ in range(2)]
    try:
        await theirs.act("bash", {"command": "sleep 4242 & echo secret > /tmp/secret"}, timeout=60)
        look = (
            "find / -path /proc -prune -o -type s -print 2>/dev/null;"
            "grep -c '@\\|/' /proc/net/unix; cat /tmp/secret 2>&1;"
            "grep -l 4242 /proc/[0-9]*/cmdline 2>/dev/null; ls /proc | grep -c '^[0-9]'"
        )
        seen = (await ours.act("bash", {"command": look}, timeout=60)).output.split("\n")
        assert seen[0] == "0", seen
        assert "No such file" in seen[1]
        assert int(seen[2]) < 12, seen
        steal = (
            "ls -l /proc/1/fd 2>&1 | grep -c socket; for n in $(seq 0 9); do echo x >/proc/1/fd/$n; done 2>/dev/null"
        )
        assert (await ours.act("bash", {"command": steal}, timeout=60)).output.startswith("0\n")
        assert (await theirs.act("bash", {"command": "echo on"}, timeout=60)).output == "on\n"
        assert (await ours.act("bash", {"command": "echo on"}, timeout=60)).output == "on\n"
    finally:
        await ours.stop(grace=0)
        await theirs.stop(grace=0)
