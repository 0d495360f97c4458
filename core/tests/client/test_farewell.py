"""An LLM server leaves the pools with the process that hosts it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from prorl.client import BlockingClient
from prorl.client.farewell import farewell
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.scripted import ScriptedEngine

WORKER = """
import sys, time
from prorl.client.farewell import farewell
with farewell(sys.argv[1], sys.argv[2:]):
    print('ready', flush=True)
    time.sleep(600)
"""


def registered(client: BlockingClient) -> list[str]:
    return [backend.url for backend in client.status().pool.backends]


def gone(client: BlockingClient) -> bool:
    for _ in range(600):
        if not registered(client):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("killed", [True, False])
def test_the_llm_server_of_a_worker_leaves_with_it(killed):
    """As Ray ends workers: SIGKILL, with no time to say anything. Or in peace."""
    with (
        RunningServer(parse_settings({"server": {"port": 0}}), discover()) as service,
        ScriptedEngine(lambda _: "yes") as engine,
        ScriptedEngine(lambda _: "no") as other,
        BlockingClient(service.url) as client,
    ):
        client.add_llm_server(engine.url)
        if killed:
            command = [sys.executable, "-c", WORKER, engine.url, "http://127.0.0.1:9", service.url]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                assert registered(client) == [engine.url]
                process.kill()
        else:
            with farewell(engine.url, [service.url]):
                assert registered(client) == [engine.url]
        assert gone(client)
        client.add_llm_server(other.url)
        assert registered(client) == [other.url]
