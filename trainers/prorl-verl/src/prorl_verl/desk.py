"""What the rollouts of one agent-loop worker share: the gateway to verl's engines, the rollout servers, and how far
each group has come.

verl makes an agent loop anew for every rollout, but hands each of them the same client: the shared things hang on that
client, so there is one of each per worker, for as long as the worker lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import uuid
from collections.abc import Iterator
from typing import IO, Any, Self
from urllib.parse import urlsplit

import msgspec
import ray

from prorl.client import Fleet, FleetSettings
from prorl.wire import BackendSpec
from prorl_verl.farewell import promise
from prorl_verl.gateway import Gateway
from prorl_verl.options import Options

_PLACE = "_prorl"


class Tally(msgspec.Struct):
    """The rollouts of one group: how many there are, still run, and gave something to train on."""

    total: int = 0
    running: int = 0
    kept: int = 0


class Shared:
    """Of one worker: a desk for each set of rollout servers, and the groups that run."""

    def __init__(self) -> None:
        self.desks: dict[object, asyncio.Future[Desk]] = {}
        self._groups: dict[str, Tally] = {}

    @classmethod
    def of(cls, engines: Any) -> Shared:
        shared: Shared = vars(engines).setdefault(_PLACE, cls())
        return shared

    @contextlib.contextmanager
    def member(self, group: str) -> Iterator[Tally]:
        """A rollout's time in its group. verl starts all of a group's rollouts before any of them can end."""
        tally = self._groups.setdefault(group, Tally())
        tally.total += 1
        tally.running += 1
        try:
            yield tally
        finally:
            tally.running -= 1
            if not tally.running:
                del self._groups[group]

    async def close(self) -> None:
        for opening in self.desks.values():
            await (await opening).close()
        self.desks.clear()


class Desk:
    def __init__(self, gateway: Gateway, fleet: Fleet, leaving: IO[bytes] | None) -> None:
        self.fleet = fleet
        self._leaving = leaving  # open for as long as the worker lives
        self._gateway = gateway
        self._name = uuid.uuid4().hex[:8]
        self._serial = itertools.count()

    @classmethod
    async def of(cls, engines: Any, options: Options, config: Any, ends: list[int]) -> Desk:
        """The worker's desk for these rollout servers; the first rollout opens it, the others wait for that."""
        desks = Shared.of(engines).desks
        key = (options.urls, options.gateway_host, options.tokenizer)
        if key not in desks:
            desks[key] = asyncio.ensure_future(cls._open(engines, options, config, ends))
        try:
            return await asyncio.shield(desks[key])
        except Exception:
            desks.pop(key, None)  # what is wrong may be mended; the next rollout finds out
            raise

    @classmethod
    async def _open(cls, engines: Any, options: Options, config: Any, ends: list[int]) -> Self:
        rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
        if model.get("custom_chat_template") is not None and options.tokenizer is None:
            raise ValueError(
                "actor_rollout_ref.model.custom_chat_template does not reach the rollout servers, which render: save "
                "the tokenizer with this template to a folder, and name it as tokenizer in the agent loop's YAML"
            )
        gateway = Gateway(
            engines,
            model=model.path,
            max_context=rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length,
            logprobs_mode=rollout.get("logprobs_mode", "processed_logprobs"),
            ends=ends,
        )
        fleet = Fleet(options.urls, FleetSettings(shared=True))
        try:
            url = await gateway.start(options.gateway_host or _host_for(options.urls))
            await fleet.__aenter__()
            tokenizer = options.tokenizer or model.get("tokenizer_path") or model.path
            await fleet.add_llm_server(BackendSpec(url=url, dialect="vllm", tokenizer=tokenizer))
        except BaseException:
            await fleet.close()
            await gateway.stop()
            raise
        leaving = promise(url, options.urls)
        await asyncio.to_thread(leaving.wait)  # it has become a process of its own
        return cls(gateway, fleet, leaving.stdin)

    def job_id(self, uid: str, session_id: object) -> str:
        """Never the same twice: a trainer that goes on from a checkpoint hands out its old uids again, and must not get
        rollouts of the run that it lost."""
        return f"{uid}_{session_id}.{self._name}{next(self._serial)}"

    async def close(self) -> None:
        await self.fleet.clear_llm_server()
        await self.fleet.close()
        await self._gateway.stop()
        if self._leaving is not None:
            self._leaving.close()


def _host_for(urls: tuple[str, ...]) -> str:
    return "127.0.0.1" if all(_is_loopback(urlsplit(url).hostname or "") for url in urls) else _node_address()


def _node_address() -> str:
    return str(ray.util.get_node_ip_address())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
