"""Nothing is left: no process, mount, socket, address, control group, descriptor or file, whichever way it ends."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from prorl.api import SandboxFault, SandboxSpec
from prorl.sandbox import sessions
from prorl.sandbox.apptainer import Apptainer
from prorl.sandbox.inside import tree
from prorl.sandbox.journal import Begun, boot_id, state_folder
from prorl.sandbox.limits import ControlGroups
from prorl.sandbox.settings import SandboxSettings

FUSE = (b"squashfuse", b"fuse-overlayfs", b"fuse2fs")


def marker() -> int:
    return secrets.randbelow(10**9) + 10**9


def leave_daemons(number: int) -> str:
    stubborn = f"setsid nohup sh -c 'trap \"\" TERM INT HUP; sleep {number}; sleep 1'"
    return f"trap '' TERM INT; setsid sleep {number} & ({stubborn} &) ; env -i setsid sleep {number} & sleep {number} &"


class Machine:
    """What there is of containers on this machine, seen from outside."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._scratch = str(settings.scratch)
        self.ids: set[str] = set()  # of containers whose control groups are looked for

    def processes(self) -> list[tree.Process]:
        return tree.descendants(os.getpid())

    def fuse(self) -> int:
        """FUSE programs of ours: below us, or orphans that work for a folder of this test."""
        ours = {process.pid for process in self.processes()}
        count = 0
        for process in tree.processes():
            try:
                line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            except OSError:
                continue
            if any(name in line for name in FUSE) and (process.pid in ours or self._scratch.encode() in line):
                count += 1
        return count

    def state(self) -> dict[str, object]:
        """Everything that must be as it was before."""
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if self._scratch in line]
        groups = [group.name for made in self.ids for group in ControlGroups().find(made)]
        return {
            "processes": self.processes(),
            "fuse": self.fuse(),
            "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
            "mounts": mounts,
            "groups": groups,
        }


@pytest.fixture
def machine(apptainer, settings) -> Machine:
    return Machine(settings)


@pytest.fixture(params=["folder", "sif"])
def image(request) -> str:
    return str(request.getfixturevalue("rootfs" if request.param == "folder" else "sif"))


async def start_and_stop(apptainer, machine: Machine, count: int, spec: SandboxSpec, *, at_once: int, running) -> None:
    number = marker()
    room = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with room:
            sandbox = await apptainer.start(spec)
            machine.ids.add(sandbox.id)
            await sandbox.act("bash", {"command": leave_daemons(number)}, timeout=60)
            await sandbox.stop(grace=secrets.choice((0, 0.5)))

    await asyncio.gather(*(one() for _ in range(count)))
    assert running(f"sleep {number}") == 0


async def test_twenty_containers_leave_nothing(apptainer, rootfs, machine, left, running) -> None:
    await (await apptainer.start(SandboxSpec(image=str(rootfs)))).stop()
    before = machine.state()
    assert before["fuse"] == 0
    await start_and_stop(apptainer, machine, 20, SandboxSpec(image=str(rootfs)), at_once=10, running=running)
    assert machine.state() == before
    assert left() == []


async def test_a_hundred_containers_leave_nothing(apptainer, sif, machine, left, running) -> None:
    await (await apptainer.start(SandboxSpec(image=str(sif)))).stop()
    before = machine.state()
    await start_and_stop(apptainer, machine, 100, SandboxSpec(image=str(sif)), at_once=100, running=running)
    assert machine.state() == before
    assert left() == []


async def test_all_is_gone_soon_after_a_stop(apptainer, image, machine, running, until) -> None:
    """Daemons that left their session and ignore signals, and FUSE programs, which are in no namespace of it."""
    number = marker()
    sandbox = await apptainer.start(SandboxSpec(image=image))
    await sandbox.act("bash", {"command": leave_daemons(number)}, timeout=60)
    await until(lambda: running(f"sleep {number}") >= 4)
    began = time.monotonic()
    await sandbox.stop(grace=0)
    assert running(f"sleep {number}") == 0
    assert machine.processes() == []
    assert machine.fuse() == 0
    assert time.monotonic() - began < 30  # about 0.05 s; no figure is asked of a busy machine


