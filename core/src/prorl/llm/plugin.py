"""The dialects that come with the core, registered as any plugin's."""

from __future__ import annotations

from prorl.api.hookspecs import hookimpl
from prorl.api.llm import DialectFactory
from prorl.api.records import DialectRecord


@hookimpl
def prorl_llm_dialects() -> list[DialectRecord]:
    # imported here: listing plugins stays cheap
    from prorl.llm.dialects.llamacpp import LlamaCppFactory  # noqa: PLC0415
    from prorl.llm.dialects.nemo_rl import NemoRlFactory  # noqa: PLC0415
    from prorl.llm.dialects.openai_chat import OpenAiChatFactory  # noqa: PLC0415
    from prorl.llm.dialects.sglang import SglangFactory  # noqa: PLC0415
    from prorl.llm.dialects.vllm import VllmFactory  # noqa: PLC0415

    return [
        _record("vllm", VllmFactory(), "vLLM: token ids in, token ids and weight versions out", 40),
        _record("sglang", SglangFactory(), "SGLang: /generate with token ids", 30),
        _record("llamacpp", LlamaCppFactory(), "llama.cpp's server: /completion with token ids", 20),
        _record("nemo-rl", NemoRlFactory(), "NeMo RL's chat engine, with the prefix held to the sampled ids", 10),
        _record("openai-chat", OpenAiChatFactory(), "any /v1/chat/completions: for evaluation, mostly", -100),
    ]


def _record(name: str, factory: DialectFactory, summary: str, preference: int) -> DialectRecord:
    return DialectRecord(name=name, factory=factory, summary=summary, preference=preference)
