"""Results compared with what an engine says of their tokens: forgeries found, and nothing uncompared taken for good."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from prorl.api import ConfigError, ModelFault
from prorl.cli.verify import command
from prorl.cli.verify.rescoring import Rescoring
from prorl.testing.engines import LlamaEngine
from prorl.wire import VersionSpan


def test_an_engine_that_compared_nothing_proves_nothing(results, verify, engine):
    """Whoever forges a file may name a version that no engine has any more."""
    status, out = verify(results, "--json", "--engine", engine.url, "--version", "0")
    report = json.loads(out)
    assert (status, report["ok"], report["wrong"]) == (1, False, [])
    assert report["sampled_tokens"] == {"1": report["engine"]["tokens_not_compared"]["version 1"]}
    assert report["engine"]["tokens_compared"] == 0
    status, out = verify(results, "--engine", engine.url, "--version", "0")
    assert status == 1
    assert "compared none of the" in out
    assert "all good" not in out


@pytest.mark.parametrize("how", ["shift_a_logprob", "another_encoding", "another_prompt", "out_of_the_vocabulary"])
def test_a_forgery_with_a_chain_of_its_own(results, verify, key, engine, forge, how):
    getattr(forge, how)(results[1])
    forge.certify_anew(results[1])
    assert verify(results)[0] == 0, "hashes alone cannot tell"
    assert verify(results, "--key", key)[0] == 1
    status, out = verify(results, "--engine", engine.url, "--json")
    assert status == 1
    (wrong,) = json.loads(out)["wrong"]
    assert wrong["line"] == 2
    assert {finding["code"] for finding in wrong["findings"]} == {"other_logprob"}


def test_gaps_within_the_tolerance(results, verify, engine, forge):
    forge.shift_a_logprob(results[1])
    forge.certify_anew(results[1])
    status, out = verify(results, "--engine", engine.url, "--tolerance", "0.06", "--json")
    report = json.loads(out)["engine"]
    assert status == 0
    assert report["largest_gap"] == pytest.approx(0.05)
    assert (report["largest_gap_at"]["job_id"], report["largest_gap_at"]["turn"]) == ("job-6", 3)


def test_other_weights_are_seen(results, verify, engine):
    """The engine is said to have the version of the file, and has another."""
    engine.weights = "2"
    try:
        status, _ = verify(results, "--engine", engine.url, "--version", "1")
        unnamed, out = verify(results, "--engine", engine.url, "--json")
    finally:
        engine.weights = "1"
    assert (status, unnamed) == (1, 1)
    assert json.loads(out)["engine"]["tokens_compared"] == 0, "version 2 is not in the file: nothing to compare"


def test_weights_that_nobody_named(results, verify, engine):
    one = results[0].trajectory
    engine.weights = "default"
    try:
        assert verify(results, "--engine", engine.url)[0] == 1, "taken for version 1, which they are not"
        two = [run if run.version == "" else type(run)("9", run.count) for run in one.segments[0].versions]
        one.segments[0].versions = two
        with pytest.raises(ConfigError, match="--version, one of 9, 1"):
            verify(results, "--engine", engine.url)
    finally:
        engine.weights = "1"


def test_replies_that_cannot_be_compared(results, verify, engine, forge):
    for result, sampling in zip(results, ({"top_p": 0.9}, {"temperature": 0.5}, {}), strict=True):
        for turn in result.trajectory.turns:
            turn.sampling = sampling if turn.role == "assistant" else {}
        forge.certify_anew(result)
    status, out = verify(results, "--engine", engine.url, "--json")
    report = json.loads(out)["engine"]
    assert status == 0
    assert set(report["tokens_not_compared"]) == {"sampled with top_p", "temperature 0.5"}
    assert report["tokens_compared"] == sum(results[2].trajectory.segments[0].loss_mask)


@pytest.mark.parametrize("said", [None, float("nan"), float("-inf")])
async def test_an_engine_that_says_nothing_of_a_token(results, said):
    """A dialect of a plugin may answer with anything; that nothing is larger than NaN must not pass for agreement."""

    class Silent:
        async def score(self, ids, *, temperature=1.0):
            return [None, *[said] * (len(ids) - 1)]

    check = Rescoring(Silent(), version="1", tolerance=0.01, max_context=4096)
    found = await check.check(results[0])
    assert [finding.code for finding in found] == ["other_logprob"] * 2
    assert check.compared == 0


def test_why_replies_are_not_compared(results, verify, engine, forge):
    """Weights that changed within a reply, tokens that no engine told, a context that is full."""
    changed, untold, full = (result.trajectory for result in results)
    segment, turn = changed.segments[0], changed.turns[-1]
    count = turn.end - turn.start
    segment.versions[-1:] = [VersionSpan("1", 2), VersionSpan("2", count - 2)]
    untold.trainable = False
    for result in results:
        forge.certify_anew(result)
    before, engine.max_context = engine.max_context, len(full.segments[0].tokens)
    try:
        status, out = verify(results, "--engine", engine.url, "--json")
    finally:
        engine.max_context = before
    assert status == 0
    assert json.loads(out)["engine"]["tokens_not_compared"] == {
        "weights changed within the reply": count,
        "not from an engine that reports tokens": sum(untold.segments[0].loss_mask),
        "no room left in the engine's context": full.turns[-1].end - full.turns[-1].start,
    }


def test_an_engine_that_cannot_score(results, verify):
    if (reason := LlamaEngine.available()) is not None:
        pytest.skip(reason)
    with LlamaEngine(n_ctx=512, parallel=1) as llama, pytest.raises(ConfigError, match="no way to score"):
        verify(results, "--engine", llama.url)


def test_an_engine_that_is_gone(results, written):
    """What was found without it is said."""
    results[1].trajectory.turns[1].text = "other"
    path = written(results)
    done = CliRunner().invoke(command, [str(path), "--engine", "http://127.0.0.1:9"], standalone_mode=False)
    assert isinstance(done.exception, ModelFault)
    assert "job-6" in done.stdout


@pytest.mark.parametrize("url", ["nonsense", "http://"])
def test_an_engine_that_is_none(results, verify, url):
    with pytest.raises(ConfigError):
        verify(results, "--engine", url)
