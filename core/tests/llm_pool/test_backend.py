"""One backend: its tokenizer, and what waiting costs."""

from __future__ import annotations

import asyncio

import pytest

from prorl.api import ModelFault
from prorl.testing.bytebpe import build_tokenizer, write_tokenizer
from prorl.wire import BackendSpec, SamplingParams

PROMPT = [72, 73, 74]


async def test_the_tokenizer_of_a_folder_and_the_engines_own_agree(pool, engine, clock, tmp_path):
    write_tokenizer(tmp_path)
    one, other = engine(), engine()
    await pool.add(BackendSpec(url=one.url, tokenizer=str(tmp_path)))
    await pool.add(BackendSpec(url=other.url))
    text = "<|im_start|>user\n2 + 2?<|im_end|>\n"
    local, remote = [await pool._backends[url].tokenizer() for url in (one.url, other.url)]
    expected = build_tokenizer().encode(text, add_special_tokens=False).ids
    assert await local.encode(text, special=True) == await remote.encode(text, special=True) == expected
    assert await local.decode(expected) == await remote.decode(expected) == text
    assert local is await pool._backends[one.url].tokenizer()  # loaded once


async def test_a_tokenizer_that_failed_to_load_is_tried_again(pool, engine, clock):
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    backend = pool._backends[one.url]
    await asyncio.to_thread(one.stop)
    with pytest.raises(ModelFault):
        await backend.tokenizer()
    await asyncio.to_thread(one.start)
    assert await (await backend.tokenizer()).encode("hi", special=True)


async def test_one_who_stops_waiting_for_a_tokenizer_does_not_stop_the_others(pool, engine, clock):
    one = engine()
    await pool.add(BackendSpec(url=one.url))
    backend = pool._backends[one.url]
    first, second = asyncio.create_task(backend.tokenizer()), asyncio.create_task(backend.tokenizer())
    await asyncio.sleep(0)
    first.cancel()
    assert await second is await backend.tokenizer()


async def test_a_pool_left_paused_does_not_hold_a_call_for_ever(make_pool, engine, clock):
    pool = make_pool(pause_s=0.05)
    await pool.add(BackendSpec(url=engine().url))
    pool.pause()
    with pytest.raises(ModelFault, match="resume it") as caught:
        await pool.lease("job", wait_s=0, hold=clock.hold).ready()
    assert caught.value.code == "paused"
    pool.resume()
    assert await pool.lease("job", wait_s=0, hold=clock.hold).ready()


async def test_a_plugins_own_error_is_a_model_fault(pool, engine, clock, monkeypatch):
    one = engine()
    await pool.add(BackendSpec(url=one.url))

    async def broken(*args, **kwargs):
        raise KeyError("a bug in a dialect")

    monkeypatch.setattr(pool._backends[one.url].dialect, "generate", broken)
    with pytest.raises(ModelFault, match="KeyError"):
        await pool.lease("job", wait_s=0, hold=clock.hold).generate(PROMPT, SamplingParams())


async def test_two_versions_in_one_reply(pool, engine, clock, eventually):
    one = engine(lambda _: "a long enough reply")
    await pool.add(BackendSpec(url=one.url))
    one.hold()
    call = asyncio.create_task(pool.lease("job", wait_s=0, hold=clock.hold).generate(PROMPT, SamplingParams()))
    await eventually(lambda: one.in_flight == 1)
    one.weight_version = "step-2"
    one.let_go()
    reply = await call
    assert [span.version for span in reply.generation.weight_spans] == ["", "step-2"]
    assert reply.policy_version == "0"


async def test_a_conversation_is_counted_by_its_stream(pool, engine, clock):
    one = engine(lambda request: f"reply {request.call}")
    await pool.add(BackendSpec(url=one.url))
    lease = pool.lease("job", wait_s=0, hold=clock.hold)
    ids = list(PROMPT)
    for turn in range(3):
        reply = (await lease.generate(ids, SamplingParams())).generation
        ids += [*reply.token_ids, 198]
        assert one.requests[-1].call == turn
    await lease.generate([1, 2, 3, 4], SamplingParams())
    assert one.requests[-1].call == 0
