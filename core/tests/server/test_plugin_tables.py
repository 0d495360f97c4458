"""A plugin's table of prorl.toml, from the owner's file to the plugin's handler and tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl.api import ConfigError, SettingsRecord
from prorl.plugins import discover
from prorl.server.serve import RunningServer
from prorl.server.settings import load_settings
from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedEngine

PLUGIN = Path(__file__).parent.parent / "data" / "plugins" / "library"
SAY = '<tool_call>\n{"name": "shelf", "arguments": {}}\n</tool_call>'
Rollout = Callable[..., httpx.Response]


@pytest.fixture
def rollout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``rollout(toml, **request)``: one job of a server that has this prorl.toml and the plugin, found as pip's are."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    found = [metadata.distribution("prorl"), *metadata.distributions(path=[str(PLUGIN)])]

    def run(toml: str, **request: Any) -> httpx.Response:
        (tmp_path / "prorl.toml").write_text(f"[server]\nport = 0\n{toml}")
        settings = load_settings(tmp_path / "prorl.toml")
        with (
            ScriptedEngine(lambda asked: SAY if asked.call == 0 else "There.") as engine,
            RunningServer(settings, discover(distributions=found)) as server,
            httpx.Client(base_url=server.url, timeout=60) as client,
        ):
            client.post("/add_llm_server", json={"url": engine.url}).raise_for_status()
            return client.post("/process", json={"domain": "reader", "instance": {}, **request})

    return run


def test_handler_and_tool_get_what_the_owner_wrote(rollout: Rollout) -> None:
    result = rollout('[library]\nfolder = "/srv/books"\n').json()
    assert result["error"] is None
    assert result["artifacts"]["table"] == {"folder": "/srv/books", "loans": 3}
    assert "they are in /srv/books" in str(result["trajectory"])


def test_without_the_table_its_defaults_count(rollout: Rollout) -> None:
    result = rollout("").json()
    assert result["artifacts"]["table"] == {"folder": "/books", "loans": 3}
    assert "they are in /books" in str(result["trajectory"])


def test_no_request_changes_it(rollout: Rollout) -> None:
    for settings in ({"folder": "/etc"}, {"library": {"folder": "/etc"}}):
        answer = rollout('[library]\nfolder = "/srv/books"\n', settings=settings)
        assert answer.status_code == 400
        assert "unknown field" in answer.json()["detail"]


def test_a_type_that_nobody_declared_is_a_fault_that_says_what_to_do(rollout: Rollout) -> None:
    result = rollout("", instance={"lost": True}).json()
    assert result["mask_sample"]
    assert "no plugin in use has declared NeverDeclared as a table of prorl.toml" in result["error"]["message"]
    assert "prorl_settings" in result["error"]["message"]


def test_a_wrong_value_stops_the_start_and_names_its_place(rollout: Rollout) -> None:
    with pytest.raises(ConfigError, match=r"\[library\].*loans"):
        rollout('[library]\nloans = "many"\n')
    with pytest.raises(ConfigError, match=r"\[library\]: unknown field 'lones'"):
        rollout("[library]\nlones = 1\n")


def test_the_test_kit_has_tables_of_plugins_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN))
    from prorl_library import plugin  # noqa: PLC0415 - it is on the path for this test only

    record = SettingsRecord(name="library", type=plugin.Library, summary="where the books are")

    class Reader(plugin.Reader):
        tools = ("finish",)

        def more_tools(self, job: Any) -> list[Any]:
            return [plugin.Shelf()]

    [handler] = plugin.prorl_agent_handlers()
    handler = type(handler)(name="reader", factory=Reader, summary="reads", settings=handler.settings)
    with Lab([SAY], handlers=[handler], tables=[record], settings={"library": {"loans": 5}}) as lab:
        result = lab.rollout({}, domain="reader")
    assert result.artifacts["table"] == {"folder": "/books", "loans": 5}
