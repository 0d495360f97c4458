"""The environment actor in both signatures, before a real rollout server, held to the contract."""

from __future__ import annotations

import asyncio

import pytest
from nemo_rl_contract import check_environment

from prorl.client import ClientError
from prorl_nemo_rl.actor import BatchEnvironment, StreamingEnvironment, environment_class

BOTH = pytest.mark.parametrize("kind", [BatchEnvironment, StreamingEnvironment])


def config(scene, **rollouts):
    return {"model_name": "policy", "base_urls": [scene.base_url], "rollouts": scene.rollouts(**rollouts)}


def plain(values):
    return values.tolist() if hasattr(values, "tolist") else values


@BOTH
async def test_rows_become_message_logs(kind, setting, make_row):
    scene = await asyncio.to_thread(setting)
    environment = kind(config(scene))
    results, wrong = await check_environment(environment, [make_row(number) for number in range(4)])
    await environment.shutdown()
    assert wrong == []
    asked = {tuple(request.prompt_ids) for request in scene.engine.requests}
    for result in results:
        ids = [plain(message["token_ids"]) for message in result["message_log"]]
        assert [message["role"] for message in result["message_log"]] == ["user", "assistant"] * 2
        assert {tuple(ids[0]), tuple(ids[0] + ids[1] + ids[2])} == asked  # what the engine sampled after, exactly
        assert result["full_result"]["reward"] == 1.0
        assert not any(message.get("is_invalid_tool_call") for message in result["message_log"])


@BOTH
async def test_a_broken_rollout_is_masked_and_breaks_no_other(kind, setting, make_row):
    environment = kind(config(await asyncio.to_thread(setting)))
    results, wrong = await check_environment(environment, [make_row(0, broken=True), make_row(1)])
    await environment.shutdown()
    assert wrong == []
    broken, whole = results
    assert [message["role"] for message in broken["message_log"]] == ["user"]
    assert broken["full_result"]["instance_config"] == {"mask_sample": True}
    assert broken["full_result"]["rollout"]["error"]["code"] == "no_space"
    assert whole["full_result"]["instance_config"] == {"mask_sample": False}


async def test_batches_may_run_at_once(setting, make_row):
    environment = BatchEnvironment(config(await asyncio.to_thread(setting)))
    rows = [make_row(0), make_row(1)]
    found = await asyncio.gather(*(environment.run_rollouts(rows, None, "timing/rollout") for _ in range(3)))
    await environment.shutdown()
    assert [[each["full_result"]["reward"] for each in results] for results, _ in found] == [[1.0, 1.0]] * 3


async def test_who_stops_listening_cancels_the_rest(setting, make_row, until):
    scene = await asyncio.to_thread(setting)
    environment = StreamingEnvironment(config(scene))
    scene.engine.hold()
    rows = environment.run_rollouts([make_row(number) for number in range(3)], "timing/rollout")
    first = asyncio.ensure_future(anext(rows))
    await asyncio.to_thread(until, lambda: scene.engine.in_flight == 3)
    first.cancel()
    await asyncio.wait({first})
    await asyncio.to_thread(until, lambda: scene.engine.aborted == 3)
    await environment.shutdown()


async def test_shutting_down_leaves_nothing_running(setting, make_row, until):
    scene = await asyncio.to_thread(setting)
    environment = BatchEnvironment(config(scene))
    scene.engine.hold()
    running = asyncio.ensure_future(environment.run_rollouts([make_row()], None, "timing/rollout"))
    await asyncio.to_thread(until, lambda: scene.engine.in_flight == 1)
    await environment.shutdown()
    await asyncio.to_thread(until, lambda: scene.engine.aborted == 1)
    with pytest.raises(ClientError, match="closed"):
        await running


def test_the_signature_is_that_of_their_actor():
    class Old:
        async def run_rollouts(self, rows, tokenizer, timer_prefix): ...

    class New:
        async def run_rollouts(self, rows, timer_prefix, deduplicate_multimodal_data=False):
            yield

    assert environment_class(Old) is BatchEnvironment
    assert environment_class(New) is StreamingEnvironment
