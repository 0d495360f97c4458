import pytest

from prorl.api import ConfigError, TaskFault
from prorl_stem.rows import read_gold, read_row, read_rows

GOOD = {"problem": "How long is it?", "answer": "2 m"}
CHOICE = {"question": "Which?", "options": {"A": "one", "B": "two"}, "answer": "B"}
VERL = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": 2.0}}
GYM = {"responses_create_params": {"input": [{"role": "user", "content": "1+1?"}]}, "expected_answer": "2"}


def test_own_rows(own_rows):
    tasks = [read_row(row) for row in own_rows]
    assert [task.gold for task in tasks] == ["1811 K", "-1.602e-19 C", "6", "B", "B", "h/p", "photosynthesis"]
    assert tasks[3].options == {"A": "Oxygen", "B": "Neon", "C": "Sodium", "D": "Boron"}
    assert tasks[3].messages[0].content.endswith("A: Oxygen\nB: Neon\nC: Sodium\nD: Boron")
    assert [task.boxed_only for task in tasks] == [False, False, False, False, True, False, False]
    assert [message.role for message in tasks[2].messages] == ["system", "user"]


@pytest.mark.parametrize("name", ["stem_mcqa.jsonl", "stem_physics.jsonl"])
def test_every_shared_row_loads(shared_file, name):
    for _, row in read_rows(shared_file(name)):
        task = read_row(row)
        assert task.gold
        assert task.messages[-1].role == "user"
        assert bool(task.options) == (name == "stem_mcqa.jsonl")


def test_every_shared_row_without_an_answer_says_what_to_do(shared_file):
    for _, row in read_rows(shared_file("stem_scp_form.jsonl")):
        with pytest.raises(TaskFault, match="prorl stem extract"):
            read_row(row)


@pytest.mark.parametrize(
    ("options", "gold"),
    [
        ({"A": "one", "B": "two"}, "B"),
        ([{"A": "one"}, {"B": "two"}], "B"),
        (["one", "two"], "B"),
        (["one", "two"], 1),
        (["one", "two"], "two"),
        (["one", "two"], "(B)"),
    ],
)
def test_forms_of_options(options, gold):
    assert read_row({"question": "Which?", "options": options, "answer": gold}).gold == "B"


def test_options_in_the_question_are_not_shown_twice():
    asked = "Which?\nA: one\nB: two"
    assert read_row({**CHOICE, "question": asked}).messages[0].content == asked


@pytest.mark.parametrize(("value", "gold"), [(142.0, "142"), (7, "7"), (1e-7, "1e-07"), (" 2 m ", "2 m")])
def test_gold_numbers(value, gold):
    assert read_gold("answer", value) == gold


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({}, "it has nothing"),
        ({"text": "1+1?"}, "problem (or question) and answer"),
        ({"problem": "1+1?"}, "answer must be text or a number; it is missing"),
        ({**GOOD, "answer": ""}, "answer must be text that is not empty"),
        ({**GOOD, "answer": True}, "answer must be text or a number"),
        ({**GOOD, "answer": float("inf")}, "answer must be a finite number"),
        ({**GOOD, "problem": "  "}, "problem must be text"),
        ({**GOOD, "unit": 3}, "unit must be text"),
        ({**CHOICE, "answer": "C"}, "answer must be one of the options A, B"),
        ({**CHOICE, "answer": 2}, "answer must be text"),
        ({**CHOICE, "options": {"A": "one"}}, "options must hold 2 to 26"),
        ({**CHOICE, "options": {"A": "one", "B": ""}}, "options.B must be text"),
        ({**CHOICE, "options": {"A": "one", "first": "two"}}, "options must have each capital letter once"),
        ({**CHOICE, "options": "A, B"}, "options must be an object"),
        ({**VERL, "reward_model": None}, "reward_model must be an object"),
        ({**VERL, "reward_model": {}}, "reward_model.ground_truth must be"),
        ({**VERL, "prompt": []}, "prompt must be"),
        ({**VERL, "prompt": [{"role": "robot", "content": "x"}]}, "prompt[0].role must be one of"),
        ({**VERL, "prompt": [{"role": "user"}]}, "prompt[0].content must be text"),
        ({**VERL, "prompt": [{"role": "assistant", "content": "x"}]}, "the last message must be the user's"),
        ({**GYM, "responses_create_params": []}, "responses_create_params must be an object"),
        ({**GYM, "responses_create_params": {}}, "responses_create_params.input must be"),
        ({**GYM, "expected_answer": None}, "answer must be text or a number; it is missing"),
    ],
)
def test_a_bad_row_names_its_field(row, names):
    with pytest.raises(TaskFault) as caught:
        read_row(row)
    assert names in str(caught.value)
    assert caught.value.code == "bad_row"


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "?", "answer": 1}\n\n["no object"]\n')
    with pytest.raises(ConfigError, match="line 3: not a JSON object"):
        list(read_rows(path))
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_rows(tmp_path / "none.jsonl"))
