"""The agent loop that verl's configuration names: a row goes to a rollout server, and what verl trains on comes back.

::

    - name: prorl
      _target_: prorl_verl.agent_loop.RolloutServiceAgentLoop
      urls: [http://127.0.0.1:8089]

A rollout that must not be trained on (a fault of sandbox, grader or engine, a cancelled job) never stands in for one
that may be: the V1 trainer gets no row for it, so that its group has one member less; V0 needs a row for every prompt,
and gets one with mask 0, reward 0 and ``masked`` 1.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import msgspec
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from prorl.client import Sample, Untrainable, samples_of
from prorl.wire import JobRequest, RolloutResult
from prorl_verl.desk import Desk, Shared
from prorl_verl.options import read_options, sampling_of
from prorl_verl.outputs import in_order, masked_output, output_of
from prorl_verl.rows import instance_of

log = logging.getLogger("prorl.verl")
_WORTH_ANOTHER_TRY = ("model", "sandbox", "grader", "internal")


class GroupFailed(Exception):  # noqa: N818 - says what happened
    """Too few rollouts of a group can be trained on: verl takes the whole group for failed."""


class RolloutServiceAgentLoop:
    """Made by verl, once per rollout; ``options`` are those of :class:`~prorl_verl.options.Options`."""

    def __init__(
        self, *, trainer_config: Any, server_manager: Any, tokenizer: Any, data_config: Any, **options: Any
    ) -> None:
        self._config = trainer_config.config
        self._data = data_config.config
        self._engines = server_manager
        self._tokenizer = tokenizer
        self._options = read_options(options)
        sampler = OmegaConf.select(self._config, "trainer.v1.sampler.custom_sampler.name")
        self._stops_early = sampler == "RolloutServiceReplayBuffer"

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """One rollout. V1 (whose rows carry ``session_id``) gets a list: a row per segment, none for a failed rollout.

        Raises ``ValueError`` and ``TypeError`` for a row or a setting that cannot work, ``prorl.client.ClientError``
        when the servers refuse the job or none answers, and :class:`GroupFailed`.
        """
        request = self._request(sampling_params, row)
        step = int(row.get("global_steps", -1))
        if "session_id" not in row:
            result, samples = await self._tried(request, row)
            if samples:
                return output_of(result, samples[-1], step, dropped=len(samples) - 1)
            pad_id = self._tokenizer.pad_token_id
            return masked_output(result, step, 0 if pad_id is None else pad_id)
        with Shared.of(self._engines).member(str(request.group_id)) as group:
            result, samples = await self._tried(request, row)
            group.kept += bool(samples)
        if result.status == "cancelled" and self._stops_early:
            return []  # on purpose: our replay buffer takes the group away
        if not group.running and group.kept < min(self._options.min_group, group.total):
            raise GroupFailed(f"{request.group_id}: {group.kept} of {group.total} rollouts can be trained on")
        return [output_of(result, sample, step) for sample in samples]

    async def _tried(self, request: JobRequest, row: dict[str, Any]) -> tuple[RolloutResult, list[Sample]]:
        """The rollout and its samples, in verl's order; none when it must not be trained on."""
        options, rollout = self._options, self._config.actor_rollout_ref.rollout
        desk = await Desk.of(self._engines, options, self._config, [self._tokenizer.eos_token_id])
        for attempt in range(1, options.attempts + 1):
            job_id = desk.job_id(str(request.group_id), row.get("session_id", 0))
            result = await desk.fleet.process(msgspec.structs.replace(request, job_id=job_id))
            try:
                return result, in_order(await asyncio.to_thread(samples_of, result, options.rules(rollout)))
            except Untrainable as error:
                log.warning("attempt %d of %d: %s (%s)", attempt, options.attempts, error, error.reason)
                if result.error is None or result.error.kind not in _WORTH_ANOTHER_TRY:
                    break
        return result, []

    def _request(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> JobRequest:
        options, rollout = self._options, self._config.actor_rollout_ref.rollout
        return JobRequest(
            instance=instance_of(
                row,
                prompt_key=self._data.get("prompt_key", "prompt"),
                fields=options.fields,
                whole=options.instance_field,
            ),
            domain=options.domain,
            group_id=str(row.get("uid") or uuid.uuid4()),
            sampling_params=sampling_of(sampling_params, options.max_tokens or rollout.response_length),
            rendering=options.rendering_of(self._data.get("apply_chat_template_kwargs") or {}),
            budgets=options.budgets,
            settings=options.settings,
            backend_wait_s=options.backend_wait_s,
            cancel_on_disconnect=True,  # a worker that dies leaves no rollout behind
        )
