import pytest

from prorl_code.answer import last_block

A, B = "print(1)\n", "print(2)\n"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (f"```python\n{A}```", A),
        (f"```py\n{A}```\nthen\n```\n{B}```\ndone", B),
        (f"```python\n{A}```\n```python\n{B}", A),
        (f"~~~python\n{A}~~~", A),
        (f"````\n```\n{A}```\n````", f"```\n{A}```\n"),
        (f"  ```python title=x\n{A}  ```", A),
        (f"<think>```python\n{B}```</think>```python\n{A}```", A),
        (f"```python\n{B}```</think>\n```python\n{A}```", A),
        (f"```python\n{A}```\n<think>\n```python\n{B}```\n", A),
        ("```python\n```", None),
        ("```python\n   \n```", None),
        ("print(1)", None),
        ("`print(1)`", None),
        ("", None),
    ],
)
def test_the_last_block_outside_thinking(text, program):
    assert last_block(text) == program


def test_many_fences_take_linear_time():
    """Minutes, if it were quadratic: the time limit of all tests is the measure."""
    assert last_block("```python\n" * 200_000 + "x") is None
    assert last_block("~~~ x\n```\n" * 200_000) is None
    assert last_block("<think>" * 200_000 + "```\nx\n```") is None
    assert last_block("</think>" * 200_000 + "```\nx\n```") == "x\n"
