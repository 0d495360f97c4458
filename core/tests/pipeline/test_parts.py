"""The pipeline's parts: queue, stage pool, event log, store, watchdog, verdict."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl.api import HandlerRecord
from prorl.pipeline.errors import HandlerBroken, NotAccepting
from prorl.pipeline.events import DATA_LIMIT, EventLog, encode_data
from prorl.pipeline.queue import JobQueue
from prorl.pipeline.settings import PipelineSettings
from prorl.pipeline.stage import StagePool
from prorl.wire import JobRequest

# --- queue


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=300))
def test_the_queue_is_a_stable_sort_without_what_was_removed(asked):
    queue: JobQueue[int] = JobQueue()
    tickets = [queue.push(number, priority=priority) for number, (priority, _) in enumerate(asked)]
    for ticket, (_, removed) in zip(tickets, asked, strict=True):
        if removed:
            assert queue.remove(ticket)
            assert not queue.remove(ticket)
    expected = [
        number for number, (priority, removed) in sorted(enumerate(asked), key=lambda each: -each[1][0]) if not removed
    ]
    assert len(queue) == len(expected)
    assert [queue.pop() for _ in expected] == expected
    assert queue.pop() is None


def test_a_stage_holds_back_while_the_next_is_full():
    begun: list[tuple[str, int]] = []
    second = StagePool[int]("run", workers=1, begin=lambda *each: begun.append(each))
    first = StagePool[int]("init", workers=2, begin=lambda *each: begun.append(each), following=second, ahead=1)
    for number in range(4):
        first.put(number, priority=0)
    assert begun == [("init", 0), ("init", 1)]
    second.put(0, priority=0)
    waiting = second.put(1, priority=0)
    first.release()
    first.release()
    assert begun == [("init", 0), ("init", 1), ("run", 0)]  # one waits for run: init takes no more
    assert second.remove(waiting)
    assert begun[3:] == [("init", 2), ("init", 3)]


# --- events


async def test_a_slow_watcher_sees_a_gap_and_never_blocks_the_job():
    log = EventLog(keep=3)
    seen = []

    async def watch():
        async for event in log.watch("j"):
            seen.append(event.seq)
            await asyncio.sleep(0)

    log.add("first", {})
    watching = asyncio.create_task(watch())
    while seen != [1]:  # noqa: ASYNC110 - one turn of the loop at a time
        await asyncio.sleep(0)
    for number in range(50):
        log.add("tick", {"n": number})
    log.close()
    await asyncio.wait_for(watching, 30)
    assert seen == [1, 49, 50, 51]
    assert [event.seq async for event in log.watch("j", after=50)] == [51]
    log.add("late", {})
    assert [event.seq async for event in log.watch("j", after=51)] == []


def test_event_data_is_json_of_our_own_and_bounded():
    kept = {"a": [1]}
    copied = encode_data(kept)
    kept["a"].append(2)
    assert copied == {"a": [1]}
    assert "dropped" in encode_data({"a": object()})
    assert "dropped" in encode_data({"a": "x" * DATA_LIMIT})


# --- store


async def test_finished_jobs_are_bounded_by_count(house):
    async with house(settings=PipelineSettings(keep_results=3)) as h:
        for number in range(5):
            await h.run(job_id=f"j{number}")
        assert [view.job_id for view in h.pipeline.jobs()] == ["j4", "j3", "j2"]


async def test_finished_jobs_are_bounded_by_age(house):
    async with house(settings=PipelineSettings(keep_results_s=0.05)) as h:
        await h.run(job_id="old")
        await asyncio.sleep(0.1)
        assert h.pipeline.jobs() == [] or h.pipeline.cancel(job_ids=["old"]).unknown == ["old"]


async def test_finished_jobs_are_bounded_by_size(house):
    class Big(house.Echo):
        async def eval(self, job):
            return {"reward": 1.0, "artifacts": {"x": "y" * 600_000}}

    async with house(Big, settings=PipelineSettings(keep_results_mb=1)) as h:
        for number in range(3):
            await h.run("big", job_id=f"j{number}")
        assert [view.job_id for view in h.pipeline.jobs()] == ["j2"]


# --- priority, many, bounds


async def test_higher_priority_is_served_first(house):
    order, gate = [], asyncio.Event()

    class Ordered(house.Echo):
        async def init(self, job):
            order.append(job.id)
            await gate.wait()
            return None, {}, {}

    async with house(Ordered, settings=PipelineSettings(init_workers=1)) as h:
        handles = [
            h.pipeline.submit(JobRequest(domain="ordered", instance={}, job_id=name, priority=priority))
            for name, priority in (("first", 0), ("low", -1), ("plain", 0), ("high", 5))
        ]
        gate.set()
        for handle in handles:
            await handle.result()
    assert order == ["first", "high", "plain", "low"]


async def test_two_hundred_at_once_and_one_failing_kind_disturbs_none(house):
    class Mixed(house.Echo):
        async def run(self, job):
            await asyncio.sleep(0)
            if job.instance["n"] % 5 == 0:
                raise RuntimeError("unlucky")
            return {"n": job.instance["n"]}

        async def eval(self, job):
            return {"reward": float(job.run_output["n"])}

    small = PipelineSettings(init_workers=3, run_workers=5, eval_workers=2, ahead=2)
    async with house(Mixed, settings=small) as h:
        results = await asyncio.gather(*(h.run("mixed", instance={"n": n}) for n in range(200)))
        assert [r.reward for r in results] == [0.0 if n % 5 == 0 else float(n) for n in range(200)]
        assert [r.status for r in results] == ["failed" if n % 5 == 0 else "completed" for n in range(200)]
        status = h.pipeline.status()
        assert (status.jobs["completed"], status.jobs["failed"], status.jobs["running"]) == (160, 40, 0)
        assert all(stage.busy == stage.queued == 0 for stage in status.stages.values())


# --- watchdog


async def test_a_handler_that_blocks_the_loop_is_named_once_per_stall(house, caplog, until):
    class Blocks(house.Echo):
        async def run(self, job):
            time.sleep(1.0)  # noqa: ASYNC251 - what a careless handler does
            return {}

    async with house(Blocks, settings=PipelineSettings(stall_s=0.1)) as h:
        await h.run("blocks")
        await until(lambda: "blocks" in h.pipeline.status().loop_stalls)
    (record,) = [record for record in caplog.records if "handler blocks blocks the event loop" in record.message]
    assert "time.sleep(1.0)" in record.message


async def test_a_task_that_the_handler_started_is_found_by_its_module(house, until):
    class Spawns(house.Echo):
        async def run(self, job):
            async def child():
                time.sleep(1.0)  # noqa: ASYNC251 - what a careless handler does

            await asyncio.gather(child())
            return {}

    async with house(Spawns, settings=PipelineSettings(stall_s=0.1)) as h:
        h.pipeline._watchdog._modules = {__name__: "spawns"}  # this module holds several handlers
        await h.run("spawns")
        await until(lambda: "spawns" in h.pipeline.status().loop_stalls)


# --- handlers that cannot be made


async def test_a_factory_that_fails_breaks_only_its_own_handler(house):
    def bad():
        raise SystemExit("no model file")

    records = (
        HandlerRecord(name="bad", factory=bad, summary="s"),
        HandlerRecord(name="odd", factory=object, summary="s"),
    )
    async with house(records=records) as h:
        assert (await h.run()).status == "completed"
        with pytest.raises(HandlerBroken, match="no model file"):
            await h.run("bad")
        with pytest.raises(HandlerBroken, match="not an AgentHandler"):
            await h.run("odd")


async def test_the_limit_of_accepted_jobs(house):
    class Waits(house.Echo):
        async def run(self, job):
            await asyncio.Event().wait()

    async with house(Waits, settings=PipelineSettings(max_jobs=2)) as h:
        for _ in range(2):
            h.pipeline.submit(JobRequest(domain="waits", instance={}))
        with pytest.raises(NotAccepting, match="limit") as refused:
            h.pipeline.submit(JobRequest(domain="waits", instance={}))
        assert refused.value.retry_s
