"""What a bubblewrap sandbox can and cannot see and do, asked from inside."""

from __future__ import annotations

import os

import pytest

from prorl.api import Bind, Limits, SandboxFault, SandboxSpec


@pytest.fixture
async def inside(bubblewrap):
    """Run a bash command in a sandbox started with this spec; returns ``(exit code, output)``."""
    started = []

    async def run(command: str, **spec) -> tuple[int, str]:
        if not started:
            started.append(await bubblewrap.start(SandboxSpec(**spec)))
        result = await started[0].act("bash", {"command": command}, timeout=60)
        assert result.outcome == "ok", result
        return result.data["exit_code"], result.output

    yield run
    for sandbox in started:
        await sandbox.stop(grace=0)


async def test_no_capabilities_and_no_way_to_any(inside) -> None:
    _, status = await inside("cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"
    uids = {int(uid) for uid in fields["Uid"].split()}
    assert len(uids) == 1
    assert uids != {0}


async def test_not_root_outside_either(inside) -> None:
    """uid 0 in a user namespace made by root would be kuid 0 and could write here."""
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
        code, _ = await inside(f"echo x >{path}")
        assert code != 0, path


async def test_no_user_namespaces(inside) -> None:
    for command in ("unshare -U true", "unshare -r true", "unshare -Urm true"):
        code, _ = await inside(command)
        assert code != 0, command
    code, output = await inside(
        "python3 -c 'import ctypes; l=ctypes.CDLL(None, use_errno=True); print(l.unshare(0x10000000))'"
    )
    assert (code, output) == (0, "-1\n")


async def test_own_processes_only(inside) -> None:
    _, output = await inside("ls /proc | grep -c '^[0-9]*$'; kill -0 1; kill -9 1; echo alive")
    assert int(output.splitlines()[0]) < 10
    assert output.endswith("alive\n")
    code, _ = await inside(f"ls -d /proc/{os.getpid()}")
    assert code != 0


async def test_no_network(inside) -> None:
    _, output = await inside("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '")
    assert output == "lo\n"
    code, _ = await inside("exec 3<>/dev/tcp/1.1.1.1/53")
    assert code != 0
    code, output = await inside(
        'python3 -c \'import socket; s=socket.create_server(("localhost", 0)); '
        "socket.create_connection(s.getsockname()); print(1)'"
    )
    assert (code, output) == (0, "1\n")


async def test_the_hosts_environment_stays_outside(inside, monkeypatch) -> None:
    monkeypatch.setenv("PRORL_TEST_SECRET", "sesame")
    _, output = await inside("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", env={"GIVEN": "yes"})
    assert "sesame" not in output
    assert "GIVEN=yes" in output
    names = {line.split("=")[0] for line in output.splitlines() if "=" in line}
    assert not names & {"SSH_AUTH_SOCK", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST", "PRORL_INSIDE"}


async def test_the_hosts_files_stay_outside(inside, tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    for path in (
        str(secret),
        "/etc/shadow",
        "/home/x",
        "/root/.ssh",
        "/var/log",
        "/sys/kernel",
        "/proc/1/root/var/log",
    ):
        code, _ = await inside(f"ls {path}")
        assert code != 0, path


async def test_what_can_be_written(inside) -> None:
    for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/run/prorl/x", "/run/prorl/inside/x", "/proc/x", "/home/x"):
        code, _ = await inside(f"touch {path}")
        assert code != 0, path
    for path in ("/workspace/x", "/tmp/x", "/dev/shm/x", "~/x"):
        assert await inside(f"touch {path}") == (0, ""), path
    assert (await inside("echo ok >/dev/null; head -c1 /dev/zero | wc -c"))[1] == "1\n"


async def test_two_sandboxes_share_nothing(bubblewrap) -> None:
    one, two = await bubblewrap.start(SandboxSpec()), await bubblewrap.start(SandboxSpec())
    try:
        await one.act("bash", {"command": "echo 1 >/tmp/f; echo 1 >/workspace/f; sleep 60 &"}, timeout=60)
        result = await two.act("bash", {"command": "ls /tmp/f /workspace/f; pgrep sleep"}, timeout=60)
        assert result.data["exit_code"] != 0
        assert result.output.count("No such file") == 2
    finally:
        await one.stop()
        await two.stop()


async def test_the_action_server_cannot_be_traced_or_read(inside) -> None:
    _, output = await inside("pid=$PPID; ls -l /proc/$pid/fd; cat /proc/$pid/mem; cat /proc/$pid/environ; echo end")
    assert output.count("Permission denied") + output.count("Input/output error") >= 2, output
    assert "socket" not in output


async def test_the_servers_socket_is_not_inherited(inside) -> None:
    _, output = await inside("ls -l /proc/self/fd /proc/$$/fd")
    assert "socket:" not in output


async def test_the_servers_packages_are_there(inside) -> None:
    code, output = await inside("python -c 'import msgspec, sys; print(sys.prefix)'")
    assert code == 0, output


@pytest.mark.parametrize(
    ("limits", "command"),
    [
        (Limits(memory_mb=300), "python3 -c 'bytearray(400 << 20)'"),
        (Limits(file_mb=1), "head -c 2000000 /dev/zero >/workspace/f"),
        (Limits(tmp_mb=1), "head -c 2000000 /dev/zero >/workspace/f"),
        (Limits(tmp_mb=1), "head -c 2000000 /dev/zero >/tmp/f"),
        (Limits(cpu_s=1), "timeout 30 sh -c 'while :; do :; done' || (exit $?)"),
        (
            Limits(processes=20),
            "for i in $(seq 40); do sleep 5 & done 2>&1 | grep -c xx; jobs -p | wc -l | grep -qx 40",
        ),
    ],
    ids=["memory", "file", "workdir", "tmp", "cpu", "processes"],
)
async def test_limits_hold(inside, limits: Limits, command: str) -> None:
    code, output = await inside(command, limits=limits)
    assert code not in (0, 124), output


async def test_a_full_disk_does_not_stop_the_shell(inside) -> None:
    await inside("head -c 9000000 /dev/zero >/tmp/f; head -c 9000000 /dev/zero >f", limits=Limits(tmp_mb=1))
    assert await inside("rm /tmp/f f; echo again") == (0, "again\n")


async def test_binds(inside, tmp_path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "given").write_text("content\n")
    binds = (Bind(source=str(tmp_path), target="/data/in"),)
    assert (await inside("cat /data/in/given; touch /data/in/x", binds=binds))[1].startswith("content\n")
    assert not (tmp_path / "x").exists()


async def test_an_ordinary_user_in_an_ordinary_house(inside) -> None:
    assert await inside("whoami; awk 'BEGIN { print 1 }'; echo x | sort") == (0, "agent\n1\nx\n")


async def test_another_workdir(inside) -> None:
    assert await inside("pwd; touch x && echo ok", workdir="/some/where/else") == (0, "/some/where/else\nok\n")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SandboxSpec(image="/no/such.sif"), "is not there"),
        (SandboxSpec(binds=(Bind(source="/no/such/dir", target="/x"),)), "/no/such/dir"),
    ],
)
async def test_what_cannot_be_started_says_why(bubblewrap, spec: SandboxSpec, message: str) -> None:
    with pytest.raises(SandboxFault, match=message):
        await bubblewrap.start(spec)


