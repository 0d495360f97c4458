"""Science through the real server, stages, sandbox, tools, index and grader; only the policy's words are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prorl.testing.engines import LlamaEngine
from prorl.testing.lab import Lab
from prorl.wire import RolloutResult
from prorl_stem.command import command
from prorl_stem.rows import read_row, read_rows

IRON = {"question": "At what temperature, in kelvin, does iron melt?", "answer": "1811 K"}
CHOICE = {
    "data_source": "stem_mcqa",
    "question": "Which of these breaks carbohydrates down?",
    "options": {"A": "Osmosis", "B": "Glycolysis", "C": "Meiosis"},
    "answer": "B",
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def check_tokens(result: RolloutResult) -> None:
    """One stream, fully accounted for: turns tile it, and exactly the sampled tokens are to be trained on."""
    (segment,) = result.trajectory.segments
    at = 0
    for turn in result.trajectory.turns:
        assert (turn.segment, turn.start) == (0, at)
        at = turn.end
        assert segment.loss_mask[turn.start : turn.end] == [int(turn.role == "assistant")] * (turn.end - turn.start)
    assert at == len(segment.tokens)


def test_search_fetch_calculate_answer() -> None:
    replies = [
        "I look it up.\n" + call("search", query="melting point of iron"),
        call("fetch", url="offline://elements/iron"),
        call("execute_ipython_cell", code="print(1538 + 273.15)"),
        call("finish", message="It melts at $\\boxed{1538\\ ^\\circ\\mathrm{C}}$."),
    ]
    with Lab(replies, max_context=16_000) as lab:
        result = lab.rollout(IRON, domain="stem")
    assert (result.status, result.error, result.reward, result.resolved) == ("completed", None, 1.0, True)
    texts = [turn.text for turn in result.trajectory.turns if turn.role == "tool"]
    assert "offline://elements/iron" in texts[0]
    assert "melting point: 1811.15 K" in texts[1]
    assert "1811.15" in texts[2]
    assert result.metrics["verdict"] == "right"
    assert result.metrics["rung"] == "quantity"
    assert result.metrics["predicted"] == "1538\\ ^\\circ\\mathrm{C}"
    assert result.metrics["tool_errors"] == 0
    assert result.timing.tools_s > 0
    check_tokens(result)


def test_a_wrong_answer_is_zero_and_counts() -> None:
    with Lab([call("search", query="iron"), "$\\boxed{1538\\ \\mathrm{K}}$"]) as lab:
        result = lab.rollout(IRON, domain="stem")
    assert (result.reward, result.resolved, result.mask_sample) == (0.0, False, False)
    assert (result.metrics["verdict"], result.metrics["rung"]) == ("wrong", "quantity")


@pytest.mark.parametrize(("said", "reward"), [("\\boxed{C}, no: \\boxed{B}", 1.0), ("\\boxed{B or C}", 0.0)])
def test_a_choice_found_by_its_data_source(said: str, reward: float) -> None:
    with Lab([said]) as lab:
        result = lab.rollout(CHOICE)
    assert (result.error, result.reward, result.handler) == (None, reward, "stem")
    assert "C: Meiosis" in result.trajectory.turns[0].text


def test_words_without_a_judge_are_masked_and_never_zero() -> None:
    row = {"question": "Which organelle makes most of a cell's ATP?", "answer": "mitochondrion"}
    with Lab(["It is the \\boxed{Mitochondrion}."]) as lab:
        assert lab.rollout(row, domain="stem").reward == 1.0
    with Lab(["It is \\boxed{the power house of the cell}."]) as lab:
        masked = lab.rollout(row, domain="stem")
        wrong = lab.rollout(row, domain="stem", settings={"undecided": "wrong"})
    assert masked.mask_sample
    assert masked.error is not None
    assert (masked.error.kind, masked.error.code) == ("grader", "undecided")
    assert (wrong.reward, wrong.error, wrong.mask_sample) == (0.0, None, False)


def test_a_row_that_cannot_be_graded_is_masked_before_a_token_is_sampled() -> None:
    with Lab(["\\boxed{4}"]) as lab:
        missing = lab.rollout({"problem": "?", "matched_solution": "It is 4."}, domain="stem")
        symbols = lab.rollout({"problem": "?", "answer": "!?"}, domain="stem")
        asked = len(lab.engine.requests)
    assert missing.error is not None
    assert (missing.error.kind, missing.error.stage, missing.mask_sample) == ("task", "init", True)
    assert "prorl stem extract" in missing.error.message
    assert symbols.error is not None
    assert (symbols.error.kind, symbols.error.code, symbols.mask_sample) == ("grader", "bad_gold", True)
    assert asked == 0


def test_what_reaches_out_of_the_server_is_not_a_jobs_to_set() -> None:
    with Lab(["\\boxed{4}"]) as lab:
        result = lab.rollout(IRON, domain="stem", settings={"search": {"url": "http://127.0.0.1:1/"}})
    assert result.error is not None
    assert (result.error.kind, result.error.code) == ("task", "operators_setting")
    assert "search.url cannot be set by a job" in result.error.message


def test_a_job_chooses_its_tools_prompt_turns_and_reward() -> None:
    settings = {"tools": ["think"], "system_prompt": "Guess.", "max_turns": 2, "reward_wrong": -0.5}
    with Lab([call("search", query="iron"), "\\boxed{12 K}"]) as lab:
        result = lab.rollout(IRON, domain="stem", settings=settings)
    assert result.reward == -0.5
    assert "there is no tool named 'search'" in result.trajectory.turns[2].text
    assert "Guess." in result.trajectory.turns[0].text


def test_another_domain_can_search_the_offline_index() -> None:
    row = {"problem": "What is 299792458 + 1?", "answer": "299792459"}
    replies = [call("search", query="speed of light in vacuum"), "\\boxed{299792459}"]
    with Lab(replies) as lab:
        result = lab.rollout(row, domain="stem", settings={"tools": ["web_search"]})
    assert result.reward == 1.0
    assert "299792458.0 m s^-1" in result.trajectory.turns[2].text


def test_prorl_toml_sets_search_and_judge(peer: Any) -> None:
    """A search service and a judge of the operator's, both played by peers; a job turns on both orders."""

    def searx(asked: Any) -> Any:
        return peer.json({"results": [{"url": "https://a.org/", "title": "Cells", "content": "They make ATP."}]})

    def judging(asked: Any) -> Any:
        nonce = asked.json["messages"][0]["content"].split("VERDICT ", 1)[1].split(" ", 1)[0]
        said = {"message": {"content": f"VERDICT {nonce} SAME"}, "finish_reason": "stop"}
        return peer.json({"choices": [said]})

    search, judge = peer(searx), peer(judging)
    own = {"search": {"backend": "searxng", "url": search.url}, "judge": {"url": f"{judge.url}/v1", "model": "m"}}
    row = {"question": "Which organelle makes most of a cell's ATP?", "answer": "mitochondrion"}
    replies = [call("search", query="organelle ATP"), "It is \\boxed{the power house of the cell}."]
    with Lab(replies, settings={"handlers": {"stem": own}}) as lab:
        result = lab.rollout(row, domain="stem", settings={"judge": {"both_orders": True}})
    assert (result.error, result.reward, result.metrics["rung"]) == (None, 1.0, "judge")
    assert "https://a.org/" in result.trajectory.turns[2].text
    assert (len(search.asked), len(judge.asked)) == (1, 2)


