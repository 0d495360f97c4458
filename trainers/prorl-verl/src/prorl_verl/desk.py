"""What the rollouts of one agent-loop worker share: the gateway to verl's engines, the rollout servers, and how many
of each group have failed.

verl makes an agent loop anew for every rollout, but hands each of them the same client: the shared things hang on that
client, so there is one of each per worker, for as long as the worker lives.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, NamedTuple, Self

import ray

from prorl.client import Fleet
from prorl.client.dealing import addresses_of
from prorl.client.lending import lent
from prorl.wire import BackendSpec
from prorl_verl.gateway import Gateway
from prorl_verl.options import Options


class Desk(NamedTuple):
    """``failed``: by group. ``resources`` is for whoever outlives the desk; verl's workers end by being killed."""

    fleet: Fleet
    failed: Counter[str | None]
    resources: contextlib.AsyncExitStack

    @classmethod
    async def of(cls, engines: Any, options: Options, ends: list[int]) -> Desk:
        """The worker's desk for these rollout servers; the first rollout opens it, the others wait for that."""
        desks = desks_of(engines)
        key = (options.urls, options.gateway_host, options.tokenizer)
        if key not in desks:
            desks[key] = asyncio.ensure_future(cls._open(engines, options, ends))
        try:
            return await asyncio.shield(desks[key])
        except Exception:
            desks.pop(key, None)  # what is wrong may be mended; the next rollout finds out
            raise

    @classmethod
    async def _open(cls, engines: Any, options: Options, ends: list[int]) -> Self:
        model = engines.config.actor_rollout_ref.model
        if model.get("custom_chat_template") is not None and options.tokenizer is None:
            raise ValueError(
                "actor_rollout_ref.model.custom_chat_template does not reach the rollout servers, which render: save "
                "the tokenizer with this template to a folder, and name it as tokenizer in the agent loop's YAML"
            )
        async with contextlib.AsyncExitStack() as stack:
            host = options.gateway_host or await _host_for(options.urls)
            url = await stack.enter_async_context(Gateway(engines, ends).at(host))
            tokenizer = options.tokenizer or model.get("tokenizer_path") or model.path
            engine = BackendSpec(url=url, dialect="vllm", tokenizer=tokenizer)
            fleet = await stack.enter_async_context(lent(engine, options.urls))
            return cls(fleet, Counter(), stack.pop_all())


def desks_of(engines: Any) -> dict[object, asyncio.Future[Desk]]:
    """The worker's."""
    desks: dict[object, asyncio.Future[Desk]] = vars(engines).setdefault("_prorl", {})
    return desks


async def _host_for(urls: tuple[str, ...]) -> str:
    """Loopback, when that is where all servers are."""
    addresses = {address for url in urls for address in await addresses_of(url)}
    here = all(address == "::1" or address.startswith("127.") for address in addresses)
    return "127.0.0.1" if here else str(ray.util.get_node_ip_address())
