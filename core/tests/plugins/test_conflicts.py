"""Two plugins that claim one name: both are told, neither is used for it, and what they don't share works."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from prorl.api import ConfigError
from prorl.plugins import HandlerUnavailable, discover

DATA = Path(__file__).parent.parent / "data" / "plugins"


@pytest.fixture
def claimed(discovered):
    return discovered("claim-one", "claim-two", "good")


def test_both_are_named_in_both_reports(claimed):
    one, two = (report for report in claimed.reports if report.name in ("one", "two"))
    for report in (one, two):
        assert report.state == "conflict"
        assert "'shared' is claimed by one (prorl-claim-one 1.0) and two (prorl-claim-two 1.0)" in report.reason
        assert "'shell'" in report.reason
    assert [report.state for report in claimed.reports if report.name == "good"] == ["active"]


def test_neither_record_is_used_and_the_rest_is(claimed):
    assert sorted(claimed.handlers) == ["good", "only-one", "only-two"]
    assert list(claimed.tools) == ["lookup"]
    offers = {report.name: report.offers for report in claimed.reports}
    assert offers["one"] == {"prorl_agent_handlers": ["only-one"]}
    assert claimed.route("only-two", {}).name == "only-two"


@pytest.mark.parametrize("domain", ["shared", "one", "two", "one-7"])
def test_a_job_for_it_is_told_both(claimed, domain):
    with pytest.raises(HandlerUnavailable) as caught:
        claimed.route(domain, {})
    assert [report.name for report in caught.value.reports] == ["one", "two"]
    assert "prorl-claim-one" in str(caught.value)
    assert "prorl-claim-two" in str(caught.value)


def test_a_tool_of_it_is_not_offered(claimed):
    with pytest.raises(ConfigError, match="shell"):
        claimed.tool("shell")


def test_one_module_behind_two_entry_points(discovered):
    registry = discovered("twice")
    assert [(report.name, report.state) for report in registry.reports] == [("first", "active"), ("second", "invalid")]
    assert list(registry.handlers) == ["twice"]


def test_the_core_keeps_its_own_names(install):
    install("usurper")
    found = [metadata.distribution("prorl"), *metadata.distributions(path=[str(DATA / "usurper")])]
    registry = discover(distributions=found)
    states = {report.name: (report.state, report.reason) for report in registry.reports}
    assert states["builtin-commands"] == ("active", None)
    assert states["usurper"][0] == "conflict"
    assert "builtin-commands (prorl " in (states["usurper"][1] or "")
    assert registry.commands["serve"].summary != "would take the core's own command away"
