"""Each backend against a peer that answers as the real service does; shapes from the services' public documentation."""

import asyncio
import json
import logging
import threading
from urllib.parse import parse_qs, urlsplit

import pytest

from prorl.api import ConfigError
from prorl_stem.search.backend import Hit, Refused, SearchFault, backend_names, make_backend
from prorl_stem.search.duckduckgo import target
from prorl_stem.search.http import retry_after
from prorl_stem.settings import SearchSettings

KEY = "sk-very-secret-0123"
SERPER = {
    "searchParameters": {"q": "planck constant", "type": "search", "num": 3, "engine": "google"},
    "knowledgeGraph": {"title": "Planck constant"},
    "organic": [
        {
            "title": "Planck constant - Wikipedia",
            "link": "https://en.wikipedia.org/wiki/Planck_constant",
            "snippet": "The Planck constant is a fundamental constant ...",
            "sitelinks": [{"title": "Value", "link": "https://en.wikipedia.org/wiki/Planck_constant#Value"}],
            "position": 1,
        },
        {
            "title": "CODATA",
            "link": "https://physics.nist.gov/cgi-bin/cuu/Value?h",
            "position": 2,
            "date": "3 Mar 2024",
        },
    ],
    "peopleAlsoAsk": [{"question": "What is h?", "snippet": "...", "title": "...", "link": "https://example.org"}],
    "relatedSearches": [{"query": "planck constant units"}],
    "credits": 1,
}
TAVILY = {
    "query": "planck constant",
    "follow_up_questions": None,
    "answer": None,
    "images": [],
    "results": [
        {
            "url": "https://en.wikipedia.org/wiki/Planck_constant",
            "title": "Planck constant",
            "content": "The Planck constant is a fundamental constant ...",
            "score": 0.91,
            "raw_content": None,
        },
        {"url": "https://physics.nist.gov/h", "title": None, "content": "h", "score": 0.4, "raw_content": None},
    ],
    "response_time": 1.09,
    "request_id": "5c1f",
}
EXA = {
    "requestId": "b5947044c4b78efa9552a7c89b306d95",
    "resolvedSearchType": "neural",
    "results": [
        {
            "id": "https://en.wikipedia.org/wiki/Planck_constant",
            "title": "Planck constant",
            "url": "https://en.wikipedia.org/wiki/Planck_constant",
            "publishedDate": "2023-11-16T01:36:32.547Z",
            "author": None,
            "score": 0.46,
            "highlights": ["The Planck constant is", "a fundamental constant"],
            "highlightScores": [0.46, 0.41],
            "text": "The Planck constant, or h, ...",
        },
        {"id": "x", "title": "NIST", "url": "https://physics.nist.gov/h", "text": "h"},
    ],
    "costDollars": {"total": 0.005},
}
SEARXNG = {
    "query": "planck constant",
    "number_of_results": 0,
    "results": [
        {
            "url": "https://en.wikipedia.org/wiki/Planck_constant",
            "title": "Planck constant",
            "content": "The Planck constant is ...",
            "engine": "duckduckgo",
            "parsed_url": ["https", "en.wikipedia.org", "/wiki/Planck_constant", "", "", ""],
            "template": "default.html",
            "engines": ["duckduckgo", "brave"],
            "positions": [1, 2],
            "score": 3.0,
            "category": "general",
            "publishedDate": None,
        },
        {"url": "https://physics.nist.gov/h", "title": "NIST", "engine": "brave", "category": "general"},
    ],
    "answers": [],
    "corrections": [],
    "infoboxes": [],
    "suggestions": ["planck constant units"],
    "unresponsive_engines": [["google", "timeout"]],
}
DUCKDUCKGO = """<!DOCTYPE html><html><body><div id="links" class="results">
<div class="result results_links results_links_deep result--ad"><div class="links_main"><h2 class="result__title">
<a class="result__a" href="https://duckduckgo.com/y.js?ad_domain=shop.example">Buy constants</a></h2></div></div>
<div class="result results_links results_links_deep web-result "><div class="links_main links_deep result__body">
<h2 class="result__title"><a rel="nofollow" class="result__a"
 href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fen.wikipedia.org%2Fwiki%2FPlanck_constant&amp;rut=ab">Planck constant</a>
</h2><a class="result__snippet" href="//duckduckgo.com/l/?uddg=x">The <b>Planck</b> constant is ...</a></div></div>
<div class="result results_links web-result">
<h2><a class="result__a" href="https://physics.nist.gov/h">NIST</a></h2></div>
</div></body></html>"""
NO_RESULTS = '<html><body><div id="links"><div class="no-results">No results.</div></div></body></html>'

