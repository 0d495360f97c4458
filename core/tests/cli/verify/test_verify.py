"""``prorl verify`` on results of a real server: what is wrong is said, with its place, and in the exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from prorl.api import ConfigError


def test_all_good(results, verify, key, engine):
    status, out = verify(results, "--key", key, "--engine", engine.url)
    assert status == 0, out
    assert "3 (3 certified, 3 signed)" in out
    assert "all good" in out
    status, out = verify(results, "--json", "--engine", engine.url)
    report = json.loads(out)
    assert (status, report["ok"], report["turns"], report["wrong"]) == (0, True, 12, [])
    assert report["sampled_tokens"] == {"1": report["engine"]["tokens_compared"]}


def test_what_is_wrong_is_said_with_its_place(results, verify):
    results[1].trajectory.turns[2].text = "I never said that"
    results[2].trajectory.segments[0].loss_mask[-1] = 0
    status, out = verify(results)
    assert status == 1
    assert "2 lines of the file not good" in out
    status, out = verify(results, "--json")
    wrong = json.loads(out)["wrong"]
    assert [(each["line"], each["job_id"], each["findings"][0]["code"]) for each in wrong] == [
        (2, "job-6", "broken_link"),
        (3, "job-7", "bad_mask"),
    ]
    assert wrong[0]["findings"][0]["turn"] == 2


def test_a_certificate_that_is_missing(results, verify):
    results[0].trajectory.certificate = None
    assert verify(results)[0] == 1


def test_another_reward(results, verify, key):
    results[0].reward = 0.0
    assert verify(results)[0] == 0
    assert verify(results, "--key", key)[0] == 1


def test_a_key_that_is_too_short(results, verify, tmp_path):
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(ConfigError, match="--key"):
        verify(results, "--key", tmp_path / "short")


@pytest.mark.parametrize("asked", [("--tokenizer", "no-such-folder"), ("--engine", "http://127.0.0.1:9")])
def test_what_could_not_be_asked_is_not_called_good(results, written, asked):
    verify = [sys.executable, "-m", "prorl", "verify", str(written(results)), *asked]
    done = subprocess.run(
        verify, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "3 (3 certified" in done.stdout
    assert "not looked at to the end" in done.stdout
    assert "all good" not in done.stdout
    done = subprocess.run([*verify, "--json"], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["ok"] is False


def test_as_people_run_it(results, written):
    path = written(results)
    verify = [sys.executable, "-m", "prorl", "verify", str(path)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all good" in done.stdout
    path.write_bytes(b"x\n")
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no result" in done.stdout
