"""A page, names for local peers to serve it under, and a reader of pages that is allowed to go there."""

import pytest

from prorl_stem.settings import PageSettings
from prorl_stem.web import Pages
from prorl_stem.web.addresses import is_public, system_resolver

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


class Web:
    """``Net``: names of peers; ``pages``: a reader of pages for one; ``read``: one page, and the reader is closed."""

    Net = Net

    @staticmethod
    def pages(there, *, net=None, allow_local=True, **settings):
        settings = PageSettings(web=True, **{"ports": (80, 443, there.port), "retries": 0, **settings})
        allowed = (lambda address: address.is_loopback or is_public(address)) if allow_local else is_public
        return Pages(settings, resolve=(net or Net()).resolve, allowed=allowed)

    @staticmethod
    async def read(these, url, blocked=lambda _: False):
        try:
            return await these.page(url, blocked)
        finally:
            await these.close()


@pytest.fixture
def web():
    return Web


@pytest.fixture
def html(peer):
    """``html(body)``: the reply of a peer that serves it as a page."""

    def reply(body=ARTICLE, **headers):
        return peer.Reply(200, body.encode(), {"Content-Type": "text/html; charset=utf-8", **headers})

    return reply
