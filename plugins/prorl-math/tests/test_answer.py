import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_math.answer import final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"It is \boxed{4}.", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {4}", "4"),
        (r"\boxed 4 it is", "4"),
        (r"\fbox{4}", "4"),
        (r"\boxed{1} so far, and then \boxed{2}", "2"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\boxed{1}, \boxed{2}, \boxed{3}", "1, 2, 3"),
        (r"\boxed{5} \text{ or } \boxed{6}", "5, 6"),
        (r"\boxed{5}, \boxed{5}", "5"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{\frac{}", None),
        ("no box: 4", None),
        (r"\boxed{4", None),
        ("", None),
        (r"<think>\boxed{7}</think>", None),
        (r"<think>\boxed{7}</think>\boxed{5}", "5"),
        (r"\boxed{7}</think>\boxed{5}", "5"),
        (r"\boxed{5}<think>\boxed{7}", "5"),
        (r"<think>a</think>\boxed{1} then <think>\boxed{2}</think>", "1"),
    ],
)
def test_the_last_box_outside_thinking(text, answer):
    assert final_answer(text) == answer


@given(st.text(alphabet="\\boxed{}<think/> ,and5", max_size=200))
def test_any_text_has_an_answer_or_none(text):
    answer = final_answer(text)
    assert answer is None or isinstance(answer, str)


def test_many_boxes_take_linear_time():
    assert final_answer(r"\boxed{" * 3000) is None
    assert final_answer(r"\boxed{1} " * 5000) == "1"
