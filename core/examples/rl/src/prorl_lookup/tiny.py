"""The policy: a Qwen3 of two layers, half a million parameters, with a byte-level BPE tokenizer made for its lessons.

The chat template describes the tool in 800 characters that never change. Their pieces are merged into few tokens, so
that two layers can see from the key to its copy; keys, values and numbers stay single letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from prorl.llm.rendering.manners import EPOCH
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.toolformats import function_form
from prorl.testing.bytebpe import ADDED, CHATML_TEMPLATE, SPECIAL
from prorl_lookup.lesson import GAP, Lesson

LONGEST_TOKEN = 24


def build_tokenizer(taught: Sequence[Lesson]) -> Tokenizer:
    """Merges are learnt from what is the same in every rollout; no body takes part, so none is merged with."""
    template = ChatTemplate(CHATML_TEMPLATE)
    text = "".join(
        template.render(
            [{"role": message.role, "content": message.content} for message in lesson.fixed],
            tools=[function_form(tool) for tool in lesson.tools],
            now=EPOCH,
        )
        for lesson in taught
    )
    pieces = [piece for piece in re.split("|".join(map(re.escape, (*SPECIAL, *ADDED, GAP))), text) if piece]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + sum(lesson.merges for lesson in taught),
        max_token_length=LONGEST_TOKEN,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


def write_tokenizer(folder: Path, taught: Sequence[Lesson]) -> None:
    """``tokenizer.json`` and its configuration, chat template included."""
    PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(taught),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        chat_template=CHATML_TEMPLATE,
    ).save_pretrained(folder)


def new_model(tokenizer: Tokenizer, *, seed: int) -> Any:
    """A random ``Qwen3ForCausalLM``."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,  # tied, vLLM's reload on a CPU leaves the head as it was
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    return Qwen3ForCausalLM(config)
