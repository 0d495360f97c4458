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

import logging
import uuid
from typing import Any

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from prorl.client import stand_in, try_for_samples
from prorl.wire import JobRequest, SamplingParams
from prorl_verl.desk import Desk
from prorl_verl.options import options_of
from prorl_verl.outputs import in_order, output_of
from prorl_verl.rows import instance_of

log = logging.getLogger("prorl.verl")


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
        self._options = options_of(options)
        buffer = OmegaConf.select(self._config, "trainer.v1.sampler.custom_sampler.name")
        self._stops_early = buffer == "RolloutServiceReplayBuffer"

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """One rollout. V1 (whose rows carry ``session_id``) gets a list: a row per segment, none for a failed rollout.

        Raises ``ValueError`` and ``TypeError`` for a row or a setting that cannot work, ``prorl.client.ClientError``
        when the servers refuse the job or none answers, and :class:`GroupFailed`.
        """
        options, rollout = self._options, self._config.actor_rollout_ref.rollout
        request = self._request(sampling_params, row)
        desk = await Desk.of(self._engines, options, [self._tokenizer.eos_token_id])
        rules = options.rules(rollout)
        tried = await try_for_samples(desk.fleet, request, attempts=options.attempts, rules=rules)
        result, samples, step = tried.result, in_order(tried.samples), int(row.get("global_steps", -1))
        stopped = result.status == "cancelled" and self._stops_early
        if tried.untrainable is not None and not stopped:
            log.warning("%s (%s)", tried.untrainable, tried.untrainable.reason)
        if "session_id" not in row:
            *others, last = samples or [stand_in(result, self._tokenizer.pad_token_id or 0)]
            return output_of(result, last, step, dropped=len(others))
        if stopped:
            return []  # on purpose: our replay buffer takes the group away
        if not samples:
            desk.failed[request.group_id] += 1
            left = rollout.n - desk.failed[request.group_id]
            if left == min(options.min_group, rollout.n) - 1:
                raise GroupFailed(f"{request.group_id}: {left} of {rollout.n} rollouts can be trained on at most")
        return [output_of(result, sample, step) for sample in samples]

    def _request(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> JobRequest:
        options, group = self._options, str(row.get("uid") or uuid.uuid4())
        prompt_key = self._data.get("prompt_key", "prompt")
        return JobRequest(
            instance=instance_of(row, prompt_key=prompt_key, whole=options.instance_field),
            domain=options.domain,
            # Never the same twice: a trainer that goes on from a checkpoint hands out its old uids again, and must not
            # get rollouts of the run that it lost.
            job_id=f"{group}_{row.get('session_id', 0)}.{uuid.uuid4().hex[:8]}",
            group_id=group,
            sampling_params=SamplingParams(
                temperature=float(sampling_params.get("temperature", 1.0)),
                top_p=float(sampling_params.get("top_p", 1.0)),
                top_k=max(0, int(sampling_params.get("top_k", 0))),  # verl writes -1 for "all"
                max_tokens=options.max_tokens or self._config.actor_rollout_ref.rollout.response_length,
            ),
            rendering=options.rendering_of(self._data.get("apply_chat_template_kwargs") or {}),
            budgets=options.budgets,
            settings=options.settings,
            cancel_on_disconnect=True,  # a worker that dies leaves no rollout behind
        )
