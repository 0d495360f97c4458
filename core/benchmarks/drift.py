"""How often a trainer that keeps texts would have trained on other tokens than the sampled ones.

Real rollouts by the real server: a model, a tool's description, observations, three replies each at temperature 1. Then
the same conversations as a trainer has them that keeps messages: each reply's text encoded again, and the whole
conversation rendered by the model's chat template and encoded again. Counted is what is not the sampled stream.

    python drift.py [--rollouts 64] [--engine URL]     without an engine: SmolLM2-135M in this process's llama.cpp
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from figures import machine, show_rows, skipped

from prorl.api import AgentHandler, HandlerRecord, Job, Message
from prorl.api.llm import EngineInfo, Tokenizer
from prorl.client import RolloutClient
from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool.connect import Connector
from prorl.llm.pool.settings import PoolSettings
from prorl.llm.rendering.template import ChatTemplate
from prorl.plugins.registry import Registry
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.engines import LlamaEngine
from prorl.wire import BackendSpec, JobRequest, RolloutResult, SamplingParams
from prorl.wire.soundness import check_result

REPLIES, REPLY_TOKENS = 3, 40
SYSTEM = (
    "You are a helpful assistant. To run Python, write\n"
    '<tool_call>\n{"name": "python", "arguments": {"code": "..."}}\n</tool_call>'
)
TASKS = (
    "What is 37 * 43? Show each step.",
    "Write a Python function that counts the words of a file.",
    "Translate 'good morning, how are you?' to French, German and Japanese.",
    "Give me a JSON object with three cities, their countries and populations.",
    "Explain photosynthesis to a child.",
    "Solve x^2 - 5x + 6 = 0.",
    "List five prime numbers larger than 100, and say how you know.",
    "Write a haiku about the sea, then a limerick about a bug in a program.",
)
SEEN = (
    "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nNameError: name 'x' is not defined\n",
    "[1591, 2, 3]\n\n",
    "Äpfel: 3 €\tok\n",
)


class Talk(AgentHandler):
    """The same observations whatever the model says: it is its tokens that are looked at, not its deeds."""

    async def init(self, job: Job) -> Any:
        return None, {}, {}

    async def run(self, job: Job) -> dict[str, Any]:
        chat = job.services.chat()
        asked = [Message(role="system", content=SYSTEM), Message(role="user", content=job.instance["task"])]
        await chat.open(asked)
        for number in range(REPLIES):
            await chat.reply(max_tokens=REPLY_TOKENS)
            if number < REPLIES - 1:
                await chat.observe([Message(role="tool", name="python", content=SEEN[number % len(SEEN)])])
        return {}

    async def eval(self, job: Job) -> dict[str, Any]:
        return {"reward": 0.0}


async def roll_out(engine: str, rollouts: int) -> list[RolloutResult]:
    talk = HandlerRecord(name="talk", factory=Talk, summary="talks")
    registry = Registry(handlers={"talk": talk}, dialects={record.name: record for record in prorl_llm_dialects()})

    async def run(url: str) -> list[RolloutResult]:
        async with RolloutClient(url) as server:
            await server.add_llm_server(BackendSpec(url=engine))
            requests = [
                JobRequest(
                    domain="talk",
                    instance={"task": TASKS[number % len(TASKS)]},
                    sampling_params=SamplingParams(seed=number),
                )
                for number in range(rollouts)
            ]
            return await asyncio.gather(*map(server.process, requests))

    with RunningServer(parse_settings({"server": {"port": 0}}), registry) as server:
        results = await run(server.url)
    for result in results:
        assert result.error is None, result.error
        assert check_result(result) == []
    return results


async def compare(results: list[RolloutResult], tokenizer: Tokenizer, info: EngineInfo) -> None:
    assert info.chat_template is not None, "the engine hands out no chat template"
    template, now = ChatTemplate(info.chat_template, variables=info.special_tokens), datetime.now(UTC)
    counts: Counter[str] = Counter()
    example = ""
    for number, result in enumerate(results):
        trajectory = result.trajectory
        (segment,) = trajectory.segments
        replies = [turn for turn in trajectory.turns if turn.role == "assistant"]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASKS[number % len(TASKS)]}]
        for place, turn in enumerate(replies):
            messages.append({"role": "assistant", "content": turn.text})
            if place < REPLIES - 1:
                seen = f"<tool_response>\n{SEEN[place % len(SEEN)]}\n</tool_response>"
                messages.append({"role": "user", "content": seen})  # as the server does where a template knows no tools
            ids = trajectory.output_ids(turn)
            said = ids[:-1] if turn.finish_reason == "stop" else ids
            again = await tokenizer.encode(turn.text, special=True)
            counts["replies"] += 1
            if again != said:
                counts["replies of other ids"] += 1
                example = example or await _difference(tokenizer, said, again)
        text = await tokenizer.decode(segment.tokens)
        rendered = template.render(messages, now=now, generation_prompt=False)
        whole = await tokenizer.encode(rendered, special=True)
        size, sampled = len(segment.tokens), sum(segment.loss_mask)
        first = next((at for at, (a, b) in enumerate(zip(segment.tokens, whole, strict=False)) if a != b), None)
        counts["conversations"] += 1
        counts["conversations of other text"] += not rendered.startswith(text)
        counts["conversations of other ids"] += whole[:size] != segment.tokens
        counts["sampled tokens"] += sampled
        counts["sampled tokens from the first difference on"] += 0 if first is None else sum(segment.loss_mask[first:])
    _show(counts)
    print(f"\nThe first that differs: {example}")


async def _difference(tokenizer: Tokenizer, said: list[int], again: list[int]) -> str:
    """The tokens around the first place that differs, as texts."""
    at = next((i for i, (a, b) in enumerate(zip(said, again, strict=False)) if a != b), min(len(said), len(again)))
    shown = [[await tokenizer.decode([token]) for token in ids[at : at + 4]] for ids in (said, again)]
    return f"sampled {shown[0]}, encoded again {shown[1]}"


def _show(counts: Counter[str]) -> None:
    rows = [("encoded again", "of", "other than sampled", "share")]
    for name, key, whole in (
        ("each reply's text", "replies of other ids", "replies"),
        ("whole conversations, by the chat template", "conversations of other ids", "conversations"),
        ("of them: the text itself was another", "conversations of other text", "conversations"),
        ("sampled tokens at or after a difference", "sampled tokens from the first difference on", "sampled tokens"),
    ):
        rows.append((name, str(counts[whole]), str(counts[key]), f"{100 * counts[key] / counts[whole]:.1f} %"))
    show_rows("Re-encoding instead of keeping the ids", rows)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--engine")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.engine
        if url is None:
            if (reason := LlamaEngine.available()) is not None:
                skipped("drift", reason)
                return
            url = stack.enter_context(LlamaEngine(n_ctx=512, parallel=16, threads=2)).url
        dialects = {record.name: record for record in prorl_llm_dialects()}
        results = await roll_out(url, arguments.rollouts)
        connection = await Connector(dialects, PoolSettings()).connect(BackendSpec(url=url))
        async with contextlib.aclosing(connection.client):
            print(f"{machine()}; {connection.info.model}")
            await compare(results, await connection.dialect.tokenizer(), connection.info)


if __name__ == "__main__":
    asyncio.run(main())
