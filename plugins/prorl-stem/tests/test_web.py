"""Pages: which addresses, which bytes, which text. Peers are local; the resolver and the allowance are given."""

import asyncio
import gzip
import shutil
import ssl
import subprocess
import threading
from ipaddress import ip_address

import pytest

from prorl.api import ToolContext
from prorl_stem.search.leaks import Guard
from prorl_stem.search.offline import Offline
from prorl_stem.settings import PageSettings, SearchSettings
from prorl_stem.web import Fetch, PageFault, Pages
from prorl_stem.web.addresses import is_public, system_resolver
from prorl_stem.web.download import Downloader

CONTEXT = ToolContext(sandbox=None, timeout=60.0)
ARTICLE = """<html><head><title>The  Planck constant</title><script>var x = "hidden";</script></head><body>
<nav><a href="/">Home</a></nav><article><h1>Planck constant</h1>
<p>The Planck constant relates the energy of a photon to its frequency. It was postulated by Max Planck in 1900 as a
constant needed to explain the experimental radiation of black bodies.</p>
<p>Its value has been exact since the redefinition of the kilogram: 6.62607015e-34 joule seconds. Many other units of
measurement were redefined on the same day.</p></article><footer>Imprint</footer></body></html>"""


class Net:
    """Names for local peers: ``example.org`` and the like resolve to 127.0.0.1, which is then allowed."""

    def __init__(self, **names):
        self.names = {"example.org": ["127.0.0.1"], "other.org": ["127.0.0.1"], **names}
        self.asked = []

    async def resolve(self, host, port):
        self.asked.append(host)
        found = self.names.get(host, host)
        if isinstance(found, str):
            return await system_resolver(found, port)
        return found


def pages(there, *, net=None, allow_local=True, **settings):
    settings = PageSettings(web=True, **{"ports": (80, 443, there.port), "retries": 0, **settings})
    allowed = (lambda address: address.is_loopback or is_public(address)) if allow_local else is_public
    return Pages(settings, resolve=(net or Net()).resolve, allowed=allowed)


async def read(these, url, blocked=lambda _: False):
    try:
        return await these.page(url, blocked)
    finally:
        await these.close()


def html(peer, body=ARTICLE, **headers):
    return peer.Reply(200, body.encode(), {"Content-Type": "text/html; charset=utf-8", **headers})


PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "2002:808:808::1"]
NOT_PUBLIC = [
    "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
    "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "192.0.0.1", "::1", "::",
    "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1",
    "::ffff:0:7f00:1", "2001:0:7f00:1::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address):
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not(address):
    assert not is_public(ip_address(address))


async def test_a_page_as_text(peer):
    there = peer(html(peer))
    page = await read(pages(there), f"http://example.org:{there.port}/planck?x=1#part")
    assert page.title == "The Planck constant"
    assert "6.62607015e-34" in page.text
    assert "hidden" not in page.text
    (asked,) = there.asked
    assert (asked.path, asked.headers["host"]) == ("/planck?x=1", f"example.org:{there.port}")
    assert asked.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/", "only http and https"),
        ("file:///etc/passwd", "only http and https"),
        ("javascript:alert(1)", "only http and https"),
        ("//example.org/", "only http and https"),
        ("http://example.org:22/", "port 22"),
        ("http://example.org:0/", "port 0"),
        ("http://example.org:99999/", "not a URL"),
        ("http://user:pw@example.org/", "not a URL"),
        ("http://@example.org/", "not a URL"),
        ("http://example.org\\@127.0.0.1/", "not a URL"),
        ("http://exam ple.org/", "not a URL"),
        ("http://example.org/\r\nHost: x", "not a URL"),
        ("http:///x", "not a URL"),
        ("http://[::1/", "not a URL"),
        ("http://example.org/" + "x" * 5000, "not a URL"),
        ("http://" + "ü" * 100 + ".org/", "not a URL"),
        ("", "only http and https"),
    ],
)
async def test_other_addresses_are_refused_at_once(peer, url, why):
    there = peer(html(peer))
    net = Net()
    with pytest.raises(PageFault, match=why):
        await read(pages(there, net=net), url)
    assert net.asked == there.asked == []


LOCAL_HOSTS = [
    "127.0.0.1", "localhost", "127.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0", "[::1]", "[::]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "169.254.169.254", "10.0.0.1", "LOCALHOST",
    "localhost.", "\uff11\uff12\uff17.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", LOCAL_HOSTS)
async def test_nothing_private_under_any_guise(peer, host):
    there = peer(html(peer))
    with pytest.raises(PageFault, match=r"public web|not known|not a URL"):
        await read(pages(there, allow_local=False), f"http://{host}:{there.port}/")
    assert there.asked == []


