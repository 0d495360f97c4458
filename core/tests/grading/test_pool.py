"""Every call ends, with a verdict or a typed fault, and no process is left behind."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from prorl.api import GraderFault
from prorl.grading import GraderPool

LONG = 60.0


async def until(condition):
    """Wait for what no event tells of: the state of other processes and of files."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def gone(pid):
    await until(lambda: has_ended(pid))


def has_ended(pid):
    """A zombie that only waits for its parent has ended, too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers():
    return [child for child in psutil.Process().children(recursive=True) if "prorl.grading.worker" in child.cmdline()]


async def fault(pool, payload, timeout=LONG):
    with pytest.raises(GraderFault) as caught:
        await pool.grade(payload, timeout=timeout)
    return caught.value


async def test_a_worker_stays_warm_between_calls(pools):
    async with pools("grader_samples:echo", size=2) as pool:
        first = await pool.grade({"n": 1, "text": "ü\n\u2028"}, timeout=LONG)
        second = await pool.grade({"n": 2}, timeout=LONG)
    assert first["echo"] == {"n": 1, "text": "ü\n\u2028"}
    assert (second["pid"], second["calls"]) == (first["pid"], 2)
    assert workers() == []


async def test_calls_run_side_by_side_up_to_the_size(pools):
    async with pools("grader_samples:echo", size=2) as pool:
        verdicts = await asyncio.gather(*(pool.grade({"n": n}, timeout=LONG) for n in range(20)))
    assert [verdict["echo"]["n"] for verdict in verdicts] == list(range(20))
    assert len({verdict["pid"] for verdict in verdicts}) == 2


@pytest.mark.parametrize("do", ["sleep", "spin_in_c"])
async def test_a_call_that_never_returns_is_killed_at_its_deadline(pools, do):
    async with pools("grader_samples:misbehave", size=1) as pool:
        before = (await pool.grade({}, timeout=LONG))["pid"]
        assert (await fault(pool, {"do": do}, timeout=0.3)).code == "timeout"
        assert (await pool.grade({}, timeout=LONG))["pid"] != before
        await gone(before)


@pytest.mark.parametrize(
    ("do", "code"),
    [
        ("exit", "crashed"),
        ("system_exit", "raised"),
        ("raise", "raised"),
        ("memory", "raised"),
        ("list", "bad_reply"),
        ("nan", "bad_reply"),
        ("huge", "bad_reply"),
        ("forge", "bad_reply"),
    ],
)
async def test_each_kind_of_failure_is_a_fault_and_the_next_call_works(pools, do, code):
    async with pools("grader_samples:misbehave", size=1, memory_mb=512) as pool:
        assert (await fault(pool, {"do": do})).code == code
        assert "pid" in await pool.grade({}, timeout=LONG)


async def test_the_functions_own_error_is_told(pools):
    async with pools("grader_samples:misbehave", size=1) as pool:
        raised = await fault(pool, {"do": "raise"})
    assert "ValueError: on purpose" in str(raised)
    assert "grader_samples.py" in raised.__notes__[0]


async def test_what_a_worker_prints_is_nobodys_verdict(pools):
    async with pools("grader_samples:misbehave", size=1) as pool:
        verdict = await pool.grade({"do": "print"}, timeout=LONG)
    assert "reward" not in verdict
    assert verdict["stdin"] == ""


async def test_a_workers_children_die_with_it(pools, tmp_path):
    written = tmp_path / "child"
    async with pools("grader_samples:misbehave", size=1) as pool:
        call = asyncio.create_task(fault(pool, {"do": "child", "file": str(written)}, timeout=5))
        await until(lambda: written.exists() and written.read_text())
        child = int(written.read_text())
        assert psutil.pid_exists(child)
        assert (await call).code == "timeout"
        await gone(child)


async def test_a_cancelled_call_kills_its_worker(pools):
    async with pools("grader_samples:misbehave", size=1) as pool:
        pid = (await pool.grade({}, timeout=LONG))["pid"]
        call = asyncio.create_task(pool.grade({"do": "sleep"}, timeout=600))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await gone(pid)
        assert (await pool.grade({}, timeout=LONG))["pid"] != pid


async def test_a_call_cancelled_in_the_queue_or_at_the_start_costs_nobody_else_anything(pools):
    async with pools("grader_samples:echo", size=1) as pool:
        starting = asyncio.create_task(pool.grade({"n": 0}, timeout=LONG))
        queued = [asyncio.create_task(pool.grade({"n": n}, timeout=LONG)) for n in (1, 2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        starting.cancel()
        queued[0].cancel()
        assert (await queued[1])["echo"] == {"n": 2}
        assert starting.cancelled()
        assert queued[0].cancelled()
        assert len(workers()) == 1


async def test_a_worker_killed_from_outside_is_replaced(pools):
    async with pools("grader_samples:echo", size=1) as pool:
        pid = (await pool.grade({}, timeout=LONG))["pid"]
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        assert (await fault(pool, {})).code == "crashed"
        assert (await pool.grade({}, timeout=LONG))["pid"] != pid


async def test_workers_are_recycled(pools):
    async with pools("grader_samples:echo", size=1, recycle_after=2) as pool:
        verdicts = [await pool.grade({}, timeout=LONG) for _ in range(5)]
    assert [verdict["calls"] for verdict in verdicts] == [1, 2, 1, 2, 1]


async def test_the_queue_is_bounded(pools):
    async with pools("grader_samples:misbehave", size=1, max_waiting=1) as pool:
        running = asyncio.create_task(pool.grade({"do": "sleep"}, timeout=600))
        waiting = asyncio.create_task(pool.grade({}, timeout=LONG))
        await asyncio.sleep(0.05)
        assert (await fault(pool, {})).code == "overloaded"
        running.cancel()
        assert "pid" in await waiting


async def test_close_ends_what_runs_and_what_waits(pools):
    pool = pools("grader_samples:misbehave", size=1)
    await pool.grade({}, timeout=LONG)
    calls = [asyncio.create_task(fault(pool, {"do": "sleep"}, timeout=600)) for _ in range(3)]
    await asyncio.sleep(0.1)
    await pool.close()
    assert [error.code for error in await asyncio.gather(*calls)] == ["closed"] * 3
    assert (await fault(pool, {})).code == "closed"
    assert workers() == []
    await pool.close()


async def test_close_while_a_worker_starts(pools):
    pool = pools("grader_samples:echo", size=2)
    calls = [asyncio.create_task(fault(pool, {})) for _ in range(2)]
    await until(workers)
    await pool.close()
    assert {error.code for error in await asyncio.gather(*calls)} == {"closed"}
    assert workers() == []


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        ("no_such_module:grade", "ModuleNotFoundError"),
        ("grader_samples:no_such_function", "AttributeError"),
        ("grader_samples:CALLS", "not callable"),
        ("grader_that_exits:grade", "SystemExit: 7"),
    ],
)
async def test_a_grader_that_cannot_be_imported_says_why_every_time(pools, worker, says):
    async with pools(worker, size=1) as pool:
        for _ in range(2):
            error = await fault(pool, {})
            assert error.code == "start"
            assert says in str(error)
    assert workers() == []


async def test_an_import_that_hangs_ends(pools):
    async with pools("grader_samples:echo", size=1, preload=["no_such_module"]) as pool:
        assert "no_such_module" in str(await fault(pool, {}))
    async with pools("grader_samples:echo", size=1, start_timeout=0.001) as pool:
        assert (await fault(pool, {})).code == "start"
    assert workers() == []


async def test_the_servers_secrets_and_working_folder_stay_out(pools, monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the working folder')")
    async with pools("grader_samples:environment", size=1) as pool:
        found = await pool.grade({}, timeout=LONG)
    assert "SOME_API_KEY" not in found["names"]
    assert "" not in found["path"]
    assert str(tmp_path) not in found["path"]


async def test_a_worker_dies_with_a_killed_server(tmp_path):
    """The server is killed while its grader is in a C loop that hears no signal handler and reads no socket."""
    script = tmp_path / "server.py"
    script.write_text(
        "import asyncio\n"
        "from prorl.grading import GraderPool\n"
        "async def main():\n"
        "    pool = GraderPool('grader_samples:misbehave', size=1)\n"
        "    print((await pool.grade({}, timeout=60))['pid'], flush=True)\n"
        "    await pool.grade({'do': 'spin_in_c'}, timeout=600)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    server = await asyncio.create_subprocess_exec(
        os.sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env=environment
    )
    pid = int(await server.stdout.readline())
    assert psutil.pid_exists(pid)
    server.kill()
    await server.wait()
    await gone(pid)


@pytest.mark.parametrize("options", [{"size": 0}, {"recycle_after": 0}])
async def test_sizes_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="at least 1"):
        GraderPool("grader_samples:echo", **options)
