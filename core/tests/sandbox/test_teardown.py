"""Nothing is left: no process, no descriptor, no file, whichever way a sandbox ends."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from prorl.api import Sandbox, SandboxFault, SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.bubblewrap_command import BOOT
from prorl.sandbox.host import find_bwrap
from prorl.sandbox.inside import tree
from prorl.sandbox.local import Local
from prorl.sandbox.settings import SandboxSettings


def marker() -> int:
    return secrets.randbelow(10**9) + 10**9


def leave_daemons(number: int) -> str:
    daemons = f"setsid sleep {number} & (setsid nohup sh -c 'trap \"\" TERM INT HUP; sleep {number}; sleep 1' &) ; "
    return daemons + f"env -i setsid sleep {number} & sleep {number} &"


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def below_us() -> list[tree.Process]:
    return tree.descendants(os.getpid())


def wait_for_none_below_us() -> None:
    deadline = time.monotonic() + 60
    while below_us() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert below_us() == []


async def test_twenty_sandboxes_leave_nothing(runtime, running, until, tmp_path) -> None:
    first = await runtime.start(SandboxSpec())
    await first.stop()
    before, number = descriptors(), marker()
    sandboxes = await asyncio.gather(*(runtime.start(SandboxSpec()) for _ in range(20)))
    await asyncio.gather(*(s.act("bash", {"command": leave_daemons(number)}, timeout=60) for s in sandboxes))
    await until(lambda: running(f"sleep {number}") >= 20)
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
    assert running(f"sleep {number}") == 0
    assert below_us() == []
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


async def test_a_server_with_thousands_of_descriptors(runtime) -> None:
    """select() would refuse descriptors from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"only {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1500)]
    try:
        sandbox = await runtime.start(SandboxSpec())
        result = await sandbox.act("bash", {"command": "echo on"}, timeout=60)
        cell = await sandbox.act("ipython", {"code": "1"}, timeout=60)
        await sandbox.stop()
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (result.output, cell.output) == ("on\n", "1\n")
    assert below_us() == []


@pytest.mark.parametrize("grace", [0, 0.5])
async def test_stop_twice_and_at_once(runtime, grace: float) -> None:
    sandbox = await runtime.start(SandboxSpec())
    await asyncio.gather(*(sandbox.stop(grace=grace) for _ in range(3)))
    await sandbox.stop(grace=grace)
    assert below_us() == []
    with pytest.raises(SandboxFault, match="stopped"):
        await sandbox.act("bash", {"command": "true"}, timeout=60)


async def test_stop_during_an_action(runtime, running, until) -> None:
    number = marker()
    sandbox = await runtime.start(SandboxSpec())
    action = asyncio.create_task(sandbox.act("bash", {"command": f"sleep {number}"}, timeout=60))
    await until(lambda: running(f"sleep {number}") == 1)
    await sandbox.stop()
    with pytest.raises(SandboxFault) as caught:
        await action
    assert caught.value.code == "stopped"
    assert running(f"sleep {number}") == 0


async def test_a_stop_that_is_cancelled_goes_on(runtime, until) -> None:
    sandbox = await runtime.start(SandboxSpec())
    stopping = asyncio.create_task(sandbox.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await sandbox.stop()
    assert below_us() == []


@pytest.mark.parametrize("delay", [0, 0.001, 0.004, 0.01, 0.02, 0.04])
async def test_cancel_during_start(runtime, tmp_path, delay: float) -> None:
    before = descriptors()
    starting = asyncio.create_task(runtime.start(SandboxSpec()))
    await asyncio.sleep(delay)
    if starting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await starting
    else:
        await starting.result().stop()
    assert below_us() == []
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.01, 0.03])
def test_an_event_loop_that_ends_during_a_start(delay: float, tmp_path) -> None:
    """Everything is cancelled then, the start itself too."""

    async def main() -> None:
        for runtime in (Bubblewrap(), Local(SandboxSettings(scratch=str(tmp_path)))):
            tasks.append(asyncio.create_task(runtime.start(SandboxSpec())))
        await asyncio.sleep(delay)
        up: set[asyncio.Task[Sandbox]] = set()  # whoever was quicker has a sandbox, and has to stop it
        while new := {task for task in tasks if task.done()} - up:
            up |= new
            await asyncio.gather(*(task.result().stop() for task in new))

    tasks: list[asyncio.Task[Sandbox]] = []
    asyncio.run(main())
    assert all(task.done() for task in tasks)
    wait_for_none_below_us()
    assert list(tmp_path.iterdir()) == []


async def test_a_start_that_fails_leaves_nothing(runtime, tmp_path) -> None:
    failing = type(runtime)(SandboxSettings(python="/usr/bin/false", scratch=str(tmp_path)))
    before = descriptors()
    with pytest.raises(SandboxFault):
        await failing.start(SandboxSpec())
    assert below_us() == []
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


