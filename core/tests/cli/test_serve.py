"""``prorl serve``: file, flags over it, and one line for whatever cannot work."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

DATA = Path(__file__).parent.parent / "data" / "plugins"


@pytest.fixture
def serve(tmp_path, play_environment):
    """Start it, and return the process and its first line."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, plugins: tuple[str, ...] = ("play",)) -> tuple[subprocess.Popen[str], str]:
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "prorl", "serve", *arguments],
                cwd=tmp_path,
                env=play_environment | {"PYTHONPATH": ":".join(str(DATA / name) for name in plugins)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def url_in(line: str) -> str:
    return next(word for word in line.split() if word.startswith("http://"))


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(100)


def test_it_says_where_it_listens_and_ends_in_order(serve, tmp_path):
    process, line = serve("--port", "0")
    assert "play" in line
    assert httpx.get(f"{url_in(line)}/health").json()["status"] == "ok"
    assert stop(process) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_flags_over_set_over_file(serve, tmp_path):
    (tmp_path / "prorl.toml").write_text(
        "[server]\nport = 0\nname = 'from the file'\n[pipeline]\ninit_workers = 3\nrun_workers = 4\neval_workers = 5\n"
        "[handlers.play]\nbonus = 0.5\n"
    )
    process, line = serve("--run-workers", "7", "--set", "pipeline.eval_workers=8", "--set", "pipeline.run_workers=1")
    status = httpx.get(f"{url_in(line)}/status").json()
    assert status["server"] == "from the file"
    assert [status["stages"][name]["workers"] for name in ("init", "run", "eval")] == [3, 7, 8]
    job = {"instance": {"data_source": "play", "reward": 1.0}}
    assert httpx.post(f"{url_in(line)}/process", json=job).json()["reward"] == 1.5
    assert stop(process) == 0


def test_a_config_elsewhere(serve, tmp_path):
    (tmp_path / "prorl.toml").write_text("not even TOML")
    (tmp_path / "other.toml").write_text("[server]\nname = 'other'\n")
    process, line = serve("--config", "other.toml", "--port", "0")
    assert httpx.get(f"{url_in(line)}/status").json()["server"] == "other"
    assert stop(process) == 0


def test_a_broken_plugin_is_logged_and_reported(serve, tmp_path):
    process, line = serve("--port", "0", plugins=("play", "import-error", "newer"))
    assert "plugin newer (prorl-newer 9.0): incompatible: needs prorl>=99" in (tmp_path / "log").read_text()
    states = {report["name"]: report["state"] for report in httpx.get(f"{url_in(line)}/plugins").json()}
    assert (states["play"], states["broken"], states["newer"]) == ("active", "import-failed", "incompatible")
    refused = httpx.post(f"{url_in(line)}/process", json={"instance": {}, "domain": "newer"})
    assert refused.status_code == 503
    assert "needs prorl>=99" in refused.json()["detail"]
    assert stop(process) == 0


@pytest.mark.parametrize(
    ("arguments", "file", "words"),
    [
        ([], "not even TOML", "prorl.toml is not valid TOML"),
        ([], "[server]\nprot = 1", "prorl.toml: [server]: unknown field `prot`; did you mean `port`?"),
        ([], "[pipeline]\nrun_workers = 'many'", "prorl.toml: [pipeline] run_workers: Expected `int`, got `str`"),
        ([], "[handlers.cooking]\nx = 1", "[handlers.cooking]: no plugin offers this handler"),
        ([], "[handlers.play]\nbonus = 'x'", "[handlers.play]"),
        (["--port", "99999"], "", "Error: --port: Expected `int` <= 65535"),
        (["--set", "pool.wait_s=x"], "", "Error: --set pool.wait_s: Expected `float`, got `str`"),
        (["--set", "pool.nosuch=1"], "", "Error: --set pool.nosuch: unknown field `nosuch`; known: "),
        (["--config", "nosuch.toml"], "", "'nosuch.toml' does not exist"),
        (["--llm-server", "localhost:8000"], "", "'localhost:8000' is not a URL like http://host:port"),
        (["--host", "203.0.113.7"], "", "--host ([server] host) '203.0.113.7' is no address"),
    ],
)
def test_what_cannot_work_is_one_line(serve, tmp_path, arguments, file, words):
    (tmp_path / "prorl.toml").write_text(file)
    process, line = serve(*arguments)
    assert line == ""
    assert process.wait(100) == 2
    log = (tmp_path / "log").read_text()
    assert words in log
    assert "Traceback" not in log


def test_a_port_that_is_taken(serve, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process, line = serve("--port", port)
        assert (line, process.wait(100)) == ("", 2)
    log = (tmp_path / "log").read_text()
    assert f"cannot listen on 127.0.0.1:{port}: " in log
    assert "take another --port" in log


def test_strict_plugins(serve, tmp_path):
    process, line = serve("--port", "0", "--strict-plugins", plugins=("play", "newer", "exits"))
    assert (line, process.wait(100)) == ("", 2)
    log = (tmp_path / "log").read_text()
    assert "newer (prorl-newer 9.0)" in log
    assert "exits (prorl-exits 0.1)" in log


def test_an_llm_server_that_is_not_there_yet_is_no_reason_not_to_start(serve, tmp_path):
    process, line = serve("--port", "0", "--llm-server", "http://127.0.0.1:1")
    assert httpx.get(f"{url_in(line)}/health").status_code == 200
    assert "http://127.0.0.1:1" in (tmp_path / "log").read_text()
    assert stop(process) == 0
