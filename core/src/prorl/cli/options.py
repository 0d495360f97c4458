"""Options that stand for settings: help text and default come from the setting itself."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import click
import msgspec

from prorl.api.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Flag:
    """``path`` is where the setting stands in prorl.toml; its last part is a field of ``table``."""

    name: str
    table: type[msgspec.Struct]
    path: str

    @property
    def key(self) -> str:
        """The parameter's name in the command."""
        return self.name.lstrip("-").replace("-", "_")

    def option(self) -> Callable[[F], F]:
        """Not given, it is ``None``: then the file counts, or the setting's default."""
        field = self.path.rpartition(".")[2]
        hint = get_type_hints(self.table, include_extras=True)[field]
        default = getattr(self.table(), field)
        shown = "unset" if default is None else default
        return click.option(
            self.name,
            self.key,
            type=next(kind for kind in (int, float, str) if kind in _types(hint)),
            default=None,
            help=f"{_description(hint).capitalize()}. [default: {shown}]",
        )


def settings_flags(flags: Sequence[Flag]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for flag in reversed(flags):
            command = flag.option()(command)
        return command

    return decorate


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """``a.b=3`` and ``c=text`` into nested tables. A value that is no TOML is taken as text. Raises ``ConfigError``."""
    tables: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        *parents, last = (name.strip() for name in path.split("."))
        if not equals or not all((*parents, last)):
            raise ConfigError(f"--set {text!r}: write NAME=VALUE")
        table = tables
        for name in parents:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {text!r}: {name!r} already has a value")
        table[last] = _value(value)
    return tables


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _types(hint: Any) -> set[Any]:
    """The plain types inside ``Annotated[int | None, ...]``."""
    inner = get_args(hint)
    if not inner:
        return {hint}
    return set().union(*(_types(each) for each in inner if not isinstance(each, msgspec.Meta)))


def _description(hint: Any) -> str:
    texts = (meta.description for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, msgspec.Meta))
    return next((text for text in texts if text), "")
