"""What the YAML of the agent loop may say, and how verl's other settings become a job's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from prorl.client import SampleRules
from prorl.wire import SamplingParams
from prorl.wire.jobs import Budgets
from prorl.wire.rendering import RenderingParams
from prorl_verl.rows import plain

_PASSED_BY_VERL = ("name", "tools", "processor", "dataset_cls", "hf_model_type")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of ``agent_loop_config_path``, beside ``name`` and ``_target_``.

    ``urls``: the rollout servers. ``domain``: the handler (``None``: by the row's ``data_source``). ``instance_field``:
    a field of the row that is the whole instance, as a mapping or as JSON text. ``fields``: only these fields make it.
    ``max_tokens`` bounds one reply (``None``: ``rollout.response_length``). ``settings``,
    ``budgets``, ``rendering`` and ``backend_wait_s`` are those of a job. ``attempts``: how often a rollout is tried
    whose failure is not the policy's nor the row's. ``min_group``: a group that has fewer members after failures is
    failed as a whole. ``agents``: only these sub-agents' segments are trained on (``None``: all).
    ``key_env``: the variable with the servers' signing key, where signatures are to be checked. ``tokenizer``: a folder
    or hub name that the servers can read (``None``: verl's own). ``gateway_host``: the address at which the servers
    reach this worker (``None``: the node's, or loopback when all servers are there).
    """

    urls: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    domain: str | None = None
    instance_field: str | None = None
    fields: tuple[str, ...] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: dict[str, Any] = {}
    budgets: Budgets = Budgets()
    rendering: RenderingParams | None = None
    backend_wait_s: float | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 2
    min_group: Annotated[int, msgspec.Meta(ge=1)] = 2
    agents: tuple[str, ...] | None = None
    key_env: str | None = None
    tokenizer: str | None = None
    gateway_host: str | None = None

    def rules(self, rollout: Any) -> SampleRules:
        """What verl's ``rollout`` settings leave room for."""
        key = None if self.key_env is None else os.environ[self.key_env].encode()
        return SampleRules(
            max_prompt=rollout.prompt_length, max_response=rollout.response_length, agents=self.agents, key=key
        )

    def rendering_of(self, template_kwargs: Mapping[str, Any]) -> RenderingParams:
        """``data.apply_chat_template_kwargs`` where the YAML says nothing of its own."""
        if self.rendering is not None:
            return self.rendering
        variables = dict(template_kwargs)
        return RenderingParams(thinking=variables.pop("enable_thinking", None), variables=variables)


def read_options(given: Mapping[str, Any]) -> Options:
    """Raises ``ValueError`` that names the setting that is wrong."""
    said = {name: plain(value, name) for name, value in given.items() if name not in _PASSED_BY_VERL}
    if isinstance(said.get("urls"), str):
        said["urls"] = [said["urls"]]
    try:
        return msgspec.convert(said, Options)
    except msgspec.ValidationError as error:
        raise ValueError(f"the agent loop's configuration: {error}") from error


def sampling_of(params: Mapping[str, Any], max_tokens: int) -> SamplingParams:
    """verl's sampling parameters as a job's; it writes -1 for "no top-k". Raises ``ValueError`` for a penalty: under
    one, the engine's logprobs are not the policy's."""
    if params.get("repetition_penalty", 1.0) != 1.0:
        raise ValueError("repetition_penalty must be 1.0: with a penalty, logprobs are not the policy's own")
    return SamplingParams(
        temperature=float(params.get("temperature", 1.0)),
        top_p=float(params.get("top_p", 1.0)),
        top_k=max(0, int(params.get("top_k", 0))),
        max_tokens=max_tokens,
    )
