"""The llama.cpp dialect against a real llama.cpp with a real model."""

from __future__ import annotations

import asyncio
import math
import statistics
from contextlib import nullcontext

import pytest

from prorl.api import ContextOverflow, GenerationRequest
from prorl.llm.dialects.llamacpp import LlamaCpp, _body
from prorl.llm.pool.checks import check_reply
from prorl.testing.scripted import ScriptedEngine
from prorl.wire import BackendSpec, SamplingParams

QUESTION = "<|im_start|>user\nSay only the word yes.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
async def dialect(llama, client):
    dialect = LlamaCpp(client, llama.url, model=None)
    dialect.info = await dialect.describe()
    return dialect


@pytest.fixture
async def prompt(dialect):
    return await (await dialect.tokenizer()).encode(QUESTION, special=True)


async def generate(dialect, prompt, **sampling):
    sampling = SamplingParams(**sampling)
    request = GenerationRequest(prompt_ids=prompt, sampling=sampling, request_id="r", session_id="s")
    reply = await dialect.generate(request)
    return check_reply(reply, prompt, sampling, dialect.info, url="llama.cpp")


async def test_the_engine_describes_itself(dialect):
    info = dialect.info
    assert (info.dialect, info.max_context, info.vocab_size) == ("llamacpp", 512, 49152)
    assert info.model.startswith("SmolLM2-135M-Instruct")
    assert info.special_tokens["eos_token"] == "<|im_end|>"
    assert info.eos_token_ids == (2,)
    assert "<|im_start|>" in info.chat_template


async def test_the_tokenizer_tells_control_tokens_from_their_text(dialect):
    tokenizer = await dialect.tokenizer()
    special = await tokenizer.encode(QUESTION, special=True)
    plain = await tokenizer.encode(QUESTION, special=False)
    assert 1 in special
    assert not {0, 1, 2} & set(plain)
    assert await tokenizer.decode(special) == await tokenizer.decode(plain) == QUESTION
    assert tokenizer.digest == (await dialect.tokenizer()).digest


async def test_greedy_replies_repeat_and_end_with_the_end_of_turn(dialect, prompt):
    first = await generate(dialect, prompt, temperature=0.0, max_tokens=60)
    assert first == await generate(dialect, prompt, temperature=0.0, max_tokens=60) or first.cached_tokens is not None
    assert (first.finish, first.stop_token, first.token_ids[-1]) == ("stop", 2, 2)
    assert len(first.logprobs) == len(first.token_ids)
    assert first.logprob_kind == "raw"


async def test_sampled_logprobs_are_those_of_the_whole_distribution(dialect, prompt):
    """The mean of -logprob over samples is the entropy of the distribution they came from."""
    body = {**_body(prompt, SamplingParams(max_tokens=1)), "n_probs": dialect.info.vocab_size, "seed": 1}
    whole = (await dialect._complete.post(body)).completion_probabilities[0].top_logprobs
    logprobs = [candidate.logprob for candidate in whole]
    assert sum(math.exp(logprob) for logprob in logprobs) == pytest.approx(1.0, abs=1e-2)
    entropy = -sum(math.exp(logprob) * logprob for logprob in logprobs)
    spread = math.sqrt(sum(math.exp(logprob) * (logprob + entropy) ** 2 for logprob in logprobs))
    samples = [(await generate(dialect, prompt, max_tokens=1, seed=seed)).logprobs[0] for seed in range(150)]
    assert -statistics.mean(samples) == pytest.approx(entropy, abs=5 * spread / math.sqrt(len(samples)))


