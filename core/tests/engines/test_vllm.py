"""The vLLM dialect against a real vLLM on the CPU: one start for all of it.

Needs an interpreter that has vLLM, named by ``PRORL_VLLM_PYTHON`` (or the one that runs the tests).
"""

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext
from pathlib import Path

import pytest

from prorl.api import ContextOverflow, GenerationRequest, ModelFault
from prorl.llm.dialects.vllm import Vllm
from prorl.llm.pool.checks import check_reply
from prorl.testing.bytebpe import CHATML_TEMPLATE, build_tokenizer
from prorl.wire import BackendSpec, SamplingParams

pytestmark = pytest.mark.timeout(900)
TOKENIZER = build_tokenizer()
CONTEXT = 4096  # as in conftest
EOS = TOKENIZER.token_to_id("<|im_end|>")
TEXT = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = TOKENIZER.encode(TEXT, add_special_tokens=False).ids
LONG = SamplingParams(temperature=0.0, max_tokens=3900)  # this model's likeliest words go on without an end


@pytest.fixture(params=["generate", "completions"])
async def dialect(vllm, client, request):
    """Both of vLLM's ways in; they must not differ in anything but the versions."""
    dialect = Vllm(client, vllm.url, model=None)
    dialect.info = await dialect.describe()
    dialect._has_generate = request.param == "generate"
    return dialect


async def generate(dialect, prompt=PROMPT, **sampling):
    sampling = SamplingParams(**sampling)
    request = GenerationRequest(
        prompt_ids=prompt, sampling=sampling, request_id=f"r-{id(sampling)}", session_id="s", cache_salt="step/1"
    )
    reply = await dialect.generate(request)
    return check_reply(reply, prompt, sampling, dialect.info, url="vllm")


async def distributions(client, vllm, ids):
    """``[{token: logprob}]`` over the whole vocabulary for every place but the first, by scoring a prompt."""
    body = {"model": "tiny", "prompt": ids, "max_tokens": 1, "prompt_logprobs": -1, "temperature": 1.0}
    answer = (await client.post(f"{vllm.url}/v1/completions", json=body)).json()
    places = answer["choices"][0]["prompt_logprobs"][1:]
    return [{int(token): entry["logprob"] for token, entry in place.items()} for place in places]


async def test_the_engine_describes_itself(dialect):
    info = dialect.info
    assert (info.dialect, info.model, info.max_context) == ("vllm", "tiny", CONTEXT)
    assert info.chat_template.strip() == CHATML_TEMPLATE.strip()
    assert info.special_tokens["eos_token"] == "<|im_end|>"
    assert info.incarnation
    assert info == await dialect.describe()


async def test_the_tokenizer_over_http(dialect):
    tokenizer = await dialect.tokenizer()
    assert await tokenizer.encode(TEXT, special=True) == PROMPT
    plain = await tokenizer.encode(TEXT, special=False)
    assert EOS not in plain
    assert await tokenizer.decode(plain) == await tokenizer.decode(PROMPT) == TEXT


async def test_a_greedy_reply_is_the_same_by_both_ways(vllm, client):
    one, other = Vllm(client, vllm.url, model=None), Vllm(client, vllm.url, model=None)
    for dialect in (one, other):
        dialect.info = await dialect.describe()
    other._has_generate = False
    first, second = [await generate(d, temperature=0.0, max_tokens=40) for d in (one, other)]
    assert (one._has_generate, other._has_generate) == (True, False)
    assert first.token_ids == second.token_ids
    assert first.prompt_echo == second.prompt_echo == PROMPT
    assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_are_those_of_the_distribution_that_was_sampled(dialect, vllm, client, temperature):
    reply = await generate(dialect, max_tokens=60, temperature=temperature, seed=11)
    assert reply.logprob_kind == "processed"
    places = await distributions(client, vllm, PROMPT + reply.token_ids)
    for place, (token, logprob) in enumerate(zip(reply.token_ids, reply.logprobs, strict=True)):
        scaled = {t: lp / temperature for t, lp in places[len(PROMPT) - 1 + place].items()}
        total = math.log(sum(math.exp(lp) for lp in scaled.values()))
        assert logprob == pytest.approx(scaled[token] - total, abs=1e-4)


async def test_how_a_reply_ends(dialect):
    replies = await asyncio.gather(*(generate(dialect, max_tokens=400, seed=seed) for seed in range(16)))
    stopped = [reply for reply in replies if reply.finish == "stop"]
    assert stopped, "400 tokens of a random model, 16 times, and none met the end-of-turn token"
    for reply in stopped:
        assert reply.stop_token == reply.token_ids[-1] == EOS
        assert EOS not in reply.token_ids[:-1]
    for reply in replies:
        if reply.finish != "stop":
            assert (reply.finish, reply.stop_token, len(reply.token_ids)) == ("length", None, 400)
    greedy = await generate(dialect, temperature=0.0, max_tokens=20)
    other = greedy.token_ids[4]
    cut = await generate(dialect, temperature=0.0, max_tokens=20, stop_token_ids=(other,))
    assert (cut.finish, cut.stop_token) == ("stop", other)
    assert cut.token_ids == greedy.token_ids[: greedy.token_ids.index(other) + 1]


