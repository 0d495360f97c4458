"""Every broken promise of an engine is a fault of its own kind, in every dialect, over real HTTP; none gets through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from prorl.api import Conversation, Message, ModelFault
from prorl.testing.bytebpe import build_tokenizer, write_tokenizer
from prorl.testing.faulty import FAULTS, FaultyEngine
from prorl.testing.scripted import Speech
from prorl.testing.scripted.chat import ChatSpeech, NemoRlSpeech
from prorl.testing.scripted.llamacpp import LlamaCppSpeech
from prorl.testing.scripted.sglang import SglangSpeech
from prorl.testing.scripted.vllm import VllmSpeech
from prorl.wire import BackendSpec, SamplingParams

TALK = Conversation(messages=(Message(role="user", content="How many?"),))
PROMPT = build_tokenizer().encode("<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n").ids
SAMPLING = SamplingParams(max_tokens=64)

TRANSPORT = {
    "not_json": "bad_response",
    "another_form": "bad_response",
    "half_closed": "unreachable",
    "no_answer": "unreachable",
    "error_400": "rejected",
    "error_401": "rejected",
    "error_429": "unreachable",
    "error_500": "unreachable",
    "error_503": "unreachable",
    "redirect": "rejected",
}
CONTENT = {
    "missing_logprob": "missing_logprobs",
    "null_logprob": "missing_logprobs",
    "minus_9999": "missing_logprobs",
    "nan": "bad_response",  # not JSON, so it does not even get as far as the checks
    "infinite": "bad_response",
    "above_zero": "bad_logprob",
    "logprob_of_another": "missing_logprobs",
    "extra_ids": "too_long",
    "out_of_vocabulary": "bad_token",
    "string_id": "bad_response",
    "float_id": "bad_response",
    "empty": "empty_reply",
    "unknown_finish": "bad_response",
}
VERSIONS = {"version_gap": "version_gap", "version_short": "version_gap"}
ECHO = {"wrong_echo": "prompt_mismatch"}
COUNT = {"short_prompt": "prompt_mismatch"}


def without(*faults: str) -> dict[str, str]:
    return {fault: code for fault, code in CONTENT.items() if fault not in faults}


PEERS: dict[str, tuple[Callable[[], Speech], dict[str, str]]] = {
    "vllm": (VllmSpeech, {**TRANSPORT, **CONTENT, **VERSIONS, **ECHO}),
    "vllm completions": (lambda: VllmSpeech(generate=False), {**TRANSPORT, **CONTENT, **ECHO}),
    "sglang": (SglangSpeech, {**TRANSPORT, **CONTENT, **VERSIONS, **ECHO, **COUNT}),
    "sglang of old": (lambda: SglangSpeech(recent=False), {**TRANSPORT, **CONTENT, **COUNT}),
    "llamacpp": (LlamaCppSpeech, {**TRANSPORT, **CONTENT, **COUNT, "null_logprob": "bad_response"}),
    # an assertion of NeMo RL's comes out as a 500, and most often it is about the sampling
    "nemo-rl": (NemoRlSpeech, {**TRANSPORT, **without("logprob_of_another"), **ECHO, "error_500": "rejected"}),
    # its ids are in the logprobs alone, as text: what is no id is no token
    "nemo-rl of old": (
        lambda: NemoRlSpeech(echoes=False),
        {
            **TRANSPORT,
            **without("logprob_of_another", "string_id", "float_id"),
            "error_500": "rejected",
            "out_of_vocabulary": "missing_logprobs",
        },
    ),
    # the prompt is the engine's own to render: another echo is another segment, see llm_chat/test_engine_rendered.py
    "openai-chat": (ChatSpeech, {**TRANSPORT, **CONTENT}),
}
CASES = [(peer, fault) for peer, (_, codes) in PEERS.items() for fault in codes]


def test_every_fault_of_the_faulty_engine_is_tried():
    assert {fault for _, fault in CASES} | {"hang"} == set(FAULTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


@pytest.mark.parametrize(("peer", "fault"), CASES)
async def test_a_fault_becomes_a_typed_model_fault(make_pool, engine, clock, folder, peer, fault):
    speech, codes = PEERS[peer]
    pool = make_pool(attempts=1)
    one = engine(kind=FaultyEngine, speech=speech())
    await pool.add(BackendSpec(url=one.url, tokenizer=str(folder)))
    assert pool.status().backends[0].dialect == peer.split(" ")[0]
    lease = pool.lease("job", wait_s=30, hold=clock.hold)
    one.fault = fault
    with pytest.raises(ModelFault) as caught:
        await lease.generate(PROMPT, SAMPLING, conversation=TALK)
    assert caught.value.code == codes[fault], str(caught.value)
    assert one.url in str(caught.value)
    assert caught.value.masks
    assert pool.status().backends[0].failures == 1
    one.fault = None
    good = (await lease.generate(PROMPT, SAMPLING, conversation=TALK)).generation
    assert good.finish == "stop"
    assert good.token_ids == [*build_tokenizer().encode("hello<|im_end|>").ids]
    assert len(good.logprobs) == len(good.token_ids)


@pytest.mark.parametrize("peer", PEERS)
async def test_a_hanging_engine_is_left_to_the_caller_and_stopped_with_it(
    pool, engine, clock, eventually, folder, peer
):
    one = engine(kind=FaultyEngine, speech=PEERS[peer][0]())
    await pool.add(BackendSpec(url=one.url, tokenizer=str(folder)))
    one.fault = "hang"
    call = asyncio.create_task(
        pool.lease("job", wait_s=0, hold=clock.hold).generate(PROMPT, SAMPLING, conversation=TALK)
    )
    await eventually(lambda: one.in_flight == 1)
    call.cancel()
    await asyncio.wait({call})
    await eventually(lambda: one.aborted == 1 and one.in_flight == 0)
    assert pool.status().backends[0].in_flight == 0
    if peer in ("vllm", "sglang", "sglang of old"):  # these two can be told so; the others notice that nobody listens
        await eventually(lambda: len(one.abort_requests) == 1)
