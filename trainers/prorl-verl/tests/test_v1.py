"""The V1 trainer's contract: rows in the real TransferQueue, put there by verl's own worker, read back by verl's own
replay buffer, and turned into advantages and a policy loss by verl's own functions."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import relay
import torch
import transfer_queue as tq
from transformers import AutoModelForCausalLM
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_functional import logprobs_from_logits

from prorl.client import RolloutClient
from prorl_verl.desk import desks_of
from prorl_verl.sampler import RolloutServiceReplayBuffer

Worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # verl's class, without an actor around it


@pytest.fixture(scope="module")
def queue(cluster: None) -> Any:
    tq.init()
    yield
    tq.close()


@pytest.fixture
async def trainer(configure, engines, queue) -> AsyncIterator[Callable[..., Any]]:
    """What verl's trainer does: submit prompts, and (``wait``) wait until they have ended."""
    workers = []
    relay.Relay.groups.clear()

    async def submit(prompts: dict[str, dict[str, Any]], *, step: int = 5, wait: bool = True, **loop: Any) -> Any:
        config = configure("actor_rollout_ref.rollout.n=4", **loop)
        worker = Worker(config, engines.client(config))
        workers.append(worker)
        rows = [
            {"uid": uid, "raw_prompt": [{"role": "user", "content": uid}], "data_source": "relay", "index": 0, **row}
            for uid, row in prompts.items()
        ]
        batch = tu.get_tensordict({name: _column([row[name] for row in rows]) for name in rows[0]})
        tu.assign_non_tensor_data(batch, "global_steps", step)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": step}] * len(rows)
        await tq.async_kv_batch_put(keys=list(prompts), partition_id="train", tags=tags)
        await worker.generate_sequences(batch)
        if wait:
            await asyncio.gather(*worker.background_tasks)
        return config

    yield submit
    for worker in workers:
        for task in worker.background_tasks:
            task.cancel()
        await asyncio.gather(*worker.background_tasks, return_exceptions=True)
        for opening in desks_of(worker.llm_client).values():
            await (await opening).resources.aclose()
    left = tq.kv_list(partition_id="train").get("train", {})
    if left:
        tq.kv_clear(keys=list(left), partition_id="train")


def _column(values: list[Any]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def statuses() -> dict[str, str]:
    return {key: tag.get("status", "") for key, tag in tq.kv_list(partition_id="train")["train"].items()}


def sampled(size: int, **settings: Any) -> Any:
    buffer = ReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        poll_interval=0.01,
        **settings,
    )
    return buffer.sample(global_steps=5, partition_id="train", batch_size=size)


