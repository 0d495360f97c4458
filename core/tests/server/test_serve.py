"""Settings, and the server as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from prorl.api.errors import ConfigError
from prorl.plugins.registry import Registry
from prorl.server.serve import RunningServer
from prorl.server.settings import check_settings, load_settings, parse_settings

PROGRAM = """
import asyncio
from prorl.api import AgentHandler, HandlerRecord
from prorl.plugins.registry import Registry
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


def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = parse_settings({"server": {"port": taken.getsockname()[1]}})
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1"), RunningServer(settings, Registry()):
            pass


def test_a_host_that_is_none():
    settings = parse_settings({"server": {"host": "no.such.host.invalid", "port": 0}})
    with pytest.raises(ConfigError, match="no address of this machine"), RunningServer(settings, Registry()):
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
        ("[server]\nport = '1'", "$.server.port"),
        ("[server]\nprot = 1", "unknown field `prot` - at `$.server`"),
        ("[pipeline]\nrun_workers = 0", "$.pipeline.run_workers"),
        ("[pipeline.budgets]\nrun_s = -1", "$.pipeline.budgets.run_s"),
        ("[pool]\nwait_s = 'x'", "$.pool.wait_s"),
        ("[sandbox]\nruntimes = 'x'", "unknown field `runtimes`"),
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
        ({"sandbox": {"runtime": "docker"}}, r"no plugin offers 'docker'"),
    ],
)
def test_tables_that_nobody_has(tables, said):
    with pytest.raises(ConfigError, match=said):
        check_settings(parse_settings(tables), Registry())
