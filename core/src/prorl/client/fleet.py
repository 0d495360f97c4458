"""Several rollout servers as one: the face of :class:`~prorl.client.RolloutClient`, without a single point that can
take a rollout down with it.

A rollout goes to the server with most room, and again, under the same job id, to another one when its server dies,
freezes or stops. LLM servers are dealt to the rollout servers (:mod:`prorl.client.dealing`), anew when either side
changes; a server that comes back gets its hand again and is used again. A fleet that was never told of an LLM server
leaves those of its rollout servers alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

import msgspec

from prorl.client.client import RolloutClient, was_dropped
from prorl.client.dealing import Addresses, addresses_of, deal
from prorl.client.errors import ClientError, ServerUnreachable, ServiceError
from prorl.client.member import Member
from prorl.wire.backends import BackendSpec
from prorl.wire.jobs import SERVER_STOPPED, JobRequest
from prorl.wire.results import RolloutResult
from prorl.wire.service import CancelReply

NOBODY_ANSWERS = 502  # at an LLM server's URL


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``check_s``: how often each server is asked how it is; ``strikes``: silent checks in a row that set it aside (its
    rollouts then go on elsewhere). ``give_up_s``: how long a rollout waits for any server at all. ``shared``: others
    register LLM servers with the same rollout servers (each worker of a trainer its own): theirs are left alone."""

    check_s: float = 2.0
    check_timeout_s: float = 5.0
    strikes: int = 3
    give_up_s: float = 600.0
    shared: bool = False


class FleetMember(msgspec.Struct, frozen=True, kw_only=True):
    """A server as :meth:`Fleet.members` shows it."""

    url: str
    alive: bool
    in_flight: int
    capacity: int
    llm_servers: tuple[str, ...]
    why: str


