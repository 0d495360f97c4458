"""What NeMo RL asks of a rollout, as a check that runs where NeMo RL is not installed.

Written from its source (``environments/nemo_gym.py``, ``experience/rollouts.py`` of v0.6.0, v0.7.0 and main): every
sentence is an assertion there, or a batch that could not be collated. A check returns what is wrong, as sentences.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def check_answer(found: Mapping[str, Any]) -> list[str]:
    """A ``/run`` response, as NeMo RL's own Gym actor reads it."""
    wrong: list[str] = []
    seen: list[int] = []
    trainable = 0
    for place, item in enumerate(found["response"]["output"]):
        if "generation_token_ids" not in item:
            continue
        where = f"output[{place}]"
        if missing := [name for name in _TOKEN_FIELDS if name not in item]:
            wrong.append(f"{where} lacks {', '.join(missing)}")
            continue
        prompt, ids, logprobs = (item[name] for name in _TOKEN_FIELDS)
        trainable += bool(ids)
        if not ids:
            wrong.append(f"{where} has an empty generation")
        if prompt[: len(seen)] != seen:
            wrong.append(f"{where} does not go on from the tokens before it")
        if len(prompt) == len(seen):
            wrong.append(f"{where} adds no prompt token")  # torch.tensor([]) is of floats
        wrong += _check_generation(where, ids, logprobs)
        seen = [*prompt, *ids]
    if not trainable:
        wrong.append("no output item has generated tokens: NeMo RL gives the whole batch up")
    if "input" not in found.get("responses_create_params", {}):
        wrong.append("responses_create_params.input is missing")
    return wrong + _check_verdict(found)


def check_result(result: Mapping[str, Any]) -> list[str]:
    """A rollout as ``run_rollouts`` hands it over."""
    wrong: list[str] = []
    log = result["message_log"]
    if not log:
        return ["the message log is empty"]
    for place, message in enumerate(log):
        where, expected = f"message_log[{place}]", "assistant" if place % 2 else "user"
        ids = _plain(message["token_ids"])
        if message["role"] != expected:
            wrong.append(f"{where} is the {message['role']}'s, the {expected}'s turn it is")
        if message["content"] != "":
            wrong.append(f"{where} has content: only its tokens count")
        if not ids:
            wrong.append(f"{where} is empty")
        if message["role"] == "assistant":
            wrong += _check_generation(where, ids, _plain(message["generation_logprobs"]))
        elif "generation_logprobs" in message:
            wrong.append(f"{where} is not the policy's and has logprobs: it would be trained on")
    if [_plain(each["token_ids"]) for each in result["input_message_log"]] != [_plain(log[0]["token_ids"])]:
        wrong.append("input_message_log is not the log's first message")
    if any(name in item for item in result["full_result"]["response"]["output"] for name in _TOKEN_FIELDS):
        wrong.append("full_result still holds token fields: it is logged whole")
    try:
        json.dumps(result["full_result"])
    except TypeError as error:
        wrong.append(f"full_result is no JSON: {error}")
    return wrong + _check_verdict(result["full_result"])


async def check_environment(environment: Any, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[str]]:
    """Run ``rows`` in whichever signature it has: the results in the rows' order, and what is wrong."""
    wrong: list[str] = []
    found: dict[int, Any] = {}
    if inspect.isasyncgenfunction(environment.run_rollouts):
        timings = []
        async for index, result, timing in environment.run_rollouts(list(rows), "timing/rollout", False):
            if index in found or index not in range(len(rows)):
                wrong.append(f"row {index} came twice, or is none")
            found[index] = result
            timings.append(timing)
        if any(timing is not None for timing in timings[:-1]) or not isinstance(timings[-1], dict):
            wrong.append("the last row alone carries the timing")
    else:
        results, timing = await environment.run_rollouts(list(rows), None, "timing/rollout")
        found = dict(enumerate(results))
        if not all(isinstance(value, int | float) for value in timing.values()):
            wrong.append("the timing holds what is no number")
    if missing := set(range(len(rows))) - set(found):
        wrong.append(f"no result for rows {sorted(missing)}")
    ordered = [found[index] for index in sorted(found)]
    wrong += [f"row {index}: {each}" for index, result in enumerate(ordered) for each in check_result(result)]
    return ordered, wrong


def _check_generation(where: str, ids: Sequence[int], logprobs: Sequence[float]) -> list[str]:
    wrong = []
    if len(ids) != len(logprobs):
        wrong.append(f"{where} has {len(ids)} tokens and {len(logprobs)} logprobs")
    if not all(isinstance(each, float) and math.isfinite(each) for each in logprobs):
        wrong.append(f"{where} has a logprob that is no finite number")
    if not all(isinstance(each, int) and each >= 0 for each in ids):
        wrong.append(f"{where} has what is no token id")
    return wrong


def _check_verdict(found: Mapping[str, Any]) -> list[str]:
    wrong = []
    reward = found.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        wrong.append(f"the reward is {reward!r}")
    if not isinstance((found.get("instance_config") or {}).get("mask_sample", False), bool):
        wrong.append("instance_config.mask_sample is no truth value")
    return wrong


def _plain(values: Any) -> list[Any]:
    plain: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return plain
