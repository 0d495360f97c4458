"""What a record must be before the server trusts it. msgspec does not check a Struct that was built in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from prorl.api.records import (
    CommandRecord,
    DemoModel,
    DemoRecord,
    DialectRecord,
    HandlerRecord,
    Record,
    RuntimeRecord,
    SettingsRecord,
    ToolRecord,
)
from prorl.wire.jobs import Budgets

RECORD_OF_HOOK: Mapping[str, type[Record]] = MappingProxyType(
    {
        "prorl_agent_handlers": HandlerRecord,
        "prorl_tool_backends": ToolRecord,
        "prorl_sandbox_runtimes": RuntimeRecord,
        "prorl_llm_dialects": DialectRecord,
        "prorl_settings": SettingsRecord,
        "prorl_commands": CommandRecord,
        "prorl_demos": DemoRecord,
    }
)

# Tables of prorl.toml that are the core's (prorl.server.settings); a plugin's would never be read.
CORE_TABLES = frozenset({"server", "pipeline", "pool", "sandbox", "backends", "handlers"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the characters that engines' function-calling APIs take
_DOMAIN = re.compile(r"[^\s\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]{0,198}[^\s\x00-\x1f\x7f])?")  # data_source: "openai/gsm8k"


class BadRecord(Exception):  # noqa: N818 - a plugin's own fault, told in its report
    """Why a hook's answer cannot be used."""


def check_answer(hook: str, answer: object) -> list[Record]:
    """The records of one hook call. Raises :class:`BadRecord` naming the hook, the record and the field."""
    expected = RECORD_OF_HOOK[hook]
    if not isinstance(answer, list):
        raise BadRecord(f"{hook} returned {type(answer).__name__}, not a list of {expected.__name__}")
    for position, record in enumerate(answer):
        if not isinstance(record, expected):
            raise BadRecord(f"{hook}[{position}] is {type(record).__name__}, not {expected.__name__}")
        try:
            _check_record(record)
        except BadRecord as error:
            raise BadRecord(f"{hook}[{position}] ({record.name!r}): {error}") from None
    return answer


def _check_record(record: Record) -> None:
    _check_name("name", record.name, _TOOL_NAME if isinstance(record, ToolRecord) else _NAME)
    if not isinstance(record.summary, str) or not record.summary.strip():
        raise BadRecord("summary must be a line of text")
    match record:
        case HandlerRecord():
            _check_callable("factory", record.factory)
            _check_names("domains", record.domains, _DOMAIN)
            _check_names("prefixes", record.prefixes, _DOMAIN)
            if record.settings is not None:
                _check_struct("settings", record.settings)
            _check_budgets(record.budgets)
        case ToolRecord():
            _check_callable("factory", record.factory)
            _check_names("aliases", record.aliases, _TOOL_NAME)
        case RuntimeRecord():
            _check_callable("factory", record.factory)
            _check_preference(record.preference)
        case DialectRecord():
            for method in ("detect", "connect"):
                if not callable(getattr(record.factory, method, None)):
                    raise BadRecord(f"factory has no method {method!r}: give an instance of a DialectFactory")
            _check_preference(record.preference)
        case SettingsRecord():
            _check_struct("type", record.type)
            if record.name in CORE_TABLES:
                raise BadRecord("this table of prorl.toml is the core's: name yours after the plugin")
        case CommandRecord():
            _check_callable("load", record.load)
        case DemoRecord():
            _check_name("domain", record.domain, _DOMAIN)
            _check_demo(record)


def _check_name(field: str, value: Any, pattern: re.Pattern[str]) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadRecord(f"{field} {value!r} is not a name (must match {pattern.pattern})")


def _check_names(field: str, values: Any, pattern: re.Pattern[str]) -> None:
    if not isinstance(values, tuple):
        hint = f": write ({values!r},)" if isinstance(values, str) else ""
        raise BadRecord(f"{field} must be a tuple of str, not {type(values).__name__}{hint}")
    for value in values:
        _check_name(field, value, pattern)


def _check_callable(field: str, value: Any) -> None:
    if not callable(value):
        raise BadRecord(f"{field} is {type(value).__name__}, not callable")


def _check_struct(field: str, value: Any) -> None:
    if not (isinstance(value, type) and issubclass(value, msgspec.Struct)):
        raise BadRecord(f"{field} must be a msgspec.Struct class, not {value!r}")


def _check_demo(record: DemoRecord) -> None:
    if record.script is None and record.model is None:
        raise BadRecord("a demo needs a script, or a model of its own")
    if record.script is not None:
        _check_callable("script", record.script)
    if record.model is not None:
        _check_demo_model(record.model)
    if not isinstance(record.rows, tuple) or not all(isinstance(row, dict) for row in record.rows):
        raise BadRecord("rows must be a tuple of dict")
    if record.ready is not None:
        _check_callable("ready", record.ready)


def _check_demo_model(model: Any) -> None:
    if not isinstance(model, DemoModel):
        raise BadRecord(f"model must be a DemoModel, not {type(model).__name__}")
    _check_name("model.name", model.name, _NAME)
    for field, path in (("gguf", model.gguf), ("tokenizer", model.tokenizer)):
        if not isinstance(path, Path):
            raise BadRecord(f"model.{field} must be a pathlib.Path, not {type(path).__name__}")


def _check_budgets(value: Any) -> None:
    if not isinstance(value, Budgets):
        raise BadRecord(f"budgets must be prorl.wire.Budgets, not {type(value).__name__}")
    try:
        msgspec.convert(msgspec.to_builtins(value), Budgets)
    except (TypeError, msgspec.ValidationError) as error:
        raise BadRecord(f"budgets: {error}") from error


def _check_preference(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRecord(f"preference must be an int, not {value!r}")
