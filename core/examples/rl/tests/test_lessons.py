"""Every lesson's demonstrations are, token for token, rollouts of its domain; its own right answers are worth 1."""

from __future__ import annotations

import asyncio
import random

import pytest

from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedEngine
from prorl_lookup import tiny, warmstart
from prorl_lookup.lessons.lesson import MODULES, lessons, requests

pytest.importorskip("prorl_math", reason="pip install prorl-math")
pytest.importorskip("prorl_code", reason="pip install prorl-code")

ALL = lessons(tuple(MODULES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder, ALL)
    return folder


def rollout(folder, request, replies):
    with Lab([]) as lab, ScriptedEngine(lambda asked: replies[asked.call], tokenizer=folder) as engine:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(engine.url)
        return lab.client.process(request)


@pytest.mark.parametrize(
    ("number", "row", "right"),
    [
        (
            0,
            {"key": "417", "value": "CAB"},
            ('<tool_call>\n{"name": "lookup", "arguments": {"key": "417"}}\n</tool_call>', "CAB"),
        ),
        (1, {"problem": "What is 3 + 8?", "answer": "11"}, ("\\boxed{11}",)),
        (2, None, ("```python\ndef f(x):\n    return x - 7\n```",)),
    ],
    ids=MODULES,
)
def test_a_demonstration_is_a_rollout(folder, number, row, right):
    from prorl_lookup.lessons import functions, lookup, sums  # noqa: PLC0415 - by the packages that are there

    lesson = ALL[number]
    shown = [
        lookup.rollout("417", "417", "CAB", "CAB"),
        sums.rollout(3, 8, 11),
        functions.rollout("minus", 7, "-", 7),
    ][number]
    result = rollout(folder, lesson.request(row or functions.row("minus", 7)), right)
    assert result.reward == 1.0, result

    async def encoded():
        return await warmstart.encode(await warmstart.renderer_of(folder), lesson, shown)

    made = asyncio.run(encoded())
    (segment,) = result.trajectory.segments
    assert (segment.tokens, segment.loss_mask) == (made.ids, made.mask)
    assert len(segment.tokens) < 200, "the engine of the example takes 256"


def test_most_demonstrations_are_wrong_somewhere():
    for lesson in ALL[1:]:
        chance = random.Random(0)
        right = 0
        for _ in range(400):
            asked, said = lesson.demonstrate(chance)
            words = asked.content
            if lesson.domain == "math":
                left, _, more = words.removeprefix("What is ").removesuffix("?").partition(" + ")
                right += said.content == f"\\boxed{{{int(left) + int(more)}}}"
            else:
                word, number = words.split("is x ")[1].split()[:2]
                operator = {"plus": "+", "minus": "-", "times": "*"}[word]
                right += f"return x {operator} {number}\n" in said.content
        assert 120 < right < 260, (lesson.domain, right)


def test_lessons_take_turns():
    jobs = requests(ALL, seed=0)
    assert [next(jobs).domain for _ in range(4)] == ["lookup", "math", "code", "lookup"]


def test_an_unknown_lesson_is_named():
    with pytest.raises(ValueError, match="no lesson juggling: there are lookup, math, code"):
        lessons(("juggling",))
