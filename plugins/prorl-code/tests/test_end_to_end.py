"""Programming problems through the real server, sandbox, tools and judge; only the policy's words are given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prorl.testing.engines import LlamaEngine
from prorl.testing.lab import Lab

PATH = "/workspace/solution.py"
STDIN = {
    "data_source": "taco",
    "prompt": [{"role": "user", "content": "Read two whole numbers and print their sum."}],
    "reward_model": {
        "style": "rule",
        "ground_truth": json.dumps({"inputs": ["1 2\n", "30 12\n", "5 -5\n"], "outputs": ["3\n", "42\n", "0\n"]}),
    },
}
FUNCTION = {
    "question": "Return the list with its members doubled.",
    "input_output": json.dumps({"fn_name": "doubled", "inputs": [[[1, 2]], [[]]], "outputs": [[2, 4], []]}),
    "starter_code": "class Solution:\n    def doubled(self, numbers):\n        ",
}
RIGHT = {
    "stdin": (STDIN, "a, b = map(int, input().split())\nprint(a + b)\n"),
    "fn_name": (
        FUNCTION,
        "class Solution:\n    def doubled(self, numbers):\n        return [2 * n for n in numbers]\n",
    ),
}
WRONG = {
    "stdin": (STDIN, "a, b = map(int, input().split())\nprint(a + abs(b))\n"),
    "fn_name": (FUNCTION, "def doubled(numbers):\n    return numbers * 2\n"),
}


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def lab(replies: list[str], **more: Any) -> Lab:
    return Lab(replies, max_context=16_384, **more)


def create(program: str) -> str:
    return call("str_replace_editor", command="create", path=PATH, file_text=program)


@pytest.mark.parametrize("form", RIGHT)
def test_a_right_program_by_editor_bash_and_ipython(form: str) -> None:
    row, program = RIGHT[form]
    replies = [
        create(program),
        call("execute_bash", command=f"echo 1 2 | python3 {PATH}; echo ended: $?"),
        call("execute_ipython_cell", code=f"len(open({PATH!r}).read())"),
        call("finish", message="It is done."),
    ]
    with lab(replies) as running:
        result = running.rollout(row, domain="code")
    assert (result.status, result.error, result.reward, result.resolved) == ("completed", None, 1.0, True)
    assert "ended: 0" in result.trajectory.turns[4].text
    assert str(len(program)) in result.trajectory.turns[6].text
    tests = 3 if form == "stdin" else 2
    assert (result.metrics["tests_passed"], result.metrics["tests"]) == (tests, tests)
    assert (result.metrics["verdict"], result.metrics["answer_from"]) == ("passed", "file")
    assert result.artifacts["solution"] == program


@pytest.mark.parametrize("form", WRONG)
def test_a_wrong_program_is_zero_and_counts(form: str) -> None:
    row, program = WRONG[form]
    with lab([create(program), "Done."]) as running:
        result = running.rollout(row, domain="code")
        part = running.rollout(row, domain="code", settings={"reward": "fraction"})
    assert (result.status, result.error, result.reward, result.resolved) == ("completed", None, 0.0, False)
    assert not result.mask_sample
    assert result.metrics["verdict"] == "wrong_answer"
    assert part.reward == pytest.approx(2 / 3 if form == "stdin" else 1 / 2)


@pytest.mark.parametrize("program", [RIGHT["stdin"][1], WRONG["stdin"][1]], ids=["right", "wrong"])
def test_the_last_fenced_block_of_the_final_message(program: str) -> None:
    thought = "<think>\n```python\nprint(0)\n```\n</think>"
    reply = f"{thought}First\n```python\nprint(1)\n```\nbut no:\n```python\n{program}```\n"
    with lab([reply]) as running:
        result = running.rollout(STDIN)  # found by its data_source
    assert result.handler == "code"
    assert result.reward == float(program == RIGHT["stdin"][1])
    assert result.metrics["answer_from"] == "message"


PROGRAMS = (
    "print(sum(map(int, input().split())))",
    "def doubled(numbers): return [2 * n for n in numbers]",
    "class Solution:\n    def mean(self, numbers): return sum(numbers) / len(numbers)",
    "n = int(input())\nprint(n - 1, 1)",
)


def test_own_rows_of_all_forms_both_ways() -> None:
    rows = [json.loads(line) for line in (Path(__file__).parent / "data" / "rows.jsonl").read_text().splitlines()]
    for row, program in zip(rows, PROGRAMS, strict=True):
        for answer in (program, "print(0, 0)"):
            with lab([f"```python\n{answer}\n```"]) as running:
                result = running.rollout(row, domain="code")
            assert (result.error, result.reward) == (None, float(answer == program)), result.metrics


def test_no_program_at_all() -> None:
    with lab(["I do not know."]) as running:
        result = running.rollout(STDIN, settings={"reward_no_answer": -0.5})
    assert (result.reward, result.metrics["verdict"], result.error) == (-0.5, "no_answer", None)


def test_a_row_that_cannot_be_judged_is_masked_before_a_token_is_sampled() -> None:
    empty = {**STDIN, "reward_model": {"ground_truth": '{"inputs": [], "outputs": []}'}}
    with lab([create("print(1)")]) as running:
        no_tests = running.rollout(empty)
        bad = running.rollout({**STDIN, "reward_model": {"ground_truth": '{"inputs": ["1"], "outputs": []}'}})
        asked = len(running.engine.requests)
    for result, kind in ((no_tests, "grader"), (bad, "task")):
        assert (result.status, result.mask_sample) == ("failed", True)
        assert result.error is not None
        assert (result.error.kind, result.error.stage) == (kind, "init")
    assert asked == 0


def test_a_judge_without_a_sandbox_masks() -> None:
    nowhere = {"sandbox": {"apptainer": "/nonexistent/apptainer"}}
    with lab([create(RIGHT["stdin"][1]), "Done."], settings=nowhere) as running:
        result = running.rollout(STDIN, settings={"judge_runtime": "apptainer"})
    assert result.error is not None
    assert (result.status, result.mask_sample, result.error.stage) == ("failed", True, "eval")


def test_the_runtime_without_isolation_has_a_folder_of_its_own_per_test() -> None:
    settings = {"judge_runtime": "local", "tools": ["finish"], "reward": "fraction"}
    with lab([f"```python\n{RIGHT['stdin'][1]}```"]) as running:
        result = running.rollout(STDIN, settings=settings)
    assert (result.error, result.reward) == (None, 1.0), result.metrics
    assert result.metrics["judge_sandboxes"] == 3


def test_prompt_tools_turns_and_files_are_settings() -> None:
    settings = {
        "answer_file": "/workspace/answer.py",
        "instructions": "Write to {answer_file}!",
        "system_prompt": "You are brief.",
        "tools": ["execute_bash"],
        "max_turns": 1,
    }
    replies = [call("execute_bash", command="echo 'print(sum(map(int, input().split())))' > answer.py")]
    with lab(replies) as running:
        result = running.rollout(STDIN, settings=settings)
    assert result.reward == 1.0
    prompt = result.trajectory.turns[0].text
    assert "You are brief." in prompt
    assert "Write to /workspace/answer.py!" in prompt
    assert "str_replace_editor" not in prompt
    assert result.metrics["ended"] == "max_turns"


def test_shared_rows_and_a_program_that_is_right_for_one(shared_rows: list[dict[str, Any]]) -> None:
    """Its own examples' outputs are printed for the first row; the others get what is no answer to them."""
    cases = json.loads(shared_rows[0]["reward_model"]["ground_truth"])
    program = f"print({cases['outputs'][0]!r})"
    with lab([create(program), "Done."], settings={}) as running:
        results = [running.rollout(row) for row in shared_rows]
    assert [(result.status, result.error, result.reward) for result in results] == [
        ("completed", None, 1.0),
        ("completed", None, 0.0),
        ("completed", None, 0.0),
    ]