async def test_a_leader_that_hangs_is_killed_with_its_session(apptainer, image, machine) -> None:
    sandbox = await apptainer.start(SandboxSpec(image=image))
    for process in machine.processes():
        if process.pid == process.session:
            os.kill(process.pid, signal.SIGSTOP)
    await sandbox.stop(grace=0)
    assert machine.processes() == []
    assert machine.fuse() == 0


async def test_a_leader_that_was_killed_leaves_nothing_either(apptainer, image, machine, left) -> None:
    sandbox = await apptainer.start(SandboxSpec(image=image))
    (leader,) = [process for process in machine.processes() if process.parent == os.getpid()]
    os.kill(leader.pid, signal.SIGKILL)
    await sandbox.stop(grace=0.5)
    assert sessions.members(leader.session) == []
    assert machine.fuse() == 0
    assert left() == []


@pytest.mark.parametrize("grace", [0, 0.5])
async def test_stop_twice_and_at_once(apptainer, machine, left, grace: float) -> None:
    sandbox = await apptainer.start(SandboxSpec())
    await asyncio.gather(*(sandbox.stop(grace=grace) for _ in range(3)))
    await sandbox.stop(grace=grace)
    assert machine.processes() == []
    assert left() == []
    with pytest.raises(SandboxFault, match="stopped"):
        await sandbox.act("bash", {"command": "true"}, timeout=60)


@pytest.mark.parametrize("delay", [0, 0.001, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2])
async def test_cancel_during_start(apptainer, rootfs, machine, left, delay: float) -> None:
    before = machine.state()
    starting = asyncio.create_task(apptainer.start(SandboxSpec(image=str(rootfs))))
    await asyncio.sleep(delay)
    if starting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await starting
    else:
        await starting.result().stop()
    assert machine.state() == before
    assert left() == []


async def test_an_action_server_that_dies_is_a_fault(apptainer, machine, left) -> None:
    sandbox = await apptainer.start(SandboxSpec())
    action = asyncio.create_task(sandbox.act("bash", {"command": "sleep 60"}, timeout=60))
    init = next(process for process in machine.processes() if b"apptainer_boot" in _line(process.pid))
    os.kill(init.pid, signal.SIGKILL)
    with pytest.raises(SandboxFault) as caught:
        await action
    assert caught.value.code == "sandbox_lost"
    await sandbox.stop()
    assert machine.processes() == []
    assert left() == []


async def test_what_the_agent_made_hard_to_remove_is_removed(apptainer, rootfs, left) -> None:
    spec = SandboxSpec(image=str(rootfs), fakeroot=os.geteuid() != 0)
    sandbox = await apptainer.start(spec)
    command = "mkdir -p a/b/c /tmp/d; touch a/b/c/d /tmp/d/e; chown -R 5:6 a; chmod 000 a/b a /tmp/d; ln -s / up"
    await sandbox.act("bash", {"command": command}, timeout=60)
    await sandbox.stop()
    assert left() == []


HOST = """
import asyncio, sys
import msgspec
from prorl.api import SandboxSpec
from prorl.sandbox.apptainer import Apptainer
from prorl.sandbox.settings import SandboxSettings

async def main():
    runtime = Apptainer(msgspec.json.decode(sys.argv[1], type=SandboxSettings))
    sandboxes = [await runtime.start(SandboxSpec(image=sys.argv[2])) for _ in range(2)]
    for sandbox in sandboxes:
        await sandbox.act("bash", {"command": sys.argv[3]}, timeout=60)
    print("ready", flush=True)
    await sandboxes[0].act("bash", {"command": "sleep 600"}, timeout=900)

asyncio.run(main())
"""


@pytest.fixture
def kill_a_host(running, until):
    """SIGKILL a process that runs two containers, each with daemons, and say what was below it."""
    left_behind: list[tree.Process] = []

    async def kill(settings: SandboxSettings, image: str, number: int, *, freeze: bool) -> list[tree.Process]:
        up = lambda: until(lambda: running(f"sleep {number}") >= 8)  # noqa: E731
        left_behind.extend(await _kill_a_host(settings, image, number, freeze, up))
        return left_behind

    yield kill
    for process in left_behind:  # of a test that failed
        sessions.kill(sessions.Witness(process.pid, process.started))


