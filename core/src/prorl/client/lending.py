"""An engine inside a trainer's own process, lent to the rollout servers for as long as that process lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from prorl.client.farewell import farewell
from prorl.client.fleet import Fleet, FleetSettings
from prorl.wire.backends import BackendSpec


@asynccontextmanager
async def lent(engine: BackendSpec, urls: Sequence[str]) -> AsyncIterator[Fleet]:
    """The fleet of the rollout servers ``urls``, with ``engine``, which this process hosts, registered. It leaves their
    pools with the block, or with the process, however that ends; engines that others have lent to the same servers are
    left alone. Raises what :meth:`Fleet.add_llm_server` raises."""
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(urls, FleetSettings(shared=True)))
        # First: a process that is killed while it registers its engine has to be spoken for as well.
        await asyncio.to_thread(stack.enter_context, farewell(engine.url, urls))
        await fleet.add_llm_server(engine)
        stack.push_async_callback(fleet.clear_llm_server)
        yield fleet
