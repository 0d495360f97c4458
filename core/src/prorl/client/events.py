"""Server-sent events into :class:`~prorl.wire.results.JobEvent`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from prorl.wire.results import JobEvent

_decoder = msgspec.json.Decoder(JobEvent)


async def read_events(lines: AsyncIterator[str]) -> AsyncIterator[JobEvent]:
    """Only ``data`` fields count: a :class:`JobEvent` carries its own kind and number. Comments keep the line open."""
    data: list[str] = []
    async for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield _decoder.decode("\n".join(data))
            data.clear()
