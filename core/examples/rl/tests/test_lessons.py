"""Every lesson's demonstrations are, token for token, rollouts of its domain; its own right answers are worth 1."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from prorl.testing.lab import Lab
from prorl.testing.scripted import ScriptedEngine
from prorl_lookup import tiny, warmstart
from prorl_lookup.lesson import GAP, known, load, requests
from prorl_lookup.lessons import lookup


def rollout(folder, request, replies):
    with Lab([]) as lab, ScriptedEngine(lambda asked: replies[asked.call], tokenizer=folder) as engine:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(engine.url)
        return lab.client.process(request)


def check(folder, lesson, row, shown):
    replies = [message.content for message in shown if message.role == "assistant"]
    result = rollout(folder, lesson.request(row), replies)
    assert result.reward == 1.0, result

    async def encoded():
        return await warmstart.encode(await warmstart.renderer_of(folder), lesson, shown)

    made = asyncio.run(encoded())
    (segment,) = result.trajectory.segments
    assert (segment.tokens, segment.loss_mask) == (made.ids, made.mask)
    assert len(segment.tokens) < 200, "the engine of the example takes 256"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer for all lessons at once."""
    pytest.importorskip("prorl_math", reason="pip install prorl-math")
    pytest.importorskip("prorl_code", reason="pip install prorl-code")
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder, [load(name) for name in known()])
    return folder


def test_lookup(folder):
    row = {"key": "417", "value": "CAB"}
    check(folder, lookup.LESSON, row, lookup.rollout("417", "417", "CAB", "CAB"))


def test_math(folder):
    from prorl_lookup.lessons import math  # noqa: PLC0415 - by the packages that are there

    check(folder, math.LESSON, {"problem": "What is 3 + 8?", "answer": "11"}, math.rollout(3, 8, 11))


def test_code(folder):
    from prorl_lookup.lessons import code  # noqa: PLC0415 - by the packages that are there

    check(folder, code.LESSON, code.row("minus", 7), code.rollout("minus", 7, "-", 7))


def test_about_half_of_the_sums_and_functions_are_right(folder):
    for name in ("math", "code"):
        chance = random.Random(0)
        right = 0
        for _ in range(400):
            asked, said = load(name).demonstrate(chance)
            if name == "math":
                left, more = map(int, re.findall(r"\d+", asked.content))
                right += said.content == f"\\boxed{{{left + more}}}"
            else:
                word, number = re.search(r"is x (\w+) (\d+)", asked.content).groups()
                operator = {"plus": "+", "minus": "-", "times": "*"}[word]
                right += f"return x {operator} {number}\n" in said.content
        assert 140 < right < 260, (name, right)


def test_lessons_take_turns(folder):
    jobs = requests([load(name) for name in ("lookup", "math", "code")], seed=0)
    assert [next(jobs).domain for _ in range(4)] == ["lookup", "math", "code", "lookup"]


OWN = f'''
from prorl.api import Message
from prorl_lookup.lesson import Lesson

LESSON = Lesson(
    domain="echo",
    rows=lambda chance: ({{"word": str(chance.randint(0, 9))}} for _ in iter(int, 1)),
    demonstrate=lambda chance: [Message(role="user", content="3"), Message(role="assistant", content="3")],
    fixed=[Message(role="user", content="{GAP}"), Message(role="assistant", content="{GAP}")],
    merges=10,
)
'''


def test_a_lesson_of_ones_own_needs_no_change_here(tmp_path, monkeypatch):
    (tmp_path / "my_tasks").mkdir()
    (tmp_path / "my_tasks" / "echo.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    taught = [load("lookup"), load("my_tasks.echo")]
    jobs = requests(taught, seed=0)
    assert [next(jobs).domain for _ in range(3)] == ["lookup", "echo", "lookup"]
    assert warmstart.warm_model(tmp_path / "warm", taught, steps=1).is_dir()


def test_what_cannot_be_taught_says_why(tmp_path, monkeypatch):
    (tmp_path / "empty_pages").mkdir()
    (tmp_path / "empty_pages" / "one.py").write_text("")
    (tmp_path / "empty_pages" / "two.py").write_text("LESSON = 2\n")
    (tmp_path / "empty_pages" / "three.py").write_text("import quite_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="no lesson 'juggling': there are code, lookup, math, and modules of your own"):
        load("juggling")
    with pytest.raises(ValueError, match=r"no lesson 'empty_pages\.none'"):
        load("empty_pages.none")
    with pytest.raises(ValueError, match=r"empty_pages\.one has no LESSON"):
        load("empty_pages.one")
    with pytest.raises(ValueError, match=r"empty_pages\.two\.LESSON is no Lesson, but int"):
        load("empty_pages.two")
    with pytest.raises(ValueError, match=r"'empty_pages\.three' needs quite_absent, which is not installed"):
        load("empty_pages.three")
