"""A tiny random Qwen3 in a folder, for a real engine to serve. Runs under the engine's own interpreter::

    python -m prorl.testing.tinymodel FOLDER        # where prorl is installed beside torch
    python .../tinymodel.py FOLDER [SEED]           # under an engine's interpreter, which need not have prorl

Two layers, hidden size 128, untied embeddings: 1.5 MB, loaded in no time, and its logprobs are a real transformer's.
The tokenizer is :mod:`prorl.testing.bytebpe`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def write_model(folder: Path, *, seed: int = 0, max_context: int = 4096) -> None:
    """Write weights, configuration and tokenizer into ``folder``."""
    import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - the engine's, not ours
    from transformers import (  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    bytebpe = _sibling("bytebpe")
    bytebpe.write_tokenizer(folder)
    tokenizer = bytebpe.build_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=max_context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    model = Qwen3ForCausalLM(config)
    # A logit of 0: sampled now and then, and never the likeliest, so that a greedy reply goes on for as long as it may.
    model.lm_head.weight.data[config.eos_token_id].zero_()
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(folder)


def _sibling(name: str) -> Any:
    """The module beside this file, without importing the package: the engine's interpreter does not have it."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"prorl_testing_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
