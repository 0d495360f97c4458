"""The model in llama.cpp says what it says in torch."""

from __future__ import annotations

import httpx
import pytest
import torch

from prorl.testing.engines import LlamaEngine
from prorl_lookup import tiny
from prorl_lookup.lessons import lookup

gguf_file = pytest.importorskip("prorl_lookup.gguf_file", reason="pip install gguf", exc_type=ImportError)
pytest.importorskip("xllamacpp", reason="pip install 'prorl[demo]'")


def test_logprobs(tmp_path):
    model = tiny.new_model(tiny.build_tokenizer([lookup.LESSON]), seed=0).eval()
    model.lm_head.weight.data *= 20  # a random model is flat: a wrong weight would hardly show
    tiny.write_tokenizer(tmp_path, [lookup.LESSON])
    model.save_pretrained(tmp_path)
    gguf_file.convert(tmp_path, tmp_path / "model.gguf")
    prompt = list(range(40, 90))
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
    body = {"prompt": prompt, "n_predict": 12, "n_probs": 1, "return_tokens": True, **neutral}
    with LlamaEngine(tmp_path / "model.gguf", n_ctx=512, parallel=1) as engine:
        answer = httpx.post(f"{engine.url}/completion", json=body, timeout=120).json()
    said = answer["tokens"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1]
    own = logits.log_softmax(-1)
    # One whose bytes are no whole letter yet comes without its probability.
    told = iter([*answer["completion_probabilities"], {"id": None}])
    place, gaps = next(told), []
    for index, token in enumerate(said):
        if place["id"] == token:
            gaps.append(abs(own[index, token].item() - place["logprob"]))
            place = next(told)
    assert len(gaps) == len(answer["completion_probabilities"]) > 3
    assert max(gaps) < 0.05, "half precision of keys and values"
    assert own.std() > 0.2
