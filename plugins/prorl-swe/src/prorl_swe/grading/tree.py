"""The working tree that is tested: the base, with the agent's patch but for what is the grader's, and the test patch.

git's plumbing does it, in a sandbox in which nothing of the agent's has run yet; which paths a patch changes is git's
word, and not that of the patch's headers.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path

import msgspec

from prorl.api import GraderFault, Sandbox
from prorl_swe.grading.protected import Protection, same_test_settings
from prorl_swe.patches.shell import ScriptError, fetch, run_script, script
from prorl_swe.repository.prepared import Prepared
from prorl_swe.rows.instance import Instance

MAX_LIST = 256 << 20
NOTHING = "0" * 40
NOT_APPLIED = "exit code 41"
MAX_COMPARED = 50
# What the environment of the tests can import beside the repository; with a slash, where it is within the repository.
MODULES = """
import os, sys
inside = sys.argv[1] + "/"
for folder in [sys.prefix, *sys.path]:
    if (folder + "/").startswith(inside):
        if folder == sys.prefix or "-packages" in folder:
            print("/" + folder[len(inside):])
    elif os.path.isdir(folder):
        print("\\n".join(name.split(".")[0] for name in os.listdir(folder)))
print("\\n".join(sys.builtin_module_names))
"""
PLAIN = (b"100644", b"100755", b"000000")


class UntestableError(Exception):
    """There is no tree to be tested: by the patch (a name that no folder takes, more than fits), or by the sandbox."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """``rejected``: why the agent's patch does not apply. ``changed``: what of it is in the tree; ``files``: all that
    is in the tree; ``contents``: the ids, as git has them, of the Python files that the agent did not change.
    """

    rejected: str | None = None
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    contents: dict[str, str] = {}


async def build_tree(
    sandbox: Sandbox, instance: Instance, prepared: Prepared, patch: bytes, *, timeout: float
) -> Built:
    """``timeout`` in seconds, for each step. Raises :class:`UntestableError`, and ``GraderFault`` where the test patch
    does not apply: that comes first, and the agent's patch has no part in it.
    """
    folder = f"/tmp/.prorl-swe-{secrets.token_hex(8)}"  # noqa: S108 - the sandbox's own
    try:
        return await _Build(sandbox, instance, prepared, folder, timeout).run(patch)
    except ScriptError as error:
        if NOT_APPLIED in str(error):
            raise GraderFault(f"the test patch does not apply: {error}", code="test_patch") from error
        raise UntestableError(str(error)) from error
    except TimeoutError as error:
        raise UntestableError(str(error)) from error


class _Build:
    def __init__(self, sandbox: Sandbox, instance: Instance, prepared: Prepared, folder: str, timeout: float) -> None:
        self._sandbox = sandbox
        self._instance = instance
        self._prepared = prepared
        self._folder = folder
        self._timeout = timeout

    async def run(self, patch: bytes) -> Built:
        await self._put({"tests.patch": self._instance.test_patch.encode(), "agent.patch": patch})
        await self._script("grading/build.sh")
        rejected = await self._get("rejected", missing=True)
        if rejected is not None:
            return Built(rejected=rejected.decode("utf-8", "replace").strip())
        changed = modes_of(await self._get("agent.changed"))
        tested = modes_of(await self._get("tests.changed"))
        entries = dict(map(_entry, (await self._get("tests.all")).split(b"\0")[:-1]))
        taken = os_text(await self._get("modules")).split()
        protects = Protection(self._instance, tested, entries.keys(), taken)
        dropped = set(await asyncio.to_thread(list, filter(protects, changed))) | await self._unlike_settings(changed)
        await self._put({"entries": index_lines({*dropped, *tested}, entries)})
        await self._script("grading/settle.sh")
        return Built(
            dropped=tuple(sorted(dropped)),
            changed=tuple(path for path in changed if path not in dropped and path not in tested),
            files=frozenset(entries) | set(changed),
            contents={
                path: entry.split(b" ")[1].decode()
                for path, entry in entries.items()
                if path.endswith(".py") and entry.startswith(b"100") and (path not in changed or path in dropped)
            },
        )

    async def _unlike_settings(self, changed: dict[str, bytes]) -> set[str]:
        found = set()
        mine = [path for path in changed if path.rpartition("/")[2] in ("setup.cfg", "pyproject.toml")]
        for number, path in enumerate(mine):
            ours, theirs = f"settings/{number}.tests", f"settings/{number}.agent"
            if (
                number >= MAX_COMPARED
                or changed[path] not in PLAIN  # what a link leads to is not what was compared
                or not await asyncio.to_thread(
                    same_test_settings,
                    path,
                    await self._get(ours, missing=True),
                    await self._get(theirs, missing=True),
                )
            ):
                found.add(path)
        return found

    async def _script(self, name: str) -> None:
        text = script("patches/git.sh", name)
        given = {"PYTHON": self._prepared.python, "MODULES": MODULES}
        await run_script(self._sandbox, self._prepared, self._folder, text, given, timeout=self._timeout)

    async def _put(self, files: dict[str, bytes]) -> None:
        with tempfile.TemporaryDirectory(prefix="prorl-swe-") as local:
            for name, content in files.items():
                await asyncio.to_thread((Path(local) / name).write_bytes, content)
            await self._sandbox.upload(local, self._folder, timeout=self._timeout)

    async def _get(self, name: str, *, missing: bool = False) -> bytes:
        content = await fetch(self._sandbox, f"{self._folder}/{name}", max_bytes=MAX_LIST, timeout=self._timeout)
        if content is None and not missing:
            raise ScriptError(f"it left no {name}")
        return content  # type: ignore[return-value]


def modes_of(raw: bytes) -> dict[str, bytes]:
    """Paths and their new modes, of ``git diff --raw -z`` without renames: ``:mode mode id id status NUL path NUL``,
    again and again."""
    parts = raw.split(b"\0")
    return {os_text(path): about.split(b" ")[1] for about, path in zip(parts[::2], parts[1::2], strict=False)}


def index_lines(paths: set[str], entries: dict[str, bytes]) -> bytes:
    """For ``git update-index -z --index-info``: all of the paths gone first, so that none is in another's way."""
    gone = [b"0 %s\t%s\0" % (NOTHING.encode(), os_bytes(path)) for path in sorted(paths)]
    back = [b"%s\t%s\0" % (entries[path], os_bytes(path)) for path in sorted(paths) if path in entries]
    return b"".join(gone + back)


def os_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def os_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _entry(line: bytes) -> tuple[str, bytes]:
    """``mode type id TAB path``, for an index: ``mode id stage``."""
    about, _, path = line.partition(b"\t")
    mode, _, identity = about.split(b" ")
    return os_text(path), b"%s %s 0" % (mode, identity)