@pytest.mark.timeout(900)
@pytest.mark.skipif(LlamaEngine.available() is not None, reason=str(LlamaEngine.available()))
def test_shared_rows_by_the_command_line_and_a_real_model(shared_rows: list[dict[str, Any]], tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in shared_rows))
    with LlamaEngine(n_ctx=8192, parallel=1) as llama, lab([]) as running:
        running.client.clear_llm_server()
        running.client.add_llm_server(llama.url)
        command = [str(Path(sys.executable).parent / "prorl"), "rollout", str(rows), "--server", running.url]
        options = ["--out", str(out), "--max-tokens", "64", "--set", "max_turns=2", "--seed", "3"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(result["status"], result["error"]) for result in results] == [("completed", None)] * len(shared_rows)
    assert {result["metrics"]["verdict"] for result in results} <= {"no_answer", "runtime_error", "wrong_answer"}


@pytest.mark.skipif(LlamaEngine.available() is not None, reason=str(LlamaEngine.available()))
def test_a_real_model() -> None:
    with LlamaEngine(n_ctx=4096, parallel=1) as llama, lab([]) as running:
        running.client.clear_llm_server()
        running.client.add_llm_server(llama.url)
        sampling = {"max_tokens": 24, "seed": 3}
        result = running.rollout(STDIN, domain="code", sampling_params=sampling, settings={"max_turns": 2})
    assert (result.status, result.error) == ("completed", None)
    assert result.trajectory.logprob_kind == "raw"
