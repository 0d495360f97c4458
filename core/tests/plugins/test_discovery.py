"""Real entry points of hand-made installed distributions; each kind of bad plugin ends in its own report."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import get_args

import pytest

from prorl.api import ConfigError, Record, hookspecs
from prorl.plugins import Registry, discover
from prorl.plugins.checks import RECORD_OF_HOOK
from prorl.wire import PluginReport

DATA = Path(__file__).parent.parent / "data" / "plugins"


def report_of(registry: Registry, name: str) -> PluginReport:
    [report] = [report for report in registry.reports if report.name == name]
    return report


def test_every_hook_has_its_kind_of_record():
    """A hook that was added to the contract alone would be called, and then nobody could check its answer."""
    hooks = {name for name in vars(hookspecs) if name.startswith("prorl_")}
    assert set(RECORD_OF_HOOK) == hooks
    assert set(get_args(Record)) == set(RECORD_OF_HOOK.values())


def test_a_good_plugin(discovered):
    registry = discovered("good")
    assert registry.reports == [
        PluginReport(
            name="good",
            distribution="prorl-good",
            version="1.2",
            state="active",
            offers={
                "prorl_agent_handlers": ["good"],
                "prorl_tool_backends": ["lookup"],
                "prorl_settings": ["good"],
                "prorl_commands": ["good"],
            },
        )
    ]
    assert registry.handlers["good"].prefixes == ("riddle", "riddle_hard")
    assert list(registry.settings) == list(registry.commands) == ["good"]
    assert registry.failed == []


@pytest.mark.parametrize(
    ("folder", "name", "state", "words"),
    [
        ("import-error", "broken", "import-failed", ["a_module_that_nobody_has", "plugin.py, line 1"]),
        ("exits", "exits", "import-failed", ["SystemExit", "no licence key"]),
        ("newer", "newer", "incompatible", ["prorl>=99", "upgrade prorl"]),
        ("misspelt", "misspelt", "invalid", ["prorl_agent_handler", "did you mean prorl_agent_handlers?"]),
        ("unmarked", "unmarked", "invalid", ["prorl_agent_handlers", "@hookimpl"]),
        ("bad-record", "bad-record", "invalid", ["prorl_agent_handlers[0]", "'half done'", "not a name"]),
        ("raises", "raises", "invalid", ["prorl_tool_backends", "RuntimeError: could not reach the registry"]),
        ("garbled", "prorl-garbled", "invalid", ["entry_points.txt"]),
    ],
)
def test_each_bad_plugin_has_its_state_and_reason_and_hurts_nobody(discovered, folder, name, state, words):
    registry = discovered(folder, "good")
    report = report_of(registry, name)
    assert report.state == state
    assert report.reason is not None
    assert "\n" not in report.reason
    for word in words:
        assert word in report.reason
    assert report.offers == {}
    assert report_of(registry, "good").state == "active"
    assert list(registry.handlers) == ["good"]
    assert list(registry.tools) == ["lookup"]


def test_strict_names_every_bad_plugin(discovered):
    with pytest.raises(ConfigError) as caught:
        discovered("good", "newer", "import-error", strict=True)
    message = str(caught.value)
    for word in ("newer (prorl-newer 9.0): incompatible", "broken (prorl-import-error 0.3): import-failed"):
        assert word in message
    assert "prorl-good" not in message
    assert "\n" not in message


def test_strict_is_content_with_good_plugins(discovered):
    assert discovered("good", strict=True).failed == []


def test_an_unrelated_broken_distribution_is_none_of_our_business(discovered):
    assert [report.name for report in discovered("bystander", "good").reports] == ["good"]


def test_the_first_copy_on_the_path_counts(install, tmp_path):
    copy = tmp_path / "Prorl_Good-9.9.dist-info"
    copy.mkdir()
    (copy / "METADATA").write_text("Metadata-Version: 2.1\nName: Prorl.Good\nVersion: 9.9\n")
    (copy / "entry_points.txt").write_text("[prorl]\nother = prorl_good.nowhere\n")
    install("good")
    found = metadata.distributions(path=[str(DATA / "good"), str(tmp_path)])
    assert [report.version for report in discover(distributions=found).reports] == ["1.2"]


def test_a_half_removed_distribution_is_skipped(discovered, tmp_path):
    (tmp_path / "gone-1.0.dist-info").mkdir()
    assert discovered(tmp_path, "good").failed == []


def make_plugin(folder: Path, source: str, *, name: str = "prorl-made", requires: str = "", value: str = "") -> Path:
    module = name.replace("-", "_")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + (f"Requires-Dist: {requires}\n" if requires else "")
    )
    (info / "entry_points.txt").write_text(f"[prorl]\nmade = {value or module}\n")
    (folder / f"{module}.py").write_text("from prorl.api import *\nfrom prorl.api import hookimpl\n" + source)
    return folder


HANDLERS = "@hookimpl\ndef prorl_agent_handlers():\n    return "


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HANDLERS + "None", "returned NoneType, not a list of HandlerRecord"),
        (HANDLERS + "()", "returned tuple, not a list"),
        (HANDLERS + "['math']", "[0] is str, not HandlerRecord"),
        (HANDLERS + "[ToolRecord(name='x', factory=dict, summary='s')]", "[0] is ToolRecord, not HandlerRecord"),
        (HANDLERS + "[HandlerRecord(name=3, factory=dict, summary='s')]", "name 3 is not a name"),
        (HANDLERS + "[HandlerRecord(name='a/b', factory=dict, summary='s')]", "'a/b' is not a name"),
        (HANDLERS + "[HandlerRecord(name='a', factory=7, summary='s')]", "factory is int, not callable"),
        (HANDLERS + "[HandlerRecord(name='a', factory=dict, summary='')]", "summary"),
        (HANDLERS + "[HandlerRecord(name='a', factory=dict, summary='s', domains='b')]", "write ('b',)"),
        (HANDLERS + "[HandlerRecord(name='a', factory=dict, summary='s', prefixes=('',))]", "prefixes ''"),
        (HANDLERS + "[HandlerRecord(name='a', factory=dict, summary='s', settings=dict)]", "msgspec.Struct class"),
        (HANDLERS + "[HandlerRecord(name='a', factory=dict, summary='s', budgets={})]", "prorl.wire.Budgets, not dict"),
        (
            "from prorl.wire import Budgets\n"
            + HANDLERS
            + "[HandlerRecord(name='a', factory=dict, summary='s', budgets=Budgets(run_s=-1))]",
            "budgets: Expected `float`",
        ),
        ("@hookimpl\nasync def prorl_agent_handlers():\n    return []", "is async"),
        ("@hookimpl(wrapper=True)\ndef prorl_agent_handlers():\n    yield", "is a wrapper"),
        ("@hookimpl\ndef prorl_agent_handlers(config):\n    return []", "config"),
        ("@hookimpl\ndef prorl_agent_handlers():\n    raise SystemExit(3)", "raised SystemExit: 3"),
        (
            "@hookimpl\ndef prorl_llm_dialects():\n    return [DialectRecord(name='d', factory=dict, summary='s')]",
            "no method 'detect'",
        ),
        (
            "@hookimpl\ndef prorl_sandbox_runtimes():\n    return [RuntimeRecord(name='r', factory=dict, summary='s', preference='high')]",  # noqa: E501
            "preference must be an int",
        ),
        (
            "@hookimpl\ndef prorl_settings():\n    return [SettingsRecord(name='s', type=dict, summary='s')]",
            "type must be a msgspec.Struct class",
        ),
        (
            "@hookimpl\ndef prorl_settings():\n    return [SettingsRecord(name='pool', type=DemoModel, summary='s')]",
            "this table of prorl.toml is the core's",
        ),
        (
            "@hookimpl\ndef prorl_demos():\n    return [DemoRecord(name='d', domain='d', rows=[{}], script=max, summary='s')]",  # noqa: E501
            "rows must be a tuple",
        ),
        (
            "@hookimpl\ndef prorl_demos():\n    return [DemoRecord(name='d', domain='d', rows=(), summary='s')]",
            "a demo needs a script, or a model of its own",
        ),
        (
            "@hookimpl\ndef prorl_demos():\n    return [DemoRecord(name='d', domain='d', rows=(), summary='s', model='m')]",  # noqa: E501
            "model must be a DemoModel, not str",
        ),
        (
            "@hookimpl\ndef prorl_demos():\n    return [DemoRecord(name='d', domain='d', rows=(), summary='s', model=DemoModel(name='m', gguf='m', tokenizer='m', summary='s'))]",  # noqa: E501
            "model.gguf must be a pathlib.Path, not str",
        ),
    ],
)
def test_answers_that_cannot_be_used(discovered, tmp_path, source, words):
    registry = discovered(make_plugin(tmp_path / "p", source))
    report = report_of(registry, "made")
    assert report.state == "invalid"
    assert words in (report.reason or "")


def test_a_table_is_found_by_its_type_so_no_two_have_one(discovered, tmp_path):
    twice = "[SettingsRecord(name=name, type=DemoModel, summary='s') for name in 'ab']"
    registry = discovered(make_plugin(tmp_path / "p", f"@hookimpl\ndef prorl_settings():\n    return {twice}"))
    report = report_of(registry, "made")
    assert report.state == "conflict"
    assert "type 'prorl.api.records.DemoModel' is claimed twice" in (report.reason or "")
    assert registry.settings == {}


@pytest.mark.parametrize(
    ("requires", "state"),
    [
        ("prorl>=0.0.1", "active"),
        ("prorl<0.0.1", "incompatible"),
        ("PRORL[server] >= 99", "incompatible"),
        ("prorl>=99; python_version < '3'", "active"),
        ("prorl>=99; extra == 'future'", "active"),
        ("prorl-other>=99", "active"),
        ("prorl>>2", "invalid"),
    ],
)
def test_the_requirement_on_the_core(discovered, tmp_path, requires, state):
    registry = discovered(make_plugin(tmp_path / "p", HANDLERS + "[]", requires=requires))
    assert report_of(registry, "made").state == state


@pytest.mark.parametrize(
    ("value", "state"),
    [("not a module", "invalid"), ("prorl_made:nothing", "import-failed"), ("no.such.module", "import-failed")],
)
def test_entry_points_that_lead_nowhere(discovered, tmp_path, value, state):
    registry = discovered(make_plugin(tmp_path / "p", HANDLERS + "[]", value=value))
    assert report_of(registry, "made").state == state


def test_an_interrupt_during_discovery_is_the_users(discovered, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        discovered(make_plugin(tmp_path / "p", "raise KeyboardInterrupt"))


def test_reasons_stay_short(discovered, tmp_path):
    registry = discovered(make_plugin(tmp_path / "p", "raise ValueError('x' * 100_000)"))
    assert len(report_of(registry, "made").reason or "") <= 600


def test_what_is_installed_is_found_without_being_told(tmp_path):
    """No argument, another process: importlib.metadata over the real ``sys.path``."""
    code = "from prorl.plugins import discover; print([(r.name, r.state) for r in discover().reports])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(DATA / 'good'), str(DATA / 'exits')]!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "('good', 'active')" in done.stdout
    assert "('exits', 'import-failed')" in done.stdout
    assert "('builtin-commands', 'active')" in done.stdout
