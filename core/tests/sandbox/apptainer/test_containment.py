"""What a container can and cannot see and do, asked from inside."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from prorl.api import Bind, SandboxFault, SandboxSpec
from prorl.sandbox.apptainer import Apptainer
from prorl.sandbox.settings import SandboxSettings

ROOT = os.geteuid() == 0
ordinary = pytest.mark.skipif(ROOT, reason="as root there is no fakeroot: see test_ordinary_user.py")


def files_at_home() -> list[str]:
    return sorted(path.name for path in Path.home().iterdir()) if Path.home().is_dir() else []


@pytest.fixture(params=["host", "folder", "sif"])
def image(request) -> str | None:
    return (
        None
        if request.param == "host"
        else str(request.getfixturevalue({"folder": "rootfs"}.get(request.param, "sif")))
    )


async def test_commands_run_and_files_are_written(inside, image) -> None:
    code, output = await inside("pwd; echo 1 >f && cat f; mkdir /tmp/d ~/d && touch /dev/shm/x && echo ok", image=image)
    assert (code, output) == (0, "/workspace\n1\nok\n")


async def test_the_image_is_what_one_sees(inside, image) -> None:
    if image is None:
        pytest.skip("the host's own /usr is no image")
    code, output = await inside(
        "cat given; echo more >here && cat here; echo $FROM_IMAGE; python3 -c 'print(6*7)'",
        image=image,
        workdir="/testbed",
    )
    assert (code, output) == (0, "content of the image\nmore\nyes\n42\n")
    code, _ = await inside("ls /work /home /srv /opt /etc/hostname")
    assert code != 0


async def test_what_is_written_does_not_reach_the_image(apptainer, rootfs) -> None:
    for _ in range(2):
        sandbox = await apptainer.start(SandboxSpec(image=str(rootfs), workdir="/testbed"))
        result = await sandbox.act("bash", {"command": "ls; echo x >new; rm -f given; ls"}, timeout=60)
        await sandbox.stop()
        assert result.output == "given\nnew\n"
    assert sorted(path.name for path in (rootfs / "testbed").iterdir()) == ["given"]


async def test_no_capabilities_and_no_way_to_any(inside) -> None:
    _, status = await inside("cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert {int(uid) for uid in fields["Uid"].split()} != {0}
    for command in ("unshare -U true", "unshare -r true", "unshare -Urm true"):
        assert (await inside(command))[0] != 0, command
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
        assert (await inside(f"echo x >{path}"))[0] != 0, path


async def test_own_processes_only_and_the_action_server_is_out_of_reach(inside) -> None:
    _, output = await inside("ls /proc | grep -c '^[0-9]*$'; kill -9 1; kill -STOP 1; kill -9 -1; echo alive")
    assert int(output.splitlines()[0]) < 10
    assert output.endswith("alive\n")
    assert (await inside(f"ls -d /proc/{os.getpid()}"))[0] != 0
    _, output = await inside(
        "ls -l /proc/$PPID/fd; cat /proc/1/mem; cat /proc/1/environ; ls -l /proc/self/fd; echo end"
    )
    assert output.count("Permission denied") + output.count("Input/output error") >= 2, output
    assert "socket:" not in output


async def test_no_network_unless_asked_for(apptainer, inside) -> None:
    _, output = await inside("cat /proc/net/dev | tr -d ' ' | cut -d: -f1 | grep -v '|'")
    assert output == "lo\n"
    code, output = await inside(
        "python3 -c \"import os, socket; s = socket.create_server((os.environ['PRORL_ADDRESS'], 0)); "
        'socket.create_connection(s.getsockname()); print(1)"'
    )
    assert (code, output) == (0, "1\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        assert (await inside(connect))[0] != 0
        open_ = await apptainer.start(SandboxSpec(network=True))
        result = await open_.act("bash", {"command": connect}, timeout=60)
        await open_.stop()
        assert result.data["exit_code"] == 0, result.output


async def test_each_has_an_address_of_its_own(apptainer) -> None:
    sandboxes = [await apptainer.start(SandboxSpec()) for _ in range(3)]
    told = [await sandbox.act("bash", {"command": "echo $PRORL_ADDRESS"}, timeout=60) for sandbox in sandboxes]
    for sandbox in sandboxes:
        await sandbox.stop()
    addresses = {result.output.strip() for result in told}
    assert len(addresses) == 3
    assert all(address.startswith("127.") for address in addresses)


async def test_the_hosts_environment_stays_outside(inside, monkeypatch) -> None:
    monkeypatch.setenv("PRORL_TEST_SECRET", "sesame")
    monkeypatch.setenv("APPTAINERENV_PRORL_TEST_SECRET", "sesame")
    monkeypatch.setenv("APPTAINER_BIND", "/etc:/secrets")
    _, output = await inside("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; ls /secrets", env={"GIVEN": "yes"})
    assert "sesame" not in output
    assert "GIVEN=yes" in output
    names = {line.split("=")[0] for line in output.splitlines() if "=" in line}
    assert not {name for name in names if name.startswith(("APPTAINER", "SINGULARITY", "PYTEST", "VIRTUAL_ENV"))}
    assert "No such file" in output


async def test_the_hosts_files_stay_outside(inside, tmp_path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o644)
    for path in (
        str(tmp_path / "secret"),
        "/etc/shadow",
        "/root/.ssh",
        "/var/log",
        "/sys/kernel",
        "/proc/1/root/var/log",
    ):
        assert (await inside(f"ls {path}"))[0] != 0, path
    ours = files_at_home()
    if ours:
        assert (await inside(f"ls -A {Path.home()} 2>/dev/null"))[1].splitlines() != ours


async def test_what_cannot_be_written(inside) -> None:
    for path in (
        "/usr/x",
        "/run/prorl/inside/x",
        "/run/prorl/inside/server.py",
        "/run/prorl/apptainer_boot.py",
        "/proc/x",
    ):
        code, _ = await inside(f"echo x >>{path} || touch {path} || rm {path}")
        assert code != 0, path
    code, _ = await inside("mv /run/prorl/inside /tmp || mv /run/prorl /tmp || mv /run /tmp")
    assert code != 0


async def test_two_containers_share_nothing(apptainer, rootfs) -> None:
    one = await apptainer.start(SandboxSpec(image=str(rootfs)))
    two = await apptainer.start(SandboxSpec(image=str(rootfs)))
    try:
        listen = (
            "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0prorl'); s.listen(); time.sleep(60)"
        )
        made = f'echo 1 | tee /tmp/f /workspace/f /dev/shm/f >/dev/null; setsid python3 -c "{listen}" & sleep 0.5; echo'
        assert (await one.act("bash", {"command": made}, timeout=60)).data["exit_code"] == 0
        look = "ls /tmp/f /workspace/f /dev/shm/f; grep -c prorl /proc/net/unix; ps ax | grep -c '[l]isten'"
        result = await two.act("bash", {"command": look}, timeout=60)
        assert result.output.count("No such file") == 3
        assert result.output.endswith("0\n0\n")
        result = await one.act("bash", {"command": look}, timeout=60)
        assert "\n1\n1\n" in "\n" + result.output
    finally:
        await one.stop()
        await two.stop()


async def test_binds(inside, tmp_path) -> None:
    odd = tmp_path / 'a,b "c": d'
    odd.mkdir()
    (odd / "given").write_text("content\n")
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    tmp_path.chmod(0o755)
    binds = (Bind(source=str(odd), target="/data/in"), Bind(source=str(out), target="/data/out", writable=True))
    _, output = await inside("cat /data/in/given; touch /data/in/x; touch /data/out/y", binds=binds)
    assert output.startswith("content\n")
    assert not (odd / "x").exists()
    assert (out / "y").exists()


@ordinary
async def test_fakeroot(inside, rootfs) -> None:
    code, output = await inside(
        "id -u; touch /x /usr/bin/x 2>/dev/null; chown 5:6 /x && ls -ln /x | cut -d' ' -f3,4",
        image=str(rootfs),
        fakeroot=True,
    )
    if code and "chown" in output:
        pytest.skip("this user has no subordinate ids")
    assert (code, output) == (0, "0\n5 6\n")
    _, status = await inside(
        "grep CapEff /proc/self/status; unshare -Um true || echo refused; mount -t tmpfs x /mnt || echo no"
    )
    capabilities = int(status.split()[1], 16)
    assert capabilities
    assert not capabilities >> 21 & 1  # CAP_SYS_ADMIN
    assert status.endswith("no\n")
    assert "refused\n" in status


async def test_as_root_there_is_no_fakeroot(apptainer) -> None:
    if not ROOT:
        pytest.skip("only root is refused")
    with pytest.raises(SandboxFault, match="ordinary user"):
        await apptainer.start(SandboxSpec(fakeroot=True))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SandboxSpec(image="/no/such.sif"), "not there"),
        (SandboxSpec(image="relative"), "no image"),
        (SandboxSpec(workdir="/a/../b"), "workdir"),
        (SandboxSpec(workdir="here"), "workdir"),
        (SandboxSpec(binds=(Bind(source="/no/such/dir", target="/x"),)), "/no/such/dir"),
    ],
)
async def test_what_cannot_be_started_says_why(apptainer, left, spec: SandboxSpec, message: str) -> None:
    with pytest.raises(SandboxFault, match=message):
        await apptainer.start(spec)
    assert left() == []


async def test_an_image_without_python_says_so(apptainer, tmp_path, left) -> None:
    image = tmp_path / "empty"
    for name in ("usr", "etc", "dev", "proc", "tmp", "var/tmp", "sys", "run"):
        (image / name).mkdir(parents=True)
    image.chmod(0o755)
    with pytest.raises(SandboxFault, match=r"python3|/bin/sh"):
        await apptainer.start(SandboxSpec(image=str(image)))
    assert left() == []


async def test_no_apptainer_says_how_to_get_one(tmp_path) -> None:
    probe = await Apptainer(SandboxSettings(apptainer=str(tmp_path / "none"), state=str(tmp_path))).probe()
    assert not probe.works
    assert str(tmp_path / "none") in (probe.reason or "")
