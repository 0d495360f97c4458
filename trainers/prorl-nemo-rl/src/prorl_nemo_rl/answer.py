"""A finished rollout as the answer to Gym's ``/run``: a Responses API response whose items carry tokens, and a reward.

One row of NeMo RL's is one token stream in which every prompt goes on from the last reply. So one segment of a
trajectory is trained on: the main agent's with most sampled tokens. What the others held is counted. A rollout that
must not be trained on carries ``instance_config.mask_sample``; there must be tokens all the same, or NeMo RL gives the
whole batch up, so where nothing was sampled one stands in that no loss sees.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from prorl.client import SampleRules
from prorl.client.samples import Untrainable, samples_of
from prorl.wire.results import RolloutResult
from prorl.wire.soundness import check_result
from prorl.wire.trajectory import Trajectory, Turn

Item = dict[str, Any]
_STAND_IN = {"prompt_token_ids": [0], "generation_token_ids": [0], "generation_log_probs": [0.0]}


def answer(row: dict[str, Any], result: RolloutResult, rules: SampleRules | None = None) -> dict[str, Any]:
    """Gym's verify response, as JSON types. Its top-level numbers are averaged by NeMo RL, per agent."""
    why = masked_because(result, rules)
    trajectory = result.trajectory if why is None or _sound(result, rules) else Trajectory()
    segment = _main(trajectory)
    items = [] if segment is None else items_of(trajectory, segment)
    tokens = [item for item in items if "generation_token_ids" in item]
    if not tokens:
        items.append(_message("", 0, status="incomplete") | _STAND_IN)
        why = why or "the main agent's policy sampled no token"
    params = row.get("responses_create_params") or {}
    kept = sum(len(item["generation_token_ids"]) for item in tokens)
    total = sum(sum(segment.loss_mask) for segment in trajectory.segments)
    return {
        "responses_create_params": {"input": [], **params},
        "response": _response(result, items, tokens, params),
        "reward": result.reward,
        "instance_config": {"mask_sample": why is not None},
        "resolved": result.resolved,
        "masked": float(why is not None),
        "segments_dropped": max(0, sum(1 in segment.loss_mask for segment in trajectory.segments) - 1),
        "tokens_dropped": total - kept,
        "model_s": result.timing.model_s,
        "tools_s": result.timing.tools_s,
        "total_s": result.timing.total_s,
        **{f"metric_{name}": value for name, value in result.metrics.items() if isinstance(value, int | float)},
        "rollout": {
            "job_id": result.job_id,
            "group_id": result.group_id,
            "status": result.status,
            "error": msgspec.to_builtins(result.error),
            "masked_because": why,
            "policy_versions": result.policy_versions,
            "server": result.server,
        },
    }


def masked_because(result: RolloutResult, rules: SampleRules | None = None) -> str | None:
    """Why it must not be trained on, or ``None``. The certificate is checked here."""
    try:
        samples_of(result, rules)
    except Untrainable as untrainable:
        return str(untrainable)
    return None


def items_of(trajectory: Trajectory, segment: int) -> list[Item]:
    """The turns of a segment as response items. Token fields stand on the last item of a reply, and
    ``prompt_token_ids`` is everything before it: observations between two replies are in the later one's."""
    stream = trajectory.segments[segment]
    items: list[Item] = []
    last: Turn | None = None
    call: str | None = None
    for number, turn in enumerate(trajectory.turns):
        if turn.segment != segment or turn.role == "prompt" or turn.start == turn.end:
            continue
        if turn.role != "assistant":
            items.append(_observation(turn, call))
            continue
        reply = _reply(turn, number)
        fields = {
            "prompt_token_ids": stream.tokens[: turn.start],
            "generation_token_ids": stream.tokens[turn.start : turn.end],
            "generation_log_probs": stream.logprobs[turn.start : turn.end],
        }
        if last is not None and last.end == turn.start:  # nothing in between: to NeMo RL the two are one generation
            before = next(item for item in reversed(items) if "generation_token_ids" in item)
            start = len(before["prompt_token_ids"])
            fields = {
                "prompt_token_ids": before.pop("prompt_token_ids"),
                "generation_token_ids": stream.tokens[start : turn.end],
                "generation_log_probs": before.pop("generation_log_probs") + fields["generation_log_probs"],
            }
            del before["generation_token_ids"]
        reply[-1] |= fields
        call = next((item["call_id"] for item in reply if item["type"] == "function_call"), None)
        items += reply
        last = turn
    return items


def _main(trajectory: Trajectory) -> int | None:
    sampled = {
        index: sum(segment.loss_mask)
        for index, segment in enumerate(trajectory.segments)
        if segment.agent == "" and 1 in segment.loss_mask
    }
    return max(sampled, key=lambda index: (sampled[index], index), default=None)


def _sound(result: RolloutResult, rules: SampleRules | None) -> bool:
    return result.trajectory.trainable and not check_result(result, key=rules.key if rules is not None else None)


def _reply(turn: Turn, number: int) -> list[Item]:
    """NeMo RL calls a text malformed that still holds a tool call or a thinking tag: what was understood is apart."""
    thought, tag, text = turn.text.partition("</think>")
    if not tag or "<think>" in thought.lstrip().removeprefix("<think>") or "think>" in text:
        thought, text = "", turn.text
    items: list[Item] = []
    if thought:
        summary = [{"type": "summary_text", "text": thought.lstrip().removeprefix("<think>")}]
        items.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
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


def _observation(turn: Turn, call: str | None) -> Item:
    """Several results of one turn stand in one text, as they were rendered, under the first of their calls."""
    if turn.role == "tool" and call is not None:
        return {"type": "function_call_output", "call_id": call, "output": turn.text}
    return {"type": "message", "role": "user", "content": turn.text}


def _message(text: str, number: int, *, status: str) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": status, "content": content}


def _response(result: RolloutResult, items: list[Item], tokens: list[Item], params: dict[str, Any]) -> dict[str, Any]:
    read = sum(len(item["prompt_token_ids"]) for item in tokens)
    written = sum(len(item["generation_token_ids"]) for item in tokens)
    return {
        "id": result.job_id,
        "created_at": 0,
        "object": "response",
        "model": result.trajectory.model or "policy",
        "output": items,
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "tool_choice": params.get("tool_choice", "auto"),
        "tools": params.get("tools", []),
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        },
    }
