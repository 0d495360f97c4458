"""The V0 trainer's contract: what verl's own worker makes of our agent loop's outputs, as a DataProto."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import relay
from relay import PROMPT, RESPONSE
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

from prorl_verl.desk import desks_of


def rows(count: int, samples: int, **more: Any) -> DataProto:
    """``count`` prompts, each ``samples`` times under one uid, as verl's V0 trainer repeats them."""

    def column(make: Any) -> np.ndarray:
        values = np.empty(count * samples, dtype=object)
        values[:] = [make(n // samples) for n in range(count * samples)]
        return values

    fields: dict[str, Any] = {
        "raw_prompt": lambda n: [{"role": "user", "content": f"Question {n}"}],
        "data_source": lambda _: "relay",
        "reward_model": lambda _: {"style": "rule", "ground_truth": "x"},
        "extra_info": lambda n: {"index": n},
        "uid": lambda n: f"prompt-{n}",
        "index": lambda n: n,
        "question": lambda n: f"Question {n}",
        "numbers": lambda n: np.array([n, n + 1]),
        **{name: (lambda _, value=value: value) for name, value in more.items()},
    }
    return DataProto(
        batch=None,
        non_tensor_batch={name: column(make) for name, make in fields.items()},
        meta_info={"global_steps": 3, "validate": False},
    )


@pytest.fixture
def generate(configure, engines):
    async def run(batch: DataProto, **loop: Any) -> DataProto:
        config = configure(**loop)
        worker = AgentLoopWorker(config, engines.client(config))
        try:
            return await worker.generate_sequences(batch)
        finally:
            for opening in desks_of(worker.llm_client).values():
                await (await opening).resources.aclose()

    return run


async def test_the_batch_is_laid_out_as_verl_expects(generate, engines):
    output = await generate(rows(2, 4, differ=True))
    batch = output.batch
    assert batch["prompts"].shape == (8, PROMPT)
    assert batch["responses"].shape == batch["response_mask"].shape == batch["rm_scores"].shape == (8, RESPONSE)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == batch["position_ids"].shape
    prompt_mask, response_mask = batch["attention_mask"].split([PROMPT, RESPONSE], dim=1)
    assert (prompt_mask.diff(dim=1) >= 0).all(), "prompts are padded at the left"
    assert (response_mask.diff(dim=1) <= 0).all(), "responses at the right"
    assert (batch["response_mask"] <= response_mask).all()
    for row in range(8):
        length, mask = int(response_mask[row].sum()), batch["response_mask"][row]
        assert mask[0] == mask[length - 1] == 1, "a response begins and ends with what was sampled"
        assert (mask[:length] == 0).any(), "the second turn's user is in between"
        assert batch["rm_scores"][row].nonzero().flatten().tolist() in ([], [length - 1])
    assert (batch["rollout_log_probs"][batch["response_mask"] == 0] == 0).all()
    assert (batch["rollout_log_probs"][batch["response_mask"] == 1] < 0).all()
    assert set(batch["rm_scores"].sum(1).tolist()) == {0.0, 1.0}
    extra = output.non_tensor_batch
    assert list(extra["min_global_steps"]) == list(extra["max_global_steps"]) == [0] * 8, "the engine's version"
    assert list(extra["__num_turns__"]) == [4] * 8
    assert len(set(extra["job_id"])) == 8
    assert output.meta_info["reward_extra_keys"] == ["reward", "resolved", "masked", "cut", "segments_dropped"]


async def test_the_tokens_are_those_of_the_engine(generate, engines, model):
    """Every reply sits in the batch as the engine sampled it, after exactly the prompt that the engine was given."""
    import ray  # noqa: PLC0415

    (engine,) = engines.handles.values()
    before = len(await engine.told.remote())
    output = await generate(rows(1, 2))
    told = (await engine.told.remote())[before:]
    assert len(told) == 4
    streams = []
    for row in output.batch:
        ids, attention = row["input_ids"], row["attention_mask"]
        streams.append(ids[attention == 1].tolist())
    for _, prompt, sampling in told:
        assert any(stream[: len(prompt)] == prompt for stream in streams)
        assert sampling["temperature"] == 1.0
        assert sampling["logprobs"] is True
    assert ray.is_initialized()


async def test_a_failed_rollout_is_a_row_that_trains_nothing(generate):
    relay.Relay.groups.clear()
    output = await generate(rows(1, 4, broken=1), attempts=1)
    masked = output.non_tensor_batch["masked"]
    assert sorted(masked) == [0.0, 0.0, 0.0, 1.0]
    (row,) = np.flatnonzero(masked)
    assert output.batch["response_mask"][row].sum() == 0
    assert output.batch["rm_scores"][row].sum() == 0


async def test_of_several_segments_the_last_one_is_the_row(generate):
    output = await generate(rows(1, 2, forks=True))
    assert list(output.non_tensor_batch["segments_dropped"]) == [1.0, 1.0]
    assert (output.batch["response_mask"].sum(1) > 0).all()