def test_a_search_service_that_refuses_masks(peer: Any) -> None:
    there = peer(peer.json({"error": "no"}, 401))
    own = {"search": {"backend": "searxng", "url": there.url}}
    with Lab([call("search", query="x"), "\\boxed{1 K}"], settings={"handlers": {"stem": own}}) as lab:
        result = lab.rollout(IRON, domain="stem")
    assert result.error is not None
    assert (result.error.kind, result.error.code, result.mask_sample) == ("task", "search_refused", True)


@pytest.mark.timeout(900)
def test_every_shared_row_right_and_wrong(shared_file: Any, tmp_path: Path) -> None:
    """Golds as the rows have them; those of SCP-116K's form are drawn out of their solutions first."""
    graded = tmp_path / "graded.jsonl"
    made = CliRunner().invoke(command, ["extract", str(shared_file("stem_scp_form.jsonl")), "--out", str(graded)])
    assert made.exit_code == 0, made.output
    said = ""
    with Lab(lambda request: said, max_context=16_000) as lab:
        for path in (shared_file("stem_mcqa.jsonl"), shared_file("stem_physics.jsonl"), graded):
            for _, row in read_rows(path):
                gold = read_row(row).gold
                for answer, reward in ((gold, 1.0), ("\\text{the letter J, or } 12345.678", 0.0)):
                    said = f"So it is \\boxed{{{answer}}}."
                    result = lab.rollout(row, domain="stem", settings={"tools": ["search"]})
                    assert (result.error, result.reward) == (None, reward), (row, result.reason, result.metrics)


@pytest.mark.skipif(LlamaEngine.available() is not None, reason=str(LlamaEngine.available()))
@pytest.mark.timeout(600)
def test_a_real_model_on_the_shared_rows(shared_file: Any) -> None:
    rows = [
        json.loads(path.read_text().splitlines()[0])
        for path in map(shared_file, ("stem_mcqa.jsonl", "stem_physics.jsonl"))
    ]
    with LlamaEngine(n_ctx=4096, parallel=2) as llama, Lab([]) as lab:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(llama.url)
        for row in rows:
            sampling = {"max_tokens": 24, "seed": 3}
            result = lab.rollout(row, domain="stem", sampling_params=sampling, settings={"max_turns": 2})
            assert (result.status, result.error) == ("completed", None)
            check_tokens(result)
