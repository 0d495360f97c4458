"""prorl.toml: one Struct per table, checked as strictly as a request.

::

    [server]             host, port, body_limit_mb, ...
    [pipeline]           workers per stage, bounds        [pipeline.budgets]
    [pool]               the pool of LLM servers
    [sandbox]            which runtime, its limits
    [[backends]]         LLM servers known from the start
    [handlers.<name>]    a domain's own settings
    [<plugin's name>]    what a plugin's SettingsRecord describes: the owner's word, which no request changes

A handler's and a plugin's tables are checked by :func:`check_settings`, which needs the registry.
"""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from prorl.api.errors import ConfigError
from prorl.llm.pool.settings import PoolSettings
from prorl.pipeline.settings import PipelineSettings
from prorl.pipeline.tables import convert_table, overlay
from prorl.plugins.registry import Registry
from prorl.sandbox.settings import SandboxSettings
from prorl.wire.backends import BackendSpec
from prorl.wire.wording import Complaint, complaint, suggest


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[server]``: where it listens and what it accepts."""

    host: Annotated[
        str,
        msgspec.Meta(min_length=1, description="address to listen on; there is no authentication: keep it private"),
    ] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535, description="port to listen on; 0 takes a free one")] = 8089
    url: Annotated[
        Annotated[
            str,
            msgspec.Meta(pattern=r"^https?://[^\s]*[^/\s]$(?!\n)", examples=["http://node7:8089 (no last /)"]),
        ]
        | None,
        msgspec.Meta(description="where agents outside of sandboxes reach this server; unset: on this machine"),
    ] = None
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200, description="this server's name in results")] = (
        msgspec.field(default_factory=socket.gethostname)
    )
    body_limit_mb: Annotated[float, msgspec.Meta(gt=0, le=4096, description="largest request body, in MiB")] = 64.0
    accept_jobs: Annotated[bool, msgspec.Meta(description="accept jobs at once, without a POST /start")] = True
    keep_alive_s: Annotated[
        int,
        msgspec.Meta(ge=1, le=86_400, description="idle connections are closed after this; clients must be shorter"),
    ] = 75
    sse_keep_alive_s: Annotated[
        float, msgspec.Meta(gt=0.0, le=3600.0, description="a comment on quiet event streams this often, in seconds")
    ] = 15.0
    shutdown_s: Annotated[
        float, msgspec.Meta(gt=0.0, le=3600.0, description="limit on an orderly end after SIGTERM, in seconds")
    ] = 30.0
    certificate_key_file: Annotated[
        str | None,
        msgspec.Meta(description="file with the key that results are signed with; unset: no signatures"),
    ] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All of prorl.toml. ``plugins`` holds the plugins' own tables by name, checked once :func:`check_settings` ran."""

    server: ServerSettings = msgspec.field(default_factory=ServerSettings)
    pipeline: PipelineSettings = PipelineSettings()
    pool: PoolSettings = PoolSettings()
    sandbox: SandboxSettings = msgspec.field(default_factory=SandboxSettings)
    backends: tuple[BackendSpec, ...] = ()
    handlers: dict[str, dict[str, Any]] = {}
    plugins: dict[str, Any] = {}


_TABLES = tuple(name for name in Settings.__struct_fields__ if name != "plugins")


def load_settings(
    path: Path | None = None, *, overrides: Mapping[str, Any] | None = None, said_by: Mapping[str, str] | None = None
) -> Settings:
    """Read ``path`` (``None``: all defaults) and lay ``overrides`` over it, table by table.

    ``said_by`` says what set an override (``{"server.port": "--port"}``). Raises ``ConfigError`` naming that, or the
    file and the field.
    """
    where = str(path) if path is not None else "settings"
    document: dict[str, Any] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return parse_settings(overlay(document, overrides or {}), where=where, said_by=said_by or {})


def parse_settings(
    document: Mapping[str, Any], *, where: str = "settings", said_by: Mapping[str, str] | None = None
) -> Settings:
    """Check a document's own tables; those of plugins are kept as they are. Raises ``ConfigError``."""
    known = {name: value for name, value in document.items() if name in _TABLES}
    others = {name: value for name, value in document.items() if name not in _TABLES}
    for name, value in others.items():
        if not isinstance(value, dict):
            place = (said_by or {}).get(name, where)
            raise ConfigError(f"{place}: {name!r} stands outside any table; tables are {', '.join(_TABLES)}")
    try:
        return msgspec.convert({**known, "plugins": others}, Settings)
    except msgspec.ValidationError as error:
        said = complaint(error, Settings)
        place = (said_by or {}).get(said.place) or f"{where}: {_in_toml(said)}"
        raise ConfigError(f"{place}: {said.what}") from error


def _in_toml(said: Complaint) -> str:
    """``[pipeline.budgets] run_s``, ``[[backends]] 2, url``."""
    table, _, field = said.place.rpartition(".")
    if said.unknown is not None:
        field = ""
    name, item, rest = table.partition("[")
    if item:
        return f"[[{name}]] {int(rest.partition(']')[0]) + 1}{f', {field}' if field else ''}"
    return f"[{table or field}]{f' {field}' if table and field else ''}"


def check_settings(settings: Settings, registry: Registry, *, where: str = "settings") -> Settings:
    """Check ``[handlers.*]`` and the plugins' tables against their records. Raises ``ConfigError``.

    A table of a plugin that is installed but broken is let pass: the plugin's own report says what is wrong.
    """
    for name, table in settings.handlers.items():
        record = registry.handlers.get(name)
        if record is None:
            if any(name == broken.name for broken, _ in registry.broken_handlers) or registry.failed:
                continue
            known = ", ".join(sorted(registry.handlers)) or "none"
            raise ConfigError(f"{where}: [handlers.{name}]: no plugin offers this handler; known: {known}")
        if record.settings is None:
            raise ConfigError(f"{where}: [handlers.{name}]: this handler has no settings")
        checked = convert_table(table, record.settings, where=f"{where}: [handlers.{name}]")
        if not registry.failed:
            registry.check_names(checked, where=f"{where}: [handlers.{name}]")
    if not registry.failed:
        registry.check_names(settings.sandbox, where=f"{where}: [sandbox]")
    for spec in settings.backends:
        if spec.dialect is not None and spec.dialect not in registry.dialects and not registry.failed:
            raise ConfigError(
                f"{where}: [[backends]] {spec.url}: no plugin offers the dialect {spec.dialect!r}"
                f"{suggest(spec.dialect, registry.dialects)}"
            )
    for name in settings.plugins:
        if name not in registry.settings and not registry.failed:
            known = ", ".join((*_TABLES, *sorted(registry.settings)))
            raise ConfigError(f"{where}: unknown table [{name}]; known: {known}")
    tables = {
        name: convert_table(settings.plugins.get(name, {}), offered.type, where=f"{where}: [{name}]")
        for name, offered in registry.settings.items()
    }
    return msgspec.structs.replace(settings, plugins=tables)
