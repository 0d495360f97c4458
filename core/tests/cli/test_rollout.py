"""``prorl rollout`` against the real server: scored results, taken up again after whatever stopped it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from prorl.api import ConfigError
from prorl.cli.rollout import command, runner
from prorl.cli.rollout.rows import key_of
from prorl.client import BadAddress, BlockingClient, NotARolloutServer
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import RolloutResult


@pytest.fixture
def rows(tmp_path):
    def write(*instances: dict[str, object]):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps({"data_source": "play"} | each) + "\n" for each in instances))
        return path

    return write


@pytest.fixture
def rollout(tmp_path, server):
    """The command in this process: ``(exit status, stdout, stderr)``."""

    def run(path, *options: str, url: str = server.url):
        arguments = [str(path), "--server", url, "--out", str(tmp_path / "out.jsonl"), *options]
        done = CliRunner().invoke(command, arguments, standalone_mode=False)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.return_value, done.stdout, done.stderr

    return run


def results(tmp_path) -> list[RolloutResult]:
    return [
        msgspec.json.decode(line, type=RolloutResult) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()
    ]


def test_rows_become_scored_results(tmp_path, rows, rollout):
    path = rows({"reward": 1.0}, {"reward": 0.0}, {"fail": "no such file"})
    status, out, err = rollout(path, "-n", "2")
    assert status == 0
    found = results(tmp_path)
    assert len({result.job_id for result in found}) == 6
    assert Counter(result.reward for result in found if result.status == "completed") == {1.0: 2, 0.0: 2}
    assert sorted(Counter(result.group_id for result in found).values()) == [2, 2, 2]
    assert "4 completed, 2 failed" in out
    assert "0.5000 (of 4, 2 masked left out)" in out
    assert "2 of 4" in out
    assert "2 x task: play.run raised ValueError: no such file" in out
    assert "3 rows x 2: 6 rollouts to do" in err
    assert "\x1b" not in out + err


def test_verdicts_are_counted(rows, rollout):
    given = [{"reward": 0.0, "reason": "another number", "n": n} for n in range(2)]
    path = rows(*given, {"reward": 1.0, "reason": "equal"}, {"reward": 1.0})
    _, out, _ = rollout(path)
    assert "\nverdicts\n  2 x another number\n  1 x equal\n" in out
    _, out, _ = rollout(path, "--json")
    assert json.loads(out)["verdicts"] == {"another number": 2, "equal": 1}


def test_what_of_the_errors_is_not_shown_is_counted(rows, rollout):
    _, out, _ = rollout(rows(*({"fail": f"{n} " + "x" * 400} for n in range(7))))
    assert out.count("  1 x task: play.run raised ValueError: ") == 5
    assert out.count("xx...\n") == 5
    assert "\n  and 2 more: `error` in each result says which\n" in out


def test_summary_as_json(rows, rollout):
    status, out, _ = rollout(rows({"reward": 1.0}, {"fail": "x"}), "--json")
    summary = json.loads(out)
    assert status == 0
    assert summary["statuses"] == {"completed": 1, "failed": 1}
    assert (summary["mean_reward"], summary["masked"], summary["resolved"], summary["fresh"]) == (1.0, 1, 1, 2)
    assert set(summary["mean_seconds"]) > {"init queued", "run worked", "model"}


def test_tokens_are_counted(tmp_path, rows, rollout, server):
    with ScriptedEngine(lambda request: "hello there") as engine, BlockingClient(server.url) as client:
        client.add_llm_server(engine.url)
        status, out, _ = rollout(rows({"ask": "who?"}, {"ask": "why?"}), "-n", "2", "--max-tokens", "3", "--json")
    summary, found = json.loads(out), results(tmp_path)
    assert status == 0
    assert summary["statuses"] == {"completed": 4}, found[0].error
    assert summary["sampled_tokens"] == 4 * 3
    assert summary["other_tokens"] == sum(len(result.trajectory.segments[0].tokens) - 3 for result in found) > 0
    assert summary["sampled_tokens_per_s"] > 0
    assert summary["mean_seconds"]["model"] > 0


def test_the_same_again_does_nothing_and_more_samples_do_only_those(tmp_path, rows, rollout):
    log = tmp_path / "log"
    path = rows({"reward": 1.0, "log": str(log)}, {"reward": 0.0, "log": str(log)})
    rollout(path, "-n", "2")
    status, out, err = rollout(path, "-n", "2", "--json")
    assert (status, json.loads(out)["fresh"], json.loads(out)["results"]) == (0, 0, 4)
    assert "0 rollouts to do, 4 already" in err
    rollout(path, "-n", "3")
    ran = log.read_text().split()
    assert len(ran) == len({key_of(job_id) for job_id in ran}) == 6
    assert len(results(tmp_path)) == 6


def test_another_run_is_really_run(tmp_path, rows, rollout):
    """The server still has the first run's jobs: a second evaluation must not be answered from them."""
    log = tmp_path / "log"
    path = rows({"log": str(log)})
    rollout(path)
    (tmp_path / "out.jsonl").unlink()
    rollout(path)
    assert len(log.read_text().split()) == 2


