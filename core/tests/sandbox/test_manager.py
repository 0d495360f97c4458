"""Which runtime is taken, what is said when none works, and that closing the manager stops everything."""

from __future__ import annotations

import asyncio
import os

import pytest

from prorl.api import ConfigError, Probe, RuntimeRecord, Sandbox, SandboxFault, SandboxSpec
from prorl.sandbox.inside import tree
from prorl.sandbox.manager import SandboxManager
from prorl.sandbox.plugin import prorl_sandbox_runtimes, runtimes
from prorl.sandbox.settings import SandboxSettings


class Never:
    """A runtime that cannot work."""

    name = "never"
    probed = 0

    def __init__(self, reason: str = "no kernel", error: Exception | None = None) -> None:
        self.reason, self.error = reason, error

    async def probe(self) -> Probe:
        type(self).probed += 1
        if self.error:
            raise self.error
        return Probe(runtime=self.name, works=False, isolation="full", reason=self.reason)

    async def prepare(self, image):
        raise AssertionError

    async def start(self, spec):
        raise SandboxFault(self.reason)

    async def sweep(self) -> int:
        return 0


def records(tmp_path, **more: RuntimeRecord) -> dict[str, RuntimeRecord]:
    settings = SandboxSettings(scratch=str(tmp_path))
    built_in = {record.name: record for record in runtimes(settings) if record.name != "apptainer"}  # has its own tests
    return built_in | more


def never(preference: int, **kwargs) -> RuntimeRecord:
    return RuntimeRecord(name="never", factory=lambda: Never(**kwargs), summary="", preference=preference)


async def test_the_best_that_works_is_taken(tmp_path, bubblewrap) -> None:
    manager = SandboxManager(records(tmp_path, never=never(99)))
    sandbox = await manager.start(SandboxSpec())
    assert sandbox.runtime == "bubblewrap"
    await manager.close()


async def test_by_name_and_by_default(tmp_path) -> None:
    manager = SandboxManager(records(tmp_path), default="local")
    assert (await manager.start(SandboxSpec())).runtime == "local"
    await manager.close()
    manager = SandboxManager(records(tmp_path))
    assert (await manager.start(SandboxSpec(), "local")).runtime == "local"
    await manager.close()


async def test_an_unknown_runtime(tmp_path) -> None:
    with pytest.raises(ConfigError, match="known: bubblewrap, local"):
        await SandboxManager(records(tmp_path)).start(SandboxSpec(), "docker")


async def test_none_works_and_each_says_why(tmp_path) -> None:
    local = {"local": records(tmp_path)["local"]}
    raising = RuntimeRecord(name="raising", factory=lambda: Never(error=OSError("boom")), summary="", preference=1)
    manager = SandboxManager(local | {"never": never(5), "raising": raising})
    with pytest.raises(SandboxFault) as caught:
        await manager.start(SandboxSpec())
    message = str(caught.value)
    assert caught.value.code == "no_runtime"
    assert "never: no kernel" in message
    assert "raising: OSError: boom" in message
    assert "local" in message
    await manager.close()


async def test_no_runtime_at_all() -> None:
    with pytest.raises(SandboxFault, match="none is installed"):
        await SandboxManager({}).start(SandboxSpec())


async def test_probes_are_made_once(tmp_path, bubblewrap) -> None:
    Never.probed = 0
    manager = SandboxManager(records(tmp_path, never=never(5)))
    first, second = await asyncio.gather(manager.probes(), manager.probes())
    assert first == second
    assert Never.probed == 1
    assert [probe.runtime for probe in first] == ["bubblewrap", "never", "local"]
    by_name = {probe.runtime: probe for probe in first}
    assert by_name["bubblewrap"].works
    assert by_name["bubblewrap"].isolation == "full"
    assert by_name["bubblewrap"].capabilities["ipython"]
    assert by_name["bubblewrap"].start_ms
    assert (by_name["bubblewrap"].version or "").startswith("bubblewrap ")
    assert by_name["local"].isolation == "none"
    for probe in first:
        denied = {name for name, can in probe.capabilities.items() if not can}
        assert denied <= probe.why_not.keys()
    await manager.close()


async def test_a_runtime_that_cannot_sweep_does_not_keep_others_from_it(tmp_path) -> None:
    class Stuck(Never):
        async def sweep(self) -> int:
            raise OSError("stuck")

    left = tmp_path / "prorl-local-left"
    left.mkdir()
    (left / "owner.json").write_text('{"pid": 1, "started": 1}')
    stuck = RuntimeRecord(name="stuck", factory=Stuck, summary="", preference=99)
    with pytest.raises(ExceptionGroup, match="1 things were ended"):
        await SandboxManager({"stuck": stuck, "local": records(tmp_path)["local"]}).sweep()
    assert not left.exists()


async def test_close_stops_every_sandbox(tmp_path) -> None:
    manager = SandboxManager(records(tmp_path), default="local")
    sandboxes = [await manager.start(SandboxSpec()) for _ in range(3)]
    await sandboxes[0].stop()
    await manager.close()
    assert tree.descendants(os.getpid()) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SandboxFault, match="going down"):
        await manager.start(SandboxSpec())


async def test_closing_while_one_starts(tmp_path, monkeypatch) -> None:
    manager = SandboxManager(records(tmp_path), default="local")
    runtime = manager._runtime("local")
    start, almost, go = runtime.start, asyncio.Event(), asyncio.Event()

    async def late(spec: SandboxSpec) -> Sandbox:
        sandbox = await start(spec)
        almost.set()
        await go.wait()
        return sandbox

    monkeypatch.setattr(runtime, "start", late)
    starting = asyncio.create_task(manager.start(SandboxSpec()))
    await almost.wait()
    await manager.close()
    go.set()
    with pytest.raises(SandboxFault, match="going down"):
        await starting
    assert tree.descendants(os.getpid()) == []


async def test_no_bwrap_says_how_to_get_one(tmp_path, monkeypatch) -> None:
    probe = await records(tmp_path)["bubblewrap"].factory().probe()
    assert probe.runtime == "bubblewrap"
    settings = SandboxSettings(bwrap=str(tmp_path / "no-such-bwrap"))
    (record,) = [record for record in runtimes(settings) if record.name == "bubblewrap"]
    probe = await record.factory().probe()
    assert not probe.works
    assert "no-such-bwrap" in (probe.reason or "")


def test_it_all_works_on_uvloop(tmp_path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        manager = SandboxManager(records(tmp_path))
        for probe in await manager.probes():
            if not probe.works:
                continue
            sandbox = await manager.start(SandboxSpec(), probe.runtime)
            chunks: list[bytes] = []

            async def take(data: bytes, chunks: list[bytes] = chunks) -> None:
                chunks.append(data)

            result = await sandbox.act("bash", {"command": "seq 100000"}, timeout=60, on_output=take)
            assert result.outcome == "ok"
            assert b"".join(chunks).endswith(b"\n100000\n")
            starting = asyncio.create_task(manager.start(SandboxSpec(), probe.runtime))
            await asyncio.sleep(0.01)
            starting.cancel()
        await manager.close()

    uvloop.run(main())
    assert tree.descendants(os.getpid()) == []
    assert list(tmp_path.iterdir()) == []


def test_the_hook() -> None:
    assert [(record.name, record.preference) for record in prorl_sandbox_runtimes()] == [
        ("bubblewrap", 10),
        ("apptainer", 0),
        ("local", -1),
    ]
