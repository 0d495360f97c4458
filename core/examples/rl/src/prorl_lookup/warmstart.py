"""What the policy knows before RL: the form of a call and of an answer, and what is right every other time.

Demonstrations are made by the server's own renderer, so that they are, token for token, what a rollout will be. Half of
them or more are wrong: there is something left to learn. The outcome is kept in a
folder named by a hash of everything that went into it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from prorl.api import Message
from prorl.llm.rendering.manners import EPOCH
from prorl.llm.rendering.renderer import Renderer
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.tokenizers.local import LocalTokenizer, load_tokenizer
from prorl_lookup import tiny
from prorl_lookup.lesson import Lesson
from prorl_lookup.lessons.lookup import LESSON as LOOKUP

STEPS, BATCH, LEARNING_RATE = 500, 32, 3e-3


class Demonstration(NamedTuple):
    ids: list[int]
    mask: list[int]  # 1: the policy's own words


async def encode(renderer: Renderer, lesson: Lesson, messages: Sequence[Message]) -> Demonstration:
    """A rollout's messages as the tokens that the server would make of them."""
    ids: list[int] = []
    mask: list[int] = []
    heard: list[Message] = []
    for message in messages:
        if message.role != "assistant":
            heard.append(message)
            continue
        if ids:
            told = await renderer.between(heard, previous_ended_with=renderer.end_of_turn, now=EPOCH)
        else:
            told = await renderer.prompt(heard, lesson.tools, now=EPOCH)
        said = [*await renderer.tokenizer.encode(message.content, special=True), renderer.end_of_turn]
        ids += [*told.ids, *said]
        mask += [0] * len(told.ids) + [1] * len(said)
        heard = []
    return Demonstration(ids, mask)


async def renderer_of(folder: Path) -> Renderer:
    tokenizer: LocalTokenizer = await load_tokenizer(str(folder))
    if tokenizer.chat_template is None:
        raise ValueError(f"{folder} has no chat template")
    return await Renderer.create(ChatTemplate(tokenizer.chat_template), tokenizer)


async def demonstrations(
    renderer: Renderer, taught: Sequence[Lesson], chance: random.Random, count: int
) -> list[Demonstration]:
    """The lessons by turns."""
    by_turns = itertools.islice(itertools.cycle(taught), count)
    return [await encode(renderer, lesson, lesson.demonstrate(chance)) for lesson in by_turns]


def warm_model(cache: Path, taught: Sequence[Lesson] = (LOOKUP,), *, seed: int = 0, steps: int = STEPS) -> Path:
    """The folder of the warm-started model, made if it is not there yet. ``steps`` is for each lesson."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=cache) as made:
        work = Path(made) / "model"
        tiny.write_tokenizer(work, taught)
        model = tiny.new_model(tiny.build_tokenizer(taught), seed=seed)
        renderer = asyncio.run(renderer_of(work))
        first = asyncio.run(demonstrations(renderer, taught, random.Random(seed), BATCH))
        how = (seed, steps, BATCH, LEARNING_RATE, torch.__version__, transformers.__version__)
        content = repr((how, first, (work / "tokenizer.json").read_bytes(), model.config.to_json_string()))
        folder = cache / f"warm-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            asyncio.run(_train(model, renderer, taught, random.Random(seed), steps * len(taught)))
            model.save_pretrained(work)
            work.rename(folder)
    return folder


async def _train(model: Any, renderer: Renderer, taught: Sequence[Lesson], chance: random.Random, steps: int) -> None:
    pad_id = model.config.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    began = time.monotonic()
    for step in range(steps):
        warmth = min(1.0, (step + 1) / 20) * min(1.0, (steps - step) / (0.3 * steps))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * warmth
        batch = await demonstrations(renderer, taught, chance, BATCH)
        longest = max(len(made.ids) for made in batch)
        ids = torch.tensor([made.ids + [pad_id] * (longest - len(made.ids)) for made in batch])
        mask = torch.tensor([made.mask + [0] * (longest - len(made.mask)) for made in batch])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (loss * mask[:, 1:]).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"warm start {step:4d}/{steps}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True)