async def test_a_logprob_the_engine_keeps_back_is_asked_for(dialect):
    """An emoji is several tokens, and llama.cpp reports no logprob where a character is not complete."""
    tokenizer = await dialect.tokenizer()
    prompt = await tokenizer.encode("Some emojis: 😀 😃 😄 😁 😆 😅 😂 🤣 😀 😃 😄 😁 😆", special=True)
    body = _body(prompt, SamplingParams(max_tokens=12, temperature=0.0))
    answer = await dialect._complete.post(body)
    kept_back = len(answer.tokens) - len(answer.completion_probabilities)
    assert kept_back > 0, "this prompt was chosen because the reply has incomplete characters"
    reply = await generate(dialect, prompt, max_tokens=12, temperature=0.0)
    assert len(reply.logprobs) == len(reply.token_ids) == 12
    reported = {entry.id: entry.logprob for entry in answer.completion_probabilities}
    for place, token in enumerate(reply.token_ids):
        scored = await dialect._score([*prompt, *reply.token_ids[:place]], token)
        assert scored == pytest.approx(reply.logprobs[place], abs=1e-3)
        assert token not in reported or scored <= 0.0


async def test_another_stop_token_cuts_the_reply(dialect, prompt):
    whole = await generate(dialect, prompt, temperature=0.0, max_tokens=60)
    middle = whole.token_ids[1]
    cut = await generate(dialect, prompt, temperature=0.0, max_tokens=60, stop_token_ids=(middle,))
    assert (cut.token_ids, cut.finish, cut.stop_token) == (whole.token_ids[:2], "stop", middle)
    assert len(cut.logprobs) == 2


async def test_length_overflow_and_version_through_the_pool(llama, make_pool, prompt):
    pool = make_pool()
    await pool.add(BackendSpec(url=llama.url, policy_version="base"))
    lease = pool.lease("job", wait_s=0, hold=nullcontext)
    tokenizer = await (await lease.ready()).tokenizer()
    assert await tokenizer.encode(QUESTION, special=True) == prompt
    reply = await lease.generate(prompt, SamplingParams(max_tokens=3, seed=1))
    assert (reply.generation.finish, len(reply.generation.token_ids), reply.policy_version) == ("length", 3, "base")
    full = await lease.generate([*prompt, *([198] * (508 - len(prompt)))], SamplingParams(max_tokens=100, seed=3))
    assert len(full.generation.token_ids) <= 4
    with pytest.raises(ContextOverflow):
        await lease.generate([198] * 512, SamplingParams())


async def test_sixteen_at_once_and_a_cancelled_one_frees_its_slot(llama, make_pool, client, eventually, prompt):
    pool = make_pool()
    await pool.add(BackendSpec(url=llama.url))
    leases = [pool.lease(f"job-{i}", wait_s=0, hold=nullcontext) for i in range(16)]
    replies = await asyncio.gather(
        *(lease.generate(prompt, SamplingParams(max_tokens=8, seed=i)) for i, lease in enumerate(leases))
    )
    assert len({tuple(reply.generation.token_ids) for reply in replies}) > 8
    calls = [asyncio.create_task(lease.generate(prompt, SamplingParams(max_tokens=480))) for lease in leases[:4]]

    async def busy() -> int:
        slots = (await client.get(f"{llama.url}/slots")).json()
        return sum(slot["is_processing"] for slot in slots)

    async def some_busy() -> bool:
        return await busy() > 0

    async def none_busy() -> bool:
        return await busy() == 0

    await eventually(some_busy)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    await eventually(none_busy)


async def test_a_scripted_engine_borrows_the_tokenizer(llama, make_pool, prompt):
    async with ScriptedEngine(lambda request: f"yes, call {request.call}", tokenizer=llama.url) as scripted:
        pool = make_pool()
        await pool.add(BackendSpec(url=scripted.url))
        lease = pool.lease("job", wait_s=0, hold=nullcontext)
        backend = await lease.ready()
        assert "SmolLM" in backend.info.chat_template
        tokenizer = await backend.tokenizer()
        assert await tokenizer.encode(QUESTION, special=True) == prompt
        reply = (await lease.generate(prompt, SamplingParams())).generation
        assert await tokenizer.decode(reply.token_ids) == "yes, call 0<|im_end|>"
        assert reply.stop_token == 2
