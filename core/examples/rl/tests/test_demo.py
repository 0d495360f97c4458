"""The model that comes with this package, in the embedded engine, through the real server and its sandboxes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from prorl.cli import demo as command
from prorl.testing.engines import LlamaEngine
from prorl.testing.lab import Lab
from prorl.wire import BackendSpec, JobRequest, SamplingParams
from prorl_lookup import demo, tiny
from prorl_lookup.lessons import lookup

MODEL = demo.record().model
pytest.importorskip("xllamacpp", reason="pip install 'prorl[demo]'")


def test_it_speaks_the_tokens_of_this_package():
    kept = json.loads((MODEL.tokenizer / "tokenizer.json").read_text())
    assert kept["model"] == json.loads(tiny.build_tokenizer([lookup.LESSON]).to_str())["model"]


def test_it_calls_the_tool_and_says_what_it_found():
    with LlamaEngine(MODEL.gguf, n_ctx=MODEL.n_ctx, parallel=4) as engine, Lab([]) as lab:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(BackendSpec(url=engine.url, tokenizer=str(MODEL.tokenizer), policy_version="tiny"))
        results = [
            lab.client.process(
                JobRequest(
                    domain="lookup",
                    instance=row,
                    sampling_params=SamplingParams(max_tokens=24, seed=seed),
                    settings=MODEL.settings,
                )
            )
            for row in demo.ROWS
            for seed in (2, 3, 4)
        ]
    assert [result.error for result in results] == [None] * len(results)
    first = [result.trajectory.turns[1].text for result in results]
    asked = [lookup.call_of(row["key"]) for row in demo.ROWS for _ in range(3)]
    assert sum(said == call for said, call in zip(first, asked, strict=True)) >= 10
    # Over many it is 0.97, for the warm start alone 0.3.
    assert sum(result.reward for result in results) >= 0.75 * len(results)


def test_the_demo_shows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command.command, ["--domain", "lookup", "--json"], standalone_mode=False)
    assert done.exception is None
    results = [one for one in json.loads(done.stdout) if one["policy_versions"] == [MODEL.name]]
    assert [one["status"] for one in results] == ["completed"] * len(demo.ROWS)
