# ruff: noqa: RUF001 - look-alikes are among what is tested
"""Verdicts of the function that the grader's processes run, in such a process: confined, killable, as in a server."""

import re
from pathlib import Path

import pytest

from prorl.api import GraderFault
from prorl.grading.answers import final_box
from prorl_math.latex import to_latex
from prorl_math.rows import read_row

pytestmark = pytest.mark.asyncio(loop_scope="session")
LONG = 60.0
PAGE = Path(__file__).parents[1] / "docs" / "grading.md"


def kinds():
    """The tables of docs/grading.md as (kind, gold, right answers, wrong answers)."""
    kind = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            kind = line[3:]
        elif line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line)[1:4]
            (gold,), right, wrong = (
                [text.replace("\\|", "|") for text in re.findall(r"`([^`]+)`", cell)] for cell in cells
            )
            yield kind, gold, right, wrong


KINDS = list(kinds())


async def verdict(graders, gold, text):
    """Of a whole text, or of what stands in a box."""
    answer = final_box(text if r"\boxed" in text else rf"\boxed{{{text}}}")
    if not answer:
        return "no answer"
    return (await graders.grade({"gold": gold, "answer": answer}, LONG))["verdict"]


@pytest.mark.parametrize(("kind", "gold", "right", "wrong"), KINDS, ids=[f"{kind}: {gold}" for kind, gold, *_ in KINDS])
async def test_the_page_says_what_is_done(graders, kind, gold, right, wrong):
    assert right, kind
    assert wrong, kind
    assert (await graders.grade({"gold": gold}, LONG))["verdict"] == "good_gold"
    for text in right:
        assert await verdict(graders, gold, text) == "right", (gold, text)
    for text in wrong:
        assert await verdict(graders, gold, text) != "right", (gold, text)


async def test_the_page_has_every_kind():
    assert len({kind for kind, *_ in KINDS}) >= 17
    assert sum(len(right) + len(wrong) for _, _, right, wrong in KINDS) >= 300


# just as they were asked for: gold, prediction, reward
ASKED = [
    ("1/12", r"\boxed{0.0833333333333}", 1),
    ("1/3", r"\boxed{0.33}", 0),
    ("(1,9/2)", r"\boxed{(1,4.5)}", 1),
    ("1331,1728", r"\boxed{1728}", 0),
    ("2^{-99}", r"\boxed{2^{-98}}", 0),
    ("±2021", r"\boxed{2021}", 0),
    ("2x+4y−3=0", r"\boxed{y=−x/2+3/4}", 1),
    ("1/√n", r"\boxed{√(1/n)}", 1),
    ("(2,∞)", r"\boxed{[2,∞)}", 0),
    ("{1,2,3}", r"\boxed{{3,1,2}}", 1),
    ("10%", r"\boxed{0.1}", 1),
    ("B", r"\boxed{\textbf{(B)}\ 12}", 1),
    ("14/3", r"First \boxed{5}, then \boxed{14/3}", 1),
    ("5", r"First \boxed{5}, then \boxed{14/3}", 0),
    ("7", r"<think>\boxed{7}</think> \boxed{5}", 0),
    ("142", r"\boxed{142}", 1),
]


@pytest.mark.parametrize(("gold", "text", "reward"), ASKED)
async def test_what_was_asked_for(graders, gold, text, reward):
    assert (await verdict(graders, gold, text) == "right") == bool(reward)


async def test_each_shared_gold_against_itself_one_more_and_all_others(graders, shared_rows):
    golds = sorted({read_row(row).gold for row in shared_rows})
    for index, gold in enumerate(golds):
        assert await verdict(graders, gold, gold) == "right", gold
        assert await verdict(graders, gold, rf"{gold}+1") != "right", gold
        for other in golds[index + 1 :: 7]:  # a seventh of all pairs
            there = await verdict(graders, gold, other)
            back = await verdict(graders, other, gold)
            assert (there == "right") == (back == "right"), (gold, other)
            if there == "right":
                assert to_latex(gold) != to_latex(other), "two spellings of one value"
                assert gold in ("-4", "4") or float_of(gold) == float_of(other), (gold, other)


def float_of(text):
    fraction = re.fullmatch(r"\\frac\{(\d+)\}\{(\d+)\}", text)
    return int(fraction[1]) / int(fraction[2]) if fraction else float(text)


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{a}{", "))((", "$", "?", "5" * 3000])
async def test_a_gold_that_cannot_be_graded_is_found_out(graders, gold):
    assert (await graders.grade({"gold": gold}, LONG))["verdict"] == "bad_gold"


HOSTILE = [
    "__import__('os').system('touch {file}')",
    r"\text{__import__('os').system('touch {file}')}",
    r"f(__import__('os').system('touch {file}'))",
    r"\operatorname{exec}('open(\"{file}\",\"w\")')",
    r"\operatorname{__import__}(os)",
    "x.__class__.__base__.__subclasses__()",
    "9**9**9**9",
    "(" * 500,
    "{" * 300 + "}" * 300,
    r"\frac{1}{" * 100 + "2" + "}" * 100,
    "\x00\ud7ff\u202e6",
    "5" * 1900,
    "5" * 5000,
    "5" * 1_000_000,
    r"\operatorname{zeros}(100000,100000)",
    "1:" * 900 + "1",
    "1_" * 900,
    ":" * 1900,
    "\\" * 1900,
    r"\{" * 900,
    "°" * 1900,
    "½" * 200,
    " " * 1800 + "x",
    r"\text{a " * 200,
    r"\pm 1" * 200,
    "one hundred " * 100,
    "1e99999999",
    r"0.\overline{" + "3" * 1500 + "}",
    "\u200b" * 1900,
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("gold", ["5", "x^2", r"\text{even}", "(1,2)"])
async def test_nasty_text_is_only_a_wrong_answer(graders, tmp_path, gold):
    file = tmp_path / "made"
    for text in HOSTILE:
        answer = text.replace("{file}", str(file))
        try:
            graded = await graders.grade({"gold": gold, "answer": answer}, LONG)
        except GraderFault as fault:
            assert fault.code in ("raised", "crashed"), (text[:50], fault)  # noqa: PT017 - most raise nothing
            continue
        assert graded["verdict"] in ("wrong", "unreadable"), text[:50]
        assert graded["reason"]
    assert not file.exists()


async def test_zero_width_characters_are_not_seen(graders):
    assert await verdict(graders, "15", "\u200b1\u200d5\ufeff") == "right"


async def test_nothing_is_ever_evaluated(graders):
    """math-verify and sympy read numbers through eval; ours does not, or its confined process would say so."""
    for gold in ("1.5", "x+1.5", "1,000", "3e5x", r"\sqrt{1.50}", r"\frac{x}{0.5}", "x>0.5", "f(1.5)+y"):
        assert (await graders.grade({"gold": gold, "answer": gold}, LONG))["verdict"] == "right", gold
