"""Which addresses may be asked for a page: public ones, checked at every hop, and connected to as they were checked."""

import shutil
import ssl
import subprocess
from ipaddress import ip_address

import pytest

from prorl_stem.search.leaks import Guard
from prorl_stem.settings import PageSettings
from prorl_stem.web import PageFault, Pages
from prorl_stem.web.addresses import is_public
from prorl_stem.web.download import Downloader

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
async def test_other_addresses_are_refused_at_once(peer, web, html, url, why):
    there = peer(html())
    net = web.Net()
    with pytest.raises(PageFault, match=why):
        await web.read(web.pages(there, net=net), url)
    assert net.asked == there.asked == []


LOCAL_HOSTS = [
    "127.0.0.1", "localhost", "127.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0", "[::1]", "[::]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "169.254.169.254", "10.0.0.1", "LOCALHOST",
    "localhost.", "\uff11\uff12\uff17.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", LOCAL_HOSTS)
async def test_nothing_private_under_any_guise(peer, web, html, host):
    there = peer(html())
    with pytest.raises(PageFault, match=r"public web|not known|not a URL"):
        await web.read(web.pages(there, allow_local=False), f"http://{host}:{there.port}/")
    assert there.asked == []


@pytest.mark.parametrize("found", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::1"], ["fe80::1%eth0"], []])
async def test_a_name_that_means_a_private_address(peer, web, html, found):
    there = peer(html())
    with pytest.raises(PageFault, match=r"public web|not known"):
        await web.read(
            web.pages(there, allow_local=False, net=web.Net(**{"evil.org": found})), f"http://evil.org:{there.port}/"
        )
    assert there.asked == []


async def test_the_connection_goes_to_the_address_that_was_checked(peer, web, html):
    """A name that means something else at every look-up is looked up once."""
    there = peer(html())
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
    assert (await web.read(these, f"http://rebind.org:{there.port}/")).text
    assert asked == ["rebind.org"]
    assert there.asked[0].headers["host"].startswith("rebind.org")


async def test_proxies_of_the_environment_are_not_used(peer, web, html, monkeypatch):
    there, proxy = peer(html()), peer(html("<p>from the proxy</p>"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    await web.read(web.pages(there), f"http://example.org:{there.port}/")
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


async def test_https_is_checked_against_the_name_and_not_the_address(peer, web, html, certificate):
    there = peer(html())
    key, cert = certificate
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    there.wrap(server)
    downloader = Downloader(
        resolve=web.Net().resolve,
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


async def test_redirects_are_followed(peer, web, html):
    there = peer(html())
    port = there.port
    there.replies = [
        peer.Reply(302, b"", {"Location": "/next"}),
        peer.Reply(301, b"", {"Location": f"http://other.org:{port}/last"}),
        html(),
    ]
    page = await web.read(web.pages(there), f"http://example.org:{port}/first")
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
async def test_every_hop_is_checked_as_the_first_one(peer, web, html, location, why):
    there = peer(html())
    there.replies = [peer.Reply(302, b"", {"Location": location.format(port=there.port)}), html()]
    these = Pages(
        PageSettings(web=True, ports=(there.port, 80), retries=0),
        resolve=web.Net(**{"private.org": ["10.0.0.1"]}).resolve,
        allowed=lambda address: str(address) == "127.0.0.1",
    )
    with pytest.raises(PageFault, match=why):
        await web.read(these, f"http://example.org:{there.port}/")
    assert len(there.asked) == 1


async def test_redirects_without_end(peer, web):
    there = peer(peer.Reply(302, b"", {"Location": "/again"}))
    with pytest.raises(PageFault, match="more than 3 times"):
        await web.read(web.pages(there, redirects=3), f"http://example.org:{there.port}/")
    assert len(there.asked) == 4


async def test_blocked_sites_also_after_a_redirect(peer, web, html):
    there = peer(html())
    there.replies = [peer.Reply(302, b"", {"Location": f"http://other.org:{there.port}/"}), html()]
    guard = Guard("", ("other.org",))
    with pytest.raises(PageFault, match="blocked"):
        await web.read(web.pages(there), f"http://example.org:{there.port}/", guard.blocks_url)
    with pytest.raises(PageFault, match="blocked"):
        await web.read(web.pages(there), f"http://www.other.org:{there.port}/", guard.blocks_url)
    assert len(there.asked) == 1