@pytest.mark.parametrize("found", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::1"], ["fe80::1%eth0"], []])
async def test_a_name_that_means_a_private_address(peer, found):
    there = peer(html(peer))
    with pytest.raises(PageFault, match=r"public web|not known"):
        await read(pages(there, allow_local=False, net=Net(**{"evil.org": found})), f"http://evil.org:{there.port}/")
    assert there.asked == []


async def test_the_connection_goes_to_the_address_that_was_checked(peer):
    """A name that means something else at every look-up is looked up once."""
    there = peer(html(peer))
    answers = [["127.0.0.1"], ["10.0.0.1"]]
    asked = []

    async def rebinding(host, port):
        asked.append(host)
        return answers.pop(0)

    these = Pages(
        PageSettings(web=True, ports=(there.port,), retries=0),
        resolve=rebinding,
        allowed=lambda address: str(address) == "127.0.0.1",
    )
    assert (await read(these, f"http://rebind.org:{there.port}/")).text
    assert asked == ["rebind.org"]
    assert there.asked[0].headers["host"].startswith("rebind.org")


async def test_proxies_of_the_environment_are_not_used(peer, monkeypatch):
    there, proxy = peer(html(peer)), peer(html(peer, "<p>from the proxy</p>"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    await read(pages(there), f"http://example.org:{there.port}/")
    assert proxy.asked == []


@pytest.fixture
def certificate(tmp_path):
    """For example.org alone."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate for this test, and it is not installed")
    made = [str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=example.org", "-addext", "subjectAltName=DNS:example.org", "-days", "2"),
            *("-keyout", made[0], "-out", made[1]),
        ],
        check=True,
        capture_output=True,
    )
    return made


async def test_https_is_checked_against_the_name_and_not_the_address(peer, certificate):
    there = peer(html(peer))
    key, cert = certificate
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    there.wrap(server)
    downloader = Downloader(
        resolve=Net().resolve,
        allowed=lambda address: address.is_loopback,
        ports=(there.port,),
        max_bytes=10_000,
        redirects=0,
        timeout_s=30.0,
        trust=ssl.create_default_context(cafile=cert),
    )
    found = await downloader.get(f"https://example.org:{there.port}/", lambda _: False)
    assert b"Planck" in found.body
    with pytest.raises(PageFault, match="cannot be reached"):
        await downloader.get(f"https://other.org:{there.port}/", lambda _: False)
    assert len(there.asked) == 1


async def test_redirects_are_followed(peer):
    there = peer(html(peer))
    port = there.port
    there.replies = [
        peer.Reply(302, b"", {"Location": "/next"}),
        peer.Reply(301, b"", {"Location": f"http://other.org:{port}/last"}),
        html(peer),
    ]
    page = await read(pages(there), f"http://example.org:{port}/first")
    assert page.url == f"http://other.org:{port}/last"
    assert [asked.path for asked in there.asked] == ["/first", "/next", "/last"]
    assert there.asked[2].headers["host"] == f"other.org:{port}"


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://private.org:{port}/", "public web"),
        ("http://[::1]:{port}/", "public web"),
        ("http://169.254.169.254:{port}/", "public web"),
        ("file:///etc/passwd", "only http"),
        ("http://example.org:22/", "port 22"),
        ("http://x@example.org:{port}/", "not a URL"),
        ("", "without saying where"),
    ],
)
async def test_every_hop_is_checked_as_the_first_one(peer, location, why):
    there = peer(html(peer))
    there.replies = [peer.Reply(302, b"", {"Location": location.format(port=there.port)}), html(peer)]
    these = Pages(
        PageSettings(web=True, ports=(there.port, 80), retries=0),
        resolve=Net(**{"private.org": ["10.0.0.1"]}).resolve,
        allowed=lambda address: str(address) == "127.0.0.1",
    )
    with pytest.raises(PageFault, match=why):
        await read(these, f"http://example.org:{there.port}/")
    assert len(there.asked) == 1


async def test_redirects_without_end(peer):
    there = peer(peer.Reply(302, b"", {"Location": "/again"}))
    with pytest.raises(PageFault, match="more than 3 times"):
        await read(pages(there, redirects=3), f"http://example.org:{there.port}/")
    assert len(there.asked) == 4


async def test_blocked_sites_also_after_a_redirect(peer):
    there = peer(html(peer))
    there.replies = [peer.Reply(302, b"", {"Location": f"http://other.org:{there.port}/"}), html(peer)]
    guard = Guard("", ("other.org",))
    with pytest.raises(PageFault, match="blocked"):
        await read(pages(there), f"http://example.org:{there.port}/", guard.blocks_url)
    with pytest.raises(PageFault, match="blocked"):
        await read(pages(there), f"http://www.other.org:{there.port}/", guard.blocks_url)
    assert len(there.asked) == 1


@pytest.mark.parametrize(
    ("status", "body", "headers", "why"),
    [
        (404, b"", {}, "HTTP 404"),
        (500, b"", {}, "HTTP 500"),
        (200, b"%PDF-1.7", {"Content-Type": "application/pdf"}, "'application/pdf', not text"),
        (200, b"\x89PNG", {"Content-Type": "image/png"}, "not text"),
        (200, gzip.compress(b"x" * 10), {"Content-Type": "text/html", "Content-Encoding": "gzip"}, "compressed"),
        (200, b"x" * 2001, {"Content-Type": "text/plain"}, "more than 2000 bytes"),
    ],
)
async def test_what_is_not_taken(peer, status, body, headers, why):
    there = peer(peer.Reply(status, body, headers))
    with pytest.raises(PageFault, match=why):
        await read(pages(there, max_bytes=2000), f"http://example.org:{there.port}/")


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
async def test_kinds_of_text(peer, body, content_type, seen):
    there = peer(peer.Reply(200, body, {"Content-Type": content_type}))
    assert (await read(pages(there), f"http://example.org:{there.port}/")).text == seen


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
async def test_hostile_pages_end(peer, body):
    there = peer(html(peer, body))
    try:
        found = (await read(pages(there), f"http://example.org:{there.port}/")).text
    except PageFault as fault:  # any other exception fails the test
        found = str(fault)
    assert isinstance(found, str)


async def test_silence_and_nobody(peer):
    there = peer(peer.Reply(200, b"", {}, threading.Event()))
    with pytest.raises(PageFault, match="in time"):
        await read(pages(there, timeout_s=0.3), f"http://example.org:{there.port}/")
    with pytest.raises(PageFault, match="cannot be reached"):
        await read(pages(there, ports=(1,)), "http://example.org:1/")


async def test_a_byte_now_and_then_is_silence(peer):
    endless = peer.Reply(
        200, b"<p>", {"Content-Type": "text/html", "Content-Length": "1000000"}, None, threading.Event()
    )
    there = peer(endless)
    with pytest.raises(PageFault, match="in time"):
        await read(pages(there, timeout_s=0.6), f"http://example.org:{there.port}/")


async def test_it_asks_again_and_keeps_what_it_got(peer, no_waiting):
    there = peer(peer.Reply(503, b"", {"Retry-After": "4"}), html(peer))
    these = pages(there, retries=1)
    url = f"http://example.org:{there.port}/"
    pair = await asyncio.gather(*(these.page(url, lambda _: False) for _ in range(3)))
    again = await read(these, url)
    assert pair == [again, again, again]
    assert len(there.asked) == 2
    assert no_waiting == [4.0]


@pytest.fixture
def library():
    return Offline(SearchSettings())


async def test_the_tool_reads_in_pieces(peer, library):
    there = peer(peer.Reply(200, b"0123456789" * 100, {"Content-Type": "text/plain"}))
    these = pages(there, chars=400)
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


async def test_the_tool_reads_documents_of_the_index(library):
    tool = Fetch(None, library, Guard("", ()))
    found = await tool.call({"url": "offline://elements/iron"}, CONTEXT)
    assert "melting point: 1811.15 K" in found.text
    missing = await tool.call({"url": "offline://elements/unobtainium"}, CONTEXT)
    web = await tool.call({"url": "https://example.org"}, CONTEXT)
    assert missing.is_error
    assert "no such document" in missing.text
    assert "only documents of the offline index" in web.text


async def test_a_page_that_holds_the_question_is_withheld(peer, library):
    question = "Which of the following genetic tests identifies the presence of a specific mutation?"
    there = peer(html(peer, f"<title>Exam</title><p>{question} The answer is B.</p>"))
    these = pages(there)
    tool = Fetch(these, library, Guard(question, ()), PageSettings(web=True))
    found = await tool.call({"url": f"http://example.org:{there.port}/"}, CONTEXT)
    await these.close()
    assert (found.text, found.is_error) == ("Error: the page cannot be read: this page is blocked.", True)


async def test_a_page_that_never_comes_is_an_observation(peer, library):
    there = peer(peer.Reply(200, b"", {}, threading.Event()))
    these = pages(there)
    tool = Fetch(these, library, Guard("", ()), PageSettings(web=True))
    found = await tool.call({"url": f"http://example.org:{there.port}/"}, ToolContext(sandbox=None, timeout=0.2))
    await these.close()
    assert found.is_error
    assert "too long" in found.text
