"""Whatever is changed in a trajectory after it was certified is found, and named.

Every forgery is tried twice: as somebody would who edits a file, and by somebody who computes the chain anew, where
only what must hold in every trajectory can tell.
"""

import struct

import msgspec
import pytest

from prorl.wire import Certificate, RolloutResult, ToolCall, Trajectory, VersionSpan
from prorl.wire.certificate import certify, encode
from prorl.wire.soundness import check_chain, check_result, check_trajectory


def codes(findings):
    return [finding.code for finding in findings]


def test_it_is_sound_also_after_a_journey(trajectory):
    assert check_trajectory(trajectory) == []
    for wire in (msgspec.json, msgspec.msgpack):
        assert check_trajectory(wire.decode(wire.encode(trajectory), type=Trajectory)) == []


def move_a_token(t):
    t.segments[0].tokens[4] = 6


def another_encoding(t):
    """The same text in other tokens: one more than there were."""
    segment, turn = t.segments[3], t.turns[-1]
    segment.tokens[-1:], segment.logprobs[-1:], segment.loss_mask[-1:] = [10, 11], [-0.5, -0.5], [1, 1]
    segment.versions[-1] = VersionSpan("1", 2)
    turn.end += 1


def shift_a_logprob(t):
    t.segments[0].logprobs[3] -= 1e-12


def swap_texts(t):
    t.turns[0].text, t.turns[1].text = t.turns[1].text, t.turns[0].text


def change_arguments(t):
    t.turns[1].tool_calls.append(ToolCall(name="x", arguments={"a": 1}))


def another_finish(t):
    t.turns[1].finish_reason = "length"


def another_backend(t):
    t.turns[1].backend = "http://other"


def another_temperature(t):
    t.turns[1].sampling = {"temperature": 0.5}


def another_time(t):
    t.turns[2].ms = 2.0


def another_count_of_cached_tokens(t):
    t.turns[1].cached_tokens = 2


def flip_a_version(t):
    t.segments[0].versions[1] = VersionSpan("2", 1)


def another_agent(t):
    t.segments[1].agent = "critic"


def another_origin(t):
    t.segments[3].origin = "rewrite"


def as_user(t):
    t.turns[2].role = "user"


BY_THE_CHAIN = [
    move_a_token,
    another_encoding,
    shift_a_logprob,
    swap_texts,
    change_arguments,
    another_finish,
    another_backend,
    another_temperature,
    another_time,
    another_count_of_cached_tokens,
    flip_a_version,
    another_agent,
    another_origin,
    as_user,
]


@pytest.mark.parametrize("forge", BY_THE_CHAIN, ids=lambda forge: forge.__name__)
def test_the_chain_tells(trajectory, forge):
    """These are plausible in themselves."""
    forge(trajectory)
    assert codes(check_chain(trajectory)) == ["broken_link"]
    trajectory.certificate = certify(trajectory)
    assert codes(check_trajectory(trajectory)) in ([], ["bad_branch"]), "no more can be told from the file alone"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"tokenizer": None},
        {"template": "t#3"},
        {"logprob_kind": "raw"},
        {"trainable": False},
        {"notes": []},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_seal_tells(trajectory, change):
    assert codes(check_trajectory(msgspec.structs.replace(trajectory, **change))) == ["broken_seal"]


def drop_the_empty_branch(t):
    """Nothing was appended there, so no link is about it."""
    t.segments[2].tokens, t.segments[2].shared = [1], 1
    t.segments[2].logprobs, t.segments[2].loss_mask, t.segments[2].versions = [None], [0], [VersionSpan("", 1)]


def test_a_segment_without_turns_is_sealed(trajectory):
    drop_the_empty_branch(trajectory)
    assert codes(check_trajectory(trajectory)) == ["broken_seal"]


def test_the_first_wrong_turn_is_named(trajectory):
    trajectory.turns[3].text = "?"
    (finding,) = check_trajectory(trajectory)
    assert (finding.code, finding.segment, finding.turn) == ("broken_link", trajectory.turns[3].segment, 3)
    assert str(finding).startswith("segment 1, turn 3: ")


