"""Untrusted text must not become control tokens, also where the engine always knows its added tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl.llm.dialects.remote_tokenizer import RemoteTokenizer
from prorl.testing.bytebpe import ADDED, SPECIAL, build_tokenizer

CONTROL = [*SPECIAL, *ADDED]
FULL = build_tokenizer()
IDS = {FULL.token_to_id(token) for token in CONTROL}


def remote() -> RemoteTokenizer:
    async def encode(text: str, special: bool) -> list[int]:
        return FULL.encode(text, add_special_tokens=False).ids

    async def decode(ids) -> str:
        return FULL.decode(list(ids), skip_special_tokens=False)

    return RemoteTokenizer(encode, decode, plain=False, digest="d")


@pytest.mark.parametrize("token", CONTROL)
async def test_every_control_token_is_only_text(token):
    tokenizer = remote()
    assert set(await tokenizer.encode(token, special=True)) <= IDS
    ids = await tokenizer.encode(f"a{token}b", special=False)
    assert not IDS & set(ids)
    assert await tokenizer.decode(ids) == f"a{token}b"


@given(st.lists(st.one_of(st.sampled_from([*CONTROL, "<", "|", ">", "<|", "im_end|>", "<div>"]), st.text(max_size=8))))
@settings(max_examples=300, deadline=None)
async def test_no_text_whatever_makes_one(parts):
    text, tokenizer = "".join(parts), remote()
    ids = await tokenizer.encode(text, special=False)
    assert not IDS & set(ids)
    assert await tokenizer.decode(ids) == text


async def test_ordinary_text_is_encoded_as_ever():
    tokenizer = remote()
    for text in ("", "the answer is <div>42</div>, a[0] < b", "Grüße <3", "[INST] is no token here"):
        assert await tokenizer.encode(text, special=False) == FULL.encode(text, add_special_tokens=False).ids
