"""From what ``final_result`` returned to the result that goes out. Nothing a handler returns is taken on trust."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import msgspec

from prorl.api.errors import Fault, GraderFault
from prorl.pipeline.faults import trim
from prorl.wire.trajectory import Trajectory

_encoder = msgspec.json.Encoder()


class Verdict(msgspec.Struct, kw_only=True):
    reward: float = 0.0
    resolved: bool = False
    mask_sample: bool | None = None
    metrics: dict[str, Any] = {}
    artifacts: dict[str, Any] = {}
    notes: list[str] = []
    fault: Fault | None = None


def read_verdict(given: dict[str, Any], *, graded: bool) -> Verdict:
    """``graded``: EVAL came to an end, so a reward must be there. What is wrong becomes ``fault`` or a note."""
    verdict = Verdict(notes=[])
    try:
        verdict.reward = _reward(given, required=graded)
        verdict.resolved = _flag(given, "resolved", default=verdict.reward >= 1.0)
        if "mask_sample" in given:
            verdict.mask_sample = _flag(given, "mask_sample", default=False)
    except GraderFault as fault:
        verdict.fault = fault
        verdict.reward, verdict.resolved = 0.0, False
    verdict.metrics = _table(given, "metrics", verdict.notes)
    verdict.artifacts = _table(given, "artifacts", verdict.notes)
    if isinstance(reason := given.get("reason"), str):
        verdict.metrics.setdefault("reason", trim(reason, 4_000))
    return verdict


def versions_in(trajectory: Trajectory) -> list[str]:
    """The policy versions that sampled tokens, in order of first use."""
    seen = dict.fromkeys(span.version for segment in trajectory.segments for span in segment.versions if span.version)
    return list(seen)


def _reward(given: dict[str, Any], *, required: bool) -> float:
    if "reward" not in given and not required:
        return 0.0
    reward = given.get("reward")
    if type(reward) is not float and (isinstance(reward, bool) or not isinstance(reward, Real)):
        raise GraderFault(f"the reward must be a number, not {_shown(reward)}", code="bad_reward")
    try:
        number = float(reward)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise GraderFault(f"the reward must be finite, not {_shown(reward)}", code="bad_reward")
    return number


def _flag(given: dict[str, Any], name: str, *, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise GraderFault(f"{name} must be a bool, not {_shown(value)}", code="bad_verdict")
    return value


def _table(given: dict[str, Any], name: str, notes: list[str]) -> dict[str, Any]:
    """A handler's dict as plain JSON data of our own; what is not JSON is replaced by a note."""
    table = given.get(name, {})
    if not isinstance(table, dict):
        notes.append(f"{name} must be a dict, not {type(table).__name__}: left out")
        return {}
    kept: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(key, str):
            notes.append(f"{name}: key {_shown(key)} is not a str: left out")
            continue
        try:
            encoded = _encoder.encode(value)
            msgspec.msgpack.encode(msgspec.json.decode(encoded))  # integers beyond 64 bits; Raw that is no JSON
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            notes.append(f"{name}[{trim(key, 200)!r}] is not JSON ({trim(str(error), 200)}): left out")
        else:
            kept[trim(key, 200)] = msgspec.Raw(encoded)
    return kept


def _shown(value: object) -> str:
    """A stranger's value in a message: its repr may be long, or fail."""
    try:
        return trim(repr(value), 100)
    except BaseException:
        return f"a {type(value).__name__}"
