import pytest

from prorl_stem.answer import final_answer


def answer(text, *, finished=False, boxed_only=False, choice=False):
    return final_answer(text, finished=finished, boxed_only=boxed_only, choice=choice)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"First \boxed{C}, then \boxed{E}.", "E"),
        (r"\boxed{C} then \boxed{E}", "E"),
        (r"\boxed{C} \boxed{E}", "E"),
        (r"\boxed{\text{E: text}}", r"\text{E: text}"),
        (r"\boxed{B} or \boxed{C}", "B, C"),
        (r"<think>\boxed{A}</think> \boxed{B}", "B"),
        ("The answer is (B).", "(B)"),
        ("B", "B"),
        ("I cannot tell.", None),
        ("", None),
    ],
)
def test_choices(text, found):
    assert answer(text, choice=True) == found


@pytest.mark.parametrize(
    ("text", "finished", "found"),
    [
        (r"It is \boxed{5\ \mathrm{m}}.", False, r"5\ \mathrm{m}"),
        ("Answer: 5 m", False, "5 m"),
        ("It is 5 m.", False, None),
        ("5 m", True, "5 m"),
        ("long " * 200, True, None),
        (r"<think>\boxed{7}</think>", False, None),
        (r"<think>\boxed{7}", True, None),
    ],
)
def test_other_answers(text, finished, found):
    assert answer(text, finished=finished) == found


def test_where_only_a_box_counts():
    assert answer("The answer is B.", choice=True, boxed_only=True) is None
    assert answer(r"\boxed{B}", choice=True, boxed_only=True) == "B"
    assert answer(r"\boxed{ }", boxed_only=True) is None
