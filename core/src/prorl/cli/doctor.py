"""``prorl doctor``: try what works here, and say what to do about the rest. Nothing is believed that was not tried."""

from __future__ import annotations

import asyncio
import platform
import re
import sys
from collections.abc import Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal

import click
import httpx
import msgspec
from packaging.requirements import Requirement
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from prorl.api import DialectRecord, ProrlError, RuntimeRecord
from prorl.cli.console import INSTALL_MODEL, load_registry, out, print_json, print_table, table
from prorl.client import ClientError, RolloutClient, ServerUnreachable
from prorl.plugins import Registry
from prorl.sandbox.plugin import with_settings
from prorl.sandbox.settings import SandboxSettings
from prorl.server.settings import load_settings
from prorl.wire.wording import counted

_FILE = Path("prorl.toml")
_PROBE_S = 60.0
_ASK_S = 10.0
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[^\S ]|[\x00-\x1f\x7f-\x9f]")
State = Literal["ok", "note", "warn", "fail"]
_COLOURS: dict[State, str] = {"ok": "green", "note": "default", "warn": "yellow", "fail": "red"}


class Finding(msgspec.Struct, kw_only=True):
    """One row: what was tried, how it went, what was seen, and what to do unless it is ``ok`` or only a ``note``.

    ``why_not``: what a runtime that works cannot do here, each with its reason.
    """

    check: str
    state: State
    seen: str
    advice: str | None = None
    why_not: dict[str, str] = {}


