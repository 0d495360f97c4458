"""The environment actor itself: what stands at ``task_to_env["nemo_gym"]``, without Gym in between.

NeMo RL up to 0.7 calls ``run_rollouts(rows, tokenizer, timer_prefix)`` and awaits all results with their timing; later
versions call ``run_rollouts(rows, timer_prefix, ...)`` and take ``(row index, result, timing)`` as they come. Which one
is installed is told by its own actor.

Here a rollout that must not be trained on is one ``user`` message: tokens without loss in every version.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from prorl_nemo_rl.rollouts import Rollouts
from prorl_nemo_rl.settings import RolloutSettings

Row = dict[str, Any]
Result = dict[str, Any]
# What NeMo RL takes for a call that was not understood, and for thinking that got into the answer.
_CALL_TAGS = ("<tool_call>", "</tool_call>", "<function_call>", "</function_call>")
_THINKING_TAGS = ("<think>", "</think>")


class _Environment:
    """``config``: ``model_name`` and ``base_urls`` as for NeMo RL's own actor, and ``rollouts``
    (:class:`~prorl_nemo_rl.settings.RolloutSettings`)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = msgspec.convert(config["rollouts"], RolloutSettings)
        self._rollouts = Rollouts(settings, model=config["model_name"], base_urls=list(config["base_urls"]))
        self._open: asyncio.Future[Rollouts] | None = None

    async def health_check(self) -> bool:
        return True

    async def shutdown(self) -> None:
        if self._open is not None:
            await self._rollouts.__aexit__()

    async def _results(
        self, rows: list[Row], prefix: str
    ) -> AsyncIterator[tuple[int, Result, dict[str, float] | None]]:
        """As they end; the last one carries the timing. Leaving early cancels the rest."""
        self._open = self._open or asyncio.ensure_future(self._rollouts.__aenter__())
        await asyncio.shield(self._open)
        start = time.monotonic()

        async def run(row: Row) -> tuple[int, Result]:
            return row["_rowidx"], result_of(await self._rollouts.run(row))

        tasks = [asyncio.create_task(run(row)) for row in rows]
        try:
            for left, ended in zip(reversed(range(len(rows))), asyncio.as_completed(tasks), strict=True):
                index, result = await ended
                yield index, result, None if left else {f"{prefix}/await_results": time.monotonic() - start}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class BatchEnvironment(_Environment):
    """NeMo RL 0.6 and 0.7."""

    async def run_rollouts(
        self, nemo_gym_examples: list[Row], tokenizer: Any, timer_prefix: str
    ) -> tuple[list[Result], dict[str, float]]:
        found = [each async for each in self._results(nemo_gym_examples, timer_prefix)]
        results = {index: result for index, result, _ in found}
        return [results[row["_rowidx"]] for row in nemo_gym_examples], found[-1][2] or {}


class StreamingEnvironment(_Environment):
    """NeMo RL after 0.7."""

    async def run_rollouts(
        self, nemo_gym_examples: list[Row], timer_prefix: str, deduplicate_multimodal_data: bool = False
    ) -> AsyncIterator[tuple[int, Result, dict[str, float] | None]]:
        async for each in self._results(nemo_gym_examples, timer_prefix):
            yield each


def environment_class(theirs: type | None = None) -> type[BatchEnvironment | StreamingEnvironment]:
    """The one that the installed NeMo RL calls; ``theirs`` is the class of its own actor."""
    if theirs is None:
        from nemo_rl.environments.nemo_gym import NemoGym  # noqa: PLC0415 - there in NeMo RL's environment only

        theirs = NemoGym.__ray_metadata__.modified_class
    return StreamingEnvironment if inspect.isasyncgenfunction(getattr(theirs, "run_rollouts")) else BatchEnvironment  # noqa: B009


def start(config: Mapping[str, Any], **options: Any) -> Any:
    """The handle of a Ray actor; ``options`` are Ray's."""
    import ray  # noqa: PLC0415 - there in NeMo RL's environment only

    return ray.remote(environment_class()).options(**options).remote(dict(config))


def result_of(found: dict[str, Any]) -> Result:
    """Gym's verify response as NeMo RL keeps a rollout. Token fields leave the response, which is logged whole.

    They are lists: NeMo RL makes tensors of them on its side of the actor.
    """
    log: list[dict[str, Any]] = []
    seen = 0
    for item in found["response"]["output"]:
        if "generation_token_ids" not in item:
            continue
        prompt, ids = item.pop("prompt_token_ids"), item.pop("generation_token_ids")
        texts = [part["text"] for part in item.get("content", [])]
        reply = {
            "role": "assistant",
            "content": "",
            "token_ids": ids,
            "generation_logprobs": item.pop("generation_log_probs"),
            "is_invalid_tool_call": any(tag in text for text in texts for tag in _CALL_TAGS),
            "has_malformed_thinking": any(tag in text for text in texts for tag in _THINKING_TAGS),
        }
        log += [{"role": "user", "content": "", "token_ids": prompt[seen:]}, reply]
        seen = len(prompt) + len(ids)
    if found["instance_config"]["mask_sample"]:
        log = [{"role": "user", "content": "", "token_ids": [token for each in log for token in each["token_ids"]]}]
    return {"message_log": log, "input_message_log": log[:1], "full_result": found}
