import base64
import json
import pickle
import zlib

import pytest

from prorl.api import GraderFault, TaskFault
from prorl_code.rows import detect, read_row

EURUS = {
    "data_source": "taco",
    "prompt": [{"role": "user", "content": "Add."}],
    "reward_model": {"style": "rule", "ground_truth": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})},
    "extra_info": {"index": "1"},
}
APPS = {
    "problem_id": 1,
    "question": "Add.",
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}),
    "starter_code": "def add(a, b):",
    "difficulty": "introductory",
}
TACO = {
    "question": "Add.",
    "input_output": json.dumps({"inputs": ["1 2\n", ["1", "2"]], "outputs": ["3\n", ["3"]]}),
    "time_limit": "2.0 seconds",
    "memory_limit": "256.0 megabytes",
    "starter_code": "",
}
LIVE = {
    "question_title": "Add",
    "question_content": "Add.",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "[1]\n2", "output": "[3]", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "add"}),
}
FORCES = {
    "id": "1/A",
    "title": "Add",
    "description": "Add.",
    "input_format": "Two numbers.",
    "output_format": "Their sum.",
    "interaction_format": None,
    "note": None,
    "examples": [{"input": "1 2", "output": "3"}],
    "time_limit": 2.0,
    "memory_limit": 2048.0,
    "input_mode": "stdio",
    "official_tests": [{"input": "1 2\n", "output": "3\n"}],
    "generated_checker": None,
}


def cases(**table):
    return {**EURUS, "reward_model": {"ground_truth": json.dumps(table)}}


def test_eurus():
    problem = read_row(EURUS)
    assert detect(EURUS) == "eurus"
    assert [(test.given, test.expected) for test in problem.tests] == [("1 2\n", "3\n")]
    assert (problem.function, problem.wrapped) == (None, False)
    assert problem.messages[-1].content == "Add."


@pytest.mark.parametrize(
    ("given", "wanted", "arguments", "expected", "wrapped"),
    [
        ([1, [2]], 3, "[1, [2]]", "3", False),
        ([1, [2]], [3], "[1, [2]]", "[3]", True),
        ("1\n[2]", "3", "[1, [2]]", "3", False),
        ("1\n[2]\n", "[3]", "[1, [2]]", "[3]", False),
        ('"a b"', '"c"', '["a b"]', '"c"', False),
        ("1", "a word", "[1]", '"a word"', False),
        ("9" * 5000, "9" * 5000, f"[{'9' * 5000}]", "9" * 5000, False),
    ],
)
def test_functions_in_both_forms(given, wanted, arguments, expected, wrapped):
    problem = read_row(cases(fn_name="add", inputs=[given], outputs=[wanted]))
    (test,) = problem.tests
    assert (test.given, test.expected, problem.wrapped) == (arguments, expected, wrapped)
    assert problem.function == "add"


def test_numbers_of_any_size_in_lists():
    long = "9" * 5000
    row = {**APPS, "input_output": f'{{"fn_name": "f", "inputs": [[{long}]], "outputs": [{{"a": [{long}]}}]}}'}
    (test,) = read_row(row).tests
    assert (test.given, test.expected) == (f"[{long}]", f'{{"a": [{long}]}}')


def test_apps_and_taco():
    problem = read_row(APPS)
    assert (problem.function, problem.wrapped, problem.starter_code) == ("add", True, "def add(a, b):")
    problem = read_row(TACO)
    assert (problem.time_limit_s, problem.memory_mb) == (2.0, 256.0)
    assert [test.given for test in problem.tests] == ["1 2\n", "1\n2\n"]
    assert [test.expected for test in problem.tests] == ["3\n", "3\n"]


def test_livecodebench():
    problem = read_row(LIVE)
    assert problem.function == "add"
    assert [(test.given, test.expected) for test in problem.tests] == [("[1, 2]", "3"), ("[[1], 2]", "[3]")]
    stdin = {**LIVE, "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}])}
    assert read_row({**stdin, "private_test_cases": "[]"}).function is None


def test_pickled_tests_are_refused_and_never_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "made"), "w"))

    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    row = {**LIVE, "private_test_cases": packed}
    with pytest.raises(TaskFault, match=r"private_test_cases is pickled.*to JSON.*public_tests_only") as caught:
        read_row(row)
    assert caught.value.code == "pickled_tests"
    assert not (tmp_path / "made").exists()
    assert len(read_row(row, public_tests_only=True).tests) == 1


