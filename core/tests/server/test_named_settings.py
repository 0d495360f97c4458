"""Settings that name tools and runtimes are looked up before a job begins, and before a server does."""

from __future__ import annotations

from importlib import metadata

import msgspec
import pytest

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import ConfigError, HandlerRecord, Message, RuntimeName, ToolName
from prorl.api.names import named_in
from prorl.client import ServiceError
from prorl.plugins import discover
from prorl.server.settings import check_settings, parse_settings
from prorl.testing.lab import Lab


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    tools: tuple[ToolName, ...] | None = None
    judge: RuntimeName | None = None
    title: str = "execute_bahs"


def test_only_fields_of_these_types_name_anything():
    assert named_in(Settings()) == []
    assert named_in(Settings(tools=("a", "b"), judge="c")) == [
        ("tools", "tool", "a"),
        ("tools", "tool", "b"),
        ("judge", "runtime", "c"),
    ]
    assert named_in(AgentSettings(tools=("bash",), runtime="local")) == [
        ("tools", "tool", "bash"),
        ("runtime", "runtime", "local"),
    ]


class Lookup(ToolAgentHandler):
    def messages(self, job):
        return [Message(role="user", content="Where?")]

    async def grade(self, job):
        return {"reward": 1.0}


LOOKUP = HandlerRecord(name="lookup", factory=Lookup, summary="looks up", settings=AgentSettings)
RIGHT = {"tools": ["bash", "ipython"], "runtime": "local"}
WRONG = [
    ({"tools": ["execute_bahs"]}, r"tools: no plugin offers the tool 'execute_bahs' .*known: .*execute_bash"),
    ({"runtime": "docker"}, r"runtime: no plugin offers the sandbox runtime 'docker'; known: .*bubblewrap"),
]


@pytest.mark.parametrize(("table", "said"), WRONG)
def test_a_server_does_not_start_with_a_name_that_nobody_offers(table, said):
    registry = discover(distributions=[metadata.distribution("prorl")])
    registry.handlers["lookup"] = LOOKUP
    check_settings(parse_settings({"handlers": {"lookup": RIGHT}}), registry)
    with pytest.raises(ConfigError, match=rf"\[handlers.lookup\]: {said}"):
        check_settings(parse_settings({"handlers": {"lookup": table}}), registry)


def test_a_job_is_not_accepted_with_a_name_that_nobody_offers():
    with Lab(["There."], handlers=[LOOKUP]) as lab:
        for table, said in WRONG:
            with pytest.raises(ServiceError, match=f"settings of lookup: {said}") as caught:
                lab.rollout({}, domain="lookup", settings=table)
            assert caught.value.problem.status == 400
        result = lab.rollout({}, domain="lookup", settings=RIGHT)
    assert (result.error, result.reward) == (None, 1.0)
