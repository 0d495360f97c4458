"""The task, with a policy that says what it is told to; everything else is real."""

from __future__ import annotations

import pytest

from prorl.testing.lab import Lab
from prorl_lookup import task
from prorl_lookup.lessons import lookup

ROW = {"key": "417", "value": "CAB"}


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ([lookup.call_of("417"), "CAB"], 1.0),
        ([lookup.call_of("417"), "BAD"], 0.5),
        ([lookup.call_of("999"), "none"], 0.0),
        ([lookup.call_of("999"), lookup.call_of("417"), "CAB"], 1.0),
        (["CAB"], 0.5),
    ],
)
def test_rewards(replies, reward):
    with Lab(replies) as lab:
        result = lab.rollout(ROW, domain="lookup")
    assert result.error is None
    assert result.reward == reward


def test_the_tool_reads_the_sandbox_and_runs_nothing_that_it_is_given():
    with Lab([lookup.call_of("1 //p; w /tmp/x"), lookup.call_of("417"), "CAB"]) as lab:
        first, second = [
            turn.text for turn in lab.rollout(ROW, domain="lookup").trajectory.turns if turn.role == "tool"
        ]
    assert "\nnone\n" in first
    assert "\nCAB\n" in second


@pytest.mark.parametrize("row", [{}, {"key": "41", "value": "CAB"}, {"key": "417", "value": "cab"}])
def test_a_bad_row_is_the_tasks_fault(row):
    with Lab([]) as lab:
        result = lab.rollout(row, domain="lookup")
    assert (result.error.kind, result.error.code, result.mask_sample) == ("task", "bad_row", True)


def test_a_row_has_one_table_and_rows_follow_from_the_seed():
    row = task.Row(**ROW)
    assert row.table() == row.table()
    assert "417 CAB\n" in row.table()
    first, again, other = (next(task.rows(seed)) for seed in (1, 1, 2))
    assert first == again != other
