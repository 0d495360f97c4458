"""The tool that reads pages and documents of the index, as the agent meets it."""

import threading

import pytest

from prorl.api import ToolContext
from prorl_stem.search.leaks import Guard
from prorl_stem.search.offline import Offline
from prorl_stem.settings import PageSettings, SearchSettings
from prorl_stem.web import Fetch

CONTEXT = ToolContext(sandbox=None, timeout=60.0)


@pytest.fixture
def library():
    return Offline(SearchSettings())


async def test_the_tool_reads_in_pieces(peer, web, library):
    there = peer(peer.Reply(200, b"0123456789" * 100, {"Content-Type": "text/plain"}))
    these = web.pages(there, chars=400)
    tool = Fetch(these, library, Guard("", ()), PageSettings(web=True, chars=400))
    url = f"http://example.org:{there.port}/"
    first = await tool.call({"url": url}, CONTEXT)
    assert first.text.startswith(f"\n{url}\n\n0123456789")
    assert first.text.endswith("[600 more characters: call fetch again with start=400]")
    last = await tool.call({"link": url, "start": "800"}, CONTEXT)
    assert last.text == "0123456789" * 20
    beyond = await tool.call({"url": url, "start": 5000}, CONTEXT)
    assert beyond.is_error
    await these.close()


async def test_the_tool_reads_documents_of_the_index(web, library):
    tool = Fetch(None, library, Guard("", ()))
    found = await tool.call({"url": "offline://elements/iron"}, CONTEXT)
    assert "melting point: 1811.15 K" in found.text
    missing = await tool.call({"url": "offline://elements/unobtainium"}, CONTEXT)
    web = await tool.call({"url": "https://example.org"}, CONTEXT)
    assert missing.is_error
    assert "no such document" in missing.text
    assert "only documents of the offline index" in web.text


async def test_a_page_that_holds_the_question_is_withheld(peer, web, html, library):
    question = "Which of the following genetic tests identifies the presence of a specific mutation?"
    there = peer(html(f"<title>Exam</title><p>{question} The answer is B.</p>"))
    these = web.pages(there)
    tool = Fetch(these, library, Guard(question, ()), PageSettings(web=True))
    found = await tool.call({"url": f"http://example.org:{there.port}/"}, CONTEXT)
    await these.close()
    assert (found.text, found.is_error) == ("Error: the page cannot be read: this page is blocked.", True)


async def test_a_page_that_never_comes_is_an_observation(peer, web, library):
    there = peer(peer.Reply(200, b"", {}, threading.Event()))
    these = web.pages(there)
    tool = Fetch(these, library, Guard("", ()), PageSettings(web=True))
    found = await tool.call({"url": f"http://example.org:{there.port}/"}, ToolContext(sandbox=None, timeout=0.2))
    await these.close()
    assert found.is_error
    assert "too long" in found.text
