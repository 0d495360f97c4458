"""Trajectories of every shape as answers, held to what NeMo RL asks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nemo_rl_contract import check_answer, check_result

from prorl.client import SampleRules, Tried, Untrainable, samples_of
from prorl.wire.certificate import certify
from prorl.wire.results import RolloutResult
from prorl.wire.trajectory import Segment, ToolCall, Trajectory, Turn, VersionSpan
from prorl_nemo_rl.actor import result_of
from prorl_nemo_rl.answer import answer


def segment(mask, *, first=10, **more):
    """Tokens count up from ``first``; each has its own logprob."""
    return Segment(
        tokens=[first + place for place in range(len(mask))],
        logprobs=[-0.5 - place if bit else None for place, bit in enumerate(mask)],
        loss_mask=list(mask),
        versions=[VersionSpan("nemo-rl" if bit else "", 1) for bit in mask],
        **more,
    )


def turn(role, start, end, *, number=0, text="", **more):
    finish = {"finish_reason": "stop", "policy_version": "nemo-rl", "backend": "x"} if role == "assistant" else {}
    return Turn(role=role, segment=number, start=start, end=end, text=text, **{**finish, **more})


def finished(segments, turns, **more):
    trajectory = Trajectory(segments=segments, turns=turns, model="policy", logprob_kind="processed")
    trajectory.certificate = certify(trajectory)
    return RolloutResult(
        **{"job_id": "j", "status": "completed", "stage": "eval", "handler": "h", "reward": 0.5, **more},
        trajectory=trajectory,
    )


def answered(result):
    rules = SampleRules(agents=("",))
    try:
        tried = Tried(result=result, samples=samples_of(result, rules))
    except Untrainable as error:
        tried = Tried(result=result, untrainable=error)
    return answer({"responses_create_params": {"input": []}}, tried)


def of(result):
    """The answer, and NeMo RL's form of it; both keep the contract."""
    found = answered(result)
    assert check_answer(found) == []
    kept = result_of(msgspec.json.decode(msgspec.json.encode(found)))
    assert check_result(kept) == []
    return found, kept["message_log"]


def trained(found):
    return [item for item in found["response"]["output"] if "generation_token_ids" in item]


def test_observations_stand_in_the_next_prompt():
    turns = [turn("prompt", 0, 2), turn("assistant", 2, 4), turn("user", 4, 5), turn("assistant", 5, 6)]
    found, log = of(finished([segment([0, 0, 1, 1, 0, 1])], turns))
    first, second = trained(found)
    assert (first["prompt_token_ids"], first["generation_token_ids"]) == ([10, 11], [12, 13])
    assert (second["prompt_token_ids"], second["generation_log_probs"]) == ([10, 11, 12, 13, 14], [-5.5])
    assert [message["token_ids"] for message in log] == [[10, 11], [12, 13], [14], [15]]
    assert (found["reward"], found["tokens_dropped"]) == (0.5, 0)


def test_replies_with_nothing_between_are_one_generation():
    turns = [turn("prompt", 0, 1), turn("assistant", 1, 3), turn("assistant", 3, 4), turn("assistant", 4, 5)]
    found, log = of(finished([segment([0, 1, 1, 1, 1])], turns))
    assert [item["generation_token_ids"] for item in trained(found)] == [[11, 12, 13, 14]]
    assert [message["role"] for message in log] == ["user", "assistant"]


def test_the_main_agents_longest_segment_is_trained_on_and_the_rest_counted():
    segments = [
        segment([0, 1]),
        segment([0, 1, 1], first=20, origin="compaction", parent=0),
        segment([0, 1, 1, 1], first=40, agent="helper"),
    ]
    turns = [turn("prompt", 0, 1), turn("assistant", 1, 2)]
    turns += [turn("prompt", 0, 1, number=1), turn("assistant", 1, 3, number=1)]
    turns += [turn("prompt", 0, 1, number=2), turn("assistant", 1, 4, number=2)]
    found, log = of(finished(segments, turns))
    assert [message["token_ids"] for message in log] == [[20], [21, 22]]
    assert (found["segments_dropped"], found["tokens_dropped"]) == (2, 4)


@given(st.lists(st.tuples(st.sampled_from(["assistant", "tool", "user"]), st.integers(0, 4)), max_size=12))
def test_every_token_keeps_its_place(parts):
    """Whatever the turns: the log is the stream up to its last sampled token, and the mask says whose."""
    turns, mask = [turn("prompt", 0, 2)], [0, 0]
    for role, length in parts:
        turns.append(turn(role, len(mask), len(mask) + length))
        mask += [int(role == "assistant")] * length
    found, log = of(finished([segment(mask)], turns))
    if 1 not in mask:
        assert found["instance_config"] == {"mask_sample": True}
        return
    end = len(mask) - mask[::-1].index(1)
    assert [token for message in log for token in message["token_ids"]] == list(range(10, 10 + end))
    assert [int(message["role"] == "assistant") for message in log for _ in message["token_ids"]] == mask[:end]
    sampled = [logprob for message in log for logprob in message.get("generation_logprobs", [])]
    assert sampled == [-0.5 - place for place, bit in enumerate(mask) if bit]
    assert found["instance_config"] == {"mask_sample": False}


