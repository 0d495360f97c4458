"""How long it takes until sandboxes of one row are up: one, and many at once; from an empty cache, and from a full one.

    python benchmarks/start.py ROWS.jsonl [--row N] [--sandboxes 32] [--runtime bubblewrap]

"plain" are sandboxes without a repository: what is beyond them is what the repository costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from prorl.api import Sandbox, SandboxSpec
from prorl.cli.console import load_registry
from prorl.sandbox.manager import SandboxManager
from prorl_swe.repository.cache import RepositoryCache
from prorl_swe.rows import Instance, read_row
from prorl_swe.settings import SweSettings

ALONE = 5
LOOK = "git status --short && touch started"


class Bench:
    def __init__(self, instance: Instance, spec: SandboxSpec, runtime: str | None) -> None:
        self._instance = instance
        self._spec = spec
        self._runtime = runtime
        self._manager = SandboxManager(load_registry().runtimes)

    async def up(self, cache: RepositoryCache | None) -> Sandbox:
        """From asking for the repository to the answer of a command that has looked at it."""
        if cache is None:
            sandbox = await self._manager.start(self._spec, self._runtime)
        else:
            with await cache.prepare(self._instance, self._spec, start=self._manager.start) as lease:
                sandbox = await self._manager.start(lease.prepared.spec, self._runtime)
        command = "true" if cache is None else LOOK
        result = await sandbox.act("bash", {"command": command}, timeout=120)
        assert result.data.get("exit_code") == 0, result
        return sandbox

    async def seconds(self, count: int, cache: RepositoryCache | None) -> float:
        began = time.monotonic()
        done = await asyncio.gather(*(self.up(cache) for _ in range(count)))
        seconds = time.monotonic() - began
        await asyncio.gather(*(sandbox.stop(grace=0) for sandbox in done))
        return seconds

    async def median(self, count: int, cache: RepositoryCache | None) -> float:
        return statistics.median([await self.seconds(count, cache) for _ in range(ALONE)])

    async def close(self) -> None:
        await self._manager.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--row", type=int, default=0)
    parser.add_argument("--sandboxes", type=int, default=32)
    parser.add_argument("--runtime")
    chosen = parser.parse_args()
    settings = SweSettings()
    row = json.loads(chosen.rows.read_text().splitlines()[chosen.row])
    instance = read_row(row, settings.format, settings.images)
    bench = Bench(instance, settings.sandbox, chosen.runtime)
    with tempfile.TemporaryDirectory() as folder:
        one, many = (RepositoryCache(Path(folder, name)) for name in ("one", "many"))
        await bench.seconds(1, None)  # the runtime's own first time
        table = {
            "empty cache": (await bench.seconds(1, one), await bench.seconds(chosen.sandboxes, many)),
            "full cache": (await bench.median(1, one), await bench.median(chosen.sandboxes, one)),
            "plain": (await bench.median(1, None), await bench.median(chosen.sandboxes, None)),
        }
    await bench.close()
    print(f"{instance.instance_id}  seconds: 1, {chosen.sandboxes} at once, ratio")
    for name, (alone, together) in table.items():
        print(f"{name:12} {alone:8.3f} {together:8.3f} {together / alone:6.1f}")


if __name__ == "__main__":
    asyncio.run(main())
