"""An update of the weights, step by step: a real rollout server, and an engine that notes what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest

from prorl.client import BlockingClient, FolderReload, WeightsRefused
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import parse_settings
from prorl.testing.httpd import Request, Response, json_response
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import BackendSpec

CONTROLS = ("/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume")


class Engine(ScriptedEngine):
    """One that can be updated. ``told`` is in order; ``refuses`` answers with an error."""

    def __init__(self) -> None:
        super().__init__(lambda request: "done")
        self.told: list[tuple[str, str]] = []
        self.refuses: dict[str, int] = {}

    async def handle(self, request: Request) -> Response | None:
        if request.path not in CONTROLS:
            return await super().handle(request)
        self.told.append((request.path, request.query or request.body.decode()))
        return json_response({"detail": "no"}, self.refuses.get(request.path, 200))


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture
def server() -> Iterator[BlockingClient]:
    found = discover(distributions=[metadata.distribution("prorl")])
    with (
        RunningServer(parse_settings({"server": {"port": 0}}), found) as running,
        BlockingClient(running.url) as client,
    ):
        yield client


@pytest.fixture
def reload(engine: Engine, server: BlockingClient) -> Iterator[FolderReload]:
    with FolderReload([BackendSpec(url=engine.url)], [server._client.url]) as reload:
        yield reload


def registered(server: BlockingClient) -> dict[str, str]:
    return {backend.url: backend.policy_version for backend in server.status().pool.backends}


def test_in_order_and_by_name(engine, server, reload, tmp_path):
    for version in ("step-1", "step-2"):
        engine.told.clear()
        reload.publish(tmp_path, version)
        assert [path for path, _ in engine.told] == list(CONTROLS)
        assert engine.told[0][1] == "mode=keep"
        assert str(tmp_path) in engine.told[1][1]
        assert version in engine.told[3][1]
        assert registered(server) == {engine.url: version}


def test_closing_twice(reload):
    reload.close()
    reload.close()


def test_while_weights_are_loaded_nobody_is_sent_there(engine, server, reload, tmp_path):
    reload.publish(tmp_path, "step-1")
    reload.hold()
    assert registered(server) == {}
    reload.load(tmp_path)
    assert registered(server) == {}
    reload.release("step-2")
    assert registered(server) == {engine.url: "step-2"}


def test_engines_of_others_stay(engine, server, reload, tmp_path):
    with ScriptedEngine(lambda request: "done") as other:
        server.add_llm_server(BackendSpec(url=other.url, policy_version="theirs"))
        for version in ("step-1", "step-2"):
            reload.publish(tmp_path, version)
            assert registered(server) == {other.url: "theirs", engine.url: version}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/pause", 404, "could not pause: 404.*VLLM_SERVER_DEV_MODE"),
        ("/collective_rpc", 500, "could not load the weights: 500"),
        ("/resume", 500, "could not resume: 500"),
    ],
)
def test_an_engine_that_refuses_is_used_by_nobody(engine, server, reload, tmp_path, path, status, said):
    reload.publish(tmp_path, "step-1")
    engine.refuses = {path: status}
    with pytest.raises(WeightsRefused, match=said):
        reload.publish(tmp_path, "step-2")
    assert registered(server) == {}
    engine.refuses = {}
    reload.publish(tmp_path, "step-2")
    assert registered(server) == {engine.url: "step-2"}


def test_an_engine_that_is_gone(server, tmp_path):
    with Engine() as gone:
        url = gone.url
    with (
        FolderReload([BackendSpec(url=url)], [server._client.url]) as reload,
        pytest.raises(WeightsRefused, match="could not pause"),
    ):
        reload.publish(tmp_path, "step-1")