def test_a_call_that_was_understood_is_a_call_and_thinking_is_apart():
    text = '<think>\nhm</think>\n<tool_call>\n{"name": "look"}\n</tool_call>'
    turns = [turn("prompt", 0, 1), turn("assistant", 1, 2, text=text, tool_calls=[ToolCall(name="look")])]
    turns += [turn("tool", 2, 3, text="nothing"), turn("assistant", 3, 4, text="<think>what")]
    found, log = of(finished([segment([0, 1, 0, 1])], turns))
    items = found["response"]["output"]
    assert [item["type"] for item in items] == [
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert (items[0]["summary"][0]["text"], items[2]["call_id"]) == ("\nhm", items[3]["call_id"])
    flags = [(each["is_invalid_tool_call"], each["has_malformed_thinking"]) for each in log[1::2]]
    assert flags == [(False, False), (False, True)]


@pytest.mark.parametrize("text", ["<tool_call>{", "{}</tool_call>", "<function_call>f(", "f()</function_call>"])
def test_a_call_that_was_not_understood_shows(text):
    broken = [ToolCall(name="", error="no JSON")]
    turns = [turn("prompt", 0, 1), turn("assistant", 1, 2, text=text, tool_calls=broken)]
    _, log = of(finished([segment([0, 1])], turns))
    assert log[1]["is_invalid_tool_call"] is True


def changed():
    result = finished([segment([0, 1])], [turn("prompt", 0, 1), turn("assistant", 1, 2)], reward=1.0)
    result.trajectory.segments[0].tokens[1] += 1
    return result


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (finished([segment([0, 1])], [turn("prompt", 0, 1), turn("assistant", 1, 2)], mask_sample=True), "is masked"),
        (finished([], [], mask_sample=True, reward=1.0), "is masked"),
        (finished([], []), "sampled no token"),
        (finished([segment([0, 1], agent="helper")], [turn("prompt", 0, 1), turn("assistant", 1, 2)]), "no token"),
        (changed(), "were certified"),
    ],
    ids=["masked", "masked, empty", "empty", "a helper's only", "changed on its way"],
)
def test_what_must_not_be_trained_on_cannot_be(result, why):
    """NeMo RL tells groups by their prompts' tokens: these are a group of their own, all of one reward."""
    found, log = of(result)
    assert (found["instance_config"], found["reward"], found["masked"]) == ({"mask_sample": True}, 0.0, 1.0)
    assert why in found["rollout"]["masked_because"]
    assert [message["role"] for message in log] == ["user"]  # the actor's own form has no loss at all
    assert log[0]["token_ids"] == [0, 0]
    (stand_in,) = trained(answered(result))
    assert (stand_in["prompt_token_ids"], stand_in["generation_token_ids"]) == ([0], [0])
    assert found["tokens_dropped"] == sum(sum(each.loss_mask) for each in result.trajectory.segments)


def test_what_a_masked_rollout_said_can_still_be_read():
    turns = [turn("prompt", 0, 1), turn("assistant", 1, 2, text="Hm."), turn("user", 2, 3, text="Go on.")]
    found, _ = of(finished([segment([0, 1, 0])], turns, mask_sample=True))
    texts = [item["content"] for item in found["response"]["output"]]
    assert (texts[0][0]["text"], texts[1]) == ("Hm.", "Go on.")


def test_the_contract_notices():
    turns = [turn("prompt", 0, 1), turn("assistant", 1, 2), turn("user", 2, 3), turn("assistant", 3, 4)]
    result = finished([segment([0, 1, 0, 1])], turns)
    for spoil, complaint in [
        (lambda items: items[1]["prompt_token_ids"].pop(0), "does not go on"),
        (lambda items: items[0]["generation_token_ids"].clear(), "empty generation"),
        (lambda items: items[0]["generation_log_probs"].append(0.0), "1 tokens and 2 logprobs"),
        (lambda items: items[0].update(generation_log_probs=[float("nan")]), "no finite number"),
        (lambda items: [item.pop("generation_token_ids") for item in items], "gives the whole batch up"),
        (lambda items: items[0].pop("prompt_token_ids"), "lacks prompt_token_ids"),
    ]:
        found = answered(result)
        spoil(trained(found))
        assert any(complaint in each for each in check_answer(found)), complaint
    for spoil, complaint in [
        (lambda kept: kept["message_log"].pop(1), "turn it is"),
        (lambda kept: kept["message_log"][0].update(token_ids=[]), "is empty"),
        (lambda kept: kept["message_log"][0].update(generation_logprobs=[0.0]), "would be trained on"),
        (lambda kept: kept.update(input_message_log=[]), "first message"),
        (lambda kept: kept["full_result"].update(reward=float("nan")), "the reward is nan"),
        (lambda kept: kept["full_result"].update(extra={1, 2}), "no JSON"),
        (lambda kept: kept["message_log"].clear(), "log is empty"),
    ]:
        kept = result_of(answered(result))
        kept["message_log"] = list(kept["message_log"])
        spoil(kept)
        assert any(complaint in each for each in check_result(kept)), complaint


def test_nothing_of_a_server_is_imported(run_python):
    loaded = run_python("import sys, prorl_nemo_rl.actor; print(*sys.modules)").split()
    assert not {"litestar", "tokenizers", "jinja2", "psutil", "torch", "ray", "nemo_gym"} & set(loaded)
