"""What the policy knows before RL: the form of a call and of an answer, and to copy every other time.

Demonstrations are made by the server's own renderer, so that they are, token for token, what a rollout will be. In half
of them the key is a random one, and in half the answer: there is something left to learn. The outcome is kept in a
folder named by a hash of everything that went into it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from prorl.api import Message
from prorl.llm.rendering.manners import EPOCH
from prorl.llm.rendering.renderer import Renderer
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.tokenizers.local import LocalTokenizer, load_tokenizer
from prorl_lookup import task, tiny

STEPS, BATCH, LEARNING_RATE = 500, 32, 3e-3


class Demonstration(NamedTuple):
    ids: list[int]
    mask: list[int]  # 1: the policy's own words


async def demonstrate(renderer: Renderer, key: str, asked: str, value: str, said: str) -> Demonstration:
    """One rollout in which the policy, given ``key``, asks for ``asked``, is told ``value``, and says ``said``."""
    prompt = await renderer.prompt([Message(role="user", content=key)], [tiny.TOOL], now=EPOCH)
    call = [*await renderer.tokenizer.encode(tiny.call_of(asked), special=True), renderer.end_of_turn]
    told = await renderer.between(
        [Message(role="tool", name=tiny.TOOL.name, content=value)], previous_ended_with=renderer.end_of_turn, now=EPOCH
    )
    answer = [*await renderer.tokenizer.encode(said, special=False), renderer.end_of_turn]
    parts = [(prompt.ids, 0), (call, 1), (told.ids, 0), (answer, 1)]
    return Demonstration([i for ids, _ in parts for i in ids], [bit for ids, bit in parts for _ in ids])


async def renderer_of(folder: Path) -> Renderer:
    tokenizer: LocalTokenizer = await load_tokenizer(str(folder))
    if tokenizer.chat_template is None:
        raise ValueError(f"{folder} has no chat template")
    return await Renderer.create(ChatTemplate(tokenizer.chat_template), tokenizer)


async def demonstrations(renderer: Renderer, chance: random.Random, count: int) -> list[Demonstration]:
    made = []
    for _ in range(count):
        key, value = task.random_key(chance), task.random_value(chance)
        asked = key if chance.random() < 0.5 else task.random_key(chance)
        said = value if chance.random() < 0.5 else task.random_value(chance)
        made.append(await demonstrate(renderer, key, asked, value, said))
    return made


def warm_model(cache: Path, *, seed: int = 0, steps: int = STEPS) -> Path:
    """The folder of the warm-started model, made if it is not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=cache) as made:
        work = Path(made) / "model"
        tiny.write_tokenizer(work)
        model = tiny.new_model(tiny.build_tokenizer(), seed=seed)
        renderer = asyncio.run(renderer_of(work))
        first = asyncio.run(demonstrations(renderer, random.Random(seed), BATCH))
        how = (seed, steps, BATCH, LEARNING_RATE, torch.__version__, transformers.__version__)
        content = repr((how, first, (work / "tokenizer.json").read_bytes(), model.config.to_json_string()))
        folder = cache / f"warm-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            asyncio.run(_train(model, renderer, random.Random(seed), steps))
            model.save_pretrained(work)
            work.rename(folder)
    return folder


async def _train(model: Any, renderer: Renderer, chance: random.Random, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    began = time.monotonic()
    for step in range(steps):
        warmth = min(1.0, (step + 1) / 20) * min(1.0, (steps - step) / (0.3 * steps))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * warmth
        batch = await demonstrations(renderer, chance, BATCH)  # all of one length: three digits, three letters
        ids, mask = torch.tensor([made.ids for made in batch]), torch.tensor([made.mask for made in batch])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (loss * mask[:, 1:]).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"warm start {step:4d}/{steps}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True)
