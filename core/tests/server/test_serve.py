"""Settings, and the server as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from prorl.api.errors import ConfigError
from prorl.plugins import discover
from prorl.plugins.checks import CORE_TABLES
from prorl.plugins.registry import Registry
from prorl.server import service
from prorl.server.serve import SAME_SIGNAL_S, RunningServer
from prorl.server.settings import Settings, check_settings, load_settings, parse_settings
from prorl.testing.scripted import ScriptedEngine

PROGRAM = """
import asyncio
from prorl.api import AgentHandler, HandlerRecord
from prorl.plugins import discover
from prorl.plugins.registry import Registry
from prorl.server import service
from prorl.server.serve import run
from prorl.server.settings import parse_settings

class Waits(AgentHandler):
    async def init(self, job): return None, {}, {}
    async def run(self, job):
        print("inside", flush=True)
        await asyncio.Event().wait()
    async def eval(self, job): return {"reward": 1.0}
    async def close(self): print("closed", flush=True)

record = HandlerRecord(name="waits", factory=Waits, summary="waits")
run(parse_settings({"server": {"port": 0}}), Registry(handlers={"waits": record}))
print("ended", flush=True)
"""


STUBBORN = """
async def stubborn():
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(3)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_jobs_and_then_the_process(number):
    server = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().removeprefix("listening on ").strip()
        answers = []
        body = {"domain": "waits", "instance": {}}
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/process", json=body, timeout=60).json())
        )
        asking.start()
        assert server.stdout.readline() == "inside\n"
        server.send_signal(number)
        asking.join(60)
        assert answers[0]["status"] == "cancelled"
        assert server.wait(60) == 0
        assert server.stdout.read() == "closed\nended\n"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.parametrize("between_s", [0.0, SAME_SIGNAL_S + 0.5], ids=["at once", "later"])
def test_a_signal_sent_twice(between_s):
    """`timeout` sends one to the process and one to its group. A second one later means: do not wait."""
    slow = PROGRAM.replace("await asyncio.Event().wait()", "await stubborn()").replace(
        "class Waits", STUBBORN + "\nclass Waits"
    )
    server = subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().removeprefix("listening on ").strip()
        httpx.post(f"{url}/jobs", json={"domain": "waits", "instance": {}}).raise_for_status()
        assert server.stdout.readline() == "inside\n"
        server.send_signal(signal.SIGTERM)
        time.sleep(between_s)
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=60)
        assert out == "closed\nended\n"
        assert server.returncode == 0
        assert "Traceback" not in err
    finally:
        server.kill()
        server.wait()


def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = parse_settings({"server": {"port": taken.getsockname()[1]}})
        with (
            pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1.*--port"),
            RunningServer(settings, Registry()),
        ):
            pass


def test_a_host_that_is_none():
    settings = parse_settings({"server": {"host": "no.such.host.invalid", "port": 0}})
    with pytest.raises(ConfigError, match=r"--host .*no address of this machine"), RunningServer(settings, Registry()):
        pass


def test_a_file(tmp_path):
    file = tmp_path / "prorl.toml"
    file.write_text(
        '[server]\nport = 0\n[pipeline]\nrun_workers = 7\n[pipeline.budgets]\nrun_s = 60\n[[backends]]\nurl = "http://h"\n'
    )
    settings = load_settings(file, overrides={"pipeline": {"init_workers": 3}})
    assert (settings.server.port, settings.pipeline.run_workers, settings.pipeline.init_workers) == (0, 7, 3)
    assert settings.pipeline.budgets.run_s == 60.0
    assert settings.backends[0].url == "http://h"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nport = '1'", "[server] port: Expected `int`, got `str`"),
        ("[server]\nprot = 1", "[server]: unknown field `prot`; did you mean `port`?"),
        ("[pipeline]\nrun_workers = 0", "[pipeline] run_workers: "),
        ("[pipeline.budgets]\nrun_s = -1", "[pipeline.budgets] run_s: "),
        ("[pool]\nwait_s = 'x'", "[pool] wait_s: "),
        ("[sandbox]\nruntimes = 'x'", "unknown field `runtimes`"),
        (
            "[[backends]]\nurl = 'http://a'\n[[backends]]\nurl = 'b'",
            "[[backends]] 2, url: must be written like http://",
        ),
        ("port = 1", "'port' stands outside any table"),
        ("[server", "not valid TOML"),
    ],
)
def test_a_file_that_is_wrong(tmp_path, text, said):
    file = tmp_path / "prorl.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_settings(file)
    assert said in str(error.value)
    assert "prorl.toml" in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load_settings(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"handlers": {"nope": {}}}, r"\[handlers.nope\]: no plugin offers this handler"),
        ({"sever": {}}, r"unknown table \[sever\]; known: server, pipeline"),
        ({"backends": [{"url": "http://h", "dialect": "vlm"}]}, r"http://h: no plugin offers the dialect 'vlm'"),
        ({"sandbox": {"runtime": "docker"}}, r"\[sandbox\]: runtime: no plugin offers the sandbox runtime 'docker'"),
    ],
)
def test_tables_that_nobody_has(tables, said):
    with pytest.raises(ConfigError, match=said):
        check_settings(parse_settings(tables), Registry())


def test_the_core_keeps_its_tables_from_plugins():
    assert set(Settings.__struct_fields__) - {"plugins"} == CORE_TABLES


def test_an_llm_server_of_the_settings_is_asked_until_it_is_there(monkeypatch, caplog, until):
    """First nobody answers, then something that is no engine, then an engine."""
    monkeypatch.setattr(service, "RETRY_FIRST_S", 0.02)
    monkeypatch.setattr(service, "RETRY_LAST_S", 0.1)
    engine = ScriptedEngine(lambda request: "hello")
    with engine:
        url = engine.url
    settings = parse_settings({"server": {"port": 0}, "backends": [{"url": url}]})

    def said():
        return [record.getMessage() for record in caplog.records if "of the settings" in record.getMessage()]

    with caplog.at_level("INFO", "prorl.server"), RunningServer(settings, discover()) as server:
        until(lambda: len(said()) == 1)
        time.sleep(0.3)  # several tries with the same outcome
        assert len(said()) == 1
        assert "nothing answers" in said()[0]
        with RunningServer(parse_settings({"server": {"port": int(url.rpartition(":")[2])}}), Registry()):
            until(lambda: "give the root of an LLM server (without /v1)" in said()[-1])
        with engine:
            assert engine.url == url
            until(lambda: bool(httpx.get(f"{server.url}/status").json()["pool"]["backends"]))
            until(lambda: said()[-1].endswith("was added"))


def test_jobs_that_wait_for_an_llm_server_are_logged_once(monkeypatch, caplog, until, serve):
    monkeypatch.setattr(service, "LOOK_S", 0.05)

    def said():
        return [record.getMessage() for record in caplog.records if record.name == "prorl.server"]

    with caplog.at_level("INFO", "prorl.server"), serve() as client:
        for _ in range(2):
            client.post("/jobs", json={"domain": "echo", "instance": {"chat": 1}})
        until(lambda: client.get("/status").json()["pool"]["waiting"] == 2)
        until(lambda: len(said()) > 0)
        time.sleep(0.3)  # several more looks
        client.post("/cancel", json={"all": True})
        until(lambda: said()[-1] == "no job waits for an LLM server any more")
    waiting = [line for line in said() if "waiting" in line]
    assert len(waiting) == 1
    assert waiting[0].endswith(
        "waiting: no LLM server is registered: start one that the settings name, or POST /add_llm_server"
    )
