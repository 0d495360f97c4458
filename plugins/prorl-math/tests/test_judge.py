"""Graders that hang, die, and eat memory: who is to blame, and what becomes of the sample."""

import asyncio
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from prorl.api import GraderFault
from prorl.grading import GraderPool
from prorl_math.judge import Judge

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.timeout(300)]
LONG = 60.0
SHORT = 1.0


@pytest_asyncio.fixture
async def judges(monkeypatch):
    """Judges whose processes run a function of broken_graders.py, or the real one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made = []

    def make(function=None, **options):
        judge = Judge(processes=1, memory_mb=options.pop("memory_mb", 2048))
        if function is not None:
            judge._pool = GraderPool(f"broken_graders:{function}", size=1, memory_mb=512)
        made.append(judge)
        return judge

    yield make
    for judge in made:
        await judge.close()


@pytest.fixture
def workers():
    """The grading processes that this test started: those of the whole run are there before it."""

    def all_of_them():
        children = psutil.Process().children()
        return [child for child in children if "prorl_math.grading:grade" in " ".join(child.cmdline())]

    others = all_of_them()
    return lambda: [child for child in all_of_them() if child not in others]


@pytest.fixture
def gold(tmp_path):
    return str(tmp_path / "marker")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("hangs_on_an_answer", "no verdict within"),
        ("dies_on_an_answer", "process ended"),
        ("eats_memory_on_an_answer", "MemoryError"),
        ("babbles_on_an_answer", "not a dict"),
    ],
)
async def test_an_answer_that_breaks_a_sound_grader_is_wrong(judges, gold, function, says):
    judge = judges(function)
    await judge.check_gold(gold, LONG)
    outcome, reason = await judge.compare(gold, "1", SHORT if "hangs" in function else LONG)
    assert outcome == "too_hard"
    assert says in reason


async def test_a_process_killed_once_is_not_the_answers_doing(judges, gold):
    assert await judges("dies_on_the_first_answer").compare(gold, "1", LONG) == ("right", "as always")


async def test_a_grader_that_is_broken_for_good_masks_the_sample(judges, gold):
    judge = judges("breaks_for_good_on_an_answer")
    await judge.check_gold(gold, LONG)
    with pytest.raises(GraderFault) as caught:
        await judge.compare(gold, "1", LONG)
    assert caught.value.masks


async def test_a_grader_that_never_answers_masks_the_sample(judges, gold):
    with pytest.raises(GraderFault, match="no verdict within") as caught:
        await judges("hangs").compare(gold, "1", SHORT)
    assert caught.value.code == "bad_gold"


async def test_the_real_grader_killed_in_the_middle_of_an_answer(judges, workers):
    judge = judges()
    await judge.check_gold("5", LONG)
    grading = asyncio.create_task(judge.compare("5", r"\sum_{n=1}^{10^{12}} \frac{\sin(n!)}{n}", 3.0))
    (first,) = workers()
    before = first.cpu_times().user
    while first.cpu_times().user < before + 0.2 and not grading.done():  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.02)
    first.kill()
    outcome, reason = await grading
    assert outcome == "too_hard", reason
    assert await judge.compare("5", "5", LONG) == ("right", "the same number")


async def test_an_answer_as_big_as_the_memory(judges):
    judge = judges(memory_mb=512)
    outcome, _ = await judge.compare("5", r"\begin{pmatrix}" + "&".join(["(2^{9^{9}})!"] * 60) + r"\end{pmatrix}", 5.0)
    assert outcome in ("too_hard", "wrong", "unreadable")
    outcome, _ = await judge.compare("2^{10^{10}}-1", "2^{10^{10}}+1", 5.0)
    assert outcome in ("too_hard", "wrong")
    assert (await judge.compare("5", "5", LONG))[0] == "right"


async def test_no_process_is_left(judges, workers):
    judge = judges()
    await judge.check_gold("5", LONG)
    assert workers()
    await judge.close()
    assert workers() == []
