"""What holds for every number, list and text; run here, since nothing of it can take long."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_math.grading import compare
from prorl_math.latex import number_in_words, to_latex
from prorl_math.reading import depth


@given(st.integers(-(10**30), 10**30), st.integers(-(10**6), 10**6))
def test_whole_numbers_of_any_size(gold, difference):
    assert (compare(str(gold), str(gold + difference))[0] == "right") == (difference == 0)
    assert compare(str(gold), f"{gold:,}" if abs(gold) > 999 else f"{gold}.0")[0] == "right"


@given(st.fractions(max_denominator=999), st.fractions(max_denominator=999))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
def test_fractions_in_every_dress(left, right):
    spellings = [
        rf"\frac{{{left.numerator}}}{{{left.denominator}}}",
        f"{left.numerator}/{left.denominator}",
        rf"\dfrac{{{3 * left.numerator}}}{{{3 * left.denominator}}}",
        f"{float(left):.12f}" if abs(left) >= 0.001 or left == 0 else str(left),
    ]
    for spelling in spellings:
        assert compare(spellings[0], to_latex(spelling))[0] == "right", spelling
    assert (compare(str(left), str(right))[0] == "right") == (left == right)


@given(st.permutations(["1", "x", r"\sqrt{2}", r"\frac{1}{3}"]))
@settings(deadline=None, max_examples=20)
def test_the_order_of_a_list_and_of_a_tuple(order):
    listed, written = "1, x, \\sqrt{2}, \\frac{1}{3}", ", ".join(order)
    assert compare(listed, written)[0] == "right"
    assert compare(rf"\{{{listed}\}}", rf"\{{{written}\}}")[0] == "right"
    assert (compare(f"({listed})", f"({written})")[0] == "right") == (listed == written)


SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number):
    if number < 20:
        return SMALL.split()[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{in_words(number % 10)}" if number % 10 else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    return f"{in_words(number // size)} {name}" + (f" {in_words(number % size)}" if number % size else "")


@given(st.integers(0, 999_999))
def test_numbers_in_words(number):
    assert number_in_words(in_words(number)) == number


@pytest.mark.parametrize("words", ["", "one two", "twenty twelve", "hundred", "thousand", "first", "one apple"])
def test_words_that_are_no_number(words):
    assert number_in_words(words) is None


@given(st.text(alphabet=r"\{}()[]^_0123456789.,:;%$+-*/=<>abxyBCAPMpm \n\u200b½²√∞±°€", max_size=60))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_gets_a_verdict(text):
    text = to_latex(text)
    for gold in ("5", "B", "3:30 PM", r"5\text{ cm}", r"\text{even}", "101_2"):
        if depth(text) < 6:
            assert compare(gold, text)[0] in ("right", "wrong", "unreadable")
