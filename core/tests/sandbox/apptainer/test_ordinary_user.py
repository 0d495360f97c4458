"""Run by root: the tests beside this file once more, as an ordinary user; and what the probe says of a poorer machine.

The user exists in a mount namespace only, together with its subordinate ids and a /dev/fuse it may open: nothing of
this machine's /etc or /dev is changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import prorl

HERE = Path(__file__).parent
CORE = HERE.parents[2]
USER, UID, IDS = "prorl-test", 54321, "2000000:65536"
IN_PRIVATE = """set -e; umask 022; made=$1 uid=$2 user=$3 ids=$4 fuse=$5; shift 5
mount -t tmpfs -o mode=755,dev prorl-test "$made"
cp /etc/passwd "$made/passwd"; echo "$user:x:$uid:$uid::$made/home:/bin/sh" >>"$made/passwd"
for name in subuid subgid; do
  if [ -e /etc/$name ]; then echo "$ids" >"$made/$name"; mount --bind "$made/$name" /etc/$name; fi
done
mount --bind "$made/passwd" /etc/passwd
mkdir "$made/home"; chown "$uid:$uid" "$made/home"
mknod -m "$fuse" "$made/fuse" c 10 229; [ ! -e /dev/fuse ] || mount --bind "$made/fuse" /dev/fuse
exec $OUTSIDE setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"
"""
# A user namespace around it, with all ids, in which no other one can be made: that number counts per namespace.
NO_NAMESPACES = """
import ctypes, os, sys
CLONE_NEWUSER = 0x10000000
made, mapped = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER):
        os._exit(1)
    os.write(made[1], b".")
    os.read(mapped[0], 1)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    os.execvp(sys.argv[1], sys.argv[1:])
os.read(made[0], 1)
for name in ("uid_map", "gid_map"):
    with open(f"/proc/{pid}/{name}", "w") as file:
        file.write("0 0 100000")
os.write(mapped[1], b".")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)
"""
PROBE = """
import asyncio, json, msgspec, sys
from prorl.sandbox.apptainer import Apptainer
from prorl.sandbox.settings import SandboxSettings
home = sys.argv[1]
settings = SandboxSettings(apptainer=sys.argv[2], scratch=home, state=home + "/state", addresses=home + "/addresses")
print(json.dumps(msgspec.to_builtins(asyncio.run(Apptainer(settings).probe()))))
"""


class OrdinaryUser:
    def __init__(self, folder: Path, program: str) -> None:
        self._made = folder
        self.home = str(self._made / "home")
        self.program = program
        self.python: list[str] = []

    def run(
        self, argv: list[str], *, ids: bool = True, fuse: str = "666", outside: str = ""
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{Path(self.program).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": self.home,
            "PRORL_APPTAINER": self.program,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OUTSIDE": outside,
        }
        granted = f"{UID}:{IDS}" if ids else "nobody-else:1:1"
        script = ["sh", "-c", IN_PRIVATE, "sh", str(self._made), str(UID), USER, granted, fuse]
        # `env` between setpriv and the program: what setpriv itself runs is looked up with root's rights.
        command = ["unshare", "--mount", "--propagation", "private", *script, "env", *argv]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=CORE)

    def find_python(self) -> str | None:
        """An interpreter that this user can run with our packages; why there is none, otherwise."""
        packages = f"{Path(prorl.__file__).parents[1]}:{sysconfig.get_path('purelib')}"
        system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        said = ""
        for argv in ([sys.executable], [f"PYTHONPATH={packages}", system]):
            done = self.run([*argv, "-c", "import prorl.sandbox.apptainer, pytest, pytest_asyncio"])
            if done.returncode == 0:
                self.python = argv
                return None
            said = done.stderr.strip()[-300:]
        return f"uid {UID} can run no Python with our packages: {said}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below tmp_path, which pytest closes to everybody else."""
    with tempfile.TemporaryDirectory(prefix="prorl-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def user(folder, program) -> OrdinaryUser:
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    missing = [name for name in ("unshare", "setpriv", "mount", "mknod") if not shutil.which(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    made = OrdinaryUser(folder, program)
    for argv, lack in ((["true"], "no user can be made here"), (["test", "-x", program], f"{program} is private")):
        done = made.run(argv)
        if done.returncode:
            pytest.skip(f"{lack}: {done.stderr.strip()[-300:]}")
    reason = made.find_python()
    if reason:
        pytest.skip(reason)
    return made


@pytest.mark.timeout(600)
def test_all_of_it_as_an_ordinary_user(user) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--timeout", "120", "-c", str(CORE / "pyproject.toml")]
    done = user.run([*user.python, "-m", "pytest", *options, f"--basetemp={user.home}/tmp", str(HERE)])
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    print(done.stdout[-2000:])  # what was skipped, for who asks with -rP


def probe(user: OrdinaryUser, **machine) -> dict[str, object]:
    done = user.run([*user.python, "-c", PROBE, user.home, user.program], **machine)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_on_a_machine_that_has_it_all(user) -> None:
    seen = probe(user)
    assert seen["works"], seen
    assert seen["capabilities"]["fakeroot"], seen["why_not"]
    assert seen["capabilities"]["sif"], seen["why_not"]
    assert "disk" in seen["why_not"]["tmp_mb"]


def test_without_subordinate_ids(user) -> None:
    seen = probe(user, ids=False)
    assert seen["works"]
    assert not seen["capabilities"]["fakeroot"]
    assert f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {USER}" in seen["why_not"]["fakeroot"]


def test_with_a_closed_dev_fuse(user) -> None:
    seen = probe(user, fuse="600")
    assert seen["works"]
    assert not seen["capabilities"]["sif"]
    assert "chmod 0666 /dev/fuse" in seen["why_not"]["sif"]


@pytest.mark.timeout(300)
def test_image_files_with_a_closed_dev_fuse(user) -> None:
    """Unpacked once, and run as a folder."""
    options = ["-q", "-p", "no:cacheprovider", "-c", str(CORE / "pyproject.toml"), "-k", "the_image_is and sif"]
    argv = [*user.python, "-m", "pytest", *options, f"--basetemp={user.home}/tmp", str(HERE / "test_containment.py")]
    done = user.run(argv, fuse="600")
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout


def test_with_user_namespaces_switched_off(user, folder) -> None:
    script = folder.with_suffix(".py")
    script.write_text(NO_NAMESPACES)
    try:
        outside = f"{sys.executable} {script}"
        trial = user.run(["true"], outside=outside)
        if trial.returncode:
            pytest.skip(f"they cannot be switched off here: {trial.stderr.strip()[-300:]}")
        seen = probe(user, outside=outside)
    finally:
        script.unlink()
    assert not seen["works"]
    assert "sysctl user.max_user_namespaces=15000" in seen["reason"]
