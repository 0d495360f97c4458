"""Asking the judge, with a time-out and retries of its own.

Every failure is a ``GraderFault``: the sample is masked. Nothing that goes wrong here is a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from prorl.api import GraderFault
from prorl_stem.judge.prompt import MAX_ANSWER_CHARS, messages, new_nonce, read_verdict
from prorl_stem.llm import Llm, NoReply
from prorl_stem.patience import persist
from prorl_stem.settings import JudgeSettings


@dataclass(frozen=True)
class Opinion:
    same: bool
    reason: str


class Judge:
    """For all jobs of a server. Use it on one event loop, and close it."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._retries = settings.retries
        self._llm = Llm(settings)

    async def compare(self, question: str, gold: str, answer: str, *, both_orders: bool) -> Opinion:
        """Raises ``GraderFault``: ``judge_down``, ``judge_refused``, ``judge_garbled``, ``judge_gold``."""
        if len(gold) > MAX_ANSWER_CHARS:
            raise GraderFault(f"the gold has more than {MAX_ANSWER_CHARS} characters", code="judge_gold")
        if len(answer) > MAX_ANSWER_CHARS:
            return Opinion(False, f"the answer has more than {MAX_ANSWER_CHARS} characters")
        orders = [(gold, answer), (answer, gold)] if both_orders else [(gold, answer)]
        try:
            verdicts = [await persist(partial(self._ask, question, *order), self._retries) for order in orders]
        except NoReply as problem:
            raise GraderFault(f"the judge gave no verdict: {problem}", code=f"judge_{problem.code}") from None
        if all(verdicts):
            return Opinion(True, "the same, says the judge")
        if any(verdicts):
            return Opinion(False, "the judge changes its mind with the order")
        return Opinion(False, "another answer, says the judge")

    async def _ask(self, question: str, one: str, other: str) -> bool:
        nonce = new_nonce()
        verdict = read_verdict(await self._llm.reply(messages(question, one, other, nonce)), nonce)
        if verdict is None:
            raise NoReply("its reply holds no verdict", "garbled")
        return verdict

    async def close(self) -> None:
        await self._llm.close()
