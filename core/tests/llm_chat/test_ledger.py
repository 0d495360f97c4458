"""Segments only grow; what was recorded once stays, and everything fits together."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl.api import ModelFault
from prorl.llm.chat.ledger import Ledger
from prorl.llm.rendering.source import Source
from prorl.wire import SamplingParams, ToolCall, VersionSpan
from prorl.wire.certificate import certify
from prorl.wire.soundness import check_trajectory

IDS = st.lists(st.integers(0, 200_000), max_size=6)
RENDERED = st.tuples(st.sampled_from(["rendered", "segment", "branch"]), IDS, st.integers(0, 9))
SAMPLED = st.tuples(st.just("sampled"), IDS, st.sampled_from("abc"), st.integers(0, 9))
OPS = st.lists(RENDERED | SAMPLED, max_size=12)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def sampled(kit, stream, ids, version="v1", **more):
    generation = kit.generation(ids, **more)
    where = {"backend": "http://e", "policy_version": version}
    stream.append_sampled(generation, after=stream.ids, text="t", ms=1.0, **where)


@settings(deadline=None)
@given(OPS)
def test_earlier_ids_never_change(kit, ops):
    """Whatever several streams append side by side."""
    ledger = Ledger()
    streams = [ledger.open([1], text="p", source=Source(model="m"))]
    past = []
    for op in ops:
        past.append((ledger.trajectory(), msgspec.json.encode(ledger.trajectory())))
        stream = streams[op[-1] % len(streams)]
        if op[0] == "rendered":
            stream.append_rendered(op[1], role="tool", text="t")
        elif op[0] == "segment":
            streams.append(ledger.open(op[1], text="t", origin="compaction", parent=stream))
        elif op[0] == "branch":
            streams.append(ledger.branch(stream, min(len(op[1]), len(stream))))
        else:
            sampled(kit, stream, op[1], op[2])
    end = ledger.trajectory()
    assert end.certificate == certify(end), "turn by turn and all at once give the same chain"
    assert [stream.ids for stream in streams] == [segment.tokens for segment in end.segments]
    for snapshot, encoded in past:
        assert check_trajectory(snapshot) == [], "every moment of it is certified"
        assert msgspec.json.encode(snapshot) == encoded, "a snapshot changed afterwards"
        assert end.turns[: len(snapshot.turns)] == snapshot.turns
        for old, new in zip(snapshot.segments, end.segments, strict=False):
            size = len(old.tokens)
            assert new.tokens[:size] == old.tokens
            assert new.logprobs[:size] == old.logprobs
            assert new.loss_mask[:size] == old.loss_mask
    for index, segment in enumerate(end.segments):
        assert len(segment.tokens) == len(segment.logprobs) == len(segment.loss_mask)
        assert sum(span.count for span in segment.versions) == len(segment.tokens)
        assert all(a.version != b.version for a, b in zip(segment.versions, segment.versions[1:], strict=False))
        versions = [span.version for span in segment.versions for _ in range(span.count)]
        for logprob, mask, version in zip(segment.logprobs, segment.loss_mask, versions, strict=True):
            assert (mask == 1) == (logprob is not None) == (version != "")
        if segment.shared:
            assert segment.tokens[: segment.shared] == end.segments[segment.parent].tokens[: segment.shared]
            assert not any(segment.loss_mask[: segment.shared]), "what a branch shares is trained on in its parent"
        turns = [turn for turn in end.turns if turn.segment == index]
        assert [turn.start for turn in turns[1:]] == [turn.end for turn in turns[:-1]], "turns tile the segment"
        if turns:
            assert (turns[0].start, turns[-1].end) == (segment.shared, len(segment.tokens))


def test_the_papers_views(kit):
    ledger = Ledger()
    stream = ledger.open([1, 2], text="p")
    sampled(kit, stream, [3, 4])
    stream.append_rendered([5], role="tool", text="o", ms=3.0)
    trajectory = ledger.trajectory()
    _, reply, tool = trajectory.turns
    assert (trajectory.input_ids(reply), trajectory.output_ids(reply)) == ([1, 2], [3, 4])
    assert trajectory.input_ids(tool) == [1, 2, 3, 4]
    assert tool.ms == 3.0


def test_two_versions_in_one_reply(kit):
    ledger = Ledger()
    stream = ledger.open([1], text="p")
    sampled(kit, stream, [2, 3, 4], weight_spans=[VersionSpan("a", 1), VersionSpan("b", 2)])
    sampled(kit, stream, [5], "b")
    assert ledger.trajectory().segments[0].versions == [VersionSpan("", 1), VersionSpan("a", 1), VersionSpan("b", 3)]


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": [-1.0]},
        {"logprobs": [-1.0, math.nan]},
        {"logprobs": [-math.inf, -1.0]},
        {"weight_spans": [VersionSpan("a", 1)]},
        {"weight_spans": [VersionSpan("a", 3), VersionSpan("b", -1)]},
        {"logprobs": [-1.0, 0.5]},
        {"token_ids": [2, -3]},
        {"token_ids": [2, 2**32]},
    ],
)
def test_what_does_not_fit_is_not_appended(kit, change):
    ledger = Ledger()
    stream = ledger.open([1], text="p")
    before = ledger.trajectory()
    generation = msgspec.structs.replace(kit.generation([2, 3]), **change)
    with pytest.raises(ModelFault) as caught:
        stream.append_sampled(generation, after=[1], backend="e", policy_version="v", text="")
    assert caught.value.code == "bad_reply"
    assert ledger.trajectory() == before


def test_a_reply_to_another_prompt_is_not_appended(kit):
    """Two callers of one chat, for instance: the stream has grown since one of them asked."""
    ledger = Ledger()
    stream = ledger.open([1], text="p")
    before = ledger.trajectory()
    for after in ([], [2], [1, 2]):
        with pytest.raises(ModelFault) as caught:
            stream.append_sampled(kit.generation([3]), after=after, backend="e", policy_version="v", text="")
        assert caught.value.code == "wrong_prompt"
    assert ledger.trajectory() == before


@pytest.mark.parametrize("value", ["\ud800", nested(980), object()], ids=["surrogate", "nested", "object"])
def test_tool_calls_that_json_cannot_hold(kit, value):
    stream = Ledger().open([1], text="p")
    calls = [ToolCall(name="x", arguments={"text": value})]
    with pytest.raises(ModelFault) as caught:
        stream.append_sampled(
            kit.generation([3]), after=[1], backend="e", policy_version="v", text="", tool_calls=calls
        )
    assert caught.value.code == "bad_reply"


def test_a_turn_names_what_bent_its_distribution(kit):
    ledger = Ledger()
    stream = ledger.open([1], text="p")
    for sampling in (SamplingParams(max_tokens=7, seed=1), SamplingParams(temperature=0.5, top_k=20)):
        stream.append_sampled(
            kit.generation([3]), after=stream.ids, backend="e", policy_version="v", text="", sampling=sampling
        )
    assert [turn.sampling for turn in ledger.trajectory().turns] == [{}, {}, {"temperature": 0.5, "top_k": 20.0}]


def test_ids_are_a_copy():
    stream = Ledger().open([1], text="p")
    stream.ids.append(9)
    assert stream.ids == [1]


def test_segments_name_where_they_come_from(kit):
    ledger = Ledger()
    main = ledger.open([1, 2], text="p", source=Source(model="a"))
    sampled(kit, main, [3])
    ledger.open([1, 9], text="p", source=Source(model="b"), origin="compaction", parent=main)
    twin = ledger.branch(main, 3)
    sampled(kit, twin, [4])
    ledger.open([5], text="p", agent="critic")
    trajectory = ledger.trajectory()
    assert [(s.origin, s.parent, s.shared, s.agent) for s in trajectory.segments] == [
        ("open", None, 0, ""),
        ("compaction", 0, 0, ""),
        ("branch", 0, 3, ""),
        ("open", None, 0, "critic"),
    ]
    assert trajectory.segments[2].loss_mask == [0, 0, 0, 1], "the shared reply is trained on once"
    assert (trajectory.model, trajectory.notes) == ("a", ["segment 1: model b"])
    assert trajectory.trainable
    ledger.not_trainable("no ids")
    assert not ledger.trajectory().trainable


def test_a_payload_linear_in_length(kit):
    def size(turns):
        ledger = Ledger()
        stream = ledger.open([1] * 10, text="p" * 10)
        for _ in range(turns):
            stream.append_sampled(
                kit.generation([2] * 10),
                after=stream.ids,
                backend="e",
                policy_version="v",
                text="t" * 10,
                tool_calls=[ToolCall(name="x")],
            )
            stream.append_rendered([3] * 10, role="tool", text="o" * 10)
        return len(msgspec.json.encode(ledger.trajectory()))

    assert size(400) - size(200) == pytest.approx(size(200) - size(0), rel=0.05)
