"""How the LLM pool behaves: the ``[pool]`` table of prorl.toml."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds and counts of the pool.

    ``wait_s``: how long a model call waits for an LLM server unless its job says otherwise (0: not at all).
    ``pause_s``: how long a paused pool may hold a call before it fails.
    ``settle_s``: after a ``clear`` servers come back one by one; from the first on, a running task waits this long for
    its own before it takes another, so that not all of them crowd onto the first.
    ``attempts``: on how many servers one call is tried when they are unreachable or answer with a server error.
    ``concurrency``: calls in flight per server; more wait in front of the HTTP client, whose own queue is slow.
    ``keepalive_s``: idle connections are dropped after this; must be less than the server's (5 s at vLLM, llama.cpp).
    ``connect_s``: limit on connecting. There is no limit on reading: the job's budget is the clock of a model call.
    ``health_every_s``, ``health_timeout_s``: the check of a server in use. ``strikes``: after so many failed checks in
    a row a server is taken for dead and its calls move. ``retry_first_s`` to ``retry_last_s``: how soon a server that
    was set aside is asked again, doubling.
    """

    wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 60.0
    pause_s: Seconds = 1800.0
    settle_s: Seconds = 2.0
    attempts: Count = 4
    concurrency: Count = 256
    keepalive_s: Seconds = 2.0
    connect_s: Seconds = 20.0  # a starved machine is no dead server
    health_every_s: Seconds = 15.0
    health_timeout_s: Seconds = 10.0
    strikes: Count = 3
    retry_first_s: Seconds = 0.25
    retry_last_s: Seconds = 30.0
