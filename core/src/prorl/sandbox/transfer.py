"""Folders and files in and out of a sandbox, over its channel. Nothing it sends is written outside the folder given."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from prorl.api.errors import SandboxFault
from prorl.api.sandbox import ActionResult
from prorl.sandbox.inside.archive import ArchiveError, Unpacker, pack

BATCH = 256 * 1024
Act = Callable[..., Awaitable[ActionResult]]


async def upload(act: Act, local: Path, remote: str, *, timeout: float, max_bytes: int) -> None:
    await _transfer(act, "unpack", remote, timeout=timeout, max_bytes=max_bytes, source=_batches(local, max_bytes))


async def download(act: Act, remote: str, local: Path, *, timeout: float, max_bytes: int) -> None:
    unpacker = Unpacker(await asyncio.to_thread(os.path.realpath, local), max_bytes)

    async def take(data: bytes) -> None:
        await asyncio.to_thread(unpacker.feed, data)

    try:
        await _transfer(act, "pack", remote, timeout=timeout, max_bytes=max_bytes, on_output=take)
        unpacker.check_end()
    except ArchiveError as error:
        raise SandboxFault(f"download of {remote} refused: {error}", code="transfer_refused") from error
    finally:
        unpacker.close()


async def _transfer(act: Act, direction: str, remote: str, *, timeout: float, max_bytes: int, **more: object) -> None:
    what = "upload to" if direction == "unpack" else "download of"
    arguments = {"direction": direction, "path": remote, "max_bytes": max_bytes}
    try:
        result = await act("transfer", arguments, timeout=timeout, **more)
    except ArchiveError as error:
        raise SandboxFault(f"{what} {remote} refused: {error}", code="transfer_refused") from error
    except OSError as error:
        raise SandboxFault(f"{what} {remote}: {error}", code="transfer_failed") from error
    if result.outcome == "timeout":
        raise SandboxFault(f"{what} {remote} did not end within {timeout:g} s", code="transfer_timeout")
    if result.outcome != "ok":
        raise SandboxFault(f"{what} {remote}: {result.error or result.outcome}", code="transfer_failed")


async def _batches(local: Path, max_bytes: int) -> AsyncIterator[bytes]:
    """The archive in pieces worth a thread's while."""
    pieces = pack(str(local), max_bytes)

    def batch() -> bytes:
        collected = bytearray()
        for piece in pieces:
            collected += piece
            if len(collected) >= BATCH:
                break
        return bytes(collected)

    while data := await asyncio.to_thread(batch):
        yield data