class Fleet:
    """Use as ``async with Fleet(["http://node1:8089", ...]) as fleet``; a fleet of one may be given as its URL.

    ``connect`` makes the client of one server, ``resolve`` its addresses: for tests and unusual networks.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        settings: FleetSettings | None = None,
        *,
        connect: Callable[[str], RolloutClient] | None = None,
        resolve: Callable[[str], Awaitable[Addresses]] = addresses_of,
    ) -> None:
        self._settings = settings or FleetSettings()
        given = [urls] if isinstance(urls, str) else urls
        self._urls = list(dict.fromkeys(url.rstrip("/") for url in given))
        self._connect = connect or self._client
        self._resolve = resolve
        self._members: dict[str, Member] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._engines: dict[str, tuple[BackendSpec, Addresses]] = {}
        self._clears = 0
        self._manages = False
        self._where: dict[str, Member] = {}
        self._changed = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        for url in self._urls:
            await self.add_server(url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Rollouts that are still waited for end with ``ClientError``; on the servers they go on, unless they
        asked for ``cancel_on_disconnect``."""
        self._closed = True
        self._changed.set()
        for url in list(self._members):
            await self._drop(url)

    # -- the fleet

    async def add_server(self, url: str) -> None:
        """A server more; it need not be up yet."""
        url = url.rstrip("/")
        if url in self._members:
            return
        member = Member(self._connect(url), await self._resolve(url), shared=self._settings.shared)
        self._members[url] = member
        self._deal()
        with contextlib.suppress(ClientError):  # its watcher goes on asking
            await member.check()
        watch = member.watch(self._settings.check_s, self._settings.strikes, on_change=self._changed)
        self._watchers[url] = asyncio.create_task(watch, name=f"watch {url}")
        await self._sync()

    async def remove_server(self, url: str) -> None:
        """Its rollouts go on elsewhere. Raises ``KeyError`` for a stranger."""
        await self._drop(url.rstrip("/"))
        self._deal()
        await self._sync()

    def members(self) -> list[FleetMember]:
        return [
            FleetMember(
                url=member.url,
                alive=member.alive,
                in_flight=member.in_flight,
                capacity=member.capacity,
                llm_servers=tuple(member.wanted),
                why="" if member.alive else member.why,
            )
            for member in self._members.values()
        ]

    # -- rollouts

    async def process(self, request: JobRequest) -> RolloutResult:
        """One rollout, to its end, wherever. Raises ``ServiceError`` (a bad request), or ``ServerUnreachable`` when no
        server was to be had for ``give_up_s``."""
        job_id = request.job_id or f"job-{uuid.uuid4().hex}"
        request = msgspec.structs.replace(request, job_id=job_id)
        try:
            while True:
                member = await self._place(job_id)
                result = await self._try(member, request)
                if result is not None:
                    return result
                member.strays.add(job_id)
        finally:
            self._where.pop(job_id, None)

    async def cancel(self, *, job_ids: tuple[str, ...] = (), group_id: str | None = None) -> CancelReply:
        """Cancel wherever they run. Ids that no server knows are ``unknown``; nothing is an error."""
        alive = [member for member in self._members.values() if member.alive]
        replies = await asyncio.gather(*(self._cancel_at(member, job_ids, group_id) for member in alive))
        known = {job for _, here in replies for job in here}
        return CancelReply(
            cancelled=sorted({job for cancelled, _ in replies for job in cancelled}),
            unknown=[job for job in job_ids if job not in known],
        )

    # -- LLM servers

    async def add_llm_server(self, backend: BackendSpec | str, *, wait_s: float = 0.0) -> None:
        """Register an LLM server with the rollout server that it is dealt to. One at which nobody answers is asked for
        again for ``wait_s``. Raises ``ServiceError`` when it is refused; it is then not registered anywhere."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            try:
                return await self._add_llm_server(backend)
            except ServiceError as error:
                if error.status != NOBODY_ANSWERS or asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(self._settings.check_s)

    async def _add_llm_server(self, backend: BackendSpec | str) -> None:
        spec = BackendSpec(url=backend) if isinstance(backend, str) else backend
        version = spec.policy_version if spec.policy_version is not None else str(self._clears)
        spec = msgspec.structs.replace(spec, url=spec.url.rstrip("/"), policy_version=version)
        self._manages = True
        self._engines[spec.url] = spec, await self._resolve(spec.url)
        self._deal()
        try:
            await self._sync(spec.url)
        except ServiceError:
            del self._engines[spec.url]
            self._deal()
            await self._sync()
            raise

    async def clear_llm_server(self, *urls: str) -> None:
        """Remove LLM servers; without ``urls`` all of them, which begins the next policy version."""
        self._manages = True
        if not urls:
            self._clears += 1
        for url in urls or list(self._engines):
            self._engines.pop(url.rstrip("/"), None)
        self._deal()
        await self._sync()

    # -- inside

    async def _try(self, member: Member, request: JobRequest) -> RolloutResult | None:
        """``None``: the server was lost meanwhile."""
        member.in_flight += 1
        call = asyncio.ensure_future(member.client.process(request))
        lost = asyncio.ensure_future(member.down.wait())
        try:
            await asyncio.wait({call, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return None
            result = call.result()
        except ServerUnreachable as error:
            member.lose(str(error))
            return None
        except ServiceError as error:
            if error.retry_after_s is None:
                raise
            member.lose(str(error))  # its watcher takes it back when it accepts jobs again
            return None
        else:
            if was_dropped(result):
                if result.error is not None and result.error.code == SERVER_STOPPED:
                    member.lose("it was stopped")
                return None
            return result
        finally:
            member.in_flight -= 1
            for task in (call, lost):
                task.cancel()
            await asyncio.wait({call, lost})
            self._changed.set()

    async def _place(self, job_id: str) -> Member:
        """The server with most room; waits for one."""
        deadline = asyncio.get_running_loop().time() + self._settings.give_up_s
        while True:
            if self._closed:
                raise ClientError("the fleet was closed")
            open_ = [member for member in self._members.values() if member.has_room]
            if open_:
                member = min(open_, key=lambda member: member.load)
                member.strays.discard(job_id)
                self._where[job_id] = member
                return member
            alive = any(member.alive for member in self._members.values())
            if alive:
                deadline = asyncio.get_running_loop().time() + self._settings.give_up_s
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                whys = "; ".join(f"{member.url}: {member.why}" for member in self._members.values())
                where = ", ".join(self._members) or "the fleet"
                raise ServerUnreachable(where, whys or "it has no server", tried_s=self._settings.give_up_s) from None

    async def _cancel_at(
        self, member: Member, job_ids: tuple[str, ...], group_id: str | None
    ) -> tuple[set[str], set[str]]:
        """Those cancelled there, and those of ``job_ids`` known there."""
        here = tuple(job for job in job_ids if self._where.get(job, member) is member)
        if not here and group_id is None:
            return set(), set()
        try:
            reply = await member.client.cancel(job_ids=here, group_id=group_id)
        except ServerUnreachable:  # what it has goes on elsewhere, and is cancelled here when it is back
            return set(), set()
        except ServiceError as error:
            if error.status != 404:
                raise
            return set(), set()
        return set(reply.cancelled), set(here).difference(reply.unknown)

    def _deal(self) -> None:
        """Everybody's hand, among those that are here, alive or not: one that is away for a moment keeps its own."""
        servers = {url: member.addresses for url, member in self._members.items()}
        hands = deal(servers, {url: addresses for url, (_, addresses) in self._engines.items()})
        for url, hand in hands.items():
            self._members[url].managed = self._manages
            self._members[url].wanted = {engine: self._engines[engine][0] for engine in hand}

    async def _sync(self, just_added: str = "") -> None:
        """Raises the ``ServiceError`` that ``just_added`` met; what others meet is their watchers' business."""
        alive = [member for member in self._members.values() if member.alive]
        for ended in await asyncio.gather(*(member.sync() for member in alive), return_exceptions=True):
            if isinstance(ended, ServerUnreachable):
                continue  # its watcher notices, and syncs it when it is back
            if isinstance(ended, BaseException):
                raise ended
            if just_added in ended:
                raise ended[just_added]

    async def _drop(self, url: str) -> None:
        member = self._members.pop(url)
        member.why = "it was removed from the fleet"
        member.down.set()
        watcher = self._watchers.pop(url, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
        while member.in_flight:  # its rollouts are leaving
            self._changed.set()
            await asyncio.sleep(0)
        await member.client.close()

    def _client(self, url: str) -> RolloutClient:
        # Short patience: the fleet itself waits, and goes elsewhere.
        return RolloutClient(url, concurrency=1 << 20, timeout_s=self._settings.check_timeout_s, give_up_s=1.0)
