"""What is checked of every reply, one promise at a time; whole engines that break them: test_faulty_peers.py."""

from __future__ import annotations

import asyncio
import math

import pytest

from prorl.api import ContextOverflow, EngineInfo, Generation, ModelFault
from prorl.llm.pool.checks import check_reply, fit_context
from prorl.testing.faulty import FaultyEngine
from prorl.wire import BackendSpec, SamplingParams, VersionSpan

PROMPT = [72, 73, 74]
SAMPLING = SamplingParams(max_tokens=64)
INFO = EngineInfo(dialect="test", model="m", max_context=100, vocab_size=300)


async def test_a_hanging_engine_is_left_to_the_caller_and_stopped_with_it(pool, engine, clock, eventually):
    one = engine(kind=FaultyEngine)
    await pool.add(BackendSpec(url=one.url))
    one.fault = "hang"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await pool.lease("job", wait_s=0, hold=clock.hold).generate(PROMPT, SAMPLING)
    await eventually(lambda: one.aborted == 1 and one.in_flight == 0)
    assert pool.status().backends[0].in_flight == 0


async def test_overflow_is_foreseen_and_nothing_is_sent(pool, engine, clock):
    one = engine(lambda _: "word " * 100, max_context=50)
    await pool.add(BackendSpec(url=one.url))
    lease = pool.lease("job", wait_s=0, hold=clock.hold)
    cut = await lease.generate([72] * 40, SamplingParams(max_tokens=1000))
    assert (len(cut.generation.token_ids), cut.generation.finish) == (10, "length")
    assert one.requests[0].sampling["max_tokens"] == 10
    for length in (50, 51, 5000):
        with pytest.raises(ContextOverflow, match=f"{length} tokens; the context of scripted holds 50") as caught:
            await lease.generate([72] * length, SAMPLING)
        assert not caught.value.masks
    assert len(one.requests) == 1


async def test_a_registered_limit_below_the_engines(pool, engine, clock):
    await pool.add(BackendSpec(url=engine().url, max_context=20))
    lease = pool.lease("job", wait_s=0, hold=clock.hold)
    assert (await lease.ready()).info.max_context == 20
    with pytest.raises(ContextOverflow):
        await lease.generate([72] * 20, SAMPLING)


def reply(**changes: object) -> Generation:
    plain = {"token_ids": [1, 2, 3], "logprobs": [-0.5, 0.0, -2.0], "finish": "stop"}
    return Generation(**{**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"logprobs": [math.nan, 0.0, 0.0]}, "bad_logprob"),
        ({"logprobs": [-math.inf, 0.0, 0.0]}, "missing_logprobs"),
        ({"logprobs": [math.inf, 0.0, 0.0]}, "bad_logprob"),
        ({"logprobs": [0.001, 0.0, 0.0]}, "bad_logprob"),
        ({"token_ids": [1, 2, 300]}, "bad_token"),
        ({"weight_spans": [VersionSpan("a", 3), VersionSpan("b", 0)]}, "version_gap"),
        ({"weight_spans": [VersionSpan("a", 4), VersionSpan("b", -1)]}, "version_gap"),
        ({"weight_spans": []}, "version_gap"),
        ({"prompt_echo": []}, "prompt_mismatch"),
        ({"prompt_echo": [*PROMPT, 1]}, "prompt_mismatch"),
        ({"token_ids": [], "logprobs": []}, "empty_reply"),
    ],
)
def test_one_promise_at_a_time(changes, code):
    assert check_reply(reply(), PROMPT, SAMPLING, INFO, url="u") == reply()
    with pytest.raises(ModelFault) as caught:
        check_reply(reply(**changes), PROMPT, SAMPLING, INFO, url="u")
    assert caught.value.code == code


def test_rounding_above_zero_is_set_to_zero():
    checked = check_reply(reply(logprobs=[1e-6, -0.5, 0.0]), PROMPT, SAMPLING, INFO, url="u")
    assert checked.logprobs == [0.0, -0.5, 0.0]


def test_an_aborted_reply_may_be_empty():
    aborted = reply(token_ids=[], logprobs=[], finish="abort")
    assert check_reply(aborted, PROMPT, SAMPLING, INFO, url="u") is aborted


def test_room_in_the_context():
    assert fit_context([1] * 36, SAMPLING, INFO) is SAMPLING
    assert fit_context([1] * 37, SAMPLING, INFO).max_tokens == 63
    assert fit_context([1] * 99, SAMPLING, INFO).max_tokens == 1