def test_a_torn_line_is_run_again(tmp_path, rows, rollout):
    path = rows({"reward": 1.0}, {"reward": 0.0})
    rollout(path)
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[:-20])
    _, out, err = rollout(path, "--json")
    assert "1 rollout to do, 1 already" in err
    assert json.loads(out)["mean_reward"] == 0.5
    assert len(results(tmp_path)) == 2


def test_settings_of_the_handler(rows, rollout):
    _, out, _ = rollout(rows({"reward": 1.0}), "--set", "bonus=0.25", "--json")
    assert json.loads(out)["mean_reward"] == 1.25


def test_what_the_server_refuses_is_told_and_tried_again(tmp_path, rows, rollout):
    path = rows({"reward": 1.0}, {"data_source": "cooking"})
    status, out, _ = rollout(path)
    assert status == 1
    assert "refused by the server" in out
    assert "no plugin serves the domain 'cooking'" in out
    assert len(results(tmp_path)) == 1
    status, out, _ = rollout(path, "--domain", "play")
    assert status == 0


def test_limit_and_concurrency(tmp_path, rows, rollout):
    path = rows(*({"reward": 1.0, "i": i} for i in range(30)))
    rollout(path, "--limit", "20", "--concurrency", "3")
    assert len(results(tmp_path)) == 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1"], "^--temperature: Expected `float` >= 0"),
        (["--top-p", "0"], "^--top-p: Expected `float` > 0"),
        (["--run-s", "0"], "^--run-s: Expected `float` > 0"),
        (["--run-id", "a.b"], "must not contain a dot"),
        (["--run-id", "-x"], "^--run-id: must be written like"),
        (["--set", "x"], "write NAME=VALUE"),
    ],
)
def test_options_that_cannot_work(rows, rollout, options, words):
    with pytest.raises(ConfigError, match=words):
        rollout(rows({"reward": 1.0}), *options)


def test_a_result_says_which_row_it_is_of(tmp_path, rows, rollout):
    path = rows({"reward": 0.0}, {"reward": 1.0}, {"reward": 2.0})
    rollout(path, "-n", "2", "--seed", "5", "--concurrency", "2")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {(each["row"]["line"], each["row"]["sample"]) for each in lines} == {
        (i, j) for i in (1, 2, 3) for j in (0, 1)
    }
    assert all(each["reward"] == each["row"]["line"] - 1 for each in lines)
    assert {each["asked"]["sampling_params"]["seed"] for each in lines if each["row"]["sample"] == 0} == {5}


def test_failures_that_are_kept_are_told_and_run_again_without_their_lines(tmp_path, rows, rollout):
    path, written = rows({"reward": 1.0}, {"fail": "no git"}), tmp_path / "out.jsonl"
    assert "warning" not in rollout(path)[2]
    _, _, err = rollout(path)
    assert "warning: 1 rollout in " in err
    assert "failed, and kept as results: to run them again remove their lines" in err
    good = [line for line in written.read_text().splitlines(keepends=True) if "no git" not in line]
    written.write_text("".join(good))
    _, out, err = rollout(path, "--json")
    assert "1 rollout to do, 1 already in" in err
    assert (json.loads(out)["fresh"], json.loads(out)["results"]) == (1, 2)


def test_results_of_other_options_are_told(rows, rollout):
    path = rows({"reward": 1.0}, {"reward": 0.0})
    rollout(path, "--seed", "5")
    _, _, err = rollout(path, "--seed", "5", "-n", "2")
    assert "warning" not in err
    _, out, err = rollout(path, "--temperature", "0.5", "--set", "bonus=1.0", "--json")
    assert "warning: 2 rollouts in " in err
    assert "kept as run with another temperature, seed, bonus: give another --out" in err
    assert json.loads(out)["fresh"] == 0


def test_refusals_are_told_by_reason_and_without_a_table_of_zeros(rows, rollout):
    path = rows(*({"data_source": "pley", "i": i} for i in range(5)))
    status, out, _ = rollout(path, "--concurrency", "1")
    assert status == 1
    assert "mean reward" not in out
    assert "5 rows (lines 1, 2, 3, ...): " in out
    assert "did you mean 'play'?" in out


def test_want_of_an_llm_server_is_told_once(rows, rollout, server, monkeypatch):
    monkeypatch.setattr(runner, "QUIET_S", 0.1)
    with ScriptedEngine(lambda request: "hello") as engine, BlockingClient(server.url) as client:

        def help_it() -> None:
            while not client.status().pool.waiting:
                time.sleep(0.05)
            time.sleep(1.0)  # the command looks several times
            client.add_llm_server(engine.url)

        helper = threading.Thread(target=help_it)
        helper.start()
        status, _, err = rollout(rows({"ask": "who?"}), "--max-tokens", "3")
        helper.join()
    assert status == 0
    assert err.count("waiting") == 1
    assert "waiting: no LLM server is registered: start one that the settings name, or POST /add_llm_server\n" in err


