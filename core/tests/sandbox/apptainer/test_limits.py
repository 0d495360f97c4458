"""Each limit holds, or the probe says that it does not."""

from __future__ import annotations

import pytest

from prorl.api import Limits, SandboxSpec
from prorl.sandbox.limits import ControlGroups

FORKS = "for i in $(seq 40); do sleep 5 & done 2>&1 | grep -c xx; jobs -p | wc -l | grep -qx 40"
CASES = {
    "memory_mb": (Limits(memory_mb=300), "python3 -c 'bytearray(400 << 20)'"),
    "file_mb": (Limits(file_mb=1), "head -c 2000000 /dev/zero >/workspace/f"),
    "tmp_mb": (Limits(tmp_mb=8), "head -c 20000000 /dev/zero >/workspace/f"),
    "tmp_mb in tmp": (Limits(tmp_mb=8), "head -c 20000000 /dev/zero >/tmp/f"),
    "cpu_s": (Limits(cpu_s=1), "timeout 30 sh -c 'while :; do :; done' || (exit $?)"),
    "processes": (Limits(processes=20), FORKS),
}


@pytest.fixture
async def probe(apptainer):
    return await apptainer.probe()


async def test_the_probe(probe) -> None:
    assert probe.works
    assert probe.isolation == "full"
    assert probe.start_ms
    assert "version" in (probe.version or "")
    for name in ("bash", "image", "no_network", "no_user_namespaces", "file_mb", "cpu_s", "memory_mb"):
        assert probe.capabilities[name], (name, probe.why_not)
    denied = {name for name, can in probe.capabilities.items() if not can}
    assert denied <= probe.why_not.keys()
    assert {name.partition(" ")[0] for name in CASES} <= probe.capabilities.keys()


@pytest.mark.parametrize("name", CASES)
async def test_limits_hold(probe, inside, name: str) -> None:
    limit = name.partition(" ")[0]
    if not probe.capabilities[limit]:
        pytest.skip(f"{limit}: {probe.why_not[limit]}")
    limits, command = CASES[name]
    code, output = await inside(command, limits=limits)
    assert code not in (0, 124), output


async def test_memory_holds_for_the_sandbox_as_a_whole(apptainer, left) -> None:
    """Four processes that each stay below the limit, and together do not."""
    groups = ControlGroups()
    if not groups.has("memory"):
        pytest.skip("no writable memory control group here")
    sandbox = await apptainer.start(SandboxSpec(limits=Limits(memory_mb=200)))
    one = 'python3 -c \'import time; x = bytearray(b"1") * (90 << 20); time.sleep(3); print("whole")\''
    command = f"for i in 1 2 3 4; do {one} & done; wait"
    result = await sandbox.act("bash", {"command": command}, timeout=60)
    made = groups.find(sandbox.id)
    assert made
    await sandbox.stop()
    assert result.output.splitlines().count("whole") < 4, result.output
    assert not any(group.exists() for group in made)


async def test_no_limits_at_all(inside) -> None:
    unbounded = Limits(memory_mb=None, processes=None, file_mb=None, cpu_s=None, tmp_mb=None)
    assert (await inside("head -c 9000000 /dev/zero >f; wc -c <f", limits=unbounded)) == (0, "9000000\n")