@click.command("doctor")
@click.option("--llm-server", "llm_servers", metavar="URL", multiple=True, help="Ask this LLM server too; repeatable.")
@click.option("--server", metavar="URL", help="Ask this rollout server, and the LLM servers that it knows.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"Settings, for [sandbox]. [default: {_FILE} in this folder, if there is one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, llm_servers: tuple[str, ...], server: str | None, config: Path | None, as_json: bool) -> int:
    """Check Python, packages, plugins, sandbox runtimes (really started) and servers (really asked).

    The exit status is 1 if anything that was checked cannot work.
    """
    settings = load_settings(config or (_FILE if _FILE.exists() else None)).sandbox
    registry = load_registry()
    findings = asyncio.run(examine(registry, llm_servers=llm_servers, server=server, sandbox=settings))
    if as_json:
        print_json(findings)
    else:
        _show(findings, _closing(registry, findings))
    return 1 if any(finding.state == "fail" for finding in findings) else 0


async def examine(
    registry: Registry,
    *,
    llm_servers: tuple[str, ...] = (),
    server: str | None = None,
    sandbox: SandboxSettings | None = None,
) -> list[Finding]:
    """All checks, in the order in which they matter."""
    findings = [
        Finding(check="python", state="ok", seen=f"{platform.python_version()} ({sys.executable})"),
        *_packages(),
        *_plugins(registry),
        *_domains(registry),
        *await _runtimes(with_settings(registry.runtimes, sandbox) if sandbox else registry.runtimes),
        _engine(),
    ]
    findings += [await _llm_server(registry, url) for url in llm_servers]
    if server is not None:
        findings += await _rollout_server(server)
    return findings


def _packages() -> list[Finding]:
    """What ``prorl`` and its extra ``server`` require, against what is installed: the metadata is the list."""
    missing: list[str] = []
    present: list[str] = []
    wanted = {requirement.name: requirement for requirement in map(Requirement, metadata.requires("prorl") or [])}
    for requirement in wanted.values():
        if requirement.name == "prorl" or not _wanted(requirement):
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        if requirement.specifier.contains(installed, prereleases=True):
            present.append(f"{requirement.name} {installed}")
        else:
            missing.append(f"{requirement.name} (has {installed}, needs {requirement.specifier})")
    if missing:
        seen = f"missing: {', '.join(missing)}"
        return [
            Finding(
                check="packages",
                state="warn",
                seen=seen,
                advice="pip install 'prorl[server]', if this is to be a server",
            )
        ]
    return [Finding(check="packages", state="ok", seen=", ".join(present))]


def _wanted(requirement: Requirement) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", "cli", "server"))


def _plugins(registry: Registry) -> list[Finding]:
    return [
        Finding(
            check=f"plugin {report.name}",
            state="ok" if report.state == "active" else "fail",
            seen=f"{report.distribution} {report.version}: {report.state}",
            advice=report.reason,
        )
        for report in registry.reports
    ]


def _domains(registry: Registry) -> list[Finding]:
    """Those that say what they need of the machine."""
    findings = []
    for record in registry.handlers.values():
        if record.needs is not None:
            finding = Finding(check=f"domain {record.name}", state="ok", seen="has what it needs of this machine")
            try:
                record.needs()
            except Exception as error:
                said = str(error) if isinstance(error, ProrlError) else f"{type(error).__name__}: {error}"
                finding = Finding(check=f"domain {record.name}", state="warn", seen="cannot run here", advice=said)
            findings.append(finding)
    return findings


async def _runtimes(runtimes: Mapping[str, RuntimeRecord]) -> list[Finding]:
    records = sorted(runtimes.values(), key=lambda record: -record.preference)
    findings = [await _runtime(record) for record in records]
    if not any(finding.state == "ok" for finding in findings):
        findings.append(
            Finding(
                check="sandbox",
                state="fail",
                seen="no runtime that isolates works here",
                advice="see the reasons above; tasks that run tools need one",
            )
        )
    return findings


async def _runtime(record: RuntimeRecord) -> Finding:
    check = f"runtime {record.name}"
    try:
        async with asyncio.timeout(_PROBE_S):
            probe = await record.factory().probe()
    except TimeoutError:
        return Finding(
            check=check, state="fail", seen=f"no answer within {_PROBE_S:.0f} s", advice="report this as a bug"
        )
    except Exception as error:
        return Finding(
            check=check, state="fail", seen=f"{type(error).__name__}: {error}", advice="report this as a bug"
        )
    if not probe.works:
        return Finding(check=check, state="warn", seen="does not work here", advice=probe.reason)
    took = f" in {probe.start_ms:.0f} ms" if probe.start_ms is not None else ""
    seen = f"started{took}, isolation {probe.isolation}, {probe.version or 'no version'}"
    if probe.isolation == "none":
        seen = "no isolation, so it is used only when named: what runs in it can touch this machine"
        return Finding(check=check, state="note", seen=seen, why_not=probe.why_not)
    return Finding(check=check, state="ok", seen=seen, why_not=probe.why_not)


def _engine() -> Finding:
    check, only = "demo engine", "only `prorl demo` needs it"
    try:
        engine = import_module("prorl.testing.engines").LlamaEngine
    except ModuleNotFoundError as error:
        return Finding(
            check=check,
            state="warn",
            seen=f"{error.name} is not installed",
            advice=f"{only}: {INSTALL_MODEL}",
        )
    missing = engine.available()
    if missing is not None:
        return Finding(check=check, state="warn", seen=missing, advice=f"{only}: {INSTALL_MODEL}")
    return Finding(check=check, state="ok", seen="xllamacpp, with the small model that a package carries")


async def _llm_server(registry: Registry, url: str) -> Finding:
    check = f"LLM server {url}"
    records = sorted(registry.dialects.values(), key=lambda record: -record.preference)
    async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False) as client:
        try:
            await client.get(url)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = str(error) or type(error).__name__
            return Finding(
                check=check, state="fail", seen=said, advice="is it running, and reachable from this machine?"
            )
        for record in records:
            if await record.factory.detect(client, url):
                return await _describe(record, client, url, check)
    tried = ", ".join(record.name for record in records) or "none are installed"
    return Finding(check=check, state="fail", seen="answers, but speaks no known dialect", advice=f"tried: {tried}")


async def _describe(record: DialectRecord, client: httpx.AsyncClient, url: str, check: str) -> Finding:
    try:
        engine = await record.factory.connect(client, url, model=None).describe()
    except Exception as error:
        return Finding(
            check=check, state="fail", seen=f"speaks {record.name}", advice=f"{type(error).__name__}: {error}"
        )
    version = f" {engine.version}" if engine.version else ""
    return Finding(
        check=check, state="ok", seen=f"{record.name}{version}, model {engine.model}, context {engine.max_context}"
    )


