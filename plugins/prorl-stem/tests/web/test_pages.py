"""What comes of an address: text of many kinds, refusals of what is none, and an end in time."""

import asyncio
import gzip
import threading

import pytest

from prorl_stem.web import PageFault

PACKED = gzip.compress(b"x" * 10, mtime=0)  # the time would be part of the test's name


async def test_a_page_as_text(peer, web, html):
    there = peer(html())
    page = await web.read(web.pages(there), f"http://example.org:{there.port}/planck?x=1#part")
    assert page.title == "The Planck constant"
    assert "6.62607015e-34" in page.text
    assert "hidden" not in page.text
    (asked,) = there.asked
    assert (asked.path, asked.headers["host"]) == ("/planck?x=1", f"example.org:{there.port}")
    assert asked.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("status", "body", "headers", "why"),
    [
        (404, b"", {}, "HTTP 404"),
        (500, b"", {}, "HTTP 500"),
        (200, b"%PDF-1.7", {"Content-Type": "application/pdf"}, "'application/pdf', not text"),
        (200, b"\x89PNG", {"Content-Type": "image/png"}, "not text"),
        (200, PACKED, {"Content-Type": "text/html", "Content-Encoding": "gzip"}, "compressed"),
        (200, b"x" * 2001, {"Content-Type": "text/plain"}, "more than 2000 bytes"),
    ],
)
async def test_what_is_not_taken(peer, web, status, body, headers, why):
    there = peer(peer.Reply(status, body, headers))
    with pytest.raises(PageFault, match=why):
        await web.read(web.pages(there, max_bytes=2000), f"http://example.org:{there.port}/")


@pytest.mark.parametrize(
    ("body", "content_type", "seen"),
    [
        ("größer".encode("latin-1"), "text/plain; charset=ISO-8859-1", "größer"),
        ("größer".encode(), "text/plain", "größer"),
        (b"caf\xe9", "text/plain; charset=no-such", "caf\ufffd"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<p>Only a line.</p>", "text/html", "Only a line."),
        (b"a\x00b", "text/plain", "ab"),
    ],
)
async def test_kinds_of_text(peer, web, body, content_type, seen):
    there = peer(peer.Reply(200, body, {"Content-Type": content_type}))
    assert (await web.read(web.pages(there), f"http://example.org:{there.port}/")).text == seen


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<",
        "<" * 20_000,
        "<div>" * 20_000,
        "&" * 10_000,
        "<html><body></body></html>",
        "<!DOCTYPE html [<!ENTITY a 'b'>]>&a;",
    ],
)
async def test_hostile_pages_end(peer, web, html, body):
    there = peer(html(body))
    try:
        found = (await web.read(web.pages(there), f"http://example.org:{there.port}/")).text
    except PageFault as fault:  # any other exception fails the test
        found = str(fault)
    assert isinstance(found, str)


async def test_silence_and_nobody(peer, web):
    there = peer(peer.Reply(200, b"", {}, threading.Event()))
    with pytest.raises(PageFault, match="in time"):
        await web.read(web.pages(there, timeout_s=0.3), f"http://example.org:{there.port}/")
    with pytest.raises(PageFault, match="cannot be reached"):
        await web.read(web.pages(there, ports=(1,)), "http://example.org:1/")


async def test_a_byte_now_and_then_is_silence(peer, web):
    endless = peer.Reply(
        200, b"<p>", {"Content-Type": "text/html", "Content-Length": "1000000"}, None, threading.Event()
    )
    there = peer(endless)
    with pytest.raises(PageFault, match="in time"):
        await web.read(web.pages(there, timeout_s=0.6), f"http://example.org:{there.port}/")


async def test_it_asks_again_and_keeps_what_it_got(peer, web, html, no_waiting):
    there = peer(peer.Reply(503, b"", {"Retry-After": "4"}), html())
    these = web.pages(there, retries=1)
    url = f"http://example.org:{there.port}/"
    pair = await asyncio.gather(*(these.page(url, lambda _: False) for _ in range(3)))
    again = await web.read(these, url)
    assert pair == [again, again, again]
    assert len(there.asked) == 2
    assert no_waiting == [4.0]
