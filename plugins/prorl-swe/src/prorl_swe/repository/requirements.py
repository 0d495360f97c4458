"""What a project and its tests need, as its own files say it; the files are read, nothing of the project is run.

``required`` is what the project itself depends on. ``optional`` is what its tests may want: extras and groups of
dependencies named like tests or development, requirements files, tox. Those lists are written for other times and
tools (pins without a wheel for this Python, linters), so whoever installs them may leave some out.
"""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

MAX_FILE = 1 << 20
TEST_GROUP = re.compile(r"(unit[-_]?)?test(s|ing)?|dev(el|elop|elopment)?|pytest|ci", re.IGNORECASE)
FILES = (
    "*requirements*.txt",
    "requirements/*.txt",
    "tests/requirements*.txt",
    "test/requirements*.txt",
)
TEST_FILE = re.compile(r"test|dev|\bci\b", re.IGNORECASE)
MAX_DEPTH = 5


class Found(msgspec.Struct, frozen=True, kw_only=True):
    required: tuple[str, ...]
    optional: tuple[str, ...]


class Declared(msgspec.Struct, kw_only=True):
    """All that was read, in the order of its authors' preference."""

    name: str | None = None
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    groups: dict[str, list[Any]] = {}


def find(tree: Path, name: str) -> Found:
    """Of the project in this folder, ``name`` if it does not say its own. Blocks."""
    declared = _declared(tree)
    name = canonicalize_name(declared.name or name)
    wanted = [text for extra, texts in declared.extras.items() if TEST_GROUP.fullmatch(extra) for text in texts]
    for group in declared.groups:
        if TEST_GROUP.fullmatch(group):
            wanted += _group(declared.groups, group, 0)
    wanted += [*_from_files(tree), *_from_tox(tree)]
    extras: dict[str, list[str]] = {canonicalize_name(extra): texts for extra, texts in declared.extras.items()}
    return Found(
        required=_clean(_expand(declared.required, name, extras, 0)),
        optional=_clean(_expand(wanted, name, extras, 0)),
    )


def _declared(tree: Path) -> Declared:
    found = Declared()
    pyproject = read_toml(tree / "pyproject.toml")
    project = _table(pyproject, "project")
    _add(found, project.get("name"), project.get("dependencies"), _table(project, "optional-dependencies"))
    found.groups |= _table(pyproject, "dependency-groups")
    uv = _table(pyproject, "tool", "uv").get("dev-dependencies")
    if isinstance(uv, list):
        found.groups.setdefault("dev", []).extend(uv)
    for group, content in _table(pyproject, "tool", "poetry", "group").items():
        poetry = _table(content, "dependencies") if isinstance(content, dict) else {}
        found.groups.setdefault(group, []).extend(poetry)  # names alone: poetry's versions are written its own way
    found.groups.setdefault("dev", []).extend(_table(pyproject, "tool", "poetry", "dev-dependencies"))
    if not project:
        found.required += [name for name in _table(pyproject, "tool", "poetry", "dependencies") if name != "python"]
    _add(found, *_of_setup_cfg(tree))
    _add(found, *_of_setup_py(tree))
    if not found.required and not found.extras:
        _add(found, *_of_metadata(tree))
    return found


def _add(to: Declared, name: object, required: object, extras: Mapping[str, object]) -> None:
    to.name = to.name or (name if isinstance(name, str) else None)
    to.required = to.required or _texts(required)
    for extra, texts in extras.items():
        to.extras.setdefault(extra, []).extend(_texts(texts))


def _of_setup_cfg(tree: Path) -> tuple[object, object, dict[str, object]]:
    parser = read_ini(tree / "setup.cfg")
    extras: dict[str, object] = {}
    if parser.has_section("options.extras_require"):
        extras |= {name: text.splitlines() for name, text in parser.items("options.extras_require")}
    tests = parser.get("options", "tests_require", fallback="").splitlines()
    if tests:
        extras.setdefault("tests", tests)
    required = parser.get("options", "install_requires", fallback="").splitlines()
    return parser.get("metadata", "name", fallback=None), required, extras


