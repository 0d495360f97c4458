"""The command line of one Apptainer container.

::

    ordinary user   a user namespace; inside is the user, or root with fakeroot, whose other uids are subordinate ones
    real root       no user namespace, for uid 0 of one would be root outside too: the action server starts with
                    CAP_SETUID, CAP_SETGID, CAP_SETPCAP alone and becomes a uid of the container's own, as in bubblewrap
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from prorl.api.sandbox import Bind, SandboxSpec
from prorl.sandbox import apptainer_boot, host
from prorl.sandbox.inside import frames

INSIDE = Path(frames.__file__).parent
BOOT = Path(apptainer_boot.__file__)
AT = "/run/prorl"
CAPABILITIES = "CAP_SETUID,CAP_SETGID,CAP_SETPCAP"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Root(msgspec.Struct, frozen=True):
    """What is at / inside: a SIF or a folder; the interpreter there; host directories to bind at the same place."""

    path: str
    python: str
    binds: tuple[str, ...] = ()


def command(
    program: str, spec: SandboxSpec, root: Root, *, layer: Path, arguments: Sequence[str], as_root: bool
) -> list[str]:
    """``arguments`` are those of :mod:`apptainer_boot`."""
    options = [
        *("--containall", "--no-init", "--no-eval", "--no-mount", "home,cwd,sys,hostfs", "--pwd", "/"),
        *("--uts", "--hostname", "sandbox", "--overlay", str(layer), "--workdir", str(layer)),
    ]
    if not spec.network:
        options += ["--net", "--network", "none"]
    if as_root:
        options += ["--no-privs", "--add-caps", CAPABILITIES]
    else:
        options += ["--userns", *(_fakeroot(program) if spec.fakeroot else [])]
    for bind in _binds(spec, root):
        options += ["--mount", mount(bind)]
    start = [root.python, "-I", "-S", f"{AT}/{BOOT.name}", *arguments]
    return [program, "--silent", "exec", *options, root.path, *start]


def hosts_own(spec: SandboxSpec, python: str | None) -> tuple[str, tuple[str, ...]]:
    """The interpreter, and what a root without an image shows of the host."""
    executable, prefixes = host.interpreter(python)
    directories = [path for path, target in host.root_binds() if target is None]
    return executable, ("/usr", *directories, *host.etc_binds(spec.network), *prefixes)


def _binds(spec: SandboxSpec, root: Root) -> Iterator[Bind]:
    for path in root.binds:
        yield Bind(source=path, target=path)
    yield Bind(source=str(INSIDE), target=f"{AT}/inside")
    yield Bind(source=str(BOOT), target=f"{AT}/{BOOT.name}")
    yield from spec.binds


def _fakeroot(program: str) -> list[str]:
    """Without subordinate ids Apptainer would run the fakeroot command as init. Then the action server is not init, and
    the agent could kill it whenever a rollout goes badly. So there is only root inside then, and the probe says so.
    """
    return ["--fakeroot", *(["--ignore-fakeroot-command"] if Path(program).name == "apptainer" else [])]


def mount(bind: Bind) -> str:
    """The argument of ``--mount``: comma-separated values, so any path can be said."""
    fields = ["type=bind", f"source={bind.source}", f"destination={bind.target}"]
    if not bind.writable:
        fields.append("ro")
    return ",".join('"' + field.replace('"', '""') + '"' if set(field) & {'"', ","} else field for field in fields)


def environment(program: str, folder: Path) -> dict[str, str]:
    """What Apptainer itself runs with. Nothing of it reaches the container, and it writes nothing to a home."""
    path = f"{Path(os.path.abspath(program)).parent}:{SYSTEM_PATH}"  # noqa: PTH100 - links kept: its helpers lie beside it
    env = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}
    for name in ("APPTAINER", "SINGULARITY"):
        env |= {f"{name}_CONFIGDIR": str(folder / "config"), f"{name}_TMPDIR": str(folder)}
        env |= {f"{name}_CACHEDIR": str(folder / "cache")}
    return env