async def test_an_action_server_that_dies_is_a_fault(runtime, until) -> None:
    sandbox = await runtime.start(SandboxSpec())
    servers = [process.pid for process in below_us()]
    action = asyncio.create_task(sandbox.act("bash", {"command": "sleep 60"}, timeout=60))
    await until(lambda: len(below_us()) > len(servers))
    os.kill(max(servers), signal.SIGKILL)
    with pytest.raises(SandboxFault) as caught:
        await action
    assert caught.value.code == "sandbox_lost"
    await sandbox.stop()
    assert below_us() == []


async def test_an_agent_cannot_kill_its_action_server(bubblewrap) -> None:
    """Or it could have every rollout that goes badly thrown away as a fault of the sandbox."""
    sandbox = await bubblewrap.start(SandboxSpec())
    command = "kill -9 1 $PPID; kill -TERM 1; kill -INT 1; kill -STOP 1; kill -9 -1; echo alive"
    result = await sandbox.act("bash", {"command": command}, timeout=60)
    assert result.output.endswith("alive\n")
    cell = await sandbox.act("ipython", {"code": "import os; os.kill(1, 9); 2"}, timeout=60)
    assert cell.output == "2\n"
    await sandbox.stop()


async def test_no_zombie_is_left_to_the_machines_init(bubblewrap) -> None:
    sandboxes = await asyncio.gather(*(bubblewrap.start(SandboxSpec()) for _ in range(10)))
    pids = [process.pid for process in below_us()]
    assert len(pids) == 20
    await asyncio.gather(*(sandbox.stop(grace=grace) for sandbox, grace in zip(sandboxes, [0, 5] * 5, strict=True)))
    left = [tree.read_process(pid) for pid in pids]
    assert [process for process in left if process is not None] == []


async def test_directories_the_agent_locked_are_removed(local, tmp_path) -> None:
    sandbox = await local.start(SandboxSpec())
    await sandbox.act("bash", {"command": "mkdir -p a/b/c; touch a/b/c/d; chmod 000 a/b a; ln -s / up"}, timeout=60)
    await sandbox.stop()
    assert list(tmp_path.iterdir()) == []


HOST = """
import asyncio, sys
from prorl.api import SandboxSpec
from prorl.sandbox.plugin import runtimes
from prorl.sandbox.settings import SandboxSettings

async def main():
    records = {record.name: record for record in runtimes(SandboxSettings(scratch=sys.argv[2]))}
    runtime = records[sys.argv[1]].factory()
    sandbox = await runtime.start(SandboxSpec())
    await sandbox.act("bash", {"command": sys.argv[3]}, timeout=60)
    print("ready", flush=True)
    await sandbox.act("bash", {"command": "sleep 60"}, timeout=90)

asyncio.run(main())
"""


async def test_a_host_killed_with_sigkill_takes_its_sandboxes_along(runtime, running, until, tmp_path) -> None:
    number = marker()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", HOST, runtime.name, str(tmp_path), leave_daemons(number)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    await until(lambda: running(f"sleep {number}") >= 4)
    process.kill()
    await process.wait()
    await until(lambda: running(f"sleep {number}") == 0)
    await until(lambda: below_us() == [])
    swept = await Local(SandboxSettings(scratch=str(tmp_path))).sweep()
    await runtime.sweep()
    assert swept == (1 if runtime.name == "local" else 0)
    assert list(tmp_path.iterdir()) == []


async def test_sweep_ends_children_that_lost_their_bwrap(bubblewrap, running, until) -> None:
    """bwrap's child is bound to it only a moment after the fork; here one that looks like such an orphan."""
    alive = await bubblewrap.start(SandboxSpec())
    number, program = marker(), find_bwrap(None)
    assert program is not None
    namespaces = ["--unshare-user", "--unshare-pid", "--as-pid-1", "--ro-bind", "/", "/", "--proc", "/proc"]
    orphan = ["sh", "-c", f"sleep {number}; true", "--info-fd", BOOT]
    parent = await asyncio.create_subprocess_exec(program, *namespaces, "--", *orphan)
    await until(lambda: running(f"sleep {number}") >= 3)  # bwrap, the shell and the sleep itself
    assert await bubblewrap.sweep() >= 1
    await parent.wait()
    assert running(f"sleep {number}") == 0
    assert (await alive.act("bash", {"command": "echo on"}, timeout=60)).output == "on\n"
    await alive.stop()


async def test_sweep_ends_what_a_dead_server_left_and_touches_nobody_elses(local, tmp_path, running, until) -> None:
    alive = await local.start(SandboxSpec())
    number = marker()
    left = tmp_path / "prorl-local-left"
    (left / "work").mkdir(parents=True)
    (left / "owner.json").write_text('{"pid": 1, "started": 1}')  # pid 1 is alive, but began at another time
    (tmp_path / "prorl-local-other").mkdir()  # no owner to be seen: somebody may be making it
    escaped = await asyncio.create_subprocess_exec("setsid", "sleep", str(number), env={"PRORL_SANDBOX": str(left)})
    await until(lambda: running(f"sleep {number}") == 1)
    assert await local.sweep() == 2
    await escaped.wait()
    assert running(f"sleep {number}") == 0
    assert not left.exists()
    assert (tmp_path / "prorl-local-other").exists()
    assert (await alive.act("bash", {"command": "echo on"}, timeout=60)).output == "on\n"
    await alive.stop()
