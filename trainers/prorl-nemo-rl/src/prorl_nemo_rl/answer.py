"""A finished rollout as the answer to Gym's ``/run``: a Responses API response whose items carry tokens, and a reward.

One row of NeMo RL's is one token stream in which every prompt goes on from the last reply. So one segment of a
trajectory is trained on: the main agent's with most sampled tokens. What the others held is counted.

A rollout that must not be trained on carries ``instance_config.mask_sample``, which not every version heeds, and in
none of them may it teach anything. NeMo RL wants tokens of every row and tells groups by their prompts' tokens: so one
token stands in, under a prompt that no other row has and with the same reward every time. Its advantage is 0.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec

from prorl.client import Sample, Tried
from prorl.wire.trajectory import Turn

Item = dict[str, Any]
_TOLD = ("job_id", "group_id", "status", "error", "policy_versions", "server")
_STAND_IN = {"prompt_token_ids": [0], "generation_token_ids": [0], "generation_log_probs": [0.0]}


def answer(row: dict[str, Any], tried: Tried) -> dict[str, Any]:
    """Gym's verify response, as JSON types. Its top-level numbers are averaged by NeMo RL, per agent."""
    result, trajectory = tried.result, tried.result.trajectory
    sample = max(tried.samples, key=lambda one: (sum(one.mask), one.segment), default=None)
    masked = sample is None
    items = _items(trajectory.turns, sample)
    if masked:
        items.append(_message("", len(trajectory.turns), status="incomplete") | _STAND_IN)
    sampled = [sum(segment.loss_mask) for segment in trajectory.segments]
    asked = {"input": [], **(row.get("responses_create_params") or {})}
    return {
        "responses_create_params": asked,
        "response": {
            "id": result.job_id,
            "created_at": 0,
            "object": "response",
            "model": trajectory.model or "policy",
            "output": items,
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
        },
        "reward": 0.0 if masked else result.reward,
        "instance_config": {"mask_sample": masked},
        "resolved": result.resolved,
        "masked": float(masked),
        "segments_dropped": sum(count > 0 for count in sampled) - (not masked),
        "tokens_dropped": sum(sampled) - (sum(sample.mask) if sample else 0),
        "model_s": result.timing.model_s,
        "tools_s": result.timing.tools_s,
        "total_s": result.timing.total_s,
        **{f"metric_{name}": value for name, value in result.metrics.items() if isinstance(value, int | float)},
        "rollout": {
            **{name: msgspec.to_builtins(getattr(result, name)) for name in _TOLD},
            "masked_because": str(tried.untrainable) if masked else None,
        },
    }


def _items(turns: list[Turn], sample: Sample | None) -> list[Item]:
    """The turns as response items: those of the sample's segment, with its tokens, or all, without any."""
    generations = {} if sample is None else _generations(sample)
    items: list[Item] = []
    call: str | None = None
    for number, turn in enumerate(turns):
        if turn.role == "prompt" or (sample is not None and turn.segment != sample.segment):
            continue
        if turn.role == "assistant":
            reply = _reply(turn, number)
            reply[-1] |= generations.pop(turn.end, {})
            call = next((item["call_id"] for item in reply if item["type"] == "function_call"), None)
            items += reply
        elif turn.role == "tool" and call is not None:
            # Several results of one turn stand in one text, as they were rendered, under the first of their calls.
            items.append({"type": "function_call_output", "call_id": call, "output": turn.text})
        else:
            items.append({"type": "message", "role": "user", "content": turn.text})
    return items


def _generations(sample: Sample) -> dict[int, Item]:
    """What was sampled in one go (replies with nothing between them are one generation to NeMo RL), by where it ends.
    ``prompt_token_ids`` is everything before it: observations between two replies are in the later one's."""
    tokens, place = sample.prompt_ids + sample.response_ids, len(sample.prompt_ids)
    logprobs = [0.0] * place + sample.logprobs
    found: dict[int, Item] = {}
    for bit, run in itertools.groupby(sample.mask):
        start, place = place, place + len(list(run))
        if bit:
            found[place] = {
                "prompt_token_ids": tokens[:start],
                "generation_token_ids": tokens[start:place],
                "generation_log_probs": logprobs[start:place],
            }
    return found


def _reply(turn: Turn, number: int) -> list[Item]:
    """NeMo RL calls a text malformed that still holds a tool call or a thinking tag: what was understood is apart."""
    thought, tag, text = turn.text.partition("</think>")
    thought = thought.lstrip().removeprefix("<think>")
    items: list[Item] = []
    if tag and "<think>" not in thought and "think>" not in text:
        if thought:
            summary = [{"type": "summary_text", "text": thought}]
            items.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    else:
        text = turn.text
    items.append(_message(text, number, status="incomplete" if turn.finish_reason == "length" else "completed"))
    if not any(call.error for call in turn.tool_calls):
        items += [
            {
                "type": "function_call",
                "id": f"fc_{number}_{place}",
                "call_id": f"call_{number}_{place}",
                "name": call.name,
                "arguments": json.dumps(call.arguments),
                "status": "completed",
            }
            for place, call in enumerate(turn.tool_calls)
        ]
    return items


def _message(text: str, number: int, *, status: str) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status, "content": content}
