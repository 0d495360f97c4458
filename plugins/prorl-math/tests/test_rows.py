"""Every form of row that public data sets have, and what is said of one that is wrong."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from prorl.api import TaskFault
from prorl_math.check import check, command
from prorl_math.rows import numbered_rows, read_gold, read_row

GOOD = {"problem": "1+1?", "answer": "2"}
VERL = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": 2.0}}

# one row as each data set has them, its form, and the gold answer
FORMS = [
    ({"problem": "?", "answer": "4", "solution": r"\boxed{5}"}, "answer", "4"),  # DeepScaleR
    ({"problem": "?", "solution": "s", "answer": "1/2", "subject": "Algebra", "level": 2}, "answer", "1/2"),
    ({"question": "?", "answer": "It is 6 * 7.\n#### 42"}, "gsm8k", "42"),
    ({"question": "?", "answer": "Profit.\n#### 1,000"}, "gsm8k", "1,000"),
    ({"problem": "?", "level": "Level 3", "type": "Algebra", "solution": r"So $\boxed{1/2}$."}, "solution", "1/2"),
    ({"source": "cn_k12", "problem": "?", "solution": r"\boxed{B}", "messages": []}, "solution", "B"),  # NuminaMath-CoT
    ({"problem": "?", "solution": "long", "answer": "$x=2$", "problem_type": 1}, "answer", "$x=2$"),  # NuminaMath-1.5
    ({"id": 60, "problem": "?", "solution": r"\boxed{204}", "answer": "204"}, "answer", "204"),  # AIME 2024
    ({"ID": "2024-I-1", "Problem": "?", "Solution": "s", "Answer": 204}, "answer", "204"),
    ({"id": 0, "problem": "?", "answer": 142.0, "url": "u"}, "answer", "142"),  # AMC
    ({"problem": "?", "generated_solution": "g", "expected_answer": "7"}, "answer", "7"),  # OpenMathInstruct
    ({"question": "?", "final_answer": ["3"], "is_multiple_answer": False}, "answer", "3"),  # OlympiadBench
    ({"prompt": "1+1?", "answer": "2"}, "answer", "2"),
    (VERL, "verl", "2"),
    ({"prompt": "1+1?", "solution": "3", "ability": "MATH", "reward_model": {"ground_truth": "3"}}, "verl", "3"),
    ({**VERL, "reward_model": {"ground_truth": ["34"], "style": "rule"}}, "verl", "34"),  # DAPO
    ({**VERL, "extra_info": {"answer": "no"}, "ability": "math"}, "verl", "2"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "form", "gold"), FORMS)
def test_the_form_of_a_row_is_found(row, form, gold):
    task = read_row(row)
    assert (task.form, task.gold) == (form, gold)
    assert task.messages[-1].role == "user"


def test_own_rows(own_rows):
    tasks = [read_row(row) for row in own_rows]
    assert [task.gold for task in tasks] == ["55", r"\sqrt{2}", "20", "(-3,3)", "1"]
    assert [message.role for message in tasks[3].messages] == ["system", "user"]
    assert tasks[4].messages[0].content.startswith("Find the remainder")


def test_shared_rows(shared_rows):
    for row in shared_rows:
        task = read_row(row)
        assert task.gold
        assert task.messages[-1].role == "user"


@pytest.mark.parametrize(
    ("value", "gold"),
    [
        (142.0, "142"),
        (-4.0, "-4"),
        (3.21, "3.21"),
        (7, "7"),
        (" 1/2 ", "1/2"),
        (1e-7, "9.9999999999999995e-08"),
        (1e22, str(10**22)),
        (["7"], "7"),
    ],
)
def test_gold_numbers(value, gold):
    assert read_gold("answer", value) == gold


BAD = [
    ({}, "it has nothing"),
    ({"text": "1+1?"}, "problem (or question) with answer or solution"),
    ({"problem": "1+1?"}, "answer must be text or a number; it is missing"),
    ({**GOOD, "answer": ""}, "answer must be text that is not empty"),
    ({**GOOD, "answer": None}, "answer must be text or a number; it is missing"),
    ({**GOOD, "answer": True}, "answer must be text or a number"),
    ({**GOOD, "answer": ["2", "3"]}, "answer must be"),
    ({**GOOD, "answer": [""]}, "answer[0] must be"),
    ({**GOOD, "answer": "proof"}, "answer must be an answer that can be compared; it is 'proof'"),
    ({**GOOD, "answer": "sum\n#### "}, "answer must be text that is not empty"),
    ({**GOOD, "answer": float("nan")}, "answer must be a finite number"),
    ({"problem": "?", "solution": "So it is 5."}, r"solution must have its answer in \boxed{}"),
    ({"problem": "?", "solution": 5}, "solution must be text"),
    ({**GOOD, "problem": "  "}, "problem must be text"),
    ({**GOOD, "problem": 3}, "problem must be text"),
    ({**VERL, "reward_model": None}, "reward_model must be an object"),
    ({"prompt": VERL["prompt"]}, "reward_model must be an object"),
    ({**VERL, "reward_model": {}}, "reward_model.ground_truth must be"),
    ({"reward_model": {"ground_truth": "2"}}, "prompt must be"),
    ({**VERL, "prompt": []}, "prompt must be"),
    ({**VERL, "prompt": ["1+1?"]}, "prompt[0] must be an object"),
    ({**VERL, "prompt": [{"role": "robot", "content": "x"}]}, "prompt[0].role must be one of"),
    ({**VERL, "prompt": [{"role": "user"}]}, "prompt[0].content must be text"),
    ({**VERL, "prompt": [{"role": "assistant", "content": "x"}]}, "the last message must be the user's"),
]


@pytest.mark.parametrize(("row", "names"), BAD)
def test_a_bad_row_names_its_field(row, names):
    with pytest.raises(TaskFault) as caught:
        read_row(row)
    assert names in str(caught.value)
    assert caught.value.code == "bad_row"


LINES = [
    json.dumps(GOOD),
    "",
    "{broken",
    "[1]",
    json.dumps({**GOOD, "answer": ""}),
    json.dumps({**GOOD, "answer": "))(("}),
    json.dumps(VERL),
]


@pytest.fixture
def bad_file(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(LINES))
    return file


def test_the_lines_of_a_file(bad_file):
    read = dict(numbered_rows(bad_file))
    assert [line for line, row in read.items() if isinstance(row, TaskFault)] == [3, 4, 5]
    assert "not JSON" in str(read[3])
    assert "must be an object, not list" in str(read[4])


def test_the_command_names_line_and_field_of_every_bad_row_and_bad_gold(bad_file):
    done = CliRunner().invoke(command, [str(bad_file)])
    assert done.exit_code == 1, done.output
    *said, counts = done.output.splitlines()
    assert [line.split(":")[1] for line in said] == ["3", "4", "5", "6"]
    assert "answer must be text that is not empty" in said[2]
    assert "does not grade as itself" in said[3]
    assert counts == "rows by form: 2 answer, 1 verl; bad: 4"


def test_the_command_passes_good_rows(tmp_path, own_rows):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, own_rows)))
    done = CliRunner().invoke(command, [str(file)])
    assert (done.exit_code, done.output) == (0, "rows by form: 2 answer, 3 verl; bad: 0\n")


def test_every_shared_row_and_gold_is_good(shared_file):
    forms, faults = asyncio.run(check(shared_file, processes=1, timeout=60.0))
    assert faults == {}
    assert sum(forms.values()) == len(shared_file.read_text().splitlines())
