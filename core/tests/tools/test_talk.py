"""think and finish."""

from __future__ import annotations

import pytest

from prorl.tools.talk import Finish, Think


async def test_think(nowhere) -> None:
    seen = await Think().call({"thought": "hm"}, nowhere)
    assert (seen.text, seen.done, seen.is_error) == ("Your thought has been logged.", False, False)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({}, None),
        ({"message": "done"}, "done"),
        ({"answer": "42"}, "42"),
        ({"message": "the answer is 42", "answer": "42"}, "42"),
        ({"answer": ""}, ""),
    ],
)
async def test_finish_keeps_the_answer(nowhere, arguments: dict[str, str], answer: str | None) -> None:
    seen = await Finish().call(arguments, nowhere)
    assert seen.done
    assert not seen.is_error
    assert seen.answer == answer


async def test_finish_with_nonsense_does_not_end(nowhere) -> None:
    seen = await Finish().call({"result": 1}, nowhere)
    assert seen.is_error
    assert not seen.done
    assert "message (optional), answer (optional)" in seen.text