async def _kill_a_host(settings, image: str, number: int, freeze: bool, up) -> list[tree.Process]:
    """``freeze`` them before, so that they cannot end by themselves."""
    given = msgspec.json.encode(settings).decode()
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, given, image, leave_daemons(number), stdout=asyncio.subprocess.PIPE
    )
    assert host.stdout is not None
    assert await host.stdout.readline() == b"ready\n"
    await up()
    below = tree.descendants(host.pid)
    if freeze:
        for process in below:
            os.kill(process.pid, signal.SIGSTOP)
    host.kill()
    await host.wait()
    return below


async def test_a_killed_hosts_containers_are_swept(apptainer, settings, image, left, running, kill_a_host) -> None:
    alive = await apptainer.start(SandboxSpec(image=image))
    bystander = await asyncio.create_subprocess_exec("setsid", "sleep", "100")
    number = marker()
    below = await kill_a_host(settings, image, number, freeze=True)
    assert running(f"sleep {number}") > 0
    later = Apptainer(settings)
    assert await later.sweep() >= 2
    assert running(f"sleep {number}") == 0
    assert [process for process in below if sessions.Witness(process.pid, process.started).alive()] == []
    assert await later.sweep() == 0
    assert bystander.returncode is None
    assert (await alive.act("bash", {"command": "echo on"}, timeout=60)).output == "on\n"
    await alive.stop()
    assert left() == []
    bystander.kill()
    await bystander.wait()


async def test_a_killed_hosts_containers_end_by_themselves(
    apptainer, settings, image, left, running, until, kill_a_host
) -> None:
    """Their connection ends. Only files are left, and are swept."""
    number = marker()
    below = await kill_a_host(settings, image, number, freeze=False)
    await until(lambda: running(f"sleep {number}") == 0)
    await until(lambda: not any(sessions.Witness(process.pid, process.started).alive() for process in below))
    assert left()
    assert await Apptainer(settings).sweep() >= 2
    assert left() == []


def write_journal(settings: SandboxSettings, *entries: Begun) -> None:
    folder = state_folder(settings.state)
    folder.mkdir(parents=True)
    (folder / "apptainer-1-x.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, entries)))


async def test_a_recycled_pid_is_never_killed(settings, program) -> None:
    """The journal names a session that has ended; its number belongs to somebody else now."""
    somebody = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    seen = sessions.witness(somebody.pid)
    assert seen is not None
    earlier = sessions.Witness(seen.pid, seen.started - 100)
    write_journal(
        settings,
        Begun(id="apptainer-x", boot=boot_id(), session=somebody.pid, witnesses=(earlier,)),
        Begun(id="apptainer-y", boot="another", session=somebody.pid, witnesses=(seen,)),
    )
    assert await Apptainer(settings).sweep() == 0
    assert somebody.returncode is None
    assert seen.alive()
    somebody.kill()
    await somebody.wait()


def test_a_sweep_removes_only_folders_of_its_own_making(settings, program, tmp_path) -> None:
    precious = tmp_path / "precious"
    link = Path(str(settings.scratch), "prorl-apptainer-link")
    left_over = Path(str(settings.scratch), "prorl-apptainer-left")
    precious.mkdir()
    link.symlink_to(precious)
    left_over.mkdir()
    named = enumerate((precious, link, left_over))
    write_journal(settings, *(Begun(id=f"apptainer-{n}", boot="another", folder=str(path)) for n, path in named))
    assert asyncio.run(Apptainer(settings).sweep()) == 1
    assert precious.is_dir()
    assert not left_over.exists()


async def test_one_that_was_started_but_not_yet_on_record_is_found(apptainer, settings, rootfs, machine) -> None:
    """Killed between starting it and writing its pid down: the folder in its own settings tells."""
    sandbox = await apptainer.start(SandboxSpec(image=str(rootfs)))
    (journal_file,) = state_folder(settings.state).glob("*.jsonl")
    first = journal_file.read_bytes().splitlines()[0]
    assert msgspec.json.decode(first, type=Begun).session == 0
    (state_folder(settings.state) / "apptainer-1-x.jsonl").write_bytes(first)
    assert await Apptainer(settings).sweep() >= 2
    await asyncio.sleep(0)
    assert machine.processes() == []
    await sandbox.stop()


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