async def test_fakeroot(bubblewrap) -> None:
    if os.geteuid() == 0:
        with pytest.raises(SandboxFault, match="root"):
            await bubblewrap.start(SandboxSpec(fakeroot=True))
        return
    sandbox = await bubblewrap.start(SandboxSpec(fakeroot=True))
    result = await sandbox.act("bash", {"command": "id -u; grep CapEff /proc/self/status"}, timeout=60)
    await sandbox.stop()
    assert result.output == "0\nCapEff:\t0000000000000000\n"


async def test_one_sandbox_cannot_reach_another(bubblewrap) -> None:
    """No socket in the file system, none of the other's processes to be seen, and no descriptor that leads to it."""
    ours, theirs = [await bubblewrap.start(SandboxSpec()) for _ in range(2)]
    try:
        await theirs.act("bash", {"command": "sleep 4242 & echo secret > /tmp/secret"}, timeout=60)
        look = (
            "find / -path /proc -prune -o -type s -print 2>/dev/null;"
            "grep -c '@\\|/' /proc/net/unix; cat /tmp/secret 2>&1;"
            "grep -l 4242 /proc/[0-9]*/cmdline 2>/dev/null; ls /proc | grep -c '^[0-9]'"
        )
        seen = (await ours.act("bash", {"command": look}, timeout=60)).output.split("\n")
        assert seen[0] == "0", seen
        assert "No such file" in seen[1]
        assert int(seen[2]) < 12, seen
        steal = (
            "ls -l /proc/1/fd 2>&1 | grep -c socket; for n in $(seq 0 9); do echo x >/proc/1/fd/$n; done 2>/dev/null"
        )
        assert (await ours.act("bash", {"command": steal}, timeout=60)).output.startswith("0\n")
        assert (await theirs.act("bash", {"command": "echo on"}, timeout=60)).output == "on\n"
        assert (await ours.act("bash", {"command": "echo on"}, timeout=60)).output == "on\n"
    finally:
        await ours.stop(grace=0)
        await theirs.stop(grace=0)
