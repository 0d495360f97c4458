"""The grader's processes are started once for all tests: they are what a server keeps warm."""

import contextlib
import json
import os
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import pytest_asyncio

from prorl.grading import GraderPool

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("PRORL_SHARED") or HERE.parents[3] / "shared")
SHARED_FILES = ("stem_mcqa.jsonl", "stem_physics.jsonl", "stem_scp_form.jsonl")


def read_lines(path):
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def shared(name):
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"no {path}: set PRORL_SHARED to the folder that holds data/{name}")
    return path


@pytest.fixture(scope="session")
def own_rows():
    return read_lines(HERE / "data" / "rows.jsonl")


@pytest.fixture
def shared_file():
    """``shared_file(name)``: its path; skips, with the reason, where it is not."""
    return shared


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """The index of the corpus is made once, and not in the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def graders():
    async with GraderPool("prorl_stem.grading.ladder:grade", size=1) as pool:
        yield pool


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    wait: threading.Event | None = None
    drip: threading.Event | None = None


class ManyAtOnce(ThreadingHTTPServer):
    request_queue_size = 128  # of 5, the default, some of many at once are reset on a busy machine


class Peer:
    """A service of the net, on this machine: plays replies in order, the last one for good; remembers what it heard."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.asked = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self):
                with contextlib.suppress(ssl.SSLError):  # a client that does not trust it leaves in the handshake
                    super().handle()

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, body)
                peer.asked.append(asked)
                reply = peer.replies.pop(0) if len(peer.replies) > 1 else peer.replies[0]
                reply = reply(asked) if callable(reply) else reply
                if reply.wait is not None:
                    reply.wait.wait(30)
                try:
                    self.send_response(reply.status)
                    for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(reply.body)
                    while reply.drip is not None and not reply.drip.wait(0.05):
                        self.wfile.write(b"x")
                except ConnectionError:
                    self.close_connection = True

            do_GET = do_POST = answer  # noqa: N815 - as the standard library calls them

            def log_message(self, *_):
                pass

        self._server = ManyAtOnce(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def wrap(self, context):
        """Speak TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def peer():
    """``peer(reply, ...)`` starts one; ``peer.Reply`` makes replies."""
    opened = []

    def start(*replies):
        opened.append(Peer(*replies))
        return opened[-1]

    start.Reply = Reply
    start.json = lambda content, status=200, **headers: Reply(status, json.dumps(content).encode(), headers)
    yield start
    for one in opened:
        for reply in one.replies:
            if isinstance(reply, Reply):
                for event in filter(None, (reply.wait, reply.drip)):
                    event.set()
        one.close()


@pytest.fixture
def no_waiting(monkeypatch):
    """The waits before asking again, kept in a list instead of waited for."""
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr("prorl_stem.patience.asyncio", SimpleNamespace(sleep=sleep))
    return waits
