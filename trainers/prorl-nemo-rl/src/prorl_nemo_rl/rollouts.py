"""The rollout servers as this trainer uses them: the policy's engines registered, rows in, answers out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, Self

from prorl.client import Fleet, try_for_samples
from prorl_nemo_rl.answer import answer
from prorl_nemo_rl.rows import job_of
from prorl_nemo_rl.settings import RolloutSettings


class Rollouts:
    """Use as ``async with``: leaving cancels what is under way."""

    def __init__(self, settings: RolloutSettings, *, model: str, base_urls: Sequence[str]) -> None:
        self._settings = settings
        self._rules = settings.rules()
        self._backends = settings.backends(model, base_urls)
        self._fleet = Fleet(settings.servers)
        self._run_id = uuid.uuid4().hex[:8]

    async def __aenter__(self) -> Self:
        await self._fleet.__aenter__()
        wait_s = self._settings.engine_wait_s  # NeMo RL hands out its engines' addresses before they answer
        self._registered = asyncio.gather(*(self._fleet.add_llm_server(each, wait_s=wait_s) for each in self._backends))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._registered.cancel()
        await asyncio.gather(self._registered, return_exceptions=True)
        await self._fleet.close()

    async def run(self, row: dict[str, Any]) -> dict[str, Any]:
        """One rollout, as NeMo RL wants it told (:mod:`prorl_nemo_rl.answer`); cancelling the call cancels it. Raises
        :class:`~prorl_nemo_rl.rows.BadRow`, and ``ClientError`` when the service refuses the job or an engine, or is
        not there; whatever else happens to a rollout is in its answer."""
        request = job_of(row, self._settings, run_id=self._run_id)
        await asyncio.shield(self._registered)
        tried = await try_for_samples(self._fleet, request, attempts=self._settings.attempts, rules=self._rules)
        return await asyncio.to_thread(answer, row, tried)  # cumulative prompts are long
