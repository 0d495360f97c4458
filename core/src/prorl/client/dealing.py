"""Which LLM server serves which rollout server: the paper's two phases.

First every LLM server goes to a rollout server on its own node, told by IP address; then the rest go, one by one, to
whoever has least, so that all stay even. A rollout server that would go empty shares one, of its own node if it can.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlsplit

Addresses = frozenset[str]


def deal(servers: Mapping[str, Addresses], engines: Mapping[str, Addresses]) -> dict[str, list[str]]:
    """``{rollout server: [LLM servers]}``; keys are URLs, values the IP addresses they resolve to. Order matters: the
    same input gives the same hands."""
    hands: dict[str, list[str]] = {server: [] for server in servers}
    if not servers:
        return hands

    def give(engine: str, candidates: list[str]) -> None:
        hands[min(candidates, key=lambda server: len(hands[server]))].append(engine)

    near = {engine: [s for s in servers if servers[s] & engines[engine]] for engine in engines}
    for engine, candidates in near.items():
        if candidates:
            give(engine, candidates)
    for engine, candidates in near.items():
        if not candidates:
            give(engine, list(servers))
    users = Counter(engine for hand in hands.values() for engine in hand)
    for server, hand in hands.items():
        if not hand and engines:
            shared = min(engines, key=lambda engine: (users[engine], server not in near[engine]))
            users[shared] += 1
            hand.append(shared)
    return hands


async def addresses_of(url: str) -> Addresses:
    """The IP addresses of a URL's host; its bare name where it does not resolve (then it is near nobody but itself)."""
    host = urlsplit(url).hostname or ""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset((host,))
    return frozenset(str(address[4][0]) for address in found)
