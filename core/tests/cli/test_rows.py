"""Rows into requests: bad ones are named by line before anything runs; ids depend on content alone."""

from __future__ import annotations

import json

import pytest

from prorl.api import ConfigError
from prorl.cli.rollout.rows import key_of, read_rows, requests
from prorl.wire import JobRequest, SamplingParams


@pytest.fixture
def write(tmp_path):
    def made(*lines: object):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        return path

    return made


def keys(path, **options):
    return [row.key for row in read_rows(path, domain="d", **options)]


def test_the_key_is_the_content(write):
    first = keys(write({"a": 1, "b": 2}, {"a": 2}))
    assert keys(write({"a": 2}, "\n", {"b": 2, "a": 1})) == [first[1], first[0]]
    assert keys(write({"a": 1, "b": 3}))[0] not in first


def test_the_domain_is_part_of_it(write):
    path = write({"data_source": "x"})
    assert read_rows(path, domain="a")[0].key != read_rows(path, domain=None)[0].key


def test_a_repeated_row_is_a_job_of_its_own(write):
    first, second, third = keys(write({"a": 1}, {"a": 1}, {"a": 1}))
    assert (second, third) == (f"{first}+1", f"{first}+2")


def test_limit(write):
    assert len(keys(write({"a": 1}, {"a": 2}, "not reached"), limit=2)) == 2


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{not json}\n"], "line 1: not JSON: JSON is malformed"),
        ([{"ok": 1}, "[1]\n"], "line 2: a JSON list, not an object"),
        ([{"ok": 1}, "\n", "\udcff\n".encode("utf-8", "surrogateescape").decode("latin-1")], "line 3: not JSON:"),
        (['{"a": 1'], "line 1: not JSON:"),
        ([], "has no rows"),
        (["\n", "  \n"], "has no rows"),
    ],
)
def test_bad_rows(write, lines, words):
    with pytest.raises(ConfigError, match=r"rows\.jsonl") as caught:
        keys(write(*lines))
    assert words in str(caught.value)


def test_bad_rows_are_told_by_reason(write):
    with pytest.raises(
        ConfigError, match=r"rows\.jsonl: 20 rows \(lines 1, 2, 3, \.\.\.\): not JSON: .*; line 21: a JSON int"
    ):
        keys(write(*["x\n"] * 20, 5))


def test_of_many_reasons_few_are_shown(write):
    kinds = ["[]\n", "5\n", '"s"\n', "true\n", "1.5\n", "null\n", "x\n", "x\n"]
    with pytest.raises(ConfigError, match=r"line 1: .*line 5: .*; and 3 more$"):
        keys(write(*kinds))


def test_rows_beyond_the_limit_are_not_looked_at(write):
    path = write({"a": 1}, "bad\n", "bad\n", "bad\n")
    assert len(keys(path, limit=1)) == 1
    with pytest.raises(ConfigError, match=r"jsonl: line 2: not JSON[^;]*$"):
        keys(path, limit=2)


@pytest.mark.parametrize("row", [{}, {"data_source": None}, {"data_source": 3}])
def test_without_a_domain_a_row_must_have_one(write, row):
    path = write(row)
    with pytest.raises(ConfigError, match=r"line 1: no data_source .*--domain"):
        read_rows(path, domain=None)
    assert read_rows(path, domain="d")


def test_requests(write):
    rows = read_rows(write({"a": 1}, {"a": 1}), domain="d")
    template = JobRequest(instance={}, domain="d", sampling_params=SamplingParams(seed=7), priority=2)
    made = [request for _, request in requests(rows, template, run="r", samples=2, done=set())]
    assert len({request.job_id for request in made}) == 4
    assert [request.group_id for request in made] == [f"r.{rows[0].key}"] * 2 + [f"r.{rows[1].key}"] * 2
    assert made[0].instance == {"a": 1}
    assert made[0].priority == 2
    assert made[0].sampling_params.seed == 7
    assert made[1].sampling_params.seed != 7
    places = [place for place, _ in requests(rows, template, run="r", samples=2, done=set())]
    assert [(place.line, place.sample) for place in places] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    done = {key_of(made[0].job_id or ""), key_of(made[3].job_id or "")}
    again = [request.job_id for _, request in requests(rows, template, run="other", samples=2, done=done)]
    assert [key_of(job_id or "") for job_id in again] == [key_of(made[1].job_id or ""), key_of(made[2].job_id or "")]
