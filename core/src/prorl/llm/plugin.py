"""The dialects that come with the core, registered as any plugin's."""

from __future__ import annotations

from prorl.api.hookspecs import hookimpl
from prorl.api.records import DialectRecord


@hookimpl
def prorl_llm_dialects() -> list[DialectRecord]:
    from prorl.llm.dialects.llamacpp import LlamaCppFactory  # noqa: PLC0415 - listing plugins stays cheap
    from prorl.llm.dialects.vllm import VllmFactory  # noqa: PLC0415

    return [
        DialectRecord(name="vllm", factory=VllmFactory(), summary="vLLM's token-in, token-out HTTP", preference=20),
        DialectRecord(name="llamacpp", factory=LlamaCppFactory(), summary="llama.cpp's server", preference=10),
    ]
