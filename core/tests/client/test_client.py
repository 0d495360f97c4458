"""Whatever breaks between client and server: the same job id again, and one result."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec
import pytest

from prorl.client import (
    DEFAULT_URL,
    BadAddress,
    BlockingClient,
    NotARolloutServer,
    RolloutClient,
    ServerUnreachable,
    ServiceError,
)
from prorl.wire import BackendSpec, CancelReply, JobEvent, JobRequest, JobView, PluginReport, Problem, RolloutResult

REQUEST = JobRequest(instance={"q": 1}, domain="d")
HEALTHY = {"status": "ok", "version": "1"}
DONE = RolloutResult(job_id="j", status="completed", stage="eval", handler="h", reward=0.5)


async def test_process_makes_a_job_id_of_its_own(peer, client, ways):
    peer.on("/process", ways.result)
    first, second = await client.process(REQUEST), await client.process(REQUEST)
    assert first.reward == 1.0
    assert first.job_id != second.job_id
    assert [body.job_id for body in peer.bodies("/process")] == [first.job_id, second.job_id]
    assert (await client.process(msgspec.structs.replace(REQUEST, job_id="mine"))).job_id == "mine"


async def test_a_dropped_connection_is_resent_under_the_same_id(peer, client, ways):
    peer.on("/process", ways.drops, ways.drops, ways.result)
    result = await client.process(REQUEST)
    assert [body.job_id for body in peer.bodies("/process")] == [result.job_id] * 3


async def test_a_server_that_restarts_gets_the_job_again(peer, client, ways):
    peer.on("/process", ways.freezes)
    peer.on("/health", ways.replies(HEALTHY))
    call = asyncio.create_task(client.process(REQUEST))
    await peer.received("/process", 1)
    await peer.kill()
    await asyncio.sleep(0.3)
    peer.on("/process", ways.result)
    await peer.start()
    result = await call
    assert {body.job_id for body in peer.bodies("/process")} == {result.job_id}


async def test_a_silent_connection_is_renewed_while_the_server_lives(peer, watchful, ways):
    peer.on("/process", ways.freezes, ways.freezes, ways.result)
    peer.on("/health", ways.replies(HEALTHY))
    result = await watchful.process(REQUEST)
    asked = [body.job_id for body in peer.bodies("/process")]
    assert len(asked) >= 3
    assert set(asked) == {result.job_id}
    assert "/health" in [call.path for call in peer.calls]


async def test_hanging_up_would_cancel_such_a_job_so_it_is_not_done(peer, watchful, ways):
    async def slow(peer_, call):
        await asyncio.sleep(1.0)  # more than three heartbeats
        await ways.result(peer_, call)

    peer.on("/process", slow)
    await watchful.process(msgspec.structs.replace(REQUEST, cancel_on_disconnect=True))
    assert len(peer.calls) == 1


async def test_a_frozen_server_is_given_up(peer, ways):
    peer.on("/process", ways.freezes)
    peer.on("/health", ways.freezes)
    async with RolloutClient(peer.url, timeout_s=0.2, heartbeat_s=0.1, give_up_s=0.5) as client:
        with pytest.raises(ServerUnreachable, match="is it running"):
            await client.process(REQUEST)


async def test_nobody_there():
    async with RolloutClient("http://127.0.0.1:1", give_up_s=0.3) as client:
        with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:1 .*is it running"):
            await client.process(REQUEST)
        with pytest.raises(ServerUnreachable):
            await client.submit(REQUEST)


async def test_problem_details_become_service_error(peer, client, ways):
    problem = Problem(title="Unknown domain", status=404, detail="known: math", kind="urn:x", extra={"known": ["math"]})
    peer.on("/process", ways.replies(problem, status=404, content_type="application/problem+json"))
    with pytest.raises(ServiceError, match=r"Unknown domain \(404\): known: math") as caught:
        await client.process(REQUEST)
    assert caught.value.problem == problem
    assert len(peer.calls) == 1


async def test_an_error_that_is_no_problem_document(peer, client, ways):
    peer.on("/status", ways.replies(b"<html>502 Bad\n Gateway</html>", status=502))
    with pytest.raises(ServiceError, match="502 Bad Gateway") as caught:
        await client.status()
    assert caught.value.status == 502


@pytest.mark.parametrize("body", [b"not json", b'{"job_id": 5}', b"\xff"])
async def test_an_answer_that_cannot_be_read(peer, client, ways, body):
    peer.on("/process", ways.replies(body))
    with pytest.raises(ServiceError, match="cannot be read"):
        await client.process(REQUEST)


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b"<html><style>p {}</style><p>Unsupported  method</p></html>", 501, "text/html", "501: Unsupported method"),
        (b'{"detail":"Not Found"}', 404, "application/json", "Not Found"),
        (b"<html>welcome</html>", 200, "text/html", "it sent text/html"),
    ],
)
async def test_something_else_than_a_rollout_server(peer, client, ways, body, status, kind, words):
    peer.on("/process", ways.replies(body, status=status, content_type=kind))
    with pytest.raises(NotARolloutServer, match=words) as caught:
        await client.process(REQUEST)
    assert "<" not in str(caught.value)
    assert len(peer.calls) == 1


@pytest.mark.parametrize(
    ("url", "example"),
    [
        ("localhost:8089", "http://localhost:8089"),
        ("http://127.0.0.1:99999", "http://127.0.0.1:8089"),
        ("ftp://there:80", "http://there:80"),
        ("there", "http://there:8089"),
        ("", "http://localhost:8089"),
        ("http://", "http://localhost:8089"),
    ],
)
def test_an_address_that_is_none(url, example):
    with pytest.raises(BadAddress, match=f"write {example}$"):
        RolloutClient(url)


async def test_waiting_for_a_server_is_logged_once_and_so_is_its_end(peer, client, ways, caplog):
    peer.on("/process", *[ways.drops] * 6, ways.result)
    await asyncio.gather(*(client.process(REQUEST) for _ in range(3)))
    said = [record.getMessage() for record in caplog.records if record.name == "prorl.client"]
    assert [line.startswith(f"no answer from {peer.url} (") for line in said] == [True, False]
    assert said[-1] == f"{peer.url} answers again"


async def test_fields_that_a_newer_server_adds_are_ignored(peer, client, ways):
    peer.on("/process", ways.replies(msgspec.to_builtins(DONE) | {"from_the_future": 1}))
    assert (await client.process(REQUEST)).reward == 0.5


async def test_later_is_tried_later_and_no_is_no(peer, client, ways):
    busy = Problem(title="Busy", status=503, detail="draining")
    peer.on("/process", ways.replies(busy, status=503, retry_after="0"), ways.result)
    assert (await client.process(REQUEST)).status == "completed"
    peer.on("/process", ways.replies(busy, status=503))
    with pytest.raises(ServiceError):
        await client.process(REQUEST)


async def test_later_has_an_end_too(peer, ways):
    busy = Problem(title="Busy", status=503, detail="draining")
    peer.on("/process", ways.replies(busy, status=503, retry_after="0"))
    async with RolloutClient(peer.url, give_up_s=0.3) as client:
        with pytest.raises(ServiceError, match="draining"):
            await client.process(REQUEST)
    assert len(peer.calls) > 1


async def test_concurrency_is_bounded_in_front_of_http(peer, client, ways):
    async def slow(peer_, call):
        await asyncio.sleep(0.05)
        await ways.result(peer_, call)

    peer.on("/process", slow)
    results = await asyncio.gather(*(client.process(REQUEST) for _ in range(20)))
    assert len({result.job_id for result in results}) == 20
    assert peer.most_at_once == 4


async def test_connections_are_used_again(peer, client, ways):
    peer.on("/process", ways.result)
    for _ in range(5):
        await asyncio.gather(*(client.process(REQUEST) for _ in range(8)))
    assert peer.connections <= 4


async def test_a_cancelled_call_leaves_its_place_to_the_next(peer, client, ways):
    peer.on("/process", *[ways.freezes] * 8, ways.result)
    peer.on("/health", ways.replies(HEALTHY))
    for batch in (1, 2):
        calls = [asyncio.create_task(client.process(REQUEST)) for _ in range(4)]
        await peer.received("/process", 4 * batch)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert (await client.process(REQUEST)).status == "completed"


async def test_short_calls_do_not_queue_behind_rollouts(peer, client, ways):
    peer.on("/process", ways.freezes)
    peer.on("/health", ways.replies(HEALTHY))
    calls = [asyncio.create_task(client.process(REQUEST)) for _ in range(8)]
    await peer.received("/process", 4)
    assert (await client.health()).status == "ok"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_submit_and_wait(peer, client, ways):
    peer.on("/jobs", ways.drops, ways.accepted)
    view = await client.submit(msgspec.structs.replace(REQUEST, job_id="j"))
    assert [body.job_id for body in peer.bodies("/jobs")] == ["j", "j"]
    running = JobView(job_id="j", state="running", handler="h")
    ended = JobView(job_id="j", state="completed", handler="h", result=DONE)
    peer.on("/jobs/j", ways.replies(running), ways.drops, ways.replies(ended))
    assert await client.wait(view.job_id) == DONE


async def test_wait_submits_again_what_a_restart_has_lost(peer, client, ways):
    unknown = ways.replies(Problem(title="No such job", status=404, detail="j"), status=404)
    ended = ways.replies(JobView(job_id="j", state="completed", handler="h", result=DONE))
    peer.on("/jobs", ways.accepted)
    peer.on("/jobs/j", unknown, ended)
    await client.submit(msgspec.structs.replace(REQUEST, job_id="j"))
    assert await client.wait("j") == DONE
    assert [body.job_id for body in peer.bodies("/jobs")] == ["j", "j"]
    peer.on("/jobs/stranger", unknown)
    with pytest.raises(ServiceError):
        await client.wait("stranger")


async def test_wait_has_its_own_limit(peer, client, ways):
    peer.on("/jobs/j", ways.replies(JobView(job_id="j", state="running", handler="h")))
    with pytest.raises(TimeoutError):
        await client.wait("j", timeout_s=0.2)


def stream(*events: JobEvent, ends: bool):
    async def answer(_, call):
        call.writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events:
            chunk = b": keep-alive\n\nid: %d\nevent: x\ndata: %s\n\n" % (event.seq, msgspec.json.encode(event))
            for half in (chunk[:25], chunk[25:]):
                call.writer.write(b"%x\r\n%s\r\n" % (len(half), half))
                await call.writer.drain()
        if not ends:
            await asyncio.sleep(0.05)
            call.drop()
            return
        call.writer.write(b"0\r\n\r\n")
        await call.writer.drain()

    return answer


async def test_events_go_on_where_they_broke_off(peer, client):
    events = [JobEvent(job_id="j", seq=seq, kind=f"k.{seq}", at_s=0.0, data={"text": "a\nb"}) for seq in (1, 2, 3)]
    peer.on("/jobs/j/events", stream(*events[:2], ends=False), stream(*events[1:], ends=True))
    assert [event async for event in client.events("j")] == events
    assert [call.headers["last-event-id"] for call in peer.calls] == ["0", "2"]


async def test_events_of_an_unknown_job(peer, client, ways):
    peer.on("/jobs/j/events", ways.replies(Problem(title="No such job", status=404, detail="j"), status=404))
    with pytest.raises(ServiceError, match="No such job"):
        _ = [event async for event in client.events("j")]


async def test_clearing_the_pool_is_never_repeated_on_its_own(peer, client, ways):
    """Twice would begin two policy versions."""
    peer.on("/clear_llm_server", ways.drops)
    with pytest.raises(ServerUnreachable):
        await client.clear_llm_server()
    assert len(peer.calls) == 1


async def test_admin_calls_send_what_they_say(peer, client, ways):
    backend = {
        "url": "http://e",
        "dialect": "vllm",
        "model": "m",
        "policy_version": "1",
        "healthy": True,
        "assigned": 0,
        "in_flight": 0,
        "calls": 0,
        "failures": 0,
    }
    peer.on("/add_llm_server", ways.replies(backend))
    assert (await client.add_llm_server("http://e")).dialect == "vllm"
    await client.add_llm_server(BackendSpec(url="http://e", policy_version="7"))
    sent = [msgspec.json.decode(call.body, type=BackendSpec) for call in peer.calls]
    assert [spec.policy_version for spec in sent] == [None, "7"]
    report = PluginReport(name="p", distribution="d", version="1", state="active")
    peer.on("/plugins", ways.replies([report]))
    assert await client.plugins() == [report]
    peer.on("/cancel", ways.replies({"cancelled": ["a"]}))
    assert await client.cancel("a") == CancelReply(cancelled=["a"])


async def test_the_environments_proxy_is_not_used(peer, ways, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    peer.on("/health", ways.replies(HEALTHY))
    async with RolloutClient(peer.url) as client:
        assert (await client.health()).version == "1"


async def test_the_blocking_face(peer, ways):
    peer.on("/process", ways.drops, ways.result)

    def use() -> float:
        with BlockingClient(peer.url, give_up_s=10) as server:
            return server.process(REQUEST).reward

    assert await asyncio.to_thread(use) == 1.0


def test_a_trainer_gets_no_server_code():
    heavy = ["litestar", "uvicorn", "tokenizers", "jinja2", "psutil", "pluggy", "prorl.api", "prorl.server"]
    code = f"import sys, prorl.client; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_default_url_is_where_a_server_listens_by_default():
    settings = pytest.importorskip("prorl.server.settings").ServerSettings()
    assert f"http://{settings.host}:{settings.port}" == DEFAULT_URL
