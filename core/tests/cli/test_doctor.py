"""``prorl doctor`` tries things: what it reports was seen, not assumed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from prorl.api import HandlerRecord, Probe, RuntimeRecord, SandboxFault
from prorl.cli import doctor
from prorl.plugins import Registry, discover
from prorl.testing.scripted import ScriptedEngine


def by_check(findings):
    return {finding.check: finding for finding in findings}


async def test_this_machine():
    found = by_check(await doctor.examine(discover()))
    assert found["python"].state == "ok"
    assert found["packages"].state == "ok"
    assert "litestar" in found["packages"].seen
    assert found["plugin builtin-commands"].state == "ok"
    assert found["runtime local"].state == "note"
    assert "no isolation, so it is used only when named" in found["runtime local"].seen


class Fake:
    """A runtime by what its probe does."""

    def __init__(self, outcome):
        self._outcome = outcome

    async def probe(self):
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize(
    ("outcome", "state", "words"),
    [
        (Probe(runtime="r", works=True, isolation="full", start_ms=12.0), "ok", "started in 12 ms, isolation full"),
        (Probe(runtime="r", works=False, isolation="full", reason="no user namespaces"), "warn", "no user namespaces"),
        (Probe(runtime="r", works=True, isolation="none"), "note", "no isolation"),
        (OSError("no bwrap"), "fail", "OSError: no bwrap"),
    ],
)
async def test_runtimes(outcome, state, words):
    record = RuntimeRecord(name="r", factory=lambda: Fake(outcome), summary="s")
    found = by_check(await doctor.examine(Registry(runtimes={"r": record})))
    assert found["runtime r"].state == state
    assert words in f"{found['runtime r'].seen} {found['runtime r'].advice}"
    assert ("sandbox" in found) == (state != "ok")


def test_broken_plugins_fail_with_their_reason(monkeypatch, tmp_path):
    broken = tmp_path / "prorl_x-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: prorl-x\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[prorl]\nx = no.such.module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(doctor.command, ["--json"], standalone_mode=False)
    [finding] = [each for each in json.loads(done.stdout) if each["check"] == "plugin x"]
    assert finding["state"] == "fail"
    assert "no.such.module" in finding["advice"]
    assert done.return_value == 1


async def test_servers_that_are_not_there():
    found = by_check(
        await doctor.examine(discover(), llm_servers=("http://127.0.0.1:1", "nonsense"), server="http://127.0.0.1:1")
    )
    for check in ("LLM server http://127.0.0.1:1", "LLM server nonsense", "rollout server http://127.0.0.1:1"):
        assert found[check].state == "fail"
        assert found[check].advice


def test_a_rollout_server_is_really_asked(server):
    done = CliRunner().invoke(doctor.command, ["--server", server.url, "--json"], standalone_mode=False)
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found[f"rollout server {server.url}"]["state"] == "ok"
    assert found["its LLM servers"]["state"] == "warn"


def test_an_llm_server_is_really_asked():
    with ScriptedEngine(lambda request: "hello", model="tiny") as engine:
        done = CliRunner().invoke(doctor.command, ["--llm-server", engine.url, "--json"], standalone_mode=False)
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found[f"LLM server {engine.url}"]["state"] == "ok"
    assert "vllm" in found[f"LLM server {engine.url}"]["seen"]
    assert "model tiny" in found[f"LLM server {engine.url}"]["seen"]


def test_a_server_that_is_no_llm_server(server):
    done = CliRunner().invoke(doctor.command, ["--llm-server", server.url, "--json"], standalone_mode=False)
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found[f"LLM server {server.url}"]["state"] == "fail"
    assert "speaks no known dialect" in found[f"LLM server {server.url}"]["seen"]
    assert done.return_value == 1


def test_the_table_fits_80_columns(server, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(doctor.command, ["--server", server.url], standalone_mode=False)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout
    assert "->" in done.stdout


LACKS = Probe(
    runtime="r",
    works=True,
    isolation="full",
    start_ms=12.0,
    why_not={
        "memory_mb": "only root may write to the control groups of this machine, so nothing bounds a whole sandbox",
        "processes": "only root may write to the control groups of this machine, so nothing bounds a whole sandbox",
        "fakeroot": "agent needs subordinate ids in /etc/subuid and /etc/subgid: as root, usermod --add-subuids ...",
        "sif": "/dev/fuse is closed to ordinary users, images are unpacked instead: as root, chmod 0666 /dev/fuse",
    },
)


def test_what_a_runtime_lacks_is_one_entry_per_reason(monkeypatch):
    record = RuntimeRecord(name="r", factory=lambda: Fake(LACKS), summary="s")
    monkeypatch.setattr(doctor, "load_registry", lambda: Registry(runtimes={"r": record}))
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(doctor.command, [], standalone_mode=False).stdout
    assert max(map(len, shown.splitlines())) <= 80
    entries = [line.strip() for line in shown.splitlines() if line.strip().startswith("- ")]
    assert [entry.split(":")[0] for entry in entries] == ["- memory_mb, processes", "- fakeroot", "- sif"]
    assert LACKS.why_not["sif"] in " ".join(shown.split())
    told = CliRunner().invoke(doctor.command, ["--json"], standalone_mode=False).stdout
    [finding] = [each for each in json.loads(told) if each["check"] == "runtime r"]
    assert finding["why_not"] == LACKS.why_not
    assert finding["state"] == "ok"


def test_the_sandbox_table_counts_here_too(monkeypatch, tmp_path):
    (tmp_path / "prorl.toml").write_text(f"[sandbox]\nbwrap = '{tmp_path}/no-bwrap'\n")
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(doctor.command, ["--json"], standalone_mode=False).stdout
    [finding] = [each for each in json.loads(told) if each["check"] == "runtime bubblewrap"]
    assert finding["state"] == "warn"
    assert "no-bwrap" in finding["advice"]


def test_what_a_program_said_cannot_paint_the_terminal(monkeypatch):
    said = "\x1b[91mERROR  : no\n\x1b[0m\x1b]0;title\x07namespaces\r"
    record = RuntimeRecord(
        name="r", factory=lambda: Fake(Probe(runtime="r", works=False, isolation="full", reason=said)), summary="s"
    )
    monkeypatch.setattr(doctor, "load_registry", lambda: Registry(runtimes={"r": record}))
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(doctor.command, [], standalone_mode=False).stdout
    assert "-> ERROR : no ]0;title namespaces" in shown
    assert not [letter for letter in shown if ord(letter) < 32 and letter != "\n"]


def test_it_ends_with_what_it_comes_to(monkeypatch):
    works = RuntimeRecord(name="r", factory=lambda: Fake(Probe(runtime="r", works=True, isolation="full")), summary="s")
    handler = HandlerRecord(name="h", factory=object, summary="s")
    registry = Registry(runtimes={"r": works}, handlers={"h": handler})
    monkeypatch.setattr(doctor, "load_registry", lambda: registry)
    shown = CliRunner().invoke(doctor.command, [], standalone_mode=False).stdout
    assert shown.endswith("\nready to serve: h; sandboxes: r\n")
    assert not [line for line in shown.splitlines()[:-2] if line.endswith(" ") or not line]
    shown = CliRunner().invoke(doctor.command, ["--server", "http://127.0.0.1:1"], standalone_mode=False).stdout
    assert shown.endswith("\n1 thing to mend: rollout server http://127.0.0.1:1\n")
    told = CliRunner().invoke(doctor.command, ["--server", "127.0.0.1:1", "--json"], standalone_mode=False).stdout
    assert "write http://127.0.0.1:1" in json.loads(told)[-1]["seen"]


def test_a_domain_says_what_it_lacks_on_this_machine(monkeypatch):
    def lacks():
        raise SandboxFault("there is no git on PATH: install git", code="missing")

    def has():
        pass

    def breaks():
        raise KeyError("HOME")

    works = RuntimeRecord(name="r", factory=lambda: Fake(Probe(runtime="r", works=True, isolation="full")), summary="s")
    needs = {"h": None, "lacks": lacks, "has": has, "breaks": breaks}
    handlers = {name: HandlerRecord(name=name, factory=object, summary="s", needs=each) for name, each in needs.items()}
    monkeypatch.setattr(doctor, "load_registry", lambda: Registry(runtimes={"r": works}, handlers=handlers))
    done = CliRunner().invoke(doctor.command, ["--json"], standalone_mode=False)
    found = {each["check"]: each for each in json.loads(done.stdout) if each["check"].startswith("domain ")}
    assert {check: each["state"] for check, each in found.items()} == {
        "domain lacks": "warn",
        "domain has": "ok",
        "domain breaks": "warn",
    }
    assert found["domain lacks"]["advice"] == "there is no git on PATH: install git"
    assert found["domain breaks"]["advice"] == "KeyError: 'HOME'"
    shown = CliRunner().invoke(doctor.command, [], standalone_mode=False).stdout
    assert shown.endswith("\nready to serve: h, has; not lacks, breaks: see above; sandboxes: r\n")


def test_something_else_than_a_rollout_server():
    with ScriptedEngine(lambda request: "hello") as engine:
        done = CliRunner().invoke(doctor.command, ["--server", engine.url, "--json"], standalone_mode=False)
    [finding] = [each for each in json.loads(done.stdout) if each["check"].startswith("rollout server")]
    assert finding["state"] == "fail"
    assert "no ProRL rollout server" in finding["seen"]
    assert "<" not in finding["seen"]
