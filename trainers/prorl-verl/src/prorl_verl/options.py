"""What the YAML of the agent loop may say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from prorl.client import SampleRules
from prorl.wire.certificate import read_key
from prorl.wire.jobs import Budgets
from prorl.wire.rendering import RenderingParams
from prorl_verl.rows import plain

T = TypeVar("T")
_PASSED_BY_VERL = ("name", "tools", "processor", "dataset_cls", "hf_model_type")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of ``agent_loop_config_path``, beside ``name`` and ``_target_``.

    ``urls``: the rollout servers. ``domain``: the handler (``None``: by the row's ``data_source``). ``instance_field``:
    a field of the row that is the whole instance, as a mapping or as JSON text. ``max_tokens`` bounds one reply
    (``None``: ``rollout.response_length``). ``settings``, ``budgets`` and ``rendering`` are those of a job (``None``:
    ``data.apply_chat_template_kwargs``). ``attempts``: how often a rollout is tried that a passing fault keeps from
    being trained on. ``min_group``: a group that has fewer members after failures is failed as a whole. ``key_file``:
    the servers' key, where results are signed. ``tokenizer``: a folder or hub name that the servers can read (``None``:
    verl's own). ``gateway_host``: the address at which the servers reach this worker (``None``: the node's, or loopback
    when all servers are there).
    """

    urls: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    domain: str | None = None
    instance_field: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: dict[str, Any] = {}
    budgets: Budgets = Budgets()
    rendering: RenderingParams | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 2
    min_group: Annotated[int, msgspec.Meta(ge=1)] = 2
    key_file: str | None = None
    tokenizer: str | None = None
    gateway_host: str | None = None

    def rules(self, rollout: Any) -> SampleRules:
        """What verl's ``rollout`` settings leave room for."""
        key = read_key(Path(self.key_file)) if self.key_file else None
        return SampleRules(max_prompt=rollout.prompt_length, max_response=rollout.response_length, key=key)

    def rendering_of(self, template_kwargs: Mapping[str, Any]) -> RenderingParams:
        """``data.apply_chat_template_kwargs`` where the YAML says nothing of its own."""
        variables = dict(template_kwargs)
        thinking = variables.pop("enable_thinking", None)
        return self.rendering or RenderingParams(thinking=thinking, variables=variables)


def options_of(given: Mapping[str, Any]) -> Options:
    """From the arguments that verl makes an agent loop with. Raises ``ValueError`` that names what is wrong."""
    said = {name: value for name, value in given.items() if name not in _PASSED_BY_VERL}
    return read(Options, said, "the agent loop's configuration")


def read(kind: type[T], said: Mapping[str, Any], where: str) -> T:
    """A part of verl's configuration, checked. Raises ``ValueError`` that names what is wrong ``where``."""
    try:
        return msgspec.convert({name: plain(value, name) for name, value in said.items()}, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from error
