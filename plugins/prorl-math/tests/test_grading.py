# ruff: noqa: RUF001 - look-alikes are among what is tested
"""Verdicts of the function that the grader's processes run, in such a process."""

import pytest

from prorl_math.answer import final_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")
LONG = 60.0

# gold, what the model wrote, verdict: the kinds that graders get wrong in public
SAME = [
    ("1/12", r"\boxed{0.0833333333333}"),
    ("1/3", r"\boxed{0.333333}"),
    (r"(1,\frac{9}{2})", r"\boxed{(1,4.5)}"),
    ("2x+4y−3=0", r"\boxed{y=−x/2+3/4}"),
    ("1/√n", r"\boxed{√(1/n)}"),
    (r"\frac{1}{\sqrt{n}}", r"\boxed{\sqrt{\frac{1}{n}}}"),
    ("{1,2,3}", r"\boxed{{3,1,2}}"),
    (r"\{1,2,3\}", r"\boxed{\{3,1,2\}}"),
    ("1331,1728", r"\boxed{1728, 1331}"),
    ("1331,1728", r"\boxed{1331} and \boxed{1728}"),
    ("10%", r"\boxed{0.1}"),
    (r"10\%", r"\boxed{10}"),
    ("B", r"\boxed{\textbf{(B)}\ 12}"),
    ("0.1", r"\boxed{10\%}"),
    ("20", r"\boxed{20\text{ percent}}"),
    ("B", r"\boxed{(B)}"),
    ("B", r"\boxed{\text{b}}"),
    ("14/3", r"First \boxed{5}; but no, it is \boxed{\frac{14}{3}}."),
    ("142", r"\boxed{142}"),
    ("142", r"\boxed{142.0}"),
    ("±2021", r"\boxed{2021, -2021}"),
    ("(2,∞)", r"\boxed{x>2}"),
    ("(-1,6)", r"\boxed{-1<x<6}"),
    (r"137\frac{1}{2}", r"\boxed{137.5}"),
    (r"1\frac{4}{5}", r"\boxed{1 4/5}"),
    (r"0.\overline{3}", r"\boxed{1/3}"),
    ("3:30 PM", r"\boxed{3:30 \text{ p.m.}}"),
    ("3:30 PM", r"\boxed{3:30}"),
    (r"5\text{ cm}", r"\boxed{5}"),
    ("5", r"\boxed{5 \text{ apples}}"),
    (r"5\text{ cm}^2", r"\boxed{5 \text{ square cm}}"),
    ("x=5", r"\boxed{5}"),
    (r"\text{even}", r"\boxed{Even}"),
    ("no solution", r"\boxed{\emptyset}"),
    ("1e-5", r"\boxed{0.00001}"),
    (r"\$8,645.09", r"\boxed{8645.09}"),
    (r"\frac{\sqrt{3}}{3}", r"\boxed{\frac{1}{\sqrt 3}}"),
    ("100!", r"\boxed{100 \cdot 99!}"),
]
DIFFERENT = [
    ("x", r"\boxed{y}"),
    ("n", r"\boxed{\text{five}}"),
    ("i", r"\boxed{a}"),
    (r"\mathbb{R}", r"\boxed{x}"),
    ("1/3", r"\boxed{0.33}"),
    ("1331,1728", r"\boxed{1728}"),
    ("2^{-99}", r"\boxed{2^{-98}}"),
    ("(2^{-99},1)", r"\boxed{(2^{-98},1)}"),
    ("±2021", r"\boxed{2021}"),
    ("(2,∞)", r"\boxed{[2,\infty)}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("5", r"First \boxed{5}; but no, it is \boxed{\frac{14}{3}}."),
    ("5", r"\boxed{5} or \boxed{6}"),
    ("5", r"\boxed{5 \text{ or } 6}"),
    ("7", r"<think>\boxed{7}</think> It is \boxed{5}."),
    ("B", r"\boxed{C}"),
    ("B", r"\boxed{B or C}"),
    ("B", r"\boxed{12}"),
    ("3:30 PM", r"\boxed{3:30 AM}"),
    ("12:05", r"\boxed{12:50}"),
    (r"5\text{ cm}", r"\boxed{5 \text{ m}}"),
    (r"5\text{ cm}", r"\boxed{5 \text{ cm}^2}"),
    ("x", r"\boxed{X}"),
    ("x", r"\boxed{\sqrt{x^2}}"),
    (r"\text{Evelyn}", r"\boxed{Alice}"),
    ("100!", r"\boxed{100!+1}"),
    ("1000001", r"\boxed{1000000.0}"),
    ("10^{-9}", r"\boxed{0}"),
    (r"10\%", r"\boxed{1}"),
    ("2+3i", r"\boxed{2-3i}"),
    ("2^{-99}", r"\boxed{0\%}"),
    ("10", r"\boxed{0.1}"),
    ("5", r"\boxed{\pm 5}"),
    ("5", r"\boxed{\{5,6\}}"),
    ("5", r"\boxed{x \ge 5}"),
    ("5", r"\boxed{[5,6]}"),
    ("(1,2)", r"\boxed{1}"),
]


@pytest.mark.parametrize(("gold", "text"), SAME)
async def test_right(graders, gold, text):
    graded = await graders.grade({"gold": gold, "answer": final_answer(text)}, LONG)
    assert graded["verdict"] == "right", graded


@pytest.mark.parametrize(("gold", "text"), DIFFERENT)
async def test_not_right(graders, gold, text):
    graded = await graders.grade({"gold": gold, "answer": final_answer(text)}, LONG)
    assert graded["verdict"] in ("wrong", "unreadable"), graded


@pytest.mark.parametrize("gold", [gold for gold, _ in SAME])
async def test_every_gold_is_usable(graders, gold):
    assert (await graders.grade({"gold": gold}, LONG))["verdict"] == "good_gold"


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{a}{", "))((", "$"])
async def test_a_gold_that_cannot_be_graded_is_found_out(graders, gold):
    assert (await graders.grade({"gold": gold}, LONG))["verdict"] == "bad_gold"


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('touch {file}')",
        r"\text{{__import__('os').system('touch {file}')}}",
        "x.__class__.__base__.__subclasses__()",
        "(" * 500,
        "{" * 300 + "}" * 300,
        "\x00\ud7ff\u202e5",
        "5" * 1900,
        "5" * 5000,
    ],
)
async def test_nasty_text_is_only_a_wrong_answer(graders, tmp_path, answer):
    file = tmp_path / "made"
    graded = await graders.grade({"gold": "5", "answer": answer.replace("{file}", str(file))}, LONG)
    assert graded["verdict"] in ("wrong", "unreadable")
    assert not file.exists()
