"""The model in llama.cpp says what it says in torch."""

from __future__ import annotations

import time
from contextlib import suppress

import httpx
import pytest
import torch

from prorl.testing.engines import free_port
from prorl_lookup import tiny
from prorl_lookup.lessons import lookup

gguf_file = pytest.importorskip("prorl_lookup.gguf_file", reason="pip install gguf", exc_type=ImportError)
xllamacpp = pytest.importorskip("xllamacpp", reason="pip install 'prorl[demo]'")


@pytest.fixture
def serve():
    """Serves a file; returns its url."""
    servers = []

    def serve(path):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.hostnames = ["127.0.0.1"]
        params.port = free_port()
        params.n_ctx = 512
        params.n_parallel = 1
        params.verbosity = 0
        params.cpuparams.n_threads = 1
        servers.append(xllamacpp.Server(params))
        url = f"http://127.0.0.1:{params.port}"
        for _ in range(300):
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                    return url
            time.sleep(0.1)
        raise TimeoutError(url)

    yield serve
    servers.clear()  # a server stops when it is forgotten


def test_logprobs(tmp_path, serve):
    model = tiny.new_model(tiny.build_tokenizer([lookup.LESSON]), seed=0).eval()
    model.lm_head.weight.data *= 20  # a random model is flat: a wrong weight would hardly show
    tiny.write_tokenizer(tmp_path, [lookup.LESSON])
    model.save_pretrained(tmp_path)
    gguf_file.convert(tmp_path, tmp_path / "model.gguf")
    prompt = list(range(40, 90))
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
    body = {"prompt": prompt, "n_predict": 12, "n_probs": 1, "return_tokens": True, **neutral}
    answer = httpx.post(f"{serve(tmp_path / 'model.gguf')}/completion", json=body, timeout=120).json()
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