async def test_rows_and_tags_in_the_queue(trainer):
    await trainer({"a": {"question": "one"}, "b": {"question": "two"}})
    batch, _ = sampled(2)
    assert sorted(batch.keys) == [f"{uid}_{session}_0" for uid in "ab" for session in range(4)]
    for tag in batch.tags:
        assert (tag["status"], tag["global_steps"]) == ("success", 5)
        assert (tag["min_global_steps"], tag["max_global_steps"]) == (0, 0), "the engine's version, not the step"
        assert tag["seq_len"] == tag["prompt_len"] + tag["response_len"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    for row in range(len(batch.keys)):
        prompt, response = data["prompts"][row], data["responses"][row]
        mask, logprobs, scores = (data[name][row] for name in ("response_mask", "rollout_log_probs", "rm_scores"))
        assert data["input_ids"][row].tolist() == [*prompt.tolist(), *response.tolist()]
        assert len(response) == len(mask) == len(logprobs) == len(scores)
        assert (logprobs[mask == 0] == 0).all()
        assert (logprobs[mask == 1] < 0).all()
        assert (scores[:-1] == 0).all()
        assert scores[-1] in (0.0, 1.0)


async def test_the_first_importance_ratio_is_one(trainer, model):
    """verl's own advantages and policy loss, with the log-probabilities of the model as the trainer computes them."""
    config = await trainer({uid: {"question": uid} for uid in ("what", "who", "where", "when")})
    batch, _ = sampled(4)
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    policy = AutoModelForCausalLM.from_pretrained(model)
    padded = data.to_padded_tensor()
    recomputed = torch.zeros_like(padded["rollout_log_probs"])
    for row in range(len(batch.keys)):
        ids, start = data["input_ids"][row], len(data["prompts"][row])
        logits = policy(input_ids=ids[None]).logits[0, start - 1 : -1]
        recomputed[row, : len(ids) - start] = logprobs_from_logits(logits, ids[start:], inplace_backward=False)
    mask = padded["response_mask"].float()
    gap = ((recomputed - padded["rollout_log_probs"]) * mask).abs().max().item()
    assert gap < 1e-5

    tq.kv_batch_put(
        keys=batch.keys,
        partition_id="train",
        fields=data.select("rollout_log_probs").rename_key_("rollout_log_probs", "old_log_probs"),
    )
    PPOTrainer._compute_advantage(SimpleNamespace(config=config), batch, {})
    advantages = tq.kv_batch_get(keys=batch.keys, partition_id="train")["advantages"].to_padded_tensor(0.0)
    groups = [key.split("_")[0] for key in batch.keys]
    rewards = padded["rm_scores"].sum(1)
    for uid in set(groups):
        members = [row for row, group in enumerate(groups) if group == uid]
        mean, std = rewards[members].mean(), rewards[members].std()
        for row in members:
            wanted = (rewards[row] - mean) / (std + 1e-6) * mask[row]
            assert torch.allclose(advantages[row], wanted, atol=1e-5)
    loss, metrics = core_algos.compute_policy_loss_vanilla(
        old_log_prob=padded["rollout_log_probs"],
        log_prob=recomputed,
        advantages=advantages,
        response_mask=mask,
        config=omega_conf_to_dataclass(config.actor_rollout_ref.actor),
    )
    assert loss.item() == pytest.approx(-(advantages * mask).sum().item() / mask.sum().item(), abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert abs(metrics["actor/ppo_kl"]) < 1e-5


async def test_every_segment_is_a_row_and_the_last_one_counts(trainer):
    config = await trainer({"a": {"question": "one", "forks": True}})
    batch, _ = sampled(1)
    assert sorted(batch.keys) == [f"a_{session}_{segment}" for session in range(4) for segment in range(2)]
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    tq.kv_batch_put(
        keys=batch.keys,
        partition_id="train",
        fields=data.select("rollout_log_probs").rename_key_("rollout_log_probs", "old_log_probs"),
    )
    PPOTrainer._compute_advantage(SimpleNamespace(config=config), batch, {})
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train").to_padded_tensor()
    gains = {key: data["advantages"][row][data["response_mask"][row] == 1] for row, key in enumerate(batch.keys)}
    for session in range(4):
        first, last = gains[f"a_{session}_0"], gains[f"a_{session}_1"]
        assert set(first.tolist()) == set(last.tolist()), "both segments get the rollout's advantage"


async def test_a_failed_rollout_leaves_its_group_and_no_copy_takes_its_place(trainer):
    await trainer({"a": {"question": "one", "broken": 1}}, attempts=1)
    batch, _ = sampled(1)
    assert len(batch.keys) == 3
    jobs = [fields["job_id"] for fields in tq.kv_batch_get(keys=batch.keys, partition_id="train")["extra_fields"]]
    assert len(set(jobs)) == 3


async def test_a_failed_rollout_is_tried_again(trainer):
    await trainer({"a": {"question": "one", "broken": 3}}, attempts=4)
    batch, _ = sampled(1)
    assert len(batch.keys) == 4


async def test_a_group_of_one_is_no_group(trainer):
    """verl would take the lone member's reward itself for its advantage."""
    await trainer({"a": {"question": "one", "broken": 3}, "b": {"question": "two", "broken": 4}}, attempts=1)
    assert {uid: statuses()[uid] for uid in "ab"} == {"a": "failure", "b": "failure"}


async def test_groups_whose_rewards_are_equal_are_filtered_by_verl(trainer):
    await trainer({"a": {"question": "one", "equal": True}, "b": {"question": "two", "equal": True}})
    refilled = []
    for metric in ("reward", "resolved"):
        buffer = ReplayBuffer("sync", {}, 8, "drop", {}, refill_fn=refilled.append, filter_groups_metric=metric)
        buffer._sync_metadata_from_transfer_queue()
        filtered, counts = buffer._dapo_filtered_keys("train")
        if metric == "reward":
            assert filtered == {"a", "b"}
            assert counts == {0.5: 2}


def early(service, mode: str = "sync", **settings: Any) -> RolloutServiceReplayBuffer:
    """Our buffer, made as verl's trainer makes a custom one."""
    return RolloutServiceReplayBuffer(
        trainer_mode=mode,
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        refill_fn=settings.pop("refill_fn", lambda _: None),
        sampler_kwargs={"urls": [service.url], "poll_interval": 0.05, **settings},
    )


async def cancelled_groups(service) -> Counter[str]:
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as client:
        jobs = (await client.get("/jobs", params={"state": "cancelled", "limit": 1000})).json()
    return Counter(job["group_id"] for job in jobs)


async def test_a_step_stops_at_its_last_group_and_cancels_the_rest(trainer, service):
    names = {name: uuid.uuid4().hex for name in ("quick", "also quick", "slow")}
    rows = {uid: {"question": name, "slow": 600.0 * (name == "slow")} for name, uid in names.items()}
    await trainer(rows, wait=False)
    batch, metrics = await asyncio.to_thread(early(service).sample, 5, "train", 2)
    assert {key.split("_")[0] for key in batch.keys} == {names["quick"], names["also quick"]}
    assert len(batch.keys) == 8
    assert metrics["training/prorl/stopped_early"] == 1
    assert (await cancelled_groups(service))[names["slow"]] == 4
    assert set(statuses()) == set(batch.keys), "nothing of what was stopped is left behind, nor can come later"


async def test_two_prompts_replace_a_group_of_no_use_and_the_slower_is_not_waited_for(trainer, service):
    names = {name: uuid.uuid4().hex for name in ("equal", "one", "two", "quick", "slow")}
    loop = asyncio.get_running_loop()
    refilled = []

    def rows(*chosen: str) -> dict[str, dict[str, Any]]:
        return {
            names[name]: {"question": name, "equal": name == "equal", "differ": True, "slow": 600.0 * (name == "slow")}
            for name in chosen
        }

    def refill(count: int) -> None:
        refilled.append(count)
        asyncio.run_coroutine_threadsafe(trainer(rows("quick", "slow"), wait=False), loop).result()

    await trainer(rows("equal", "one", "two"))
    buffer = early(service, refill_fn=refill, filter_groups_metric="reward")
    batch, metrics = await asyncio.to_thread(buffer.sample, 5, "train", 3)
    assert refilled == [2]
    assert {key.split("_")[0] for key in batch.keys} == {names["one"], names["two"], names["quick"]}
    assert metrics["training/prorl/stopped_early"] == 1
    assert (await cancelled_groups(service))[names["slow"]] == 4


async def test_a_group_that_is_too_old_while_it_runs_is_cancelled_and_replaced(trainer, service):
    old, new = uuid.uuid4().hex, uuid.uuid4().hex
    await trainer({old: {"question": "old", "slow": 600.0}}, wait=False)
    loop = asyncio.get_running_loop()

    def refill(count: int) -> None:
        assert count == 1
        asyncio.run_coroutine_threadsafe(trainer({new: {"question": "new"}}, step=40, wait=False), loop).result()

    buffer = early(service, "colocate_async", refill_fn=refill)
    batch, _ = await asyncio.to_thread(buffer.sample, 40, "train", 1)
    assert {key.split("_")[0] for key in batch.keys} == {new}
    assert (await cancelled_groups(service))[old] == 4


async def test_groups_without_end_that_teach_nothing_end_the_run(trainer, service):
    loop = asyncio.get_running_loop()

    def refill(count: int) -> None:
        rows = {uuid.uuid4().hex: {"question": "again", "equal": True} for _ in range(count)}
        asyncio.run_coroutine_threadsafe(trainer(rows), loop).result()

    await trainer({uuid.uuid4().hex: {"question": "one", "equal": True}})
    buffer = early(service, refill_fn=refill, filter_groups_metric="reward", give_up_after=3)
    with pytest.raises(RuntimeError, match="the last 3 groups were of no use; of the latest, 1 had equal rewards"):
        await asyncio.to_thread(buffer.sample, 5, "train", 1)


async def test_a_group_that_somebody_cancelled_is_replaced(trainer, service):
    gone, new = uuid.uuid4().hex, uuid.uuid4().hex
    await trainer({gone: {"question": "gone", "slow": 600.0}}, wait=False)
    loop = asyncio.get_running_loop()

    def refill(count: int) -> None:
        asyncio.run_coroutine_threadsafe(trainer({new: {"question": "new", "differ": True}}, wait=False), loop).result()

    buffer = early(service, refill_fn=refill, filter_groups_metric="resolved")
    sampling = asyncio.create_task(asyncio.to_thread(buffer.sample, 5, "train", 1))
    async with RolloutClient(service.url) as client:
        while not sampling.done():
            await client.cancel(group_id=gone)
            await asyncio.wait({sampling}, timeout=0.1)
    batch, _ = await sampling
    assert {key.split("_")[0] for key in batch.keys} == {new}
