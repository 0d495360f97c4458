"""An engine for verl on a CPU: a Hugging Face model behind the calls that verl makes to its rollout servers.

It stands where vLLM's server stands. Requests that have arrived are sampled together, token by token with a cache, from
the raw softmax; ``abort_all_requests`` ends the replies under way with what they have, as vLLM's does. With
``HF_ENGINE_TOKEN_S`` in the environment a token takes at least so many seconds, as those of larger models do.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from verl.workers.rollout.replica import TokenOutput


class Request:
    def __init__(self, prompt_ids: list[int], params: dict[str, Any], eos: int) -> None:
        self.prompt_ids = prompt_ids
        self.max_tokens = int(params["max_tokens"])
        self.temperature = float(params.get("temperature", 1.0))
        self.stops = {eos, *params.get("stop_token_ids", ())}
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.version: int | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if (params.get("top_p", 1.0), params.get("top_k", -1)) != (1.0, -1):
            raise ValueError("this engine samples from the whole distribution only")

    @property
    def finished(self) -> bool:
        return len(self.ids) >= self.max_tokens or (bool(self.ids) and self.ids[-1] in self.stops)


class HfEngine:
    """``global_steps`` is the version of the weights; verl tells it with them."""

    def __init__(self, folder: str, *, max_batch: int = 64, seed: int = 0) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.global_steps: int | None = 0
        self.calls: list[tuple[str, list[int], dict[str, Any]]] = []
        self._eos = self.model.config.eos_token_id
        self._pad = self.model.config.pad_token_id
        self._max_batch = max_batch
        self._token_s = float(os.environ.get("HF_ENGINE_TOKEN_S", "0"))
        self._generator = torch.Generator().manual_seed(seed)
        self._waiting: list[Request] = []
        self._aborting = False
        self._open = asyncio.Event()
        self._open.set()
        self._weights = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        self.calls.append((request_id, list(prompt_ids), dict(sampling_params)))
        await self._open.wait()
        request = Request(list(prompt_ids), sampling_params, self._eos)
        self._waiting.append(request)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._sample_all())
        await request.done
        return TokenOutput(
            token_ids=request.ids,
            log_probs=request.logprobs,
            stop_reason="completed" if request.finished else "aborted",
            extra_fields={"global_steps": request.version},
        )

    async def _sample_all(self) -> None:
        await asyncio.sleep(0.01)  # more may be on their way
        while self._waiting:
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            async with self._weights:
                if not self._aborting:
                    await asyncio.to_thread(self._sample, batch)
                for request in batch:
                    request.version = self.global_steps  # here: behind the lock the next weights may be waiting
                    request.done.set_result(None)

    @torch.no_grad()
    def _sample(self, batch: list[Request]) -> None:
        width = max(len(request.prompt_ids) for request in batch)
        ids = torch.tensor([[self._pad] * (width - len(r.prompt_ids)) + r.prompt_ids for r in batch])
        mask = torch.tensor([[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in batch])
        cache, temperature = DynamicCache(), torch.tensor([[max(r.temperature, 1e-6)] for r in batch])
        while True:
            time.sleep(self._token_s)
            places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            logits = self.model(input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache).logits
            logprobs = torch.log_softmax(logits[:, -1].float() / temperature, dim=-1)
            drawn = torch.multinomial(logprobs.exp(), 1, generator=self._generator)
            for request, token in zip(batch, drawn.tolist(), strict=True):
                if not request.finished:
                    request.ids += token
                    request.logprobs.append(float(logprobs[batch.index(request), token[0]]))
            if self._aborting or all(request.finished for request in batch):
                return
            ids, mask = drawn, torch.cat([mask, torch.ones_like(drawn)], dim=1)

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        self._open.clear()
        self._aborting = True
        if self._pump is not None:
            await self._pump
        self._aborting = False

    async def resume_generation(self) -> None:
        self._open.set()

    async def load(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        async with self._weights:
            missing, unknown = self.model.load_state_dict(weights, strict=False)
            if missing or unknown:
                raise ValueError(f"missing {missing}, unknown {unknown}")
            self.global_steps = global_steps

    async def told(self) -> list[tuple[str, list[int], dict[str, Any]]]:
        return self.calls

    async def wake_up(self) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...
