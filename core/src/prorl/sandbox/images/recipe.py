"""What to build: a definition template, its variables, and when an earlier build may be used again.

A template is Jinja2 in a sandbox: an undefined variable is an error, nothing but its variables and the templates beside
it can be reached, and a variable cannot hold a line break, so that none can begin a section of its own (``%setup`` runs
on the host). In ``%post`` write ``{{ package | quote }}``.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import stat
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import parse_qsl, quote, urlencode

import jinja2
import jinja2.meta
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prorl.api.errors import ConfigError

CacheMode = Literal["scratch", "versioned", "lock"]
SCHEME = "def:"
SUFFIX = ".def.j2"
TEMPLATES = Path(__file__).parent / "templates"
RESERVED = ("cache", "lock")


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One image to be built.

    ``template`` is the absolute path of a ``.def.j2`` file, or the name of one that comes with this package
    (``default``). ``cache`` is one of

    - ``scratch``: always built anew;
    - ``versioned``: an earlier build stands while the definition, the base image and the framework's version do;
    - ``lock``: an earlier build stands while the definition and the files named in ``lock`` are the same.

    What ``%files`` copies is not looked at: name those files in ``lock``, or take ``scratch`` while they change.
    """

    template: str = "default"
    variables: dict[str, str] = {}
    cache: CacheMode = "versioned"
    lock: tuple[str, ...] = ()

    @classmethod
    def parse(cls, reference: str) -> Recipe:
        """``def:/path/to/x.def.j2?name=value&cache=lock&lock=/path/to/uv.lock``; raises :class:`ConfigError`."""
        path, _, query = reference.removeprefix(SCHEME).partition("?")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
        except ValueError as error:
            raise ConfigError(f"image {reference!r}: write variables as ?name=value&other=value") from error
        cache = dict(pairs).get("cache", "versioned")
        if cache not in get_args(CacheMode):
            raise ConfigError(f"image {reference!r}: cache must be one of {', '.join(get_args(CacheMode))}")
        return cls(
            template=path,
            variables={name: value for name, value in pairs if name not in RESERVED},
            cache=cast("CacheMode", cache),
            lock=tuple(value for name, value in pairs if name == "lock"),
        )

    @property
    def reference(self) -> str:
        """The same as text, for ``SandboxSpec(image=recipe.reference)``."""
        pairs = [*self.variables.items(), ("cache", self.cache), *(("lock", path) for path in self.lock)]
        return f"{SCHEME}{self.template}?{urlencode(pairs, quote_via=quote)}"

    @property
    def name(self) -> str:
        """For people, in file names: short, lower case, nothing a shell would look at twice."""
        stem = Path(self.template).name.removesuffix(SUFFIX)
        return readable_name(stem)


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered recipe. ``folder`` is where relative paths of ``%files`` begin."""

    text: str
    folder: Path
    bootstrap: str
    base: str | None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def render(recipe: Recipe) -> Definition:
    """Raises :class:`ConfigError` for a template that is not there, is not ours to run, or lacks a variable."""
    path = _find(recipe.template)
    for name, value in recipe.variables.items():
        if not name.isidentifier() or name in RESERVED:
            raise ConfigError(f"{path.name}: {name!r} cannot be the name of a variable")
        if not value.isprintable():
            raise ConfigError(f"{path.name}: the variable {name} holds a line break or a control character")
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader([path.parent, TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quote"] = shlex.quote
    try:
        source = path.read_text()
        wanted = jinja2.meta.find_undeclared_variables(environment.parse(source))
        text = environment.get_template(path.name).render(recipe.variables)
    except jinja2.UndefinedError as error:
        known = ", ".join(sorted(wanted))
        raise ConfigError(
            f"{path.name} needs a variable it was not given: {error.message} (it has: {known})"
        ) from error
    except (jinja2.TemplateError, UnicodeDecodeError, OSError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{path.name} cannot be rendered: {type(error).__name__}: {error}") from error
    bootstrap, base = _header(text)
    if bootstrap is None:
        raise ConfigError(f"{path.name} has no line `Bootstrap: ...`")
    unknown = recipe.variables.keys() - wanted
    if unknown and not _includes(source):
        known = ", ".join(sorted(wanted)) or "none"
        raise ConfigError(f"{path.name} has no variable {', '.join(sorted(unknown))}; it has: {known}")
    return Definition(text=text, folder=path.parent, bootstrap=bootstrap, base=base)


def readable_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "image"


def _find(template: str) -> Path:
    if re.fullmatch(r"[a-z0-9-]+", template):
        path = TEMPLATES / f"{template}{SUFFIX}"
        if not path.is_file():
            known = ", ".join(sorted(found.name.removesuffix(SUFFIX) for found in TEMPLATES.glob(f"*{SUFFIX}")))
            raise ConfigError(f"no definition template {template!r}; known: {known}, or the absolute path of one")
        return path
    path = Path(template)
    if not path.is_absolute() or not path.name.endswith(SUFFIX):
        raise ConfigError(f"a definition template is named by an absolute path that ends in {SUFFIX}, not {template!r}")
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"no definition template {template}: {error.strerror}") from error
    # A definition's %setup runs on the host as the server, and the reference may have come with a job.
    if not stat.S_ISREG(status.st_mode) or status.st_mode & stat.S_IWOTH:
        raise ConfigError(f"{template} is not a regular file that only trusted users may write: chmod o-w it")
    return path


def _header(text: str) -> tuple[str | None, str | None]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.lstrip().startswith("%"):
            break
        name, colon, value = line.partition(":")
        if colon and not line.lstrip().startswith("#"):
            found.setdefault(name.strip().lower(), value.strip())
    return found.get("bootstrap"), found.get("from")


def _includes(source: str) -> bool:
    """An included template has variables of its own, which the including one does not show."""
    return re.search(r"{%-?\s*(include|extends|import|from)\b", source) is not None
