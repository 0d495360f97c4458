"""An IPython cell through the full path against the Jupyter kernel gateway and a bare in-process shell; first cells.

The gateway is installed into a throwaway environment (pip install jupyter_kernel_gateway), or is there already:
``--gateway-python``. Its client is a synchronous websocket, so that nothing but the gateway is measured.

    python ipython_cells.py [--rounds 10] [--runtime bubblewrap] [--gateway-python venv/bin/python]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from figures import alternate, machine, show, skipped
from IPython.core.interactiveshell import InteractiveShell

from prorl.api import Sandbox, SandboxSpec, ToolContext
from prorl.plugins import discover
from prorl.sandbox.manager import SandboxManager
from prorl.tools.execute import ExecuteIPythonCell

CELL = "6 * 7"
BARE = "bare in-process shell"
FIRST_CELLS = 3  # a round


class Bare:
    """The least that a cell can cost: IPython's own shell, called here."""

    def __init__(self) -> None:
        self._shell = InteractiveShell.instance()
        self._shell.history_manager.enabled = False

    async def __call__(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert self._shell.run_cell(CELL).result == 42


class Gateway:
    """A gateway with one kernel, and a client that ends when its input does."""

    def __init__(self, python: Path) -> None:
        argv = [str(python), str(Path(__file__).with_name("gateway_client.py")), CELL]
        self._client = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started_s: float = self._answer()["started_s"]

    async def __call__(self) -> None:
        assert self._client.stdin is not None
        self._client.stdin.write("\n")
        self._client.stdin.flush()
        assert self._answer()["result"] == "42"

    def _answer(self) -> dict[str, Any]:
        assert self._client.stdout is not None
        answer: dict[str, Any] = json.loads(self._client.stdout.readline())
        return answer

    def close(self) -> None:
        self._client.communicate(timeout=60)


@contextlib.contextmanager
def gateway(python: Path | None) -> Iterator[Gateway | None]:
    with contextlib.ExitStack() as stack:
        if python is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                venv.create(folder, with_pip=True)
                python = folder / "bin" / "python"
                pip = [python, "-m", "pip", "install", "-q", "jupyter_kernel_gateway", "ipykernel"]
                subprocess.run(pip, check=True, stdout=sys.stderr)
            except subprocess.CalledProcessError as error:
                skipped("the kernel gateway", f"it cannot be installed here ({error})")
                yield None
                return
        yield stack.enter_context(contextlib.closing(Gateway(python)))


class Cells:
    """Cells in one sandbox, by the tool that agents call; and first cells in new ones."""

    def __init__(self, manager: SandboxManager, context: ToolContext) -> None:
        self._manager = manager
        self._context = context
        self._tool = ExecuteIPythonCell()

    async def __call__(self) -> None:
        await self._cell(self._context)

    async def first(self, *, warm: bool) -> float:
        sandbox = await self._manager.start(SandboxSpec())
        try:
            if warm:
                await self._warmed(sandbox)
            began = time.perf_counter()
            await self._cell(ToolContext(sandbox=sandbox, timeout=60))
            return time.perf_counter() - began
        finally:
            await sandbox.stop(grace=0)

    async def _warmed(self, sandbox: Sandbox) -> None:
        for _ in range(1000):
            warming = await sandbox.act("warm", {}, timeout=60)
            if warming.outcome != "ok":
                raise RuntimeError(f"this sandbox cannot be warmed: {warming.error}")
            if warming.data["ready"]:
                return
            await asyncio.sleep(0.02)
        raise RuntimeError("the sandbox was not warm after 20 s")

    async def _cell(self, context: ToolContext) -> None:
        seen = await self._tool.call({"code": CELL}, context)
        assert "42" in seen.text, seen.text


async def main(rounds: int, runtime: str | None, gateway_python: Path | None) -> None:
    print(f"IPython cells: {machine()}")
    manager = SandboxManager(discover().runtimes, runtime)
    try:
        sandbox = await manager.start(SandboxSpec())
        cells = Cells(manager, ToolContext(sandbox=sandbox, timeout=60))
        full = f"full path ({sandbox.runtime})"
        with gateway(gateway_python) as served:
            ways: dict[str, tuple[Any, int]] = {full: (cells, 100), BARE: (Bare(), 100)}
            if served:
                ways["kernel gateway"] = (served, 10)
            show(f"`{CELL}`", await alternate(ways, rounds), BARE)
            if served:
                print(f"\nThe gateway and its kernel were up after {served.started_s:.1f} s.")
        firsts: dict[str, list[float]] = {"prewarmed": [], "cold": []}
        for _ in range(rounds * FIRST_CELLS):
            firsts["prewarmed"].append(await cells.first(warm=True))
            firsts["cold"].append(await cells.first(warm=False))
        show("The first cell of a new sandbox", firsts, "cold")
    finally:
        await manager.close()
    print(f"\n{machine()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runtime", default=None)
    parser.add_argument("--gateway-python", type=Path, default=None)
    asked = parser.parse_args()
    uvloop.run(main(asked.rounds, asked.runtime, asked.gateway_python))
