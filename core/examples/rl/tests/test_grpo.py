"""The loss, on a small model and by hand."""

from __future__ import annotations

import pytest
import torch

from prorl.client import Sample
from prorl_lookup import grpo, tiny
from prorl_lookup.lessons import lookup


@pytest.fixture
def model():
    return tiny.new_model(tiny.build_tokenizer([lookup.LESSON]), seed=0).eval()


def sample(prompt: list[int], response: list[int], mask: list[int], reward: float = 0.0) -> Sample:
    return Sample(
        job_id="job",
        group_id="group",
        segment=0,
        agent="",
        prompt_ids=prompt,
        response_ids=response,
        mask=mask,
        logprobs=[0.0] * len(response),
        versions=["v"] * len(response),
        reward=reward,
    )


def test_advantages_are_within_their_group():
    assert grpo.advantages([[1.0, 0.0], [1.0, 1.0], [0.5, 1.0, 0.0]]) == [0.5, -0.5, 0.0, 0.0, 0.0, 0.5, -0.5]


def test_logprobs_do_not_depend_on_the_padding(model):
    short, long = sample([5, 6], [7, 8], [1, 1]), sample([5, 6, 7, 8, 9], [1, 2, 3, 4], [1, 0, 0, 1])
    with torch.no_grad():
        both, _, mask = grpo.logprobs_of(model, [short, long], pad_id=0)
        for row, one in enumerate((short, long)):
            alone, _, _ = grpo.logprobs_of(model, [one], pad_id=0)
            assert torch.allclose(both[row, : alone.shape[1]], alone[0], atol=1e-5)
            ids = torch.tensor([one.prompt_ids + one.response_ids])
            whole = model(input_ids=ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
            assert torch.allclose(alone[0], whole[len(one.prompt_ids) - 1 :], atol=1e-5)
    assert mask.tolist() == [[1, 1, 0, 0], [1, 0, 0, 1]]


def test_a_step_makes_the_better_reply_likelier_and_leaves_what_is_masked(model):
    good, bad = sample([5, 6], [7, 8, 9], [1, 0, 1]), sample([5, 6], [9, 8, 7], [1, 0, 1])
    with torch.no_grad():
        before, _, _ = grpo.logprobs_of(model, [good, bad], pad_id=0)
    for one, logprobs in zip((good, bad), before.tolist(), strict=True):
        one.logprobs = [logprob * bit for logprob, bit in zip(logprobs, one.mask, strict=True)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = grpo.grpo_step(model, optimizer, [good, bad], [0.5, -0.5], pad_id=0)
    assert report.ratio < 1e-6
    assert report.gap < 1e-6
    assert report.tokens == 4
    with torch.no_grad():
        after, _, _ = grpo.logprobs_of(model, [good, bad], pad_id=0)
    assert after[0, 0] > before[0, 0]
    assert after[1, 0] < before[1, 0]


def test_a_wrong_logprob_is_seen(model):
    one = sample([5, 6], [7, 8], [1, 1])
    with torch.no_grad():
        own, _, _ = grpo.logprobs_of(model, [one], pad_id=0)
    one.logprobs = own[0].tolist()
    one.logprobs[1] += 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    report = grpo.grpo_step(model, optimizer, [one], [1.0], pad_id=0)
    assert report.gap == pytest.approx(0.01, abs=1e-4)
    assert report.ratio == pytest.approx(0.01, abs=1e-3)
