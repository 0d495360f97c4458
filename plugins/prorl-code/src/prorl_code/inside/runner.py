"""Runs one program on many inputs, one fresh process after another, and says of each how it ended and what it left.

The request is JSON in files of the runner's own folder, all of which is deleted before any program starts; per run one
line of JSON goes to standard output behind a secret word, which no program can know. What is expected of a program is
not in the request.

A sandbox is only used again when a run left nothing in it, no process and no file. That is checked, not tidied up, so
one test cannot prepare anything for the next.
"""

# pathlib would double the time that this program takes to start
# ruff: noqa: PTH102, PTH106, PTH108, PTH118, PTH120, PTH123
from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import stat
import sys
import time

from .confine import confine, hide_and_adopt
from .remains import below, changed, read, snapshot, writable_mounts

TYPE_CHECKING = False  # typing's own costs its import
if TYPE_CHECKING:
    from typing import Any

TICK = 0.05
GONE_WITHIN = 3.0
STDERR_KEPT = 4000
INLINE = 40_000  # characters of a line; a longer one goes into files
PRINTED = 80_000  # and of all lines: more would be kept in a file by who reads them
PART = 600_000
VALUE_FD = 3


class Run:
    """One run: its process, its files, its end."""

    def __init__(self, request: dict[str, Any], run: dict[str, Any], place: str) -> None:
        self.limits = request["limits"]
        self.files = {**request["files"], **run.get("files", {})}
        self.collect = run.get("collect", [])
        self.pipes = run.get("pipes")
        self.place = place
        self.argv = [sys.executable if part == "python3" else part for part in request["command"]]
        self.stdin = base64.b64decode(run.get("stdin", ""))
        self.out = os.memfd_create("out")
        self.err = os.memfd_create("err")
        self.value = os.memfd_create("value")

    def go(self) -> dict[str, Any]:
        os.mkdir(self.place, 0o700)
        for name, content in self.files.items():
            with open(os.path.join(self.place, name), "wb") as file:
                file.write(base64.b64decode(content))
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                self._become()
            except BaseException as error:
                os.write(2, f"cannot start: {error!r}".encode())
            finally:
                os._exit(127)
        ended, status, usage = self._watch(pid, began)
        wall = time.monotonic() - began
        left = self._end_all()
        cpu = max(usage.ru_utime + usage.ru_stime, self.cpu_seen)
        report: dict[str, Any] = {
            "ended": self._how(ended, status, cpu),
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status),
            "cpu_s": round(cpu, 4),
            "wall_s": round(wall, 4),
            "memory_mb": round(max(usage.ru_maxrss / 1024, self.memory_seen), 1),
            "stdout": self._text(self.out),
            "stderr": self._text(self.err, STDERR_KEPT),
            "value": self._text(self.value),
            "files": {},
        }
        for name in self.collect:
            report["files"][name] = self._collect(name)
        report["left"] = left or self._tidy()
        for fd in (self.out, self.err, self.value):
            os.close(fd)
        return report

    def _become(self) -> None:
        os.setsid()
        os.chdir(self.place)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if self.pipes:
            # Opening waits for the other side, so both sides open them in one order.
            opened: dict[str, int] = {}
            for path, number in sorted((path, number) for number, path in self.pipes.items()):
                opened[number] = os.open(path, os.O_RDONLY if number == "0" else os.O_WRONLY)
            stdin, stdout = opened["0"], opened["1"]
        else:
            written = os.memfd_create("in")
            view = memoryview(self.stdin)
            while view:
                view = view[os.write(written, view) :]
            stdin = os.open(f"/proc/self/fd/{written}", os.O_RDONLY)
            stdout = self.out
        # Ours first out of the way of the targets, so that no dup2 closes a source that is still to come.
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, VALUE_FD + 1) for fd in (stdin, stdout, self.err, self.value)]
        for target, fd in enumerate(moved):
            os.dup2(fd, target, inheritable=True)
        confine(self.limits)
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self.place,
            "TMPDIR": self.place,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        os.execvpe(self.argv[0], self.argv, env)  # noqa: S606 - a program, no shell

    def _watch(self, pid: int, began: float) -> tuple[str, int, resource.struct_rusage]:
        """``(ended, wait status, usage)``: wait for the main process, or end it at a limit."""
        self.cpu_seen = self.memory_seen = 0.0
        ended = "exit"
        exited = select.poll()
        pidfd = os.pidfd_open(pid)
        exited.register(pidfd, select.POLLIN)
        limits = self.limits
        try:
            while not exited.poll(TICK * 1000):
                cpu, memory = self._measure()
                self.cpu_seen, self.memory_seen = max(cpu, self.cpu_seen), max(memory, self.memory_seen)
                if cpu > limits["cpu_s"] or time.monotonic() - began > limits["wall_s"]:
                    ended = "timeout"
                elif memory > limits["memory_mb"]:
                    ended = "memory"
                else:
                    continue
                os.kill(pid, signal.SIGKILL)
                break
        finally:
            os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        return ended, status, usage

    def _measure(self) -> tuple[float, float]:
        """CPU seconds and megabytes of everything that the program is now."""
        ticks = pages = 0
        for pid in below(os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
                ticks += sum(map(int, fields[11:15]))
                pages += int(fields[21])
        return ticks / os.sysconf("SC_CLK_TCK"), pages * resource.getpagesize() / (1 << 20)

    def _how(self, ended: str, status: int, cpu: float) -> str:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        full = any(os.fstat(fd).st_size >= self.limits["output_bytes"] for fd in (self.out, self.err, self.value))
        if ended == "exit" and (full or number == signal.SIGXFSZ):
            return "output"
        if ended == "exit" and (number == signal.SIGXCPU or cpu > self.limits["cpu_s"]):
            return "timeout"
        return ended

    def _end_all(self) -> str | None:
        """Kill what the program left running. ``processes`` if there was anything."""
        left = None
        deadline = time.monotonic() + GONE_WITHIN
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # we are a subreaper, so this says that nothing of it is alive
                return left
            if pid:
                continue
            left = "processes"
            if time.monotonic() > deadline:
                return left
            found = below(os.getpid())
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in found:
                    with contextlib.suppress(OSError):
                        os.kill(process, number)
            time.sleep(0.002)

    def _text(self, fd: int, tail: int | None = None) -> str:
        size = os.fstat(fd).st_size
        start = 0 if tail is None else max(0, size - tail)
        wanted = min(size - start, self.limits["output_bytes"])
        data = b""
        while len(data) < wanted:
            part = os.pread(fd, wanted - len(data), start + len(data))
            if not part:
                break
            data += part
        return base64.b64encode(data).decode()

    def _collect(self, name: str) -> str | None:
        """A file that the program was to write; ``None`` when there is none, or it is no regular file."""
        with contextlib.suppress(OSError):
            fd = os.open(os.path.join(self.place, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    return self._text(fd)
            finally:
                os.close(fd)
        return None

    def _tidy(self) -> str | None:
        """Remove what belongs to the run; ``files`` if anything else is there."""
        try:
            for name in {*self.files, *self.collect}:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.place, name))
            os.rmdir(self.place)
        except OSError:
            return "files"
        return None


def emit(word: str, report: dict[str, Any], folder: str) -> tuple[int, bool]:
    """One line per run; its length, and whether more is in files, to be read when this process has ended."""
    line = json.dumps(report)
    long = len(line) > INLINE
    if long:
        parts = [line[start : start + PART] for start in range(0, len(line), PART)]
        for number, part in enumerate(parts):
            with open(os.path.join(folder, f"out-{number}"), "w") as file:
                file.write(part)
        line = json.dumps({"parts": len(parts)})
    sys.stdout.write(f"{word} {line}\n")
    sys.stdout.flush()
    return len(line), long


def clear(folder: str) -> None:
    """Our own files, this text among them: what runs later shall find nothing."""
    for place, folders, names in os.walk(folder, topdown=False):
        for name in names:
            os.unlink(os.path.join(place, name))
        for name in folders:
            os.rmdir(os.path.join(place, name))


def main(folder: str, parts: int) -> None:
    hide_and_adopt()
    request = json.loads(b"".join(read(os.path.join(folder, f"in-{number}")) for number in range(parts)))
    clear(folder)
    places = writable_mounts()
    before = snapshot(places) if places else None
    printed = 0
    for run in request["runs"]:
        report = Run(request, run, os.path.join(os.path.dirname(folder), "case")).go()
        if report["left"] is None:
            report["left"] = "unknown" if before is None else changed(places or [], before)
        length, long = emit(request["word"], report, folder)
        printed += length
        if report["left"] or long or printed > PRINTED or (request["stop"] and report["ended"] != "exit"):
            break
    emit(request["word"], {"done": True}, folder)  # ended by our own will, and not because somebody ended us
