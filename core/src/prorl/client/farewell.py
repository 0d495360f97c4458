"""Takes an LLM server out of the rollout servers' pools when the process that hosts it is gone, however it went.

A trainer's worker that offers its own engine cannot say good-bye itself: schedulers end workers without a word, and Ray
kills their children first. So this is a process of its own, nobody's child, that waits for the end of its standard
input, which only the worker holds open: ``farewell LLM_SERVER ROLLOUT_SERVER...``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import httpx


@contextlib.contextmanager
def farewell(llm_server: str, rollout_servers: Sequence[str]) -> Iterator[None]:
    """At the end of the block, or of this process, ``llm_server`` leaves the pools of ``rollout_servers``."""
    command = [sys.executable, "-m", "prorl.client.farewell", llm_server, *rollout_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        process.wait()  # it has become a process of its own
        yield


def main(llm_server: str, rollout_servers: Sequence[str]) -> None:
    if os.fork():
        return
    sys.stdin.buffer.read()
    for server in rollout_servers:
        with contextlib.suppress(httpx.HTTPError):  # one that does not answer will find the engine silent by itself
            httpx.post(f"{server}/clear_llm_server", json={"urls": [llm_server]}, timeout=10.0, trust_env=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
