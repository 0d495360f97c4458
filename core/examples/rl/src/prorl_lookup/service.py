"""The three processes of a run: the engine, the rollout server, and (the caller) the trainer.

``with Service(model_folder) as service`` starts the first two. :meth:`Service.publish` is what a trainer does between
two steps: the weights go into the engine, and both engine and rollout server learn the name of the new policy.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from prorl.client import BlockingClient, FolderReload
from prorl.client.errors import ServerUnreachable
from prorl.testing.engines import VllmEngine, free_port
from prorl.wire import BackendSpec


class Service:
    """``model`` holds weights and tokenizer. ``url`` is the rollout server's, ``client`` a blocking client of it."""

    def __init__(self, model: Path, *, max_context: int = 256, parallel: int = 128) -> None:
        self._model = model
        self._parallel = parallel
        # Eagerly and in one go: nothing of so small a model is worth a compiler.
        self.engine = VllmEngine(model, max_context=max_context, parallel=parallel)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.client = BlockingClient(self.url, give_up_s=60.0)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.client)
            stack.callback(_end, self._serve())
            stack.enter_context(self.engine)
            self._weights = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._await_server()
            engine = BackendSpec(url=self.engine.url, tokenizer=str(self._model))
            self.weights = stack.enter_context(FolderReload([engine], [self.url]))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def publish(self, model: Any, policy_version: str) -> None:
        """Put a ``transformers`` model's weights into the engine. On return every rollout is sampled from them, and
        carries ``policy_version``."""
        model.save_pretrained(self._weights)
        self.weights.publish(self._weights, policy_version)

    def engine_version(self) -> str:
        return str(httpx.get(f"{self.engine.url}/version", timeout=30.0, trust_env=False).json()["version"])

    def _serve(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "prorl", "serve", "--port", self.url.rpartition(":")[2]]
        for setting in ("init_workers", "run_workers"):
            command += ["--set", f"pipeline.{setting}={self._parallel if setting == 'run_workers' else 8}"]
        return subprocess.Popen([*command, "--log-level", "warning"], stdin=subprocess.DEVNULL, env=dict(os.environ))

    def _await_server(self) -> None:
        for _ in range(600):
            with suppress(ServerUnreachable):
                self.client.status()
                return
            time.sleep(0.2)
        raise RuntimeError(f"the rollout server does not answer at {self.url}: its log says why")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30.0)
    process.kill()
    process.wait(10.0)