def _of_setup_py(tree: Path) -> tuple[object, object, dict[str, object]]:
    """What is written there as it stands, in a call of ``setup``."""
    try:
        module = ast.parse(_text(tree / "setup.py"))
    except (SyntaxError, ValueError):
        return None, None, {}
    known = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given: dict[str, object] = {}
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
        if getattr(call.func, "id", getattr(call.func, "attr", "")) == "setup":
            given |= {word.arg: _literal(word.value, known) for word in call.keywords if word.arg}
    extras = given.get("extras_require")
    found = {str(name): texts for name, texts in extras.items()} if isinstance(extras, dict) else {}
    if given.get("tests_require"):
        found.setdefault("tests", given["tests_require"])
    return given.get("name"), given.get("install_requires"), found


def _literal(node: ast.expr, known: Mapping[str, ast.expr]) -> object:
    if isinstance(node, ast.Name):
        node = known.get(node.id, node)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None


def _of_metadata(tree: Path) -> tuple[object, object, dict[str, object]]:
    """PKG-INFO, which a source distribution has."""
    headers = BytesHeaderParser().parsebytes(_text(tree / "PKG-INFO").encode("utf-8", "replace"))
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    for text in headers.get_all("Requires-Dist", []):
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", text)
        if extra is None:
            required.append(text)
        else:
            extras.setdefault(extra[1], []).append(text.partition(";")[0])
    return headers.get("Name"), required, dict(extras)


def _group(groups: Mapping[str, list[Any]], name: str, depth: int) -> list[str]:
    found = []
    for item in groups.get(name, []) if depth < MAX_DEPTH else []:
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
            found += _group(groups, item["include-group"], depth + 1)
    return found


def _from_files(tree: Path) -> Iterator[str]:
    for pattern in FILES:
        for path in sorted(tree.glob(pattern)):
            if TEST_FILE.search(str(path.relative_to(tree))):
                yield from _requirements_file(tree, path, 0)


def _requirements_file(tree: Path, path: Path, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH or not path.resolve().is_relative_to(tree.resolve()):
        return
    for line in _text(path).splitlines():
        words = line.split("#")[0].split()
        if len(words) == 2 and words[0] in ("-r", "--requirement"):
            yield from _requirements_file(tree, path.parent / words[1], depth + 1)
        elif words and not words[0].startswith("-"):
            yield " ".join(word for word in words if not word.startswith("--hash"))


def _from_tox(tree: Path) -> Iterator[str]:
    parser = read_ini(tree / "tox.ini")
    for line in parser.get("testenv", "deps", fallback="").splitlines():
        # "py37,py38: name": for some environments alone.
        text = re.sub(r"^[\w,{}.!-]+:\s+", "", line.strip())
        if text.startswith("-r"):
            yield from _requirements_file(tree, tree / text[2:].strip().removeprefix("{toxinidir}/"), 0)
        elif text and not text.startswith("-"):
            yield text


def _expand(texts: Iterable[str], name: str, extras: Mapping[str, list[str]], depth: int) -> Iterator[str]:
    """``name[extra]`` is what stands under that extra: the project itself is never installed."""
    for text in texts:
        requirement = _parse(text)
        if requirement is None or canonicalize_name(requirement.name) != name:
            yield text
        elif depth < MAX_DEPTH:
            for extra in requirement.extras:
                yield from _expand(extras.get(canonicalize_name(extra), []), name, extras, depth + 1)


def _clean(texts: Iterable[str]) -> tuple[str, ...]:
    """Requirements by name alone (no addresses, no paths), each once."""
    found: dict[str, None] = {}
    for text in texts:
        requirement = _parse(text)
        if requirement is not None and requirement.url is None:
            found[str(requirement)] = None
    return tuple(found)


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text.strip())
    except InvalidRequirement:
        return None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def read_ini(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_text(path))
    except configparser.Error:
        return configparser.RawConfigParser()
    return parser


def _text(path: Path) -> str:
    """Of a regular file of ordinary size; empty when there is none. No link is followed: it may lead to the host's."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_FILE:
            return ""
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _table(tree: Mapping[str, Any], *path: str) -> dict[str, Any]:
    found: Any = tree
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        value = value.splitlines()
    return [text for text in value if isinstance(text, str)] if isinstance(value, list | tuple) else []
