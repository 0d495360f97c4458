"""What the policy is shown first is, token for token, what it will meet."""

from __future__ import annotations

import asyncio
import random

import pytest

from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedEngine
from prorl_lookup import task, tiny, warmstart
from prorl_lookup.lessons import lookup


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder, [lookup.LESSON])
    return folder


def test_a_demonstration_is_a_rollout(folder):
    async def demonstrate():
        renderer = await warmstart.renderer_of(folder)
        return await warmstart.encode(renderer, lookup.LESSON, lookup.rollout("417", "417", "CAB", "CAB"))

    made = asyncio.run(demonstrate())
    replies = [lookup.call_of("417"), "CAB"]
    with Lab([]) as lab, ScriptedEngine(lambda request: replies[request.call], tokenizer=folder) as engine:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(engine.url)
        result = lab.rollout({"key": "417", "value": "CAB"}, domain="lookup")
    (segment,) = result.trajectory.segments
    assert segment.tokens == made.ids
    assert segment.loss_mask == made.mask
    assert result.reward == 1.0


async def test_keys_and_values_stay_single_letters(folder):
    renderer = await warmstart.renderer_of(folder)
    chance = random.Random(0)
    made = await warmstart.demonstrations(renderer, [lookup.LESSON], chance, 200)
    assert len({len(one.ids) for one in made}) == 1
    assert sum(made[0].mask) == 13
    for text in (task.random_key(chance), task.random_value(chance)):
        assert len(await renderer.tokenizer.encode(text, special=False)) == 3


async def test_half_of_them_are_wrong(folder):
    renderer = await warmstart.renderer_of(folder)
    made = await warmstart.demonstrations(renderer, [lookup.LESSON], random.Random(0), 400)
    right = 0
    for one in made:
        text = await renderer.tokenizer.decode(one.ids)
        key = text.partition("<|im_start|>user\n")[2][:3]
        right += lookup.call_of(key) in text
    assert 160 < right < 240


def test_a_warm_model_is_made_once(tmp_path):
    made = warmstart.warm_model(tmp_path, steps=2)
    weights = (made / "model.safetensors").stat().st_mtime_ns
    assert warmstart.warm_model(tmp_path, steps=2) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == weights
    assert warmstart.warm_model(tmp_path, steps=2, seed=1) != made
    assert len(list(tmp_path.iterdir())) == 2  # nothing half made is left
