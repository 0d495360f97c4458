"""What a turn costs beside the model: rendering, checks, ledger and certificate, against rendering everything anew.

One conversation with a tool grows to 64k tokens. The engine is a lease in this process that answers at once with a
prepared reply, through the checks that every engine's reply goes through; making that answer is not counted. The
baseline renders the whole conversation with the same template and encodes it with the same tokenizer each turn, as a
loop over a chat endpoint does.

Milliseconds are CPU time of this process, so that other work on the machine disturbs them less; the wall time of ours
stands beside it.

    python turn_overhead.py [--tokenizer DIR] [--tokens 65536]     DIR: tokenizer.json and tokenizer_config.json
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from figures import figure, machine, percentile, show_rows

import prorl
from prorl.api import Message, ToolSchema
from prorl.api.llm import Conversation, EngineInfo, Generation, Tokenizer
from prorl.llm.chat.ledger import Ledger
from prorl.llm.chat.session import ChatSession
from prorl.llm.chat.setup import ChatSetup
from prorl.llm.pool.checks import check_reply, fit_context
from prorl.llm.pool.lease import Sampled
from prorl.llm.rendering.cache import RendererCache
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.tokenizers.local import LocalTokenizer, load_tokenizer
from prorl.testing.bytebpe import CHATML_TEMPLATE, build_tokenizer
from prorl.wire import SamplingParams
from prorl.wire.soundness import check_trajectory

THOUGHT = "I will look at the next part of the file, since the failing test points there. "
BUCKET = 8192
BASH = ToolSchema(
    name="execute_bash",
    description="Run a command.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)


class InProcess:
    """A lease whose engine says what it is told to. ``engine_s`` is the time that an engine would have taken."""

    url = "http://in-process"

    def __init__(self, tokenizer: LocalTokenizer, template: str, end_of_turn: int) -> None:
        self._tokenizer = tokenizer
        self._end = end_of_turn
        self.info = EngineInfo(dialect="none", model="none", max_context=1 << 20, chat_template=template)
        self.engine_s = self.engine_cpu_s = 0.0
        self.said = ""

    async def ready(self) -> InProcess:
        return self

    async def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def lost(self, backend: object, reason: str) -> None:
        raise AssertionError(reason)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, conversation: Conversation | None = None
    ) -> Sampled:
        sampling = fit_context(prompt_ids, sampling, self.info)
        began, cpu = time.perf_counter(), time.process_time()
        ids = [*await self._tokenizer.encode(self.said, special=True), self._end]
        echo = [token + 0 for token in prompt_ids]  # as decoding makes them: other objects of the same value
        generation = Generation(token_ids=ids, logprobs=[-0.25] * len(ids), finish="stop", prompt_echo=echo)
        self.engine_s += time.perf_counter() - began
        self.engine_cpu_s += time.process_time() - cpu
        generation = check_reply(generation, prompt_ids, sampling, self.info, url=self.url)
        return Sampled(generation=generation, backend=self.url, policy_version="1", ms=0.0)


def observations() -> list[str]:
    """Pieces of this package's own source, as an agent that works on code reads them."""
    text = "".join(path.read_text() for path in sorted(Path(prorl.__path__[0]).rglob("*.py")))
    return [text[at : at + 2400] for at in range(0, len(text), 2400)]


class Turn(NamedTuple):
    """Milliseconds; ``tokens`` stood there before it."""

    tokens: int
    ours: float
    anew: float
    wall: float


async def measure(tokenizer: LocalTokenizer, template: str, tokens: int) -> list[Turn]:
    (end,) = await tokenizer.encode("<|im_end|>", special=True)
    lease = InProcess(tokenizer, template, end)
    chat = ChatSession(ChatSetup(lease=lease, renderers=RendererCache(), ledger=Ledger(), sampling=SamplingParams()))
    anew, now = ChatTemplate(template, variables=tokenizer.special_tokens), datetime.now(UTC)
    tools = [{"type": "function", "function": {"name": BASH.name, "description": BASH.description}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Mend the failing test."}]
    await chat.open([Message(role="user", content="Mend the failing test.")], [BASH])
    turns: list[Turn] = []
    pieces = observations()
    for number in count():
        before = chat.tokens
        if before >= tokens:
            break
        call = f'{{"name": "execute_bash", "arguments": {{"command": "sed -n {number},+60p file.py"}}}}'
        lease.said = f"{THOUGHT * 6}\n<tool_call>\n{call}\n</tool_call>"
        lease.engine_s = lease.engine_cpu_s = 0.0
        began, cpu = time.perf_counter(), time.process_time()
        reply = await chat.reply()
        seen = pieces[number % len(pieces)]
        await chat.observe([Message(role="tool", name=BASH.name, content=seen)])
        wall = time.perf_counter() - began - lease.engine_s
        ours = time.process_time() - cpu - lease.engine_cpu_s
        assert reply.tool_calls, reply
        messages += [{"role": "assistant", "content": lease.said}, {"role": "tool", "content": seen}]
        cpu = time.process_time()
        text = anew.render(messages, tools=tools, now=now)
        await tokenizer.encode(text, special=True)
        turns.append(Turn(before, ours * 1000, (time.process_time() - cpu) * 1000, wall * 1000))
    began = time.perf_counter()
    trajectory = chat.trajectory()
    made = time.perf_counter() - began
    began = time.perf_counter()
    assert check_trajectory(trajectory) == []
    checked = time.perf_counter() - began
    print(
        f"\n{len(turns)} turns, {chat.tokens} tokens; the trajectory is made in {figure(made * 1000)} ms and checked "
        f"(structure and chain) in {figure(checked * 1000)} ms"
    )
    return turns


def report(turns: Sequence[Turn], tokens: int) -> None:
    rows = [("tokens before the turn", "ours p50 ms", "ours p95 ms", "ours, wall p50 ms", "anew p50 ms", "ratio")]
    for low in range(0, tokens, BUCKET):
        within = [turn for turn in turns if low <= turn.tokens < low + BUCKET]
        ours, anew = [turn.ours for turn in within], [turn.anew for turn in within]
        p50, base = percentile(ours, 0.5), percentile(anew, 0.5)
        wall = percentile([turn.wall for turn in within], 0.5)
        figures = (p50, percentile(ours, 0.95), wall, base)
        rows.append((f"{low // 1024}k to {(low + BUCKET) // 1024}k", *map(figure, figures), f"{figure(base / p50)}x"))
    show_rows("Overhead per turn (a reply and an observation)", rows)
    rows = [("", f"to {tokens // 2048}k tokens, ms", f"to {tokens // 1024}k tokens, ms", "growth")]
    for name in ("ours", "anew"):
        whole = sum(getattr(turn, name) for turn in turns)
        half = sum(getattr(turn, name) for turn in turns if turn.tokens < tokens // 2)
        rows.append((name, figure(half), figure(whole), f"{figure(whole / half)}x"))
    show_rows("Whole trajectory (twice the tokens: 2x is linear, 4x is quadratic)", rows)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--tokens", type=int, default=65_536)
    arguments = parser.parse_args()
    if arguments.tokenizer is None:
        tokenizer = LocalTokenizer(build_tokenizer().to_str().encode(), source="prorl.testing.bytebpe")
        template = CHATML_TEMPLATE
    else:
        tokenizer = await load_tokenizer(str(arguments.tokenizer))
        template = tokenizer.chat_template or CHATML_TEMPLATE
    print(f"{machine()}; tokenizer {tokenizer.source}")
    report(await measure(tokenizer, template, arguments.tokens), arguments.tokens)


if __name__ == "__main__":
    asyncio.run(main())
