"""Which handler a request means, and the sentence it gets when there is none."""

from __future__ import annotations

import pytest

from prorl.api import ConfigError, HandlerRecord
from prorl.plugins import HandlerUnavailable, Registry, UnknownDomain


@pytest.fixture
def registry(discovered):
    return discovered("good", "import-error", "newer", "raises")


@pytest.mark.parametrize(
    ("domain", "instance"),
    [
        ("good", {}),
        ("openai/gsm8k", {}),
        (None, {"data_source": "openai/gsm8k"}),
        (None, {"data_source": "riddle23"}),
        ("good", {"data_source": "nobody"}),
    ],
)
def test_domain_first_then_data_source(registry, domain, instance):
    assert registry.route(domain, instance).name == "good"


def handler(name: str, **claims: tuple[str, ...]) -> HandlerRecord:
    return HandlerRecord(name=name, factory=dict, summary="s", **claims)


def test_exact_names_before_prefixes_and_the_longest_prefix_wins():
    records = [handler("a", prefixes=("m",)), handler("b", prefixes=("math_",)), handler("c", domains=("math_dapo",))]
    registry = Registry(handlers={record.name: record for record in records})
    assert registry.route("mood", {}).name == "a"
    assert registry.route("math_x", {}).name == "b"
    assert registry.route("math_dapo", {}).name == "c"
    assert registry.domains() == ["a", "b", "c", "m*", "math_*", "math_dapo"]


def test_an_unknown_domain_lists_the_known_and_the_failed(registry):
    with pytest.raises(UnknownDomain) as caught:
        registry.route("cooking", {})
    assert caught.value.domain == "cooking"
    assert caught.value.known == ("good", "openai/gsm8k", "riddle*", "riddle_hard*")
    assert [report.name for report in caught.value.failed] == ["broken", "newer", "raises"]
    assert "openai/gsm8k" in str(caught.value)
    assert "newer (prorl-newer 9.0)" in str(caught.value)


@pytest.mark.parametrize("instance", [{}, {"data_source": None}, {"data_source": 7}])
def test_a_request_without_a_domain(registry, instance):
    with pytest.raises(UnknownDomain, match="names no domain") as caught:
        registry.route(None, instance)
    assert caught.value.domain is None


@pytest.mark.parametrize(
    ("domain", "plugin"),
    [
        ("broken", "broken"),  # the entry point's name
        ("import-error", "broken"),  # the distribution without prorl-
        ("import_error", "broken"),
        ("prorl-newer", "newer"),
        ("flaky-domain", "raises"),  # a name that the plugin gave before it failed
    ],
)
def test_a_domain_of_a_failed_plugin_is_recognised(registry, domain, plugin):
    with pytest.raises(HandlerUnavailable) as caught:
        registry.route(domain, {})
    [report] = caught.value.reports
    assert report.name == plugin
    assert report.state in str(caught.value)
    assert report.reason in str(caught.value)


def test_a_failed_plugins_name_never_falls_through_to_anothers_prefix(discovered):
    registry = discovered("newer")
    registry.handlers["greedy"] = handler("greedy", prefixes=("new",))
    assert registry.route("news", {}).name == "greedy"
    with pytest.raises(HandlerUnavailable):
        registry.route("newer", {})


def test_tools_by_name_or_alias(registry):
    assert registry.tool("lookup") is registry.tool("good-lookup") is registry.tool("look-up")
    with pytest.raises(ConfigError, match=r"'nosuch'.*known: lookup"):
        registry.tool("nosuch")
