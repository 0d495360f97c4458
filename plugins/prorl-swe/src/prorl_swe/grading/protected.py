"""Which paths of a repository are the grader's: what the agent did to them is put back before the tests run.

Pure. Paths are git's, as text with surrogates for what is no UTF-8.
"""

from __future__ import annotations

import configparser
import re
import sys
import tomllib
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from pathlib import PurePosixPath

from prorl_swe.rows.instance import Instance

# Read by Python or pytest by their name alone, wherever they are.
NAMES = frozenset((
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", ".coveragerc",
    "sitecustomize.py", "usercustomize.py", "pyvenv.cfg",
))  # fmt: skip
ENDINGS = (".pth", ".pyc", ".pyo")
FOLDERS = ("__pycache__", ".git")
METADATA = (".egg-info", ".dist-info", ".egg-link")
SETTINGS = ("setup.cfg", "pyproject.toml")
TEST_FOLDERS = frozenset(("test", "tests"))
# What runs tests, beside the standard library: a module of that name where Python looks first would be it.
RUNNERS = frozenset((
    "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "exceptiongroup", "tomli", "attr", "attrs",
    "colorama", "pygments", "xdist", "execnet", "coverage", "pytest_cov", "hypothesis", "_hypothesis_pytestplugin",
    "mock", "nose", "six", "setuptools", "pkg_resources", "_distutils_hack", "prorl_inside",
))  # fmt: skip
MAX_SETTINGS = 128 << 10
MAX_LINE = 1000
MODULE = re.compile(r"\.(?:py|so|pyd|abi3\.so|cpython-[^.]*\.so)\Z")


class Protection:
    """``tested``: the paths that the test patch changes; ``files``: what is in the base with that patch; ``taken``:
    what can be imported that is not the repository's (a plugin of pytest's, a library of the tests'), and with a slash
    at its start a folder of the repository that holds such things.
    """

    def __init__(
        self, instance: Instance, tested: Iterable[str], files: AbstractSet[str], taken: Collection[str] = ()
    ) -> None:
        self._tested = frozenset(tested)
        self._files = frozenset(test_files(instance)) | self._tested | frozenset(instance.test_files)
        self._folders = frozenset(filter(None, map(_test_folder, self._files)))
        self._above = frozenset(str(parent) for path in self._files for parent in PurePosixPath(path).parents) - {"."}
        self._there = files | {str(parent) for path in files for parent in PurePosixPath(path).parents}
        self._environments = tuple(f"{folder[1:]}/" for folder in taken if folder[1:] and folder.startswith("/"))
        self._taken = RUNNERS | sys.stdlib_module_names | frozenset(taken)
        self._roots = {"", "src", "lib", *(_import_root(path, files) for path in self._files)}

    def __call__(self, path: str) -> bool:
        parts = path.split("/")
        if parts[-1] in NAMES or parts[-1].endswith(ENDINGS):
            return True
        if path.startswith(self._environments):
            return True
        if any(part in FOLDERS or part.endswith(METADATA) for part in parts):
            return True
        if path in self._files or path in self._above:
            return True  # the latter is a file or a link where a folder of tests has to be
        above = ["/".join(parts[:count]) for count in range(1, len(parts))]
        if any(folder in self._files or folder in self._folders for folder in above):
            return True
        return path in self._folders or self._shadows(parts)

    def _shadows(self, parts: list[str]) -> bool:
        """Whether it would be imported in place of what is somebody else's, and is not there already."""
        for count in range(len(parts)):
            if "/".join(parts[:count]) in self._roots:
                name = parts[count] if count < len(parts) - 1 else MODULE.sub("", parts[count])
                if name in self._taken:
                    return "/".join(parts[: count + 1]) not in self._there
        return False


def test_files(instance: Instance) -> list[str]:
    """The files in the ids of the row's tests."""
    if instance.match != "id" or instance.runner != "pytest":
        return []
    names = (*instance.fail_to_pass, *instance.pass_to_pass)
    return list(dict.fromkeys(name.partition("::")[0] for name in names if "::" in name))


def _test_folder(path: str) -> str | None:
    """The outermost folder above a test file that is named for tests: its helpers are the tests' too."""
    parts = path.split("/")[:-1]
    for count, part in enumerate(parts, start=1):
        if part in TEST_FOLDERS:
            return "/".join(parts[:count])
    return None


def _import_root(path: str, files: AbstractSet[str]) -> str:
    """The folder that pytest puts first where Python looks, to import a test file: the first that is no package."""
    parts = path.split("/")[:-1]
    while parts and "/".join((*parts, "__init__.py")) in files:
        parts.pop()
    return "/".join(parts)


def same_test_settings(path: str, ours: bytes | None, theirs: bytes | None) -> bool:
    """Whether a file of settings tells pytest (and coverage) the same in both forms. ``None``: there is no file.
    Blocks. What is larger, longer or deeper than such files are is not looked into, and is not the same.
    """
    name = path.rpartition("/")[2]
    try:
        return test_settings(name, ours) == test_settings(name, theirs)
    except (ValueError, configparser.Error, RecursionError):  # TOML's own errors are ValueErrors
        return False


def test_settings(name: str, content: bytes | None) -> object:
    if content is None:
        return {}
    if len(content) > MAX_SETTINGS or max(map(len, content.splitlines()), default=0) > MAX_LINE:
        raise ValueError("too long")
    text = content.decode("utf-8")
    if any(ord(character) < 32 and character not in "\t\n\r" for character in text):
        raise ValueError("control characters")
    if name == "pyproject.toml":
        tool = tomllib.loads(text).get("tool", {})
        return {key: tool[key] for key in ("pytest", "coverage") if key in tool} if isinstance(tool, dict) else tool
    parser = configparser.RawConfigParser(strict=False, default_section="\0")
    parser.read_string("\n".join(text.splitlines()))  # as pytest sees lines: more than a newline ends one
    wanted = [section for section in parser.sections() if "pytest" in section or section.startswith("coverage:")]
    return {section: dict(parser.items(section)) for section in wanted}
