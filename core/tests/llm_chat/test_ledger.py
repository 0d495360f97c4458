"""Segments only grow; what was recorded once stays, and everything fits together."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl.api import ModelFault
from prorl.llm.ledger import Ledger, merge
from prorl.wire import ToolCall, Trajectory, VersionSpan

IDS = st.lists(st.integers(0, 200_000), max_size=6)
RENDERED = st.tuples(st.sampled_from(["rendered", "segment"]), IDS)
SAMPLED = st.tuples(st.just("sampled"), IDS, st.sampled_from("abc"))
OPS = st.lists(RENDERED | SAMPLED, max_size=12)


def sampled(kit, ledger, ids, version="v1", **more):
    ledger.append_sampled(kit.generation(ids, **more), backend="http://e", policy_version=version, text="t", ms=1.0)


@settings(deadline=None)
@given(OPS)
def test_earlier_ids_never_change(kit, ops):
    ledger = Ledger(model="m")
    ledger.new_segment([1], text="p")
    past = []
    for op in ops:
        past.append((ledger.trajectory(), msgspec.json.encode(ledger.trajectory())))
        if op[0] == "rendered":
            ledger.append_rendered(op[1], role="tool", text="t")
        elif op[0] == "segment":
            ledger.new_segment(op[1], text="t", note="why")
        else:
            sampled(kit, ledger, op[1], op[2])
    end = ledger.trajectory()
    assert ledger.ids == end.segments[-1].tokens
    for snapshot, encoded in past:
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
        turns = [turn for turn in end.turns if turn.segment == index]
        assert [turn.start for turn in turns[1:]] == [turn.end for turn in turns[:-1]], "turns tile the segment"
        assert (turns[0].start, turns[-1].end) == (0, len(segment.tokens))


def test_the_papers_views(kit):
    ledger = Ledger()
    ledger.new_segment([1, 2], text="p")
    sampled(kit, ledger, [3, 4])
    ledger.append_rendered([5], role="tool", text="o", ms=3.0)
    trajectory = ledger.trajectory()
    _, reply, tool = trajectory.turns
    assert (trajectory.input_ids(reply), trajectory.output_ids(reply)) == ([1, 2], [3, 4])
    assert trajectory.input_ids(tool) == [1, 2, 3, 4]
    assert tool.ms == 3.0


def test_two_versions_in_one_reply(kit):
    ledger = Ledger()
    ledger.new_segment([1], text="p")
    sampled(kit, ledger, [2, 3, 4], weight_spans=[VersionSpan("a", 1), VersionSpan("b", 2)])
    sampled(kit, ledger, [5], "b")
    assert ledger.trajectory().segments[0].versions == [VersionSpan("", 1), VersionSpan("a", 1), VersionSpan("b", 3)]


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": [-1.0]},
        {"logprobs": [-1.0, math.nan]},
        {"logprobs": [-math.inf, -1.0]},
        {"weight_spans": [VersionSpan("a", 1)]},
        {"weight_spans": [VersionSpan("a", 3), VersionSpan("b", -1)]},
    ],
)
def test_what_does_not_fit_is_not_appended(kit, change):
    ledger = Ledger()
    ledger.new_segment([1], text="p")
    before = ledger.trajectory()
    generation = msgspec.structs.replace(kit.generation([2, 3]), **change)
    with pytest.raises(ModelFault) as caught:
        ledger.append_sampled(generation, backend="e", policy_version="v", text="")
    assert caught.value.code == "bad_reply"
    assert ledger.trajectory() == before


def test_a_reply_needs_a_prompt(kit):
    with pytest.raises(ModelFault):
        sampled(kit, Ledger(), [1])


def test_ids_are_a_copy(kit):
    ledger = Ledger()
    ledger.new_segment([1], text="p")
    ledger.ids.append(9)
    assert ledger.ids == [1]


def test_merge(kit):
    parts = []
    for model in ("a", "a", "b"):
        ledger = Ledger(model=model)
        ledger.new_segment([1], text="p")
        sampled(kit, ledger, [2])
        ledger.note("n")
        parts.append(ledger.trajectory())
    merged = merge(parts)
    assert [segment.tokens for segment in merged.segments] == [[1, 2]] * 3
    assert [turn.segment for turn in merged.turns] == [0, 0, 1, 1, 2, 2]
    assert merged.model == "a"
    assert merged.notes == ["n", "n", "n", "segments from 2 on: model b"]
    assert [turn.segment for turn in parts[1].turns] == [0, 0], "the parts stay as they are"
    assert merge([]) == Trajectory()


def test_a_payload_linear_in_length(kit):
    def size(turns):
        ledger = Ledger()
        ledger.new_segment([1] * 10, text="p" * 10)
        for _ in range(turns):
            ledger.append_sampled(
                kit.generation([2] * 10),
                backend="e",
                policy_version="v",
                text="t" * 10,
                tool_calls=[ToolCall(name="x")],
            )
            ledger.append_rendered([3] * 10, role="tool", text="o" * 10)
        return len(msgspec.json.encode(ledger.trajectory()))

    assert size(400) - size(200) == pytest.approx(size(200) - size(0), rel=0.05)
