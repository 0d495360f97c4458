"""What was found, for people and for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from prorl.cli.console import print_table, table
from prorl.cli.verify.reading import Item
from prorl.wire import RolloutResult
from prorl.wire.soundness import Finding
from prorl.wire.wording import counted

_SHOWN = 40


class Wrong(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout's findings, or why its line cannot be read."""

    line: int
    job_id: str | None = None
    unreadable: str | None = None
    findings: list[Finding] = []


@dataclass
class Report:
    """``policy_versions`` counts sampled tokens; ``sections`` are what further checks add, as rows to show.
    ``unproved`` says why a check that was asked for has shown nothing."""

    results: int = 0
    turns: int = 0
    segments: int = 0
    certified: int = 0
    signed: int = 0
    policy_versions: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, Wrong] = field(default_factory=dict)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    unproved: str | None = None

    def add(self, item: Item, findings: list[Finding]) -> None:
        if item.result is None:
            self.wrong[item.line] = Wrong(line=item.line, unreadable=item.wrong)
            return
        trajectory = item.result.trajectory
        self.results += 1
        self.turns += len(trajectory.turns)
        self.segments += len(trajectory.segments)
        if trajectory.certificate is not None:
            self.certified += 1
            self.signed += trajectory.certificate.signature is not None
        for segment in trajectory.segments:
            for run in segment.versions:
                if run.version:
                    self.policy_versions[run.version] += run.count
        self.find(item.line, item.result, findings)

    def find(self, line: int, result: RolloutResult, findings: list[Finding]) -> None:
        if findings:
            known = self.wrong.get(line, Wrong(line=line)).findings
            self.wrong[line] = Wrong(line=line, job_id=result.job_id, findings=[*known, *findings])

    @property
    def unreadable(self) -> bool:
        return any(each.unreadable is not None for each in self.wrong.values())

    @property
    def status(self) -> int:
        """The exit status: 2 for lines that are no results, 1 for results that are not sound, or not shown to be."""
        return 2 if self.unreadable else 1 if self.wrong or self.unproved else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": not self.wrong and self.unproved is None,
            "results": self.results,
            "segments": self.segments,
            "turns": self.turns,
            "certified": self.certified,
            "signed": self.signed,
            "sampled_tokens": dict(self.policy_versions),
            **self.sections,
            "unproved": self.unproved,
            "wrong": list(self.wrong.values()),
        }

    def show(self, console: Console) -> None:
        sampled = sum(self.policy_versions.values())
        rows = {
            "results": f"{self.results} ({self.certified} certified, {self.signed} signed)",
            "turns": f"{self.turns} in {counted(self.segments, 'segment')}",
            "sampled tokens": f"{sampled} ({', '.join(self._versions()) or 'no version'})",
        }
        made = table("", "")
        made.show_header = False
        for name, value in rows.items():
            made.add_row(name, escape(value))
        for title, section in self.sections.items():
            for name, value in section.items():
                made.add_row(f"{title}: {name.replace('_', ' ')}", escape(_in_words(value)))
        print_table(console, made)
        if self.unproved is not None:
            console.print(f"\n{escape(self.unproved)}")
        if not self.wrong:
            if self.unproved is None:
                console.print("all good" if self.results else "nothing to verify")
            return
        console.print(f"\n{counted(len(self.wrong), 'line')} of the file not good:")
        made = table("line", "job", "where", "what")
        for each in list(self.wrong.values())[:_SHOWN]:
            if each.unreadable is not None:
                made.add_row(str(each.line), "", "", escape(f"no result: {each.unreadable}"))
            for finding in each.findings:
                where = "" if finding.turn is None else f"turn {finding.turn}"
                if finding.turn is None and finding.segment is not None:
                    where = f"segment {finding.segment}"
                made.add_row(str(each.line), escape(each.job_id or ""), where, escape(finding.message))
        print_table(console, made)
        if len(self.wrong) > _SHOWN:
            console.print(f"and {len(self.wrong) - _SHOWN} more: --json has them all")

    def _versions(self) -> list[str]:
        return [f"version {version}: {count}" for version, count in self.policy_versions.items()]


def _in_words(value: Any) -> str:
    match value:
        case float():
            return f"{value:.3g}"
        case dict():
            return ", ".join(f"{name}: {_in_words(each)}" for name, each in value.items()) or "none"
        case None:
            return "-"
        case _:
            return str(value)
