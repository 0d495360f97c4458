"""Which addresses of the net may be connected to: public ones, under whatever guise they come.

A name is resolved once, all its addresses are looked at, and the connection goes to one that was: what the name means a
moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from prorl_stem.web.faults import PageFault

Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Awaitable[list[str]]]

NAT64 = IPv6Network("64:ff9b::/96")
NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
V4_COMPATIBLE = IPv6Network("::/96")
V4_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
MAX_ADDRESSES = 32


async def system_resolver(host: str, port: int) -> list[str]:
    """The machine's own resolver. It also reads the odd forms (``0x7f.1``, ``2130706433``): they are looked at, too."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


async def checked(host: str, port: int, resolve: Resolver, allowed: Callable[[Address], bool]) -> list[Address]:
    """The addresses of ``host``, every one of which is allowed. Raises :class:`PageFault`."""
    try:
        found = await resolve(host, port)
    except (OSError, UnicodeError):
        raise PageFault("its host is not known") from None
    try:
        addresses = [ip_address(text.partition("%")[0]) for text in dict.fromkeys(found[:MAX_ADDRESSES])]
    except ValueError:
        raise PageFault("its host is not known") from None
    if not addresses:
        raise PageFault("its host is not known")
    if not all(map(allowed, addresses)):
        raise PageFault("its host is not on the public web")
    return addresses


def is_public(address: Address) -> bool:
    """Not private, loopback, link-local, multicast, reserved or unspecified; nor an IPv6 address that carries such an
    IPv4 one (mapped, compatible, translated, 6to4, Teredo, NAT64)."""
    if isinstance(address, IPv6Address):
        inner = carried(address)
        if inner is not None:
            return all(map(is_public, inner))
        if address in NAT64_LOCAL or address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def carried(address: IPv6Address) -> list[IPv4Address] | None:
    """The IPv4 addresses inside, if that is what it is made of."""
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if address in NAT64 or address in V4_TRANSLATED or (address in V4_COMPATIBLE and int(address) > 1):
        return [IPv4Address(int(address) & 0xFFFF_FFFF)]
    return None
