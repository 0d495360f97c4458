"""Takes a gateway out of the rollout servers' pools when its worker is gone, however it went.

Ray ends workers without a word, and kills their children first. So this is a process of its own, nobody's child, that
waits for the end of its standard input, which only the worker holds open: ``farewell GATEWAY SERVER...``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

import httpx


def promise(gateway: str, servers: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start it; it acts when the returned process's ``stdin`` is closed, or with the death of who holds it."""
    command = [sys.executable, "-m", "prorl_verl.farewell", gateway, *servers]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main(gateway: str, servers: Sequence[str]) -> None:
    if os.fork():
        return
    sys.stdin.buffer.read()
    for server in servers:
        with contextlib.suppress(httpx.HTTPError):  # one that does not answer will find the gateway silent by itself
            httpx.post(f"{server}/clear_llm_server", json={"urls": [gateway]}, timeout=10.0, trust_env=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
