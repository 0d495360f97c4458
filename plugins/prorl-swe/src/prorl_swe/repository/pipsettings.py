"""What pip is told of package indexes on this machine: its files and its variables, read as pip reads them.

An option is, from weak to strong, in ``/etc/xdg/pip/pip.conf`` (and its like), in the
user's file, in the environment's ``pip.conf``, in the file that ``PIP_CONFIG_FILE`` names, in ``PIP_*``.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec


def default_index() -> str:
    """The one that pip goes to when it is told of none: its own word."""
    from pip._internal.models.index import PyPI  # noqa: PLC0415 - only where nothing is set

    return str(PyPI.simple_url)


class PipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``indexes`` in the order in which they are asked. ``timeout`` in seconds."""

    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = 60.0
    netrc: str | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Self:
        options = _options(environ)
        main = options.get("index-url") or options.get("pypi-url") or _uv(environ) or default_index()
        indexes = () if _is_true(options.get("no-index", "")) else (main, *options.get("extra-index-url", "").split())
        return cls(
            indexes=indexes,
            find_links=tuple(options.get("find-links", "").split()),
            trusted_hosts=tuple(options.get("trusted-host", "").split()),
            cert=options.get("cert") or environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or None,
            client_cert=options.get("client-cert") or None,
            proxy=options.get("proxy") or None,
            netrc=_netrc(environ),
            timeout=_seconds(options.get("timeout") or options.get("default-timeout")),
        )

    def for_uv(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that tell uv the same; what it was told itself stands."""
        told: dict[str, str] = {}
        if self.indexes:
            told["UV_DEFAULT_INDEX"] = self.indexes[0]
            told["UV_INDEX"] = " ".join(self.indexes[1:])
        else:
            told["UV_NO_INDEX"] = "1"
        told["UV_FIND_LINKS"] = " ".join(self.find_links)
        told["UV_INSECURE_HOST"] = " ".join(self.trusted_hosts)
        told["SSL_CERT_FILE"] = self.cert or ""
        told["ALL_PROXY"] = self.proxy or ""
        told["UV_HTTP_TIMEOUT"] = str(int(self.timeout))
        return {name: value for name, value in told.items() if value and name not in environ}


def _uv(environ: Mapping[str, str]) -> str | None:
    """Whoever told only uv of an index means it for all of us."""
    return environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or None


def _options(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in _files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip will say so, to whoever runs it
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                found |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            found[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return found


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"):
        yield Path(folder, "pip", "pip.conf")
    yield Path("/etc/pip.conf")
    home = Path(environ.get("HOME") or "~").expanduser()
    yield home / ".pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix, "pip.conf")
    if chosen:
        yield Path(chosen)


def _netrc(environ: Mapping[str, str]) -> str | None:
    path = Path(environ.get("NETRC") or "~/.netrc").expanduser()
    return str(path) if path.is_file() else None


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on", "y", "t")


def _seconds(text: str | None) -> float:
    try:
        return float(text) if text else 60.0
    except ValueError:
        return 60.0