FIRST = Hit("https://en.wikipedia.org/wiki/Planck_constant", "Planck constant", "The Planck constant is ...")
BODIES = {
    "serper": json.dumps(SERPER),
    "tavily": json.dumps(TAVILY),
    "exa": json.dumps(EXA),
    "searxng": json.dumps(SEARXNG),
    "duckduckgo": DUCKDUCKGO,
}
KEYED = {"serper": "SERPER_API_KEY", "tavily": "TAVILY_API_KEY", "exa": "EXA_API_KEY"}


@pytest.fixture(params=sorted(BODIES))
def service(request, monkeypatch):
    for name in KEYED.values():
        monkeypatch.setenv(name, KEY)
    return request.param


def backend(name, url, **more):
    return make_backend(SearchSettings(backend=name, url=url, **{"timeout_s": 30.0, **more}))


def ok(peer, name):
    return peer.Reply(200, BODIES[name].encode(), {"Content-Type": "application/json"})


async def test_its_reply_is_read(peer, service):
    there = peer(ok(peer, service))
    hits = await backend(service, there.url).search("planck constant", 3)
    assert [hit.url for hit in hits] == [
        "https://en.wikipedia.org/wiki/Planck_constant",
        "https://physics.nist.gov/cgi-bin/cuu/Value?h" if service == "serper" else "https://physics.nist.gov/h",
    ]
    assert hits[0].title.startswith("Planck constant")
    assert hits[0].snippet.startswith("The Planck constant is")
    assert len(await backend(service, there.url).search("planck constant", 1)) == 1


async def test_it_is_asked_as_its_documentation_says(peer, service):
    there = peer(ok(peer, service))
    await backend(service, there.url).search("planck constant", 3)
    (asked,) = there.asked
    match service:
        case "serper":
            assert (asked.method, asked.json) == ("POST", {"q": "planck constant", "num": 3})
            assert asked.headers["x-api-key"] == KEY
        case "tavily":
            assert asked.json == {"query": "planck constant", "max_results": 3, "search_depth": "basic"}
            assert asked.headers["authorization"] == f"Bearer {KEY}"
        case "exa":
            assert asked.json["query"] == "planck constant"
            assert asked.json["numResults"] == 3
            assert asked.headers["x-api-key"] == KEY
        case "searxng":
            assert asked.method == "GET"
            assert parse_qs(urlsplit(asked.path).query) == {"q": ["planck constant"], "format": ["json"]}
            assert urlsplit(asked.path).path == "/search"
        case "duckduckgo":
            assert parse_qs(asked.body.decode())["q"] == ["planck constant"]
            assert "Mozilla" in asked.headers["user-agent"]
    assert KEY not in asked.path


async def test_a_wrong_key_is_the_operators_fault_and_is_not_told(peer, service, caplog):
    there = peer(peer.json({"message": f"Unauthorized {KEY}", "detail": {"error": KEY}}, 401))
    with caplog.at_level(logging.DEBUG), pytest.raises(Refused, match="HTTP 401") as caught:
        await backend(service, there.url).search("x", 3)
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("status", "headers", "after"), [(429, {"Retry-After": "7"}, 7.0), (500, {}, None), (503, {}, None)]
)
async def test_what_passes_may_be_asked_again(peer, service, status, headers, after):
    there = peer(peer.Reply(status, b"busy", headers))
    with pytest.raises(SearchFault, match=f"HTTP {status}") as caught:
        await backend(service, there.url).search("x", 3)
    assert (caught.value.again, caught.value.after) == (True, after)


async def test_a_query_that_is_refused_is_not_asked_again(peer, service):
    there = peer(peer.json({"error": "query too long"}, 400))
    with pytest.raises(SearchFault, match="HTTP 400") as caught:
        await backend(service, there.url).search("x", 3)
    assert not caught.value.again


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"results": 3, "organic": 3}', b"\xff\xfe", b"[" * 100_000])
async def test_garbage_is_no_answer(peer, service, body):
    there = peer(peer.Reply(200, body))
    with pytest.raises(SearchFault, match="cannot be read"):
        await backend(service, there.url).search("x", 3)


