"""The ``nemo-rl`` dialect over a real vLLM: what NeMo RL's server adds to vLLM stands in front of it.

NeMo RL itself does not install here. Its server is a vLLM whose chat rendering replaces, in the rendered ids,
everything up to the last reply's end-of-sequence token by the ids it was given. Rendering, tokenizer and sampling are
vLLM's own in these tests, so they say whether our rendering is vLLM's, tools included.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from prorl.api import Message, ToolSchema
from prorl.llm.chat.ledger import Ledger
from prorl.llm.chat.session import ChatSession
from prorl.llm.chat.setup import ChatSetup
from prorl.llm.rendering.cache import RendererCache
from prorl.testing.bytebpe import build_tokenizer, write_tokenizer
from prorl.testing.httpd import HttpServer, Request, Response, json_response
from prorl.wire import BackendSpec, SamplingParams

pytestmark = pytest.mark.timeout(900)
EOS = build_tokenizer().token_to_id("<|im_end|>")
LOOK = ToolSchema(
    name="look",
    description='Look "somewhere": under the bed, for instance.',
    parameters={"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
)


class InFrontOfVllm(HttpServer):
    """``/v1/chat/completions`` and ``/tokenize`` with ``required_prefix_token_ids``. ``prompts`` are what it sampled
    after."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._vllm = url
        self.prompts: list[list[int]] = []

    async def handle(self, request: Request) -> Response:
        body = msgspec.json.decode(request.body) if request.body else {}
        async with httpx.AsyncClient(base_url=self._vllm, timeout=None) as vllm:
            match request.path:
                case "/tokenize" if "messages" not in body:
                    return Response(body=(await vllm.post("/tokenize", json=body)).content)
                case "/tokenize":
                    ids, length = await self._render(vllm, body)
                    return json_response({"count": len(ids), "max_model_len": length, "tokens": ids})
                case "/v1/chat/completions":
                    ids, _ = await self._render(vllm, body)
                    self.prompts.append(ids)
                    return json_response(await self._sample(vllm, body, ids))
        return json_response({"detail": "Not Found"}, 404)

    async def _render(self, vllm: httpx.AsyncClient, body: dict[str, Any]) -> tuple[list[int], int]:
        asked = {name: body[name] for name in ("messages", "tools") if name in body}
        whole = (await vllm.post("/tokenize", json=asked)).raise_for_status().json()
        rendered, prefix = whole["tokens"], body.get("required_prefix_token_ids")
        if prefix:
            last = max(place for place, each in enumerate(body["messages"]) if each["role"] == "assistant")
            past = {**asked, "messages": body["messages"][: last + 1], "add_generation_prompt": False}
            count = (await vllm.post("/tokenize", json=past)).raise_for_status().json()["tokens"].count(EOS)
            at = [place for place, token in enumerate(rendered) if token == EOS][count - 1]
            rendered = [*(prefix[:-1] if prefix[-1] == EOS else prefix), *rendered[at:]]
        return rendered, whole["max_model_len"]

    async def _sample(self, vllm: httpx.AsyncClient, body: dict[str, Any], ids: list[int]) -> dict[str, Any]:
        passed = ("max_tokens", "temperature", "top_p", "min_p", "stop_token_ids", "seed")
        sampling = {name: body[name] for name in passed if name in body}
        answer = (
            await vllm.post(
                "/inference/v1/generate",
                json={"model": "tiny", "token_ids": ids, "sampling_params": {**sampling, "logprobs": 0}},
            )
        ).raise_for_status()
        choice = answer.json()["choices"][0]
        message = {
            "role": "assistant",
            "content": "",
            "prompt_token_ids": ids,
            "generation_token_ids": choice["token_ids"],
            "generation_log_probs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
        }
        return {"choices": [{"index": 0, "message": message, "finish_reason": choice["finish_reason"]}]}


@pytest.mark.parametrize("tools", [(), (LOOK,)], ids=["plain", "with a tool"])
async def test_a_conversation_is_sampled_after_our_ids(vllm, make_pool, tmp_path: Path, tools):
    write_tokenizer(tmp_path)
    ledger = Ledger()
    with InFrontOfVllm(vllm.url) as server:
        pool = make_pool()
        status = await pool.add(BackendSpec(url=server.url, tokenizer=str(tmp_path)))
        assert status.dialect == "nemo-rl"
        setup = ChatSetup(
            lease=pool.lease("job", wait_s=0, hold=nullcontext),
            renderers=RendererCache(),
            ledger=ledger,
            sampling=SamplingParams(max_tokens=60, seed=5),
        )
        chat = ChatSession(setup)
        system = Message(role="system", content="Be brief.\n")
        await chat.open([system, Message(role="user", content="\n\nWhere is the ball? ")], tools)
        for turn in range(4):  # a random model: its replies are bytes, cut off by length more often than not
            await chat.reply()
            seen = Message(role="tool", name="look", content=f"Nothing {turn}.\n\n") if tools and turn % 2 else None
            await chat.observe([seen or Message(role="user", content=" and now? \n")])
        await chat.reply()
    trajectory = ledger.trajectory()
    replies = [turn for turn in trajectory.turns if turn.role == "assistant"]
    assert [trajectory.input_ids(turn) for turn in replies] == server.prompts
    assert (len(replies), len(trajectory.segments), trajectory.trainable) == (5, 1, True)
