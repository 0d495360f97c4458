"""``RolloutServiceFunc`` by itself and under TRL's real ``GRPOTrainer``, on the real service."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from prorl.client import ServiceError
from prorl.wire import JobRequest
from prorl_trl import NoRollouts, RolloutServiceFunc, service_reward

REQUEST = JobRequest(domain="letters", instance={})


def rows(*instances: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"prompt": f"task {index}", "instance": {"name": f"row-{index}", **instance}}
        for index, instance in enumerate(instances)
    ]


@pytest.fixture
def stub(model_folder):
    """What the function uses of a trainer."""
    return SimpleNamespace(
        state=SimpleNamespace(global_step=3), processing_class=AutoTokenizer.from_pretrained(model_folder)
    )


def func_for(bench, data, **more):
    return RolloutServiceFunc.from_dataset(bench.url, data, REQUEST, **more)


def grpo(bench, model_folder, tmp_path, data, func=None, **changes):
    options = {
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_steps": 1,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "scale_rewards": "none",
        "logging_steps": 1,
    }
    args = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], save_strategy="no", **{**options, **changes}
    )
    return GRPOTrainer(
        model=str(model_folder),
        args=args,
        train_dataset=Dataset.from_list(data),
        reward_funcs=service_reward,
        rollout_func=func or func_for(bench, data, publish=bench.publish),
    )


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_as_many_as_prompts_and_in_their_order(bench, stub):
    data = rows({}, {"turns": 2}, {})
    bench.release("step-3")
    prompts = ["task 1"] * 3 + ["task 0"] * 2 + ["task 1"] * 3
    output = func_for(bench, data)(prompts, stub)
    assert {len(column) for column in output.values()} == {8}
    texts = stub.processing_class.batch_decode(output["prompt_ids"])
    assert [text.split("row-")[1][0] for text in texts] == ["1"] * 3 + ["0"] * 2 + ["1"] * 3
    assert len(set(output["job_id"])) == 8
    groups = [bench.lab.client.job(job_id).group_id for job_id in output["job_id"]]
    assert groups == ["step-3.0"] * 3 + ["step-3.1"] * 2 + ["step-3.2"] * 3
    for prompt, ids, logprobs, mask in zip(
        prompts, output["completion_ids"], output["logprobs"], output["env_mask"], strict=True
    ):
        assert len(ids) == len(logprobs) == len(mask)
        assert (0 in mask) == (prompt == "task 1"), "what stands between two replies is not trained on"
        assert all(logprob == 0.0 for logprob, bit in zip(logprobs, mask, strict=True) if not bit)


def test_a_failed_rollout_is_tried_again(bench, stub):
    data = rows({"broken": 1})
    bench.release("step-3")
    output = func_for(bench, data)(["task 0"] * 4, stub)
    assert output["rollout_trouble"] == [""] * 4
    assert None not in output["rollout_reward"]
    assert sorted(job_id[-2:] for job_id in output["job_id"]) == [".1", ".1", ".1", ".2"]


def test_what_cannot_be_rolled_out_teaches_nothing_and_is_no_copy(bench, stub):
    data = rows({"broken": 3}, {})
    bench.release("step-3")
    output = func_for(bench, data, attempts=1)(["task 0"] * 4 + ["task 1"] * 2, stub)
    assert sorted(output["rollout_trouble"]) == [""] * 3 + ["sandbox/disk"] * 3
    for trouble, reward, mask, ids in zip(
        output["rollout_trouble"], output["rollout_reward"], output["env_mask"], output["completion_ids"], strict=True
    ):
        assert (reward is None) == bool(trouble)
        assert (1 in mask) != bool(trouble)
        assert ids
    assert len(set(output["job_id"])) == 6


def test_when_nothing_can_be_rolled_out_it_says_so(bench, stub):
    bench.release("step-3")
    with pytest.raises(NoRollouts, match=r"sandbox/disk \(4\)"):
        func_for(bench, rows({"broken": 99}))(["task 0"] * 4, stub)


def test_a_job_that_the_service_refuses_is_an_error_and_leaves_nothing_running(bench, stub, until):
    bench.release("step-3")
    bench.lab.engine.hold()

    def request_of(prompt):
        return JobRequest(domain=prompt, instance={"name": "a"})

    with pytest.raises(ServiceError, match="unheard-of"):
        RolloutServiceFunc(bench.url, request_of)(["letters", "letters", "unheard-of"], stub)
    # The engine holds its replies: only a cancel can have ended the others.
    until(lambda: all(stage.busy == stage.queued == 0 for stage in bench.lab.client.status().stages.values()))


def test_tokens_of_another_version_are_not_trained_on(bench, stub):
    data = rows({})

    def forgets(trainer, version):
        bench.lab.engine.weight_version = "step-2"
        bench.release("step-2")

    with pytest.raises(NoRollouts, match="other_version"):
        func_for(bench, data, publish=forgets)(["task 0"] * 2, stub)


def test_two_rows_that_nobody_could_tell_apart(bench):
    with pytest.raises(ValueError, match="different instances"):
        func_for(bench, [{"prompt": "x", "instance": {"name": "a"}}, {"prompt": "x", "instance": {"name": "b"}}])


def test_a_prompt_of_no_row_is_named(bench, stub):
    bench.release("step-3")
    with pytest.raises(KeyError, match="no row has the prompt 'task 7'"):
        func_for(bench, rows({}))(["task 7"], stub)


def test_grpo_learns_and_the_first_ratio_is_one(bench, model_folder, tmp_path):
    data = rows(*[{"turns": 1 + index % 2} for index in range(8)])
    inner = func_for(bench, data, publish=bench.publish)
    gaps, versions = [], []

    def checked(prompts, trainer):
        output = inner(prompts, trainer)
        versions.append(bench.lab.engine.weight_version)
        for prompt, ids, logprobs, mask in zip(
            output["prompt_ids"], output["completion_ids"], output["logprobs"], output["env_mask"], strict=True
        ):
            whole = torch.tensor([prompt + ids])
            with torch.no_grad():
                own = trainer.model(input_ids=whole).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            own = own.gather(-1, torch.tensor(ids)[:, None])[:, 0]
            gaps.append(((own - torch.tensor(logprobs)).abs() * torch.tensor(mask)).max().item())
        return output

    trainer = grpo(bench, model_folder, tmp_path, data, checked, max_steps=24, learning_rate=5e-3)
    trainer.train()
    assert max(gaps) < 1e-4
    assert versions == [f"step-{step}" for step in range(24)]
    rewards = logged(trainer, "reward")
    assert len(rewards) == 24
    assert sum(rewards[-5:]) / 5 - sum(rewards[:5]) / 5 > 0.2, rewards
    assert set(logged(trainer, "rollouts/untrainable")) == {0.0}


def test_grpo_goes_on_without_a_rollout_that_failed(bench, model_folder, tmp_path):
    data = rows({"broken": 2}, {}, {}, {})
    func = func_for(bench, data, publish=bench.publish, attempts=1)
    trainer = grpo(bench, model_folder, tmp_path, data, func)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert logged(trainer, "rollouts/untrainable") == [2 / 16]
    (entry,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert 0 < entry["reward"] < 1
    assert entry["grad_norm"] > 0
    after = dict(trainer.model.named_parameters())
    assert all(torch.isfinite(weight).all() for weight in after.values())
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_group_in_which_everything_failed_moves_nothing(bench, model_folder, tmp_path):
    """All groups but one are lost, and that one's rewards are equal: the step is a step of zero."""
    data = rows({"broken": 99}, {"broken": 99}, {"broken": 99}, {})
    func = func_for(bench, data, publish=bench.publish, attempts=1)

    def equal(prompts, trainer):
        output = func(prompts, trainer)
        output["rollout_reward"] = [None if reward is None else 0.5 for reward in output["rollout_reward"]]
        return output

    trainer = grpo(bench, model_folder, tmp_path, data, equal)
    trainer.train()
    (norm,) = logged(trainer, "grad_norm")
    assert norm == 0.0
    assert logged(trainer, "rollouts/untrainable") == [12 / 16]