def test_without_a_certificate(trajectory):
    bare = msgspec.structs.replace(trajectory, certificate=None)
    assert codes(check_trajectory(bare)) == ["no_certificate"]
    assert check_trajectory(Trajectory()) == [], "a rollout that ended before it began has nothing to certify"
    unknown = msgspec.structs.replace(trajectory, certificate=Certificate(scheme="prorl-chain-9", links=[], seal=""))
    assert codes(check_trajectory(unknown)) == ["unknown_scheme"]


def test_a_chain_that_is_cut_or_longer(trajectory):
    for links in (trajectory.certificate.links[:-1], [*trajectory.certificate.links, "00"], []):
        cut = msgspec.structs.replace(trajectory.certificate, links=links)
        assert codes(check_trajectory(msgspec.structs.replace(trajectory, certificate=cut))) == ["broken_link"]


def test_a_seal_that_is_no_hash(trajectory):
    certificate = msgspec.structs.replace(trajectory.certificate, seal="nonsense", signature="00")
    result = RolloutResult(
        job_id="j",
        status="completed",
        stage="eval",
        handler="h",
        trajectory=msgspec.structs.replace(trajectory, certificate=certificate),
    )
    assert codes(check_result(result, key=b"k" * 16)) == ["broken_seal", "wrong_signature"]


def changed(value):
    match value:
        case None:
            return ["x", 0.5, 1]
        case bool():
            return [not value]
        case int() | float():
            return [value + 1, -1, 10**12]
        case str():
            return [value + "x", ""]
        case list():
            return [value[1:], [*value, *value[-1:]], value[::-1]]
        case _:
            return [{**value, "x": 1}, {}]


def variants(value, path=()):
    """``(path, other value)`` for every place of a document."""
    for other in changed(value):
        if other != value:
            yield path, other
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from variants(value[key], (*path, key))


def test_any_change_to_any_place_of_the_document_is_found(trajectory):
    """Every number, text and list of the JSON, each changed in several ways; what is no trajectory is none."""
    trajectory.turns[1].tool_calls.append(ToolCall(name="x", arguments={"a": [1, 2.5, None, True], "b": {"c": "d"}}))
    trajectory.turns[1].sampling = {"temperature": 0.5}
    trajectory.certificate = certify(trajectory)
    document = msgspec.json.decode(msgspec.json.encode(trajectory))
    tried = 0
    for path, other in variants(document):
        forged = msgspec.json.decode(msgspec.json.encode(document))
        place = forged
        for key in path[:-1]:
            place = place[key]
        if not path:
            continue
        place[path[-1]] = other
        try:
            read = msgspec.convert(forged, Trajectory)
        except msgspec.ValidationError:
            continue
        if read != trajectory:  # unknown fields are passed over
            assert check_trajectory(read), (path, other)
            tried += 1
    assert tried > 400


def test_every_field_is_covered(trajectory):
    """A field that is added to the wire needs a place in the recipe, or a reason here why it has none."""
    assert set(Trajectory.__struct_fields__) - {"segments", "turns", "certificate"} == {
        "model",
        "tokenizer",
        "template",
        "logprob_kind",
        "trainable",
        "notes",
    }, "seal() covers these"
    assert set(type(trajectory.segments[0]).__struct_fields__) == {
        "tokens",
        "logprobs",
        "loss_mask",
        "versions",
        "origin",
        "parent",
        "shared",
        "agent",
    }
    assert set(type(trajectory.turns[0]).__struct_fields__) == {
        "role",
        "segment",
        "start",
        "end",
        "text",
        "tool_calls",
        "finish_reason",
        "backend",
        "policy_version",
        "sampling",
        "cached_tokens",
        "ms",
    }
    assert set(ToolCall.__struct_fields__) == {"name", "arguments", "error"}


def test_one_spelling_per_value():
    value = {"b": [None, True, False, -1, 10**30, 1.0], "a": "é", "": b"\x00"}
    one = struct.pack("<d", 1.0)
    assert encode(value) == b"ms0:b1:\x00s1:as2:\xc3\xa9s1:blntfi-1ei1" + b"0" * 30 + b"ed" + one + b"ee"
    assert encode([1]) != encode([1.0]) != encode([True])
    with pytest.raises(TypeError):
        encode({1, 2})
