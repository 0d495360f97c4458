"""The desk, the cache, what is withheld, and the tool as the agent meets it."""

import asyncio

import pytest

from prorl.api import TaskFault, ToolContext
from prorl_stem.patience import Setback, persist
from prorl_stem.search import Desk, Hit, Refused, Search, SearchFault
from prorl_stem.search.keep import Cache, Pace
from prorl_stem.search.leaks import Guard
from prorl_stem.settings import BLOCKED, SearchSettings

CONTEXT = ToolContext(sandbox=None, timeout=30.0)
HITS = [Hit(f"https://a{number}.org/", f"title {number}", f"snippet {number}") for number in range(12)]
QUESTION = "A ball is dropped from a height of 5 m; what is its speed when it hits the ground, with g = 10 m/s^2?"


class Backend:
    name = "played"

    def __init__(self, *script):
        self.script = list(script)
        self.queries = []

    async def search(self, query, limit):
        self.queries.append((query, limit))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, BaseException):
            raise step
        return step[:limit]


def desk(*script, **settings):
    settings = SearchSettings(backend="played", **{"per_second": 1000.0, **settings})
    return Desk(settings, Backend(*script))


async def test_it_shows_titles_addresses_and_excerpts():
    seen = await Search(desk(HITS), Guard("", ())).call({"query": " ball  speed "}, CONTEXT)
    assert seen.text.startswith("1. title 0\n   https://a0.org/\n   snippet 0\n\n2. title 1")
    assert "6. " not in seen.text
    assert seen.data == {"hits": 5, "withheld": 0}
    assert not seen.is_error


async def test_what_models_write_instead():
    tool = Search(desk(HITS), Guard("", ()))
    assert not (await tool.call({"q": "x"}, CONTEXT)).is_error
    for bad in ({}, {"query": 3, "more": 1}, {"query": "   "}):
        assert (await tool.call(bad, CONTEXT)).is_error


async def test_control_characters_and_length_of_what_comes_from_outside():
    hit = Hit("https://a.org/", "a\x1b[31m\n1. forged\u2028x", "y" * 5000)
    seen = await Search(desk([hit]), Guard("", ())).call({"query": "x"}, CONTEXT)
    assert len(seen.text.splitlines()) == 3
    assert "\x1b" not in seen.text
    assert len(seen.text) < 1200


async def test_sites_and_texts_that_give_the_answer_away_are_withheld():
    hits = [
        Hit("https://www.chegg.com/x", "a", "b"),
        Hit("https://huggingface.co/datasets/x", "a", "b"),
        Hit("https://notchegg.com/x", "kept", "b"),
        Hit("https://blog.org/", "Solved", f"Q: {QUESTION.upper()} A: 10"),
        Hit("https://blog.org/", "kept too", "A ball is dropped from a tower."),
    ]
    seen = await Search(desk(hits), Guard(QUESTION, BLOCKED)).call({"query": "x"}, CONTEXT)
    assert seen.data == {"hits": 2, "withheld": 3}
    assert "kept" in seen.text
    assert "chegg.com/x\n" in seen.text.replace("notchegg.com/x", "chegg.com/x")
    assert "Solved" not in seen.text
    empty = await Search(desk(hits[:1]), Guard("", BLOCKED)).call({"query": "x"}, CONTEXT)
    assert empty.text == "No documents were found. Try other words."


@pytest.mark.parametrize(
    ("text", "blocked"),
    [
        (QUESTION, True),
        (QUESTION.replace(" ", "\n  ").replace(",", " --"), True),
        (" ".join(QUESTION.split()[:14]), True),
        (" ".join(QUESTION.split()[:9]), False),
        ("A ball is dropped.", False),
        ("", False),
    ],
)
def test_a_long_run_of_the_question_is_enough(text, blocked):
    assert Guard(QUESTION, ()).blocks_text(f"See: {text} Thanks.") == blocked


