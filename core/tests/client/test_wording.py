"""Validation errors in words: known names, no regular expressions, and the field's place."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec
import pytest

from prorl.wire import BackendSpec, BackendStatus, JobRequest, PoolStatus
from prorl.wire.wording import complaint, counted, suggest


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    width: int = 0
    shape: Literal["round", "square"] = "round"


class Side(enum.IntEnum):
    LEFT = 1
    RIGHT = 2


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    many: list[Inner] = []
    named: dict[str, Inner | None] = {}
    pair: tuple[int, Inner] | None = None
    specs: tuple[BackendSpec, ...] = ()
    side: Side | None = None


def said(value, kind):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, kind)
    return complaint(caught.value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "place", "what"),
    [
        ({"instance": {}, "job_idd": "x"}, JobRequest, "job_idd", "unknown field `job_idd`; did you mean `job_id`?"),
        ({"instance": {}, "budgets": {"x": 1}}, JobRequest, "budgets.x", "known: init_s, run_s, collect_s, eval_s"),
        ({"instance": {}, "sampling_params": {"top_p": 2}}, JobRequest, "sampling_params.top_p", "Expected `float` <="),
        ({"url": "localhost:8000"}, BackendSpec, "url", "must be written like http://host:port"),
        (
            {"specs": [{"url": "http://a"}, {"url": "b"}]},
            Outer,
            "specs[1].url",
            "must be written like http://host:port",
        ),
        ({"many": [{"widht": 1}]}, Outer, "many[0].widht", "did you mean `width`?"),
        ({"named": {"a": {"zzz": 1}}}, Outer, "named[...].zzz", "known: width, shape"),
        ({"pair": [1, {"zzz": 1}]}, Outer, "pair[1].zzz", "known: width, shape"),
        ({"many": [{"shape": "rund"}]}, Outer, "many[0].shape", "'rund' is none of 'round', 'square'"),
        ({"side": 3}, Outer, "side", "3 is none of 1, 2"),
        (3, Outer, "", "Expected `object`, got `int`"),
    ],
)
def test_complaints(value, kind, place, what):
    complained = said(value, kind)
    assert complained.place == place
    assert what in complained.what
    assert "regex" not in str(complained)


def test_suggestions_and_counts():
    assert suggest("x", []) == "; known: none"
    assert suggest("x", (f"name{i}" for i in range(20))).endswith("name11, ...")
    assert [counted(number, "row") for number in (0, 1, 2, 12345)] == ["0 rows", "1 row", "2 rows", "12,345 rows"]


def backend(url, *, healthy, reason=None):
    counts = dict.fromkeys(("assigned", "in_flight", "calls", "failures"), 0)
    return BackendStatus(
        url=url, dialect="vllm", model="m", policy_version="0", healthy=healthy, reason=reason, **counts
    )


def test_why_no_model_can_be_called():
    def trouble(*backends, paused=False):
        return PoolStatus(policy_version="0", paused=paused, waiting=1, backends=[*backends]).trouble

    good, bad = backend("http://a", healthy=True), backend("http://b", healthy=False, reason="refused")
    assert trouble(bad, good) is None
    assert trouble() == "no LLM server is registered: start one that the settings name, or POST /add_llm_server"
    assert trouble(bad) == "no LLM server works (http://b: refused): start it again, or POST /add_llm_server"
    assert "paused" in trouble(good, paused=True)
