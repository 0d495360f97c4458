# ruff: noqa: RUF001 - look-alikes are among what is tested
"""What a model's text answers. Every case is one that a public grader got wrong, or its opposite."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl.grading.answers import answer_line, boxes, choice_letter, close, final_box, read_number, without_thinking


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"It is \boxed{4}.", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {4}", "4"),
        (r"\boxed 4 it is", "4"),
        (r"\fbox{4}", "4"),
        (r"\\boxed{4}", "4"),
        (r"\boxed{1} so far, and then \boxed{2}", "2"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\boxed{1}, \boxed{2}, \boxed{3}", "1, 2, 3"),
        (r"\boxed{5} \text{ or } \boxed{6}", "5, 6"),
        (r"\boxed{5}, \boxed{5}", "5"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{x = \boxed{6}}", "6"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"} {{ \boxed{4}", "4"),
        (r"\boxed{C} is tempting. \boxed{E}", "E"),
        (r"\boxed{}", ""),
        (r"\boxed{\frac{}", None),
        ("no box: 4", None),
        (r"\boxed{4", None),
        ("", None),
        (r"<think>\boxed{7}</think>", None),
        (r"<think>\boxed{7}</think>\boxed{5}", "5"),
        (r"[THINK]\boxed{7}[/THINK]\boxed{5}", "5"),
        (r"<reasoning>\boxed{7}</reasoning>\boxed{5}", "5"),
        (r"\boxed{7}</think>\boxed{5}", "5"),
        (r"\boxed{5}<think>\boxed{7}", "5"),
        (r"<think>a</think>\boxed{1} then <think>\boxed{2}</think>", "1"),
    ],
)
def test_the_last_box_outside_thinking(text, answer):
    assert final_box(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42", "42"),
        ("So.\nAnswer: $\\frac{1}{2}$.\n", "$\\frac{1}{2}$"),
        ("**Final Answer:** 42", "42"),
        ("### Answer: 5\nAnswer: 6", "6"),
        ("Final Answer: The final answer is $(3,4)$. I hope it is correct.", "$(3,4)$"),
        ("Thus the answer is 12.", "12"),
        ("12 * 6 = 72\n#### 72", "72"),
        ("<think>Answer: 7</think>Answer: 5", "5"),
        ("<think>Answer: 7</think>", None),
        ("Answer:", None),
        ("I can't answer: it is hard", None),
        ("42", None),
        ("", None),
    ],
)
def test_the_last_answer_line(text, answer):
    assert answer_line(text) == answer


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("E", "E"),
        ("e", "E"),
        ("(E)", "E"),
        ("[E]", "E"),
        ("E.", "E"),
        ("$E$", "E"),
        ("**E**", "E"),
        (r"\text{E}", "E"),
        (r"\text{(E)}", "E"),
        (r"\text{E: text}", "E"),
        (r"\textbf{(B)}\ 12", "B"),
        (r"\textbf{(B) } 12", "B"),
        (r"\text{B. } x", "B"),
        ("(B) 12", "B"),
        ("B) 12", "B"),
        ("B. 12", "B"),
        ("B 12", "B"),
        (r"B \text{ because}", "B"),
        ("B: because A is false", "B"),
        ("Option C", "C"),
        ("The correct answer is (D).", "D"),
        ("answer: d", "D"),
        ("B or C", None),
        ("B, C", None),
        ("BC", None),
        ("(B) or (C)", None),
        ("(B) 1, (C) 2", None),
        (r"\text{B or C}", None),
        (r"\text{B}, \text{C}", None),
        ("B^2", None),
        ("B+1", None),
        ("B=5", None),
        ("B'", None),
        ("A plane", None),
        ("b. c", None),
        ("Z", None),
        ("12", None),
        ("", None),
    ],
)
def test_the_letter_of_a_choice(text, letter):
    assert choice_letter(text) == letter


def test_only_the_letters_that_the_question_has():
    assert choice_letter("E", "ABCD") is None
    assert choice_letter("(E) none", "ABCD") is None
    assert choice_letter("K", "ABCDEFGHIJKL") == "K"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("142", 142),
        ("-3", -3),
        ("−3", -3),
        ("+3", 3),
        ("0.354", Fraction(354, 1000)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("8,645.09", Fraction(864509, 100)),
        ("$8,645.09", Fraction(864509, 100)),
        (r"\$8{,}645.09", Fraction(864509, 100)),
        ("$5$", 5),
        ("€ 5", 5),
        ("1,000,000", 10**6),
        (r"1\,000\,000", 10**6),
        ("6.022×10²³", 6022 * 10**20),
        (r"6.022 \times 10^{23}", 6022 * 10**20),
        ("6.022e23", 6022 * 10**20),
        ("6.022*10^23", 6022 * 10**20),
        ("1e-5", Fraction(1, 10**5)),
        ("10^{-5}", Fraction(1, 10**5)),
        ("-10^3", -1000),
        ("3/4", Fraction(3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        ("1,2", None),
        ("1,23,456", None),
        ("1234,567", None),
        ("3/0", None),
        ("1e999999", None),
        ("5 m", None),
        ("five", None),
        ("1_000", None),
        ("nan", None),
        ("inf", None),
        ("0x10", None),
        ("7" * 5000, None),
        ("", None),
    ],
)
def test_plain_numbers_are_read_exactly(text, value):
    assert read_number(text) == value


@given(st.fractions(max_denominator=10**9), st.integers(-300, 300))
def test_a_number_that_was_written_is_read_back(value, exponent):
    assert read_number(f"{value.numerator}/{value.denominator}") == value
    assert read_number(f"{value.numerator}e{exponent}") == value.numerator * Fraction(10) ** exponent
    assert read_number(f"{value.numerator:,}") == value.numerator


def test_close_is_relative():
    assert close(Fraction("0.354"), Fraction("0.3536"), 0.01)
    assert not close(Fraction(1, 2**99), Fraction(1, 2**98), 0.01)
    assert close(Fraction(0), Fraction(0), 0.0)
    assert not close(Fraction(0), Fraction(1, 10**9), 0.5)


HOSTILE = st.text(alphabet="\\boxedf{}<think/>[] ,.:andrwsANSWER#5eE()$*\n\u200b²×", max_size=300)


@given(HOSTILE)
def test_any_text_at_all_gets_an_answer_or_none(text):
    for read in (final_box, answer_line, choice_letter):
        assert read(text) is None or isinstance(read(text), str)
    assert read_number(text) is None or isinstance(read_number(text), Fraction)
    assert isinstance(without_thinking(text), str)
    for box in boxes(text):
        assert text[box.end - 1] == "}"
        assert box.content in text[box.start : box.end]


@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", r"\boxed{1} ", r"\boxed ", "<think>", "</think>", "[THINK]", "\\", "\\text{", "{", "}", "answer is ",
     "\nAnswer: ", "####", "(", "B) ", "1,", "111,", "9", " ", "\n", "the ", "*", "\\text{ and ",
     "²", "A or ", "\u200b"],
)  # fmt: skip
def test_time_grows_with_the_length_and_no_faster(piece):
    """A quadratic reader takes 64 times as long for 8 times the text; so does nothing here, and no stack breaks."""

    def seconds(copies):
        text = piece * copies
        start = time.process_time()
        for read in (final_box, answer_line, choice_letter, read_number):
            read(text)
        return time.process_time() - start

    small = max(min(seconds(20_000) for _ in range(3)), 0.002)
    assert seconds(160_000) < 30 * small
