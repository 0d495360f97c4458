"""``python -m prorl_lookup.gguf_file FOLDER OUT.gguf``: a trained model for llama.cpp, which needs no other process.

Token ids stay what they are. llama.cpp encodes text by another pre-tokenizer than ours, so whoever registers it has to
give the model's folder as ``tokenizer``. It keeps keys and values in half precision: log-probabilities differ from the
trainer's by up to 4e-4, good for a demonstration and not for training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def convert(folder: Path, out: Path) -> None:
    """A folder as ``save_pretrained`` leaves it, with tokenizer, to one file."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(out), "qwen3")
    writer.add_name("prorl-lookup")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    _add_tokenizer(writer, folder, config)
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_name(name), np.ascontiguousarray(tensor, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    names = {index: text for text, index in tokenizer["model"]["vocab"].items()}
    types = dict.fromkeys(names, gguf.TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        names[token["id"]] = token["content"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([names[index] for index in range(config["vocab_size"])])
    writer.add_token_types([types[index] for index in range(config["vocab_size"])])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _name(tensor: str) -> str:
    if tensor in WHOLE:
        return WHOLE[tensor]
    _, _, layer, rest = tensor.split(".", 3)
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