def test_a_short_question_blocks_nothing():
    assert not Guard("What is the speed of light?", ()).blocks_text("What is the speed of light? It is c.")
    assert Guard("", ("a.org",)).blocks_url("https://[broken")
    assert Guard("", ("a.org",)).blocks_url("https://x.A.ORG./")


async def test_a_refusal_is_a_task_fault_and_not_the_policys():
    with pytest.raises(TaskFault, match="no key") as caught:
        await Search(desk(Refused("no key"))).call({"query": "x"}, CONTEXT)
    assert caught.value.code == "search_refused"


async def test_a_failure_is_an_observation():
    seen = await Search(desk(SearchFault("busy"))).call({"query": "x"}, CONTEXT)
    assert (seen.text, seen.is_error) == ("Error: busy.", True)


async def test_a_search_that_never_ends_is_an_observation():
    class Slow(Backend):
        async def search(self, query, limit):
            await asyncio.Event().wait()

    slow = Desk(SearchSettings(backend="played"), Slow([]))
    seen = await Search(slow).call({"query": "x"}, ToolContext(sandbox=None, timeout=0.05))
    assert seen.is_error
    assert "too long" in seen.text
    await slow.close()


async def test_it_asks_again_when_that_may_help(no_waiting):
    backend = Backend(SearchFault("a", again=True), SearchFault("b", again=True, after=3.0), HITS)
    found = await Desk(SearchSettings(backend="played", retries=2, per_second=1000.0), backend).search("x", 3)
    assert len(found) == 3
    assert no_waiting[1] == 3.0
    assert 0.25 <= no_waiting[0] <= 0.75


@pytest.mark.parametrize("fault", [SearchFault("no"), SearchFault("later", again=True, after=900.0)])
async def test_and_not_when_it_will_not(no_waiting, fault):
    backend = Backend(fault)
    with pytest.raises(SearchFault):
        await Desk(SearchSettings(backend="played"), backend).search("x", 3)
    assert len(backend.queries) == 1


async def test_it_gives_up_in_the_end(no_waiting):
    calls = []

    async def ask():
        calls.append(1)
        raise Setback("no", again=True)

    with pytest.raises(Setback):
        await persist(ask, 3)
    assert len(calls) == 4


async def test_the_same_query_is_asked_once_also_at_the_same_time():
    backend = Backend(HITS)
    one = Desk(SearchSettings(backend="played", per_second=1000.0), backend)
    await asyncio.gather(*(one.search("x  y", 3) for _ in range(10)), one.search("x y", 3))
    await one.search("x y", 3)
    assert backend.queries == [("x y", 3)]
    await one.search("x y", 4)
    assert len(backend.queries) == 2


async def test_a_failure_is_not_kept():
    backend = Backend(SearchFault("no"), HITS)
    one = Desk(SearchSettings(backend="played"), backend)
    with pytest.raises(SearchFault):
        await one.search("x", 3)
    assert await one.search("x", 3)


async def test_the_cache_is_bounded_and_forgets():
    made = []

    async def make(key):
        made.append(key)
        return key

    cache = Cache(3, 1000.0, len)
    for key in ("a", "b", "c", "a", "dd", "a", "b", "long"):
        assert await cache.get(key, lambda key=key: make(key)) == key
    assert made == ["a", "b", "c", "dd", "b", "long"]
    short = Cache(10, 0.0)
    await short.get("a", lambda: make("a"))
    await short.get("a", lambda: make("a"))
    assert made[-2:] == ["a", "a"]


async def test_one_caller_that_gives_up_leaves_the_others_their_answer():
    gate = asyncio.Event()

    async def make():
        await gate.wait()
        return 1

    cache = Cache(10, 10.0)
    leaving = asyncio.create_task(cache.get("a", make))
    staying = asyncio.create_task(cache.get("a", make))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await staying == 1
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_the_pace_is_kept(monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    pace = Pace(10.0)
    monkeypatch.setattr("prorl_stem.search.keep.asyncio.sleep", sleep)
    for _ in range(4):
        await pace.turn()
    assert waited[0] <= 0.001
    assert waited[3] == pytest.approx(0.3, abs=0.1)
