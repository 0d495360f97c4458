"""What a run of the loop leaves behind."""

from __future__ import annotations

from typing import Literal, TypedDict

Ended = Literal["finish", "answer", "max_turns", "context", "length", "timeout", "cancelled", "fault"]


class RunOutput(TypedDict):
    """What a run leaves in ``job.run_output``; kept up to date turn by turn, so a run that fails leaves its work.

    ``answer`` is the finish tool's answer, else the last reply's text; ``reply`` is the last reply's text in either
    case (after any thinking, without its calls). ``tool_errors`` counts observations that were errors; among them
    ``bad_calls`` (the call could not be used) and ``tool_crashes`` (the tool raised what it should not).
    ``cut_replies`` and ``cut_observations`` were too long for their limits, ``compactions`` began new segments.
    """

    answer: str
    reply: str
    ended: Ended
    turns: int
    tool_calls: int
    tool_errors: int
    bad_calls: int
    tool_crashes: int
    reminders: int
    cut_replies: int
    cut_observations: int
    compactions: int


def blank_output() -> RunOutput:
    return RunOutput(
        answer="",
        reply="",
        ended="fault",
        turns=0,
        tool_calls=0,
        tool_errors=0,
        bad_calls=0,
        tool_crashes=0,
        reminders=0,
        cut_replies=0,
        cut_observations=0,
        compactions=0,
    )