async def test_a_token_outside_the_vocabulary_is_rejected(dialect):
    with pytest.raises(ModelFault) as caught:
        await generate(dialect, [*PROMPT, 9999], max_tokens=4)
    assert caught.value.code == "rejected"


async def test_overflow_is_foreseen(vllm, make_pool):
    pool = make_pool()
    await pool.add(BackendSpec(url=vllm.url))
    lease = pool.lease("job", wait_s=0, hold=nullcontext)
    last = await lease.generate([72] * (CONTEXT - 2), SamplingParams(max_tokens=100, seed=1))
    assert len(last.generation.token_ids) <= 2
    assert (await lease.generate([72] * (CONTEXT - 1), SamplingParams(max_tokens=100))).generation.token_ids
    for length in (CONTEXT, CONTEXT + 100):
        with pytest.raises(ContextOverflow):
            await lease.generate([72] * length, SamplingParams(max_tokens=1))


async def metric(client, vllm, name: str, *labels: str) -> float:
    lines = (await client.get(f"{vllm.url}/metrics")).text.splitlines()
    chosen = [line for line in lines if line.startswith(f"vllm:{name}{{") and all(label in line for label in labels)]
    assert chosen, f"vLLM no longer has the metric {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in chosen)


@pytest.mark.parametrize("way", ["generate", "completions"])
async def test_a_cancelled_call_frees_the_engine(vllm, client, make_pool, eventually, way):
    pool = make_pool()
    await pool.add(BackendSpec(url=vllm.url))
    pool._backends[vllm.url].dialect._has_generate = way == "generate"

    async def finished() -> float:
        return sum([await metric(client, vllm, "request_success_total", end) for end in ('="stop"', '="length"')])

    async def running() -> float:
        return await metric(client, vllm, "num_requests_running")

    async def idle() -> bool:
        return not await running()

    before = await finished()
    calls = [
        asyncio.create_task(pool.lease(f"job-{i}", wait_s=120, hold=nullcontext).generate(PROMPT, LONG))
        for i in range(32)  # many, so that they are still at it when one poll of a busy server has come back
    ]
    await eventually(running)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    over = [call.result() for call in calls if not call.cancelled()]  # on a busy machine the first may be through
    assert len(over) < len(calls) / 2
    assert {sampled.generation.finish for sampled in over} <= {"length"}
    await eventually(idle)
    assert await finished() == before + len(over)  # none ran to its end unseen
    assert pool.status().backends[0].in_flight == 0


async def test_weights_that_change_within_a_reply(vllm, client, make_pool, eventually):
    pool = make_pool()
    await pool.add(BackendSpec(url=vllm.url))
    named = (await client.get(f"{vllm.url}/weight_info")).json()["weight_version"]
    for _ in range(10):  # on a busy machine a reply may be over before we have paused it
        before = await metric(client, vllm, "generation_tokens_total")

        async def some_tokens(before: float = before) -> bool:
            return await metric(client, vllm, "generation_tokens_total") >= before + 5

        call = asyncio.create_task(pool.lease("job", wait_s=0, hold=nullcontext).generate(PROMPT, LONG))
        await eventually(some_tokens)
        (await client.post(f"{vllm.url}/pause", params={"mode": "keep"})).raise_for_status()
        (await client.post(f"{vllm.url}/update_weight_version", json={"new_version": "step-2"})).raise_for_status()
        (await client.post(f"{vllm.url}/resume")).raise_for_status()
        sampled = await call
        if len(sampled.generation.weight_spans) == 2:
            break
        (await client.post(f"{vllm.url}/update_weight_version", json={"new_version": named})).raise_for_status()
    else:
        pytest.skip("this machine is too busy: ten replies were over before the engine took the pause")
    (await client.post(f"{vllm.url}/update_weight_version", json={"new_version": named})).raise_for_status()
    before_it = "" if named == "default" else named  # nobody has named them: those it was registered with
    assert [span.version for span in sampled.generation.weight_spans] == [before_it, "step-2"]
    assert sum(span.count for span in sampled.generation.weight_spans) == len(sampled.generation.token_ids)
    assert sampled.policy_version == "0"  # the one it was registered under


async def test_clear_and_add_while_sixteen_run(vllm, make_pool, eventually):
    pool = make_pool()
    await pool.add(BackendSpec(url=vllm.url))
    leases = [pool.lease(f"job-{i}", wait_s=60, hold=nullcontext) for i in range(16)]

    async def task(lease):
        first = await lease.generate(PROMPT, SamplingParams(max_tokens=100))
        ids = [*PROMPT, *first.generation.token_ids]
        return first, await lease.generate(ids, SamplingParams(max_tokens=20))

    tasks = [asyncio.create_task(task(lease)) for lease in leases]

    async def all_run() -> bool:
        return pool.status().backends[0].in_flight == 16

    await eventually(all_run)
    await pool.clear()
    await pool.add(BackendSpec(url=vllm.url))
    replies = await asyncio.gather(*tasks)
    assert {(first.policy_version, second.policy_version) for first, second in replies} == {("0", "1")}
    assert all(second.generation.prompt_echo[: len(PROMPT)] == PROMPT for _, second in replies)
    assert pool.status().backends[0].assigned == 16


def test_the_log_says_how_it_was_started(vllm):
    assert "processed_logprobs" in vllm.log()
    assert Path(vllm.python).exists()
