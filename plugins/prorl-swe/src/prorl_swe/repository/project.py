"""What installing a project in place would have left: where it is imported from, and its metadata. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.parser import BytesHeaderParser
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name

from prorl_swe.repository.prepared import WORKTREE
from prorl_swe.repository.requirements import Found, find, read_ini, read_toml

PTH = "project.pth"
VERSION = re.compile(r"""^(?:__version__|version|VERSION)\s*(?::\s*\w+\s*)?=\s*['"]([^'"]+)['"]""", re.MULTILINE)


def install(tree: Path, folder: Path, name: str, version: str) -> Found:
    """Into ``folder``, which is made. ``name`` and ``version`` where the project does not say its own. Blocks."""
    folder.mkdir()
    pyproject, setup = read_toml(tree / "pyproject.toml"), read_ini(tree / "setup.cfg")
    project = pyproject.get("project", {})
    project = project if isinstance(project, dict) else {}
    metadata = _pkg_info(tree)
    if metadata is None:
        name = _first(project.get("name"), setup.get("metadata", "name", fallback=None)) or name
        version = _first(project.get("version"), setup.get("metadata", "version", fallback=None)) or _version(
            tree, name, version
        )
    else:
        headers = BytesHeaderParser().parsebytes(metadata)
        name, version = headers.get("Name") or name, headers.get("Version") or version
    found = find(tree, name)
    if metadata is None:
        requires = "".join(f"Requires-Dist: {text}\n" for text in found.required)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}".encode()
    slug = canonicalize_name(name).replace("-", "_")
    info = folder / f"{slug}-{re.sub(r'[^A-Za-z0-9.+!]', '_', version)}.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(metadata)
    (info / "INSTALLER").write_text("prorl-swe\n")
    entry_points = "\n".join(_entry_points(project, setup))
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)
    (folder / PTH).write_text("".join(f"{path}\n" for path in _import_from(tree, pyproject, setup)))
    return found


def _pkg_info(tree: Path) -> bytes | None:
    path = tree / "PKG-INFO"
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _first(*values: object) -> str | None:
    """The first that says it itself, and not "attr: ..."."""
    return next((value for value in values if isinstance(value, str) and value and ":" not in value), None)


def _version(tree: Path, name: str, otherwise: str) -> str:
    package = canonicalize_name(name).replace("-", "_")
    for root in (tree / "src", tree):
        for file in ("__init__.py", "_version.py", "__about__.py", "version.py"):
            path = root / package / file
            if path.is_file() and not path.is_symlink():
                said = VERSION.search(path.read_text("utf-8", "replace"))
                if said:
                    return said[1]
    return otherwise


def _entry_points(project: dict[str, Any], setup: Any) -> Iterator[str]:
    groups: dict[str, Any] = {"console_scripts": project.get("scripts"), "gui_scripts": project.get("gui-scripts")}
    if isinstance(project.get("entry-points"), dict):
        groups |= project["entry-points"]
    for group, points in groups.items():
        if isinstance(points, dict) and points:
            yield f"[{group}]"
            yield from (f"{name} = {value}" for name, value in points.items())
    if setup.has_section("options.entry_points"):
        for group, points in setup.items("options.entry_points"):
            yield f"[{group}]"
            yield from (line.strip() for line in points.splitlines() if line.strip())


def _import_from(tree: Path, pyproject: dict[str, Any], setup: Any) -> list[str]:
    """The folders of the working tree that an installation in place puts on ``sys.path``."""
    tool = pyproject.get("tool", {})
    setuptools = tool.get("setuptools", {}) if isinstance(tool, dict) else {}
    named: list[object] = []
    if isinstance(setuptools, dict):
        named += [_get(setuptools, "package-dir", "")]
        where = _get(setuptools, "packages", "find", "where")
        named += where if isinstance(where, list) else []
    found = re.search(r"^\s*=\s*(\S+)", setup.get("options", "package_dir", fallback=""), re.MULTILINE)
    named += [found[1] if found else None]
    if ((tree / "src").is_dir() and any((tree / "src").glob("*.py"))) or any((tree / "src").glob("*/*.py")):
        named.append("src")
    inside = [name for name in named if isinstance(name, str) and _is_inside(name)]
    paths = [str(PurePosixPath(WORKTREE, name)) for name in inside if (tree / name).is_dir()]
    return list(dict.fromkeys(paths)) or [WORKTREE]


def _get(table: Any, *path: str) -> object:
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    return table


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\n" not in name