def test_codeforces():
    problem = read_row(FORCES)
    assert problem.messages[0].content.split("\n\n")[:3] == ["Add", "Add.", "Input\nTwo numbers."]
    assert "Example input\n1 2\nExample output\n3" in problem.messages[0].content
    assert (problem.time_limit_s, problem.memory_mb, problem.checker, problem.input_file) == (2.0, 2048.0, None, None)
    files = read_row({**FORCES, "input_mode": "file", "generated_checker": "print(1)"})
    assert (files.input_file, files.output_file, files.checker) == ("input.txt", "output.txt", "print(1)")
    more = read_row({**FORCES, "generated_tests": [{"input": "2 2\n", "output": "4\n"}]})
    assert len(more.tests) == 2
    talk = {**FORCES, "interaction_format": "Guess.", "interactor": "print(1)"}
    assert read_row(talk).interactor == "print(1)"


def test_shared_rows(shared_rows):
    problems = [read_row(row) for row in shared_rows]
    assert [len(problem.tests) for problem in problems] == [1, 97, 100]
    assert all(problem.messages[-1].role == "user" for problem in problems)


BAD = [
    ({}, "it has nothing"),
    ({"text": "x"}, "not a row of a known form"),
    ({**EURUS, "prompt": []}, "prompt must be text or a list of messages"),
    ({**EURUS, "prompt": [{"role": "robot", "content": "x"}]}, "prompt[0].role must be one of"),
    ({**EURUS, "prompt": [{"role": "user", "content": ""}]}, "prompt[0].content must be text"),
    ({**EURUS, "prompt": [{"role": "assistant", "content": "x"}]}, "prompt[0].role of the last message must be user"),
    ({**EURUS, "reward_model": None}, "reward_model must be an object"),
    ({**EURUS, "reward_model": {}}, "reward_model.ground_truth must be an object"),
    ({**EURUS, "reward_model": {"ground_truth": "{not JSON"}}, "reward_model.ground_truth must be JSON"),
    ({**EURUS, "reward_model": {"ground_truth": "[" * 100_000}}, "reward_model.ground_truth must be JSON"),
    (cases(inputs="x", outputs=[]), "reward_model.ground_truth.inputs must be JSON"),
    (cases(inputs=[1], outputs=["x"]), "reward_model.ground_truth.inputs[0] must be text"),
    (cases(inputs=["x"], outputs=[None]), "reward_model.ground_truth.outputs[0] must be text"),
    (cases(inputs=["x"], outputs=[]), "reward_model.ground_truth.outputs must be as many as the 1 inputs"),
    (cases(inputs=["x"]), "reward_model.ground_truth.outputs must be a list"),
    (cases(fn_name="f", inputs=[3], outputs=[3]), "reward_model.ground_truth.inputs[0] must be a list of arguments"),
    (cases(fn_name="f", inputs=["1\nx"], outputs=["3"]), "reward_model.ground_truth.inputs[0], line 2, must be JSON"),
    (cases(fn_name="a b", inputs=[[1]], outputs=[3]), "reward_model.ground_truth.fn_name must be the name"),
    ({**APPS, "question": " "}, "question must be text that is not empty"),
    ({**APPS, "input_output": None}, "input_output must be an object"),
    ({**LIVE, "metadata": "{}"}, "metadata.func_name must be text"),
    ({**LIVE, "public_test_cases": "{}"}, "public_test_cases must be a list"),
    ({**LIVE, "public_test_cases": '[{"input": 1, "output": "2"}]'}, "test 1.input must be text"),
    ({**LIVE, "private_test_cases": '[{"input": "1", "output": "2"}]'}, "test 2.testtype must be"),
    ({**FORCES, "description": ""}, "description must be text"),
    ({**FORCES, "time_limit": "2"}, "time_limit must be a number above 0"),
    ({**FORCES, "memory_limit": 0}, "memory_limit must be a number above 0"),
    ({**FORCES, "input_mode": "telepathy"}, "input_mode must be stdio or file"),
    ({**FORCES, "official_tests": [{"output": "3"}]}, "official_tests[0].input must be text"),
    ({**FORCES, "generated_checker": "this is no Python"}, "generated_checker must be a Python program"),
    ({**FORCES, "interaction_format": "Guess."}, "interactor must be a Python program"),
]


@pytest.mark.parametrize(("row", "names"), BAD, ids=[names for _, names in BAD])
def test_a_bad_row_names_its_field(row, names):
    with pytest.raises(TaskFault) as caught:
        read_row(row)
    assert names in str(caught.value)
    assert caught.value.code == "bad_row"
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "row",
    [
        cases(inputs=[], outputs=[]),
        {**LIVE, "public_test_cases": "[]", "private_test_cases": "[]"},
        {**FORCES, "official_tests": []},
    ],
)
def test_a_row_without_tests_is_a_fault_of_the_grader(row):
    with pytest.raises(GraderFault, match="no test") as caught:
        read_row(row)
    assert caught.value.code == "no_tests"


def test_a_named_form_is_read_as_that():
    with pytest.raises(TaskFault, match="question must be text"):
        read_row(EURUS, "apps")
    assert read_row(EURUS, "eurus").tests
