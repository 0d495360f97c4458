"""What an engine sends is bounded, and what a trainer registers is tried at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

import httpx
import msgspec
import pytest

from prorl.api import ConfigError, ModelFault
from prorl.llm.dialects import http
from prorl.llm.plugin import prorl_llm_dialects
from prorl.llm.pool import BackendPool
from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.faulty import FaultyEngine
from prorl.testing.httpd import HttpServer, Request, Response
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import BackendSpec, SamplingParams


class Flood(HttpServer):
    async def handle(self, request: Request) -> Response:
        return Response(body=b'"' + b"a" * 4_000_000 + b'"')


async def test_an_answer_that_is_too_large_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LARGEST_ANSWER", 1_000_000)
    with Flood() as flood:
        async with httpx.AsyncClient() as client:
            with pytest.raises(ModelFault, match="answered more than") as raised:
                await http.Endpoint(client, flood.url, msgspec.Raw).get()
    assert raised.value.code == "bad_response"


async def test_a_tokenizer_that_cannot_be_loaded_is_refused_when_it_is_registered(tmp_path: Path) -> None:
    pool = BackendPool({record.name: record for record in prorl_llm_dialects()})
    with ScriptedEngine(lambda _: "") as engine:
        with pytest.raises(ConfigError, match=r"no readable tokenizer\.json"):
            await pool.add(BackendSpec(url=engine.url, tokenizer=str(tmp_path)))
        assert pool.status().backends == []
        write_tokenizer(tmp_path)
        await pool.add(BackendSpec(url=engine.url, tokenizer=str(tmp_path)))
        assert len(pool.status().backends) == 1
        await pool.close()


async def test_closing_the_pool_waits_for_servers_that_are_just_being_closed() -> None:
    pool = BackendPool({record.name: record for record in prorl_llm_dialects()})
    with ScriptedEngine(lambda _: "hello") as engine:
        await pool.add(BackendSpec(url=engine.url))
        lease = pool.lease("job", wait_s=0, hold=nullcontext)
        backend = await lease.ready()
        await asyncio.gather(*(backend.tokenizer() for _ in range(4)))
        await pool.clear()  # idle: its connections begin to close, in the background
        assert not backend.closed
        await pool.close()
        assert backend.closed


async def test_closing_leaves_no_connection_of_an_abort_that_the_engine_does_not_take() -> None:
    pool = BackendPool({record.name: record for record in prorl_llm_dialects()})
    with FaultyEngine(lambda _: "hello") as engine:
        await pool.add(BackendSpec(url=engine.url))
        lease = pool.lease("job", wait_s=0, hold=nullcontext)
        backend = await lease.ready()
        aborting = asyncio.Event()

        async def abort(request_id: str) -> None:
            aborting.set()
            await asyncio.sleep(3600)

        backend.dialect.abort = abort
        engine.fault = "hang"
        call = asyncio.create_task(lease.generate([72, 73], SamplingParams(max_tokens=4)))
        async with asyncio.timeout(30):
            while not backend.in_flight:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            call.cancel()
            await aborting.wait()
            await pool.close()
        assert not backend._aborts
        assert backend.closed


async def test_a_server_that_takes_no_aborts_says_so_once(caplog: pytest.LogCaptureFixture, eventually) -> None:
    """One that went away in the middle of a hundred calls would, for each of them."""
    pool = BackendPool({record.name: record for record in prorl_llm_dialects()})
    with FaultyEngine(lambda _: "hello") as engine:
        await pool.add(BackendSpec(url=engine.url))
        lease = pool.lease("job", wait_s=0, hold=nullcontext)
        backend = await lease.ready()
        engine.fault = "hang"
        takes: Callable[[str], Awaitable[None]] = backend.dialect.abort

        async def refuses(request_id: str) -> None:
            raise ModelFault("not here", code="unreachable")

        for abort in (refuses, refuses, takes, refuses):
            backend.dialect.abort = abort
            call = asyncio.create_task(lease.generate([72, 73], SamplingParams(max_tokens=4)))
            await eventually(lambda: backend.in_flight == 1 and engine.in_flight == 1)
            call.cancel()
            await asyncio.wait({call})
            await eventually(lambda: not backend._aborts and engine.in_flight == 0)
        await pool.close()
    said = [record.levelname for record in caplog.records if "did not take the abort" in record.getMessage()]
    assert said.count("WARNING") == 2
