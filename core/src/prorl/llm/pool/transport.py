"""How backends are connected to: one connection per call in flight (:class:`~prorl.net.lanes.Lanes`).

With httpx's own pool a model call takes 10 ms of CPU when 256 are in flight, and more with more; this way it takes
0.6 ms however many there are. How many there may be, the backend bounds.
"""

from __future__ import annotations

import socket
import ssl

import httpx

from prorl.llm.pool.settings import PoolSettings
from prorl.net.lanes import Lanes

# A peer that vanished without a word (power, network) is noticed by the kernel after 30 + 3 * 10 s: reading has no
# timeout of its own.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]


def open_client(settings: PoolSettings, *, tls: bool) -> httpx.AsyncClient:
    """A client for one backend, without a limit on reading."""
    trust = ssl.create_default_context() if tls else False  # once: making one takes longer than a call
    limits = httpx.Limits(max_connections=1, keepalive_expiry=settings.keepalive_s)
    return httpx.AsyncClient(
        transport=Lanes(
            lambda: httpx.AsyncHTTPTransport(verify=trust, limits=limits, socket_options=_KEEPALIVE, trust_env=False)
        ),
        timeout=httpx.Timeout(None, connect=settings.connect_s),
        follow_redirects=False,
        trust_env=False,  # a proxy for the outside world must not get the calls to engines
    )
