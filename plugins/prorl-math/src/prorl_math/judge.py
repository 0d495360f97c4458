"""The grader's processes as the handler sees them, and who is to blame when one does not answer.

A grader that is killed, hangs or breaks on an answer is asked about the gold alone. If it can grade that, the answer
was the cause, and is wrong; if not, it is a grader fault, and the sample is masked. So neither can a policy mask its
own sample by an answer that nothing can grade, nor does a broken grader hand out rewards.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from prorl.api import GraderFault
from prorl.grading import GraderPool

GRADER = "prorl_math.grading:grade"
# sympy's polynomials add and multiply by functions that it writes for each number of letters
TEMPLATES = ("sympy.polys.monomials:_build",)
ANSWERS_DOING = ("timeout", "crashed", "raised", "bad_reply")
Outcome = Literal["right", "wrong", "unreadable", "too_hard"]


class Judge:
    """Use it on one event loop; ``timeout`` is in seconds of a grader's own time."""

    max_good_golds: ClassVar[int] = 100_000

    def __init__(self, *, processes: int, memory_mb: int) -> None:
        self._pool = GraderPool(GRADER, size=processes, memory_mb=memory_mb, confined=True, may_compile=TEMPLATES)
        self._good_golds: set[str] = set()

    async def check_gold(self, gold: str, timeout: float) -> None:
        """Raises ``GraderFault``: ``bad_gold`` when nothing could ever be compared with ``gold``."""
        if gold in self._good_golds:
            return
        await self._grade_gold(gold, timeout)
        if len(self._good_golds) >= self.max_good_golds:
            self._good_golds.clear()
        self._good_golds.add(gold)

    async def compare(self, gold: str, answer: str, timeout: float) -> tuple[Outcome, str]:
        """The outcome for an answer and its reason. Raises ``GraderFault`` when it is not the answer's doing."""
        await self.check_gold(gold, timeout)
        for attempt in (1, 2):
            try:
                graded = await self._pool.grade({"gold": gold, "answer": answer}, timeout)
            except GraderFault as fault:
                if fault.code not in ANSWERS_DOING:
                    raise
                if fault.code == "crashed" and attempt == 1:
                    continue  # the kernel, out of memory, may have meant somebody else
                await self._grade_gold(gold, timeout)
                return "too_hard", f"the answer could not be graded: {fault}"
            return graded["verdict"], graded["reason"]
        raise AssertionError("the second attempt returns or raises")

    async def close(self) -> None:
        await self._pool.close()

    async def _grade_gold(self, gold: str, timeout: float) -> None:
        try:
            checked = await self._pool.grade({"gold": gold}, timeout)
        except GraderFault as fault:
            if fault.code not in ANSWERS_DOING:
                raise
            raise GraderFault(f"the gold answer {gold!r:.200} cannot be graded: {fault}", code="bad_gold") from fault
        if checked["verdict"] != "good_gold":
            raise GraderFault(checked["reason"], code="bad_gold")
