"""What is said of a program: per test, and in all."""

from __future__ import annotations

from collections import Counter
from typing import Literal, get_args

import msgspec

Outcome = Literal["passed", "wrong_answer", "runtime_error", "timeout", "memory_limit", "output_limit"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class TestVerdict(msgspec.Struct, frozen=True, kw_only=True):
    __test__ = False  # not one of pytest's

    outcome: Outcome
    reason: str


class Judged(msgspec.Struct, kw_only=True):
    """``tests`` is how many there are; fewer may have been run. ``reason`` is that of the first test that failed."""

    tests: int
    outcomes: Counter[Outcome] = msgspec.field(default_factory=Counter)
    failed: int | None = None
    reason: str = ""
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    sandboxes: int = 0

    def add(self, number: int, verdict: TestVerdict, given: str) -> None:
        """``number`` counts from 1; ``given`` is what the test gives to the program."""
        self.outcomes[verdict.outcome] += 1
        if verdict.outcome != "passed" and self.failed is None:
            self.failed = number
            shown = given if len(given) <= 120 else f"{given[:80]}... ({len(given)} characters)"
            kind = verdict.outcome.replace("_", " ")
            self.reason = f"test {number} of {self.tests}: {kind}: {verdict.reason}; the input is {shown!r}"

    @property
    def run(self) -> int:
        return self.outcomes.total()

    @property
    def passed(self) -> int:
        return self.outcomes["passed"]

    @property
    def outcome(self) -> Outcome:
        """That of the first test that failed, else ``passed``."""
        return next((kind for kind in self.outcomes if kind != "passed"), "passed")

    def metrics(self) -> dict[str, float | int]:
        counts = {f"tests_{kind}": self.outcomes[kind] for kind in OUTCOMES}
        return {
            "tests": self.tests,
            "tests_run": self.run,
            **counts,
            "judge_sandboxes": self.sandboxes,
            "slowest_test_cpu_s": round(self.cpu_s, 3),
            "largest_test_mb": round(self.memory_mb, 1),
        }
