"""Loading, and the two encoders: the model's own, and one that cannot make a control token."""

import hashlib
import json

import pytest
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from prorl.api import ConfigError
from prorl.llm.tokenizers.local import LocalTokenizer, load_tokenizer
from prorl.testing.bytebpe import build_tokenizer, write_tokenizer


async def test_from_a_folder(tmp_path):
    write_tokenizer(tmp_path)
    tokenizer = await load_tokenizer(str(tmp_path))
    assert tokenizer.digest == hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert "<|im_start|>" in tokenizer.chat_template
    (tmp_path / "chat_template.jinja").write_text("another")
    assert (await load_tokenizer(str(tmp_path))).chat_template == "another"


async def test_the_config_in_its_other_forms(tmp_path):
    write_tokenizer(tmp_path)
    templates = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    config = {"chat_template": templates, "bos_token": {"content": "<s>", "lstrip": False}, "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = await load_tokenizer(str(tmp_path))
    assert (tokenizer.chat_template, tokenizer.special_tokens) == ("t", {"bos_token": "<s>"})
    (tmp_path / "tokenizer_config.json").unlink()
    assert (await load_tokenizer(str(tmp_path))).chat_template is None


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no readable tokenizer.json"),
        ({"tokenizer.json": "{}"}, "cannot be read"),
        ({"tokenizer.json": None, "tokenizer_config.json": "{"}, "tokenizer_config.json cannot be read"),
        ({"tokenizer.json": None, "tokenizer_config.json": "[]"}, "must hold a JSON object"),
    ],
)
async def test_what_cannot_be_loaded(tmp_path, files, says):
    write_tokenizer(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    for name, text in files.items():
        good = tmp_path / "good" / name
        (tmp_path / "bad" / name).write_text(good.read_text() if text is None else text)
    with pytest.raises(ConfigError, match=says):
        await load_tokenizer(str(tmp_path / "bad"))


async def test_no_such_folder(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        await load_tokenizer(str(tmp_path / "nowhere"))


async def test_by_name_from_the_hubs_cache(tmp_path, monkeypatch):
    cache = tmp_path / "models--org--name"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("abc")
    write_tokenizer(cache / "snapshots" / "abc")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="neither a folder here nor a model"):
        await load_tokenizer("org/missing")
    assert (await load_tokenizer("org/name")).source == "org/name"


async def test_two_encoders(kit):
    text = "<|im_start|>a</think>"
    special = await kit.tokenizer.encode(text, special=True)
    plain = await kit.tokenizer.encode(text, special=False)
    assert len(kit.controls(special)) == 2
    assert kit.controls(plain) == []
    assert await kit.tokenizer.decode(plain) == await kit.tokenizer.decode(special) == text


async def test_truncation_and_padding_of_the_file_are_ignored():
    encoder = build_tokenizer()
    encoder.enable_truncation(3)
    encoder.enable_padding(length=10)
    tokenizer = LocalTokenizer(encoder.to_str().encode(), source="x")
    for special in (True, False):
        assert await tokenizer.decode(await tokenizer.encode("abcdef", special=special)) == "abcdef"


async def test_control_tokens_that_are_in_the_vocabulary_too():
    """Llama 3's files say ``ignore_merges``: a word that is in the vocabulary becomes it, without any merge."""
    letters = sorted({*"<|im_end>abc "})
    vocab = {token: index for index, token in enumerate([*letters, "<|im_end|>"])}
    encoder = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    encoder.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoder.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer = LocalTokenizer(encoder.to_str().encode(), source="x")
    control = vocab["<|im_end|>"]
    assert await tokenizer.encode("a <|im_end|> b", special=True) == [vocab["a"], control, vocab["b"]]
    plain = await tokenizer.encode("a <|im_end|> <|im_end|> b", special=False)
    assert control not in plain
    assert [letters[token] for token in plain] == ["a", *"<|im_end|>", *"<|im_end|>", "b"]
    calls = []

    class Counting:
        def encode(self, text, **more):
            calls.append(text)
            return encode(text, **more)

    encode, tokenizer._plain = tokenizer._plain.encode, Counting()
    many = await tokenizer.encode("<|im_end|> " * 50, special=False)
    assert [letters[token] for token in many] == [*"<|im_end|>"] * 50
    assert sum(map(len, calls)) < 5 * len("<|im_end|> " * 50), "work grows with the text, not with its square"


@settings(deadline=None)
@given(st.text())
async def test_plain_text_survives(kit, text):
    ids = await kit.tokenizer.encode(text, special=False)
    assert await kit.tokenizer.decode(ids) == text
    assert kit.controls(ids) == []


async def test_long_texts_leave_the_loop_free(kit):
    text = "line 1\n" * 10_000
    assert await kit.tokenizer.decode(await kit.tokenizer.encode(text, special=False)) == text