async def test_a_reply_without_end_is_cut_off(peer, service, monkeypatch):
    monkeypatch.setattr("prorl_stem.search.http.MAX_REPLY_BYTES", 1000)
    there = peer(peer.Reply(200, b" " * 5000))
    with pytest.raises(SearchFault, match="more than 1000 bytes"):
        await backend(service, there.url).search("x", 3)


async def test_silence_is_a_time_out(peer, service):
    there = peer(peer.Reply(200, b"", {}, threading.Event()))
    with pytest.raises(SearchFault, match="in time") as caught:
        await backend(service, there.url, timeout_s=0.3).search("x", 3)
    assert caught.value.again


async def test_a_byte_now_and_then_is_silence(peer, service):
    there = peer(peer.Reply(200, b"{", {"Content-Length": "1000000"}, None, threading.Event()))
    with pytest.raises(SearchFault, match="in time"):
        await backend(service, there.url, timeout_s=0.6).search("x", 3)


async def test_nobody_there(peer, service):
    there = peer(peer.Reply())
    there.close()
    there.close = lambda: None
    with pytest.raises(SearchFault, match="cannot be reached"):
        await backend(service, there.url).search("x", 3)


@pytest.mark.parametrize("name", sorted(KEYED))
async def test_without_a_key_it_says_which(monkeypatch, name):
    monkeypatch.delenv(KEYED[name], raising=False)
    with pytest.raises(Refused, match=KEYED[name]):
        await backend(name, "http://127.0.0.1:1").search("x", 3)
    monkeypatch.setenv("OTHER_KEY", "a\nb")
    with pytest.raises(Refused, match="OTHER_KEY"):
        await backend(name, "http://127.0.0.1:1", api_key_env="OTHER_KEY").search("x", 3)


async def test_spent_plans_are_refusals(peer, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setenv("TAVILY_API_KEY", KEY)
    with pytest.raises(Refused, match="credits"):
        await backend("serper", peer(peer.json({"message": "Not enough credits"}, 400)).url).search("x", 3)
    with pytest.raises(Refused, match="432"):
        await backend("tavily", peer(peer.json({"detail": {"error": "limit"}}, 432)).url).search("x", 3)
    with pytest.raises(Refused, match="must name json"):
        await backend("searxng", peer(peer.Reply(403, b"")).url).search("x", 3)


async def test_duckduckgo_when_it_is_tired_or_finds_nothing(peer):
    tired = peer(peer.Reply(202, b"<html><div class='anomaly-modal'></div></html>"))
    with pytest.raises(SearchFault, match="202") as caught:
        await backend("duckduckgo", tired.url).search("x", 3)
    assert caught.value.again
    assert await backend("duckduckgo", peer(peer.Reply(200, NO_RESULTS.encode())).url).search("x", 3) == []


async def test_hits_that_lead_nowhere_are_left_out(peer, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    links = ["javascript:alert(1)", "file:///etc/passwd", "https://example.org/"]
    there = peer(peer.json({"organic": [{"title": "x", "link": link, "snippet": ""} for link in links]}))
    assert [hit.url for hit in await backend("serper", there.url).search("x", 5)] == ["https://example.org/"]


def test_backends_are_found_by_their_entry_points():
    assert set(BODIES) | {"offline"} <= set(backend_names())
    with pytest.raises(ConfigError, match="no package offers the search backend 'ask-jeeves'; known: duckduckgo, exa"):
        make_backend(SearchSettings(backend="ask-jeeves"))
    with pytest.raises(ConfigError, match=r"set handlers\.stem\.search\.url"):
        make_backend(SearchSettings(backend="searxng"))


def test_small_parts():
    assert target("//duckduckgo.com/l/?uddg=https%3A%2F%2Fa.b%2F&rut=1") == "https://a.b/"
    assert target("//a.b/c") == "https://a.b/c"
    assert retry_after("12") == 12.0
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("soon") is None
    assert retry_after(None) is None


async def test_many_at_once_do_not_disturb_each_other(peer, monkeypatch):
    monkeypatch.setenv("TAVILY_API_KEY", KEY)

    def echo(asked):
        query = asked.json["query"]
        return peer.json({"results": [{"url": f"https://a.b/{query}", "title": query, "content": query}]})

    there = backend("tavily", peer(echo).url)
    found = await asyncio.gather(*(there.search(str(number), 3) for number in range(20)))
    assert [hits[0].title for hits in found] == [str(number) for number in range(20)]
