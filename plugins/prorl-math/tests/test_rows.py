import pytest

from prorl.api import TaskFault
from prorl_math.rows import read_gold, read_row

GOOD = {"problem": "1+1?", "answer": "2"}
VERL = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": 2.0}}


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
    ],
)
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
        ({**GOOD, "answer": ["2"]}, "answer must be"),
        ({**GOOD, "answer": float("nan")}, "answer must be a finite number"),
        ({**GOOD, "problem": "  "}, "problem must be text"),
        ({**GOOD, "problem": 3}, "problem must be text"),
        ({**VERL, "reward_model": None}, "reward_model must be an object"),
        ({**VERL, "reward_model": {}}, "reward_model.ground_truth must be"),
        ({"reward_model": {"ground_truth": "2"}}, "prompt must be"),
        ({**VERL, "prompt": []}, "prompt must be"),
        ({**VERL, "prompt": ["1+1?"]}, "prompt[0] must be an object"),
        ({**VERL, "prompt": [{"role": "robot", "content": "x"}]}, "prompt[0].role must be one of"),
        ({**VERL, "prompt": [{"role": "user"}]}, "prompt[0].content must be text"),
        ({**VERL, "prompt": [{"role": "assistant", "content": "x"}]}, "the last message must be the user's"),
    ],
)
def test_a_bad_row_names_its_field(row, names):
    with pytest.raises(TaskFault) as caught:
        read_row(row)
    assert names in str(caught.value)
    assert caught.value.code == "bad_row"