async def _rollout_server(url: str) -> list[Finding]:
    check = f"rollout server {url}"
    try:
        async with RolloutClient(url, timeout_s=_ASK_S, give_up_s=0.0) as client:
            status, reports = await client.status(), await client.plugins()
    except ServerUnreachable as error:
        return [Finding(check=check, state="fail", seen=error.cause, advice="start one with `prorl serve`")]
    except ClientError as error:
        return [Finding(check=check, state="fail", seen=str(error), advice="give the URL that `prorl serve` prints")]
    jobs = ", ".join(f"{count} {state}" for state, count in status.jobs.items() if count) or "no jobs"
    findings = [
        Finding(
            check=check,
            state="ok" if status.accepting else "warn",
            seen=f"prorl {status.version}, {jobs}",
            advice=None if status.accepting else "it accepts no jobs: POST /start",
        )
    ]
    for backend in status.pool.backends:
        seen = f"{backend.dialect}, model {backend.model}, version {backend.policy_version}, {backend.calls} calls"
        state: State = "ok" if backend.healthy else "fail"
        findings.append(Finding(check=f"its LLM server {backend.url}", state=state, seen=seen, advice=backend.reason))
    if not status.pool.backends:
        findings.append(
            Finding(check="its LLM servers", state="warn", seen="none", advice="register one: POST /add_llm_server")
        )
    findings += [
        Finding(check=f"its plugin {report.name}", state="fail", seen=report.state, advice=report.reason)
        for report in reports
        if report.state != "active"
    ]
    return findings


def _lacks(why_not: dict[str, str]) -> Table:
    """One entry per reason, with all that it keeps from working."""
    reasons: dict[str, list[str]] = {}
    for name, why in why_not.items():
        reasons.setdefault(why, []).append(name)
    entries = Table.grid(padding=(0, 1))
    for why, names in reasons.items():
        entries.add_row("-", _plain(f"{', '.join(names)}: {why}"))
    return entries


def _plain(text: str) -> str:
    """What a program said may hold colours of its own, or worse: only its words are shown, on one line."""
    return escape(" ".join(_CONTROL.sub(" ", text).split()))


def _closing(registry: Registry, findings: list[Finding]) -> str:
    """What it all comes to, in a line."""
    checks = {state: [each.check for each in findings if each.state == state] for state in _COLOURS}
    if checks["fail"]:
        return f"{counted(len(checks['fail']), 'thing')} to mend: {', '.join(checks['fail'])}"
    if "packages" in checks["warn"]:
        return "ready to ask a rollout server, not to be one: see packages"
    if not registry.handlers:
        return "ready to serve, but no domain yet: install a task package, e.g. prorl-math"
    runtimes = [check.removeprefix("runtime ") for check in checks["ok"] if check.startswith("runtime ")]
    domains = [name for name in registry.handlers if f"domain {name}" not in checks["warn"]]
    lacking = [name for name in registry.handlers if name not in domains]
    but = f"; not {', '.join(lacking)}: see above" if lacking else ""
    return f"ready to serve: {', '.join(domains) or 'no domain'}{but}; sandboxes: {', '.join(runtimes)}"


def _show(findings: list[Finding], closing: str) -> None:
    listing = table("", "check", "seen")
    listing.columns[1].max_width = 24  # a long URL must not push what matters off the screen
    for finding in findings:
        colour = _COLOURS[finding.state]
        seen = _plain(finding.seen) + (f"\n-> {_plain(finding.advice)}" if finding.advice else "")
        listing.add_row(
            f"[{colour}]{finding.state}[/]",
            escape(finding.check),
            Group(seen, *([_lacks(finding.why_not)] if finding.why_not else [])),
        )
    console = out()
    print_table(console, listing)
    console.print(f"\n{escape(closing)}")
