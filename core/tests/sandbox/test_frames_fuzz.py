"""Anything at all, sent to either end of the frames: an answer or a fault, no crash and no hang."""

from __future__ import annotations

import asyncio
import socket

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import SandboxFault
from prorl.sandbox.inside import frames
from prorl.sandbox.inside.frames import Frame, FrameReader, ProtocolError

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


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(JUNK, max_size=6), st.booleans())
def test_a_hostile_sandbox_is_a_fault_or_an_answer(channel_against, chunks: list[bytes], greet: bool) -> None:
    async def main() -> None:
        channel, theirs = await channel_against(*chunks, greet=greet)
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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(JUNK, max_size=6), st.booleans())
def test_the_server_survives_a_hostile_host(server, chunks: list[bytes], greet: bool) -> None:
    answers, code, errors = asyncio.run(server(*chunks, greet=greet))
    assert (code, errors) == (0, "")
    assert all(frame.type in (frames.HELLO, frames.END, frames.FAULT) for frame in answers)
    ends = [frame.request for frame in answers if frame.type == frames.END]
    assert len(ends) <= len(chunks)


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
def test_a_channel_gives_each_call_one_answer(channel_against, steps) -> None:
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
        channel, theirs = await channel_against()
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