def test_a_run_that_has_nothing_yet_says_so(rows, rollout, server, tmp_path, monkeypatch):
    """Into a file or a pipe: somebody who looks at it must not take it for dead."""
    monkeypatch.setattr(runner, "QUIET_S", 0.1)
    monkeypatch.setattr(runner, "_TELL_EVERY_S", 0.5)
    said, gate = threading.Event(), tmp_path / "gate"
    show = runner._Show.refresh

    def refresh(self):
        show(self)
        if self._told != self._started:
            said.set()

    monkeypatch.setattr(runner._Show, "refresh", refresh)
    opener = threading.Thread(target=lambda: (said.wait(60), gate.touch()))
    opener.start()
    status, _, err = rollout(rows({"gate": str(gate)}))
    opener.join()
    assert status == 0
    assert "\n0/1  0.00/s  reward -  failed 0\n" in err


def test_a_server_that_is_no_rollout_server_is_one_line(rows, rollout):
    with ScriptedEngine(lambda request: "hello") as engine, pytest.raises(NotARolloutServer, match=engine.url):
        rollout(rows(*({"i": i} for i in range(50))), url=engine.url)


def test_no_address(rows, rollout):
    with pytest.raises(BadAddress, match="write http://localhost:8089"):
        rollout(rows({"reward": 1.0}), url="localhost:8089")


@pytest.fixture
def process(tmp_path, play_environment):
    started: list[subprocess.Popen[str]] = []

    def start(path, url: str, *options: str) -> subprocess.Popen[str]:
        out = str(tmp_path / "out.jsonl")
        made = subprocess.Popen(
            [sys.executable, "-m", "prorl", "rollout", str(path), "--server", url, "--out", out, *options],
            env=play_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(made)
        return made

    yield start
    for each in started:
        if each.poll() is None:
            each.kill()
        each.communicate()


def waiting_rows(tmp_path, count: int) -> list[dict[str, object]]:
    """Half of them end at once, half wait for the gate."""
    ways = ({}, {"gate": str(tmp_path / "gate")})
    return [{"reward": 1.0, "i": i, "log": str(tmp_path / "log")} | ways[i % 2] for i in range(count)]


def test_no_server(rows, process):
    done = process(rows({"reward": 1.0}), "http://127.0.0.1:1", "--give-up-s", "0.2")
    out, err = done.communicate(timeout=100)
    assert (done.returncode, out) == (2, "")
    assert "no rollout server answers at http://127.0.0.1:1" in err
    assert "Traceback" not in err


def test_a_server_killed_and_started_again_loses_nothing(tmp_path, rows, process, server_process, until):
    server_process.start()
    run = process(rows(*waiting_rows(tmp_path, 12)), server_process.url, "--json")
    until(lambda: (tmp_path / "out.jsonl").exists() and len(results(tmp_path)) == 6)
    server_process.kill()
    (tmp_path / "gate").touch()
    server_process.start()
    out, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert json.loads(out)["statuses"] == {"completed": 12}
    assert len({result.job_id for result in results(tmp_path)}) == 12


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_cancels_its_jobs_and_can_go_on(tmp_path, rows, process, server_process, until, how, status):
    server_process.start()
    path = rows(*waiting_rows(tmp_path, 10))
    run = process(path, server_process.url)
    until(lambda: (tmp_path / "out.jsonl").exists() and len(results(tmp_path)) == 5)
    run.send_signal(how)
    _, err = run.communicate(timeout=100)
    assert run.returncode == status
    assert "Traceback" not in err
    assert "interrupted: 5 of 10 results kept in " in err
    assert err.rstrip().endswith("out.jsonl; the same command goes on")
    until(lambda: server_process.jobs().get("cancelled") == 5)
    (tmp_path / "gate").touch()
    again = process(path, server_process.url, "--json")
    out, err = again.communicate(timeout=100)
    assert again.returncode == 0, err
    assert json.loads(out)["fresh"] == 5
    assert json.loads(out)["statuses"] == {"completed": 10}


def test_a_killed_run_with_a_run_id_attaches_to_its_jobs(tmp_path, rows, process, server_process, until):
    server_process.start()
    path = rows(*waiting_rows(tmp_path, 6))
    run = process(path, server_process.url, "--run-id", "mine")
    until(lambda: (tmp_path / "log").exists() and len((tmp_path / "log").read_text().split()) == 6)
    until(lambda: len(results(tmp_path)) == 3)
    run.kill()
    run.communicate(timeout=100)
    again = process(path, server_process.url, "--run-id", "mine", "--json")
    (tmp_path / "gate").touch()
    out, err = again.communicate(timeout=100)
    assert again.returncode == 0, err
    assert json.loads(out)["statuses"] == {"completed": 6}
    assert len((tmp_path / "log").read_text().split()) == 6


def test_a_job_cancelled_by_somebody_is_not_a_result(tmp_path, rows, process, server_process, until):
    server_process.start()
    run = process(rows({"gate": str(tmp_path / "gate")}), server_process.url)
    until(lambda: server_process.jobs().get("running") == 1)
    httpx.post(f"{server_process.url}/cancel", json={"all": True}).raise_for_status()
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 1
    assert "cancelled on the server" in out
    assert results(tmp_path) == []
