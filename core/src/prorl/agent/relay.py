"""Runs an agent's command inside a sandbox that has no network: ``python3 relay.py job.json``. Standard library
alone, Python 3.8 or newer.

Listens on a loopback port of the sandbox's own and passes every connection on to the Unix socket of the job's door; the
command's environment names that port. When the command has ended, all that it started is ended too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
CHUNK = 65536


def serve(path: str) -> str:
    """Begin to listen; returns the address as an origin."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=connect, args=(client, path), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def connect(client: socket.socket, path: str) -> None:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.connect(path)
    except OSError as error:
        sys.stderr.write(f"the job's door is closed: {error}\n")
        client.close()
        return
    threading.Thread(target=copy, args=(client, door), daemon=True).start()
    copy(door, client)


def copy(source: socket.socket, target: socket.socket) -> None:
    """One direction. Whichever end leaves, the other one hears of it."""
    try:
        while True:
            data = source.recv(CHUNK)
            if not data:
                break
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def pump(pipe: int) -> None:
    """What the command prints, on a pipe and no terminal: fewer harnesses draw then."""
    while True:
        data = os.read(pipe, CHUNK)
        if not data:
            return
        with contextlib.suppress(OSError):
            os.write(1, data)


def end_all() -> None:
    """SIGKILL to every process below this one; orphans are below it too, for it is a subreaper."""
    while True:
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                for pid in (task / "children").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    origin = serve(job["socket"])
    env = dict(os.environ)
    env.update((name, value.replace("{origin}", origin)) for name, value in job["env"].items())
    reading, writing = os.pipe()
    try:
        child = subprocess.Popen(
            job["argv"], env=env, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, start_new_session=True
        )
    except OSError as error:
        sys.stderr.write(f"{job['argv'][0]}: {error.strerror}\n")
        return 127
    os.close(writing)
    reader = threading.Thread(target=pump, args=(reading,), daemon=True)
    reader.start()
    code = child.wait()
    end_all()
    reader.join()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
