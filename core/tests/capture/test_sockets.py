"""The socket of a job's door: where it stands, who may use it how much, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse

import httpx
import pytest

from prorl.api import SandboxFault
from prorl.server import sockets
from prorl.server.sockets import MAX_CONNECTIONS, sweep


@pytest.fixture
def open_socket(house):
    """A job and the path of its door's socket, which the server makes on its own loop."""

    def ask(house, job):
        loop = house._handler.loop
        return asyncio.run_coroutine_threadsafe(job.door.socket(), loop).result(30)

    return ask


def test_it_leads_to_the_one_job_and_is_gone_with_it(house, open_socket):
    with house(lambda request: "Hello.") as house:
        with house.job() as job, house.job() as other:
            path = open_socket(house, job)
            assert open_socket(house, job) == path
            assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://door") as client:
                body = {"model": "any", "messages": [{"role": "user", "content": "Hello"}]}
                for inside, key, status in ((job, job.key, 200), (other, other.key, 404), (job, other.key, 401)):
                    where = f"/proxy/{inside.url.rpartition('/')[2]}/v1/chat/completions"
                    assert client.post(where, json=body, headers={"x-api-key": key}).status_code == status
                assert client.get("/status").status_code == 404
                assert client.post("/cancel", json={"all": True}).status_code == 404
        assert not path.parent.parent.exists()
    assert (job.result.error, other.result.error) == (None, None)


@pytest.mark.parametrize("where", ["the job's socket", "the server"])
@pytest.mark.parametrize(
    "endless",
    [b"GET /", b"GET / HTTP/1.1\r\nx: ", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: "],
    ids=["line", "header", "trailer"],
)
def test_a_head_without_end_is_cut_off(house, open_socket, endless, where):
    """Nobody has been asked for a key by then, and all of it would be kept in memory."""
    with house(lambda request: "Hello.") as house, house.job() as job:
        url = urlparse(house.lab.url)
        if where == "the server":
            connection = socket.create_connection((url.hostname, url.port))
        else:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(open_socket(house, job)))
        with connection:
            connection.settimeout(30)
            connection.sendall(endless)
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                connection.sendall(b"a" * 64_000_000)
        body = {"messages": [{"role": "user", "content": "word " * 200_000}]}
        answer = httpx.post(
            f"{job.url}/v1/messages/count_tokens", json=body, headers={"x-api-key": job.key}, timeout=60
        )
        assert answer.status_code == 200, "a long body is none"


def test_connections_are_bounded(house, open_socket):
    with house(lambda request: "Hello.") as house, house.job() as job:
        path = open_socket(house, job)
        opened = [socket.socket(socket.AF_UNIX) for _ in range(MAX_CONNECTIONS + 8)]
        try:
            for connection in opened:
                connection.settimeout(30)
                connection.connect(str(path))
            for connection in opened[MAX_CONNECTIONS:]:
                try:
                    left = connection.recv(1)
                except ConnectionResetError:
                    left = b""
                assert left == b""
        finally:
            for connection in opened:
                connection.close()
        answer = httpx.get(f"{job.url}/v1/models", headers={"x-api-key": job.key})
        assert answer.status_code == 200


def test_a_deep_temporary_folder_is_no_obstacle(house, open_socket, monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with house(lambda request: "Hello.") as house, house.job() as job:
        assert open_socket(house, job).parts[1] == "tmp"


def test_no_place_for_it_is_a_typed_fault(house, open_socket, monkeypatch, tmp_path):
    monkeypatch.setattr(sockets, "_places", lambda: (tmp_path / "gone", tmp_path / "gone"))
    refused = pytest.raises(SandboxFault, match="no socket for the agent")
    with house(lambda request: "Hello.") as house, house.job() as job, refused:
        open_socket(house, job)


def test_what_a_killed_server_left_is_removed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        alive, left = (tmp_path / f"prorl-door-{process.pid}-{when}-abc" for when in (started, int(started) + 1))
        for folder in (alive, left, tmp_path / "prorl-door-mine", tmp_path / "other"):
            (folder / "door").mkdir(parents=True)
        (tmp_path / "prorl-door-1-1-link").symlink_to(tmp_path / "other")
        assert sweep((tmp_path,)) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            [alive.name, "other", "prorl-door-1-1-link", "prorl-door-mine"]
        )
        process.communicate(b"\n")
    assert sweep((tmp_path,)) == 1
    assert os.path.lexists(tmp_path / "prorl-door-1-1-link")
