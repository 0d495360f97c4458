"""Training samples: exactly what was sampled, or a reason why not."""

import msgspec
import pytest

from prorl.api import Generation
from prorl.client import SampleRules, Untrainable, pad, samples_of, stand_in
from prorl.llm.chat.ledger import Ledger
from prorl.wire import RolloutError, RolloutResult, VersionSpan


def grow(stream, ids, version="v1", **more):
    generation = Generation(token_ids=ids, logprobs=[-0.1 * i for i in ids], finish="stop", **more)
    stream.append_sampled(generation, backend="http://e", policy_version=version, text="t", after=stream.ids)


def rollout(**changes):
    """Two replies with a tool's words between them, a branch, a sub-agent, an observation that nobody answered."""
    ledger = Ledger()
    main = ledger.open([1, 2], text="p")
    grow(main, [3, 4])
    main.append_rendered([5], role="tool", text="o")
    grow(main, [6, 7], weight_spans=[VersionSpan("v1", 1), VersionSpan("v2", 1)])
    main.append_rendered([8], role="tool", text="o")
    grow(ledger.branch(main, 5), [9])
    grow(ledger.open([1], text="p", agent="critic"), [2])
    ledger.open([1, 1], text="p", agent="mute")
    result = RolloutResult(
        job_id="j",
        group_id="g",
        status="completed",
        stage="eval",
        handler="h",
        reward=0.5,
        trajectory=ledger.trajectory(),
    )
    return msgspec.structs.replace(result, **changes)


def test_segments_become_samples():
    main, branch, critic = samples_of(rollout())
    assert (main.prompt_ids, main.response_ids, main.mask) == ([1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 1, 1])
    assert main.logprobs == pytest.approx([-0.3, -0.4, 0.0, -0.6, -0.7])
    assert main.versions == ["v1", "v1", "", "v1", "v2"]
    assert (branch.prompt_ids, branch.response_ids) == ([1, 2, 3, 4, 5], [9]), "what is shared is trained on once"
    assert (critic.agent, critic.response_ids) == ("critic", [2])
    assert {sample.reward for sample in (main, branch, critic)} == {0.5}
    assert (main.job_id, main.group_id, main.cut) == ("j", "g", False)


def test_only_some_agents():
    assert [sample.segment for sample in samples_of(rollout(), SampleRules(agents=("",)))] == [0, 1]


def test_a_long_response_is_cut_at_its_end_or_refused():
    cut, *_ = samples_of(rollout(), SampleRules(max_response=3))
    assert (cut.response_ids, cut.mask, cut.cut) == ([3, 4, 5], [1, 1, 0], True)
    with pytest.raises(Untrainable, match="response of 5 tokens") as caught:
        samples_of(rollout(), SampleRules(max_response=4, overlong="refuse"))
    assert caught.value.reason == "response_too_long"


def test_a_long_prompt_is_never_cut():
    with pytest.raises(Untrainable) as caught:
        samples_of(rollout(), SampleRules(max_prompt=4))
    assert caught.value.reason == "prompt_too_long"


def changed(**changes):
    trajectory = rollout().trajectory
    return rollout(trajectory=msgspec.structs.replace(trajectory, **changes))


def shifted():
    result = rollout()
    result.trajectory.segments[0].logprobs[3] = -0.61
    return result


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (rollout(mask_sample=True, error=RolloutError(kind="grader", message="broke")), "masked"),
        (changed(trainable=False), "not_trainable"),
        (changed(certificate=None), "unsound"),
        (shifted(), "unsound"),
        (rollout(trajectory=Ledger().trajectory()), "no_tokens"),
    ],
)
def test_what_must_not_be_trained_on(result, reason):
    with pytest.raises(Untrainable, match=r"^j: ") as caught:
        samples_of(result)
    assert caught.value.reason == reason


def test_a_signature_is_asked_for_where_there_is_a_key():
    with pytest.raises(Untrainable, match="sign"):
        samples_of(rollout(), SampleRules(key=b"k" * 32))


def test_padding():
    samples = samples_of(rollout())
    padded = pad(samples, pad_id=99)
    assert padded.prompts[0] == [99, 99, 99, 1, 2]
    assert padded.responses[1] == [9, 99, 99, 99, 99]
    assert padded.attention[0] == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert padded.mask[1] == [1, 0, 0, 0, 0]
    assert {len(row) for row in padded.logprobs} == {5}
    wide = pad(samples, pad_id=99, prompt=7, response=6)
    assert {len(row) for row in wide.prompts} == {7}
    assert {len(row) for row in wide.attention} == {13}
    with pytest.raises(ValueError, match="do not fit 4"):
        pad(samples, pad_id=99, prompt=4)


def test_a_stand_in_teaches_nothing():
    result = rollout()
    sample = stand_in(result, 7)
    assert (sample.job_id, sample.group_id) == (result.job_id, result.group_id)
    assert (sample.prompt_ids, sample.response_ids, sample.mask) == ([7], [7], [0])
    assert (sample.logprobs, sample.versions, sample.reward) == ([0.0], [""], 0.0), "whatever the rollout's reward was"
    assert pad([sample], pad_id=7).mask == [[0]]
