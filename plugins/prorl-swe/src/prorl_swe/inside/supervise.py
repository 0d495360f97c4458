"""Runs the named tests in a process of their own, and tells the host how far it came and how it ended.

A test has been announced, was started in its turn and has ended, or it does not count. The report leaves by standard
output in lines behind a secret word that is only here and in the process of tests' memory.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006, UP045, PLW1509, PLR0911, PTH208, PTH123, PTH108, SIM117
import base64
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import typing

from .channel import Event, give, opened, pair
from .confine import hide_and_adopt, refuse_calls

Request = typing.Dict[str, typing.Any]
BOOT = (
    "import sys; folder = sys.argv[1]; sys.path[0] = folder; "
    "from prorl_inside.start import main; main(folder, int(sys.argv[2]))"
)
PIECE = 20000
KEPT_OUTPUT = 60000  # bytes of what the tests print, for people
MAX_TAMPERING = 20
GONE_WITHIN = 10.0
TOLD = ("names", "match", "done", "changed", "contents", "worktree", "program", "probe", "word")
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


class Process:
    """One process of tests: what it said so far, and how it ended."""

    def __init__(self, request: Request, folder: str) -> None:
        self._request = request
        self._deadline = time.monotonic() + request["total_s"]
        self._number = 0
        self._running: typing.Optional[int] = None
        self._next = 0
        self._since = time.monotonic()
        self.ids: typing.List[typing.List[str]] = []
        self.outcomes: typing.Dict[int, str] = {}
        self.marked: typing.List[int] = []
        self.tampering: typing.List[str] = []
        self.output = b""
        self.ready = False
        self.collected = False
        self.ended: typing.Optional[int] = None
        self.culprit: typing.Optional[str] = None
        self._go(folder)

    def _go(self, folder: str) -> None:
        request = self._request
        ours, theirs = pair()
        out, written = os.pipe()
        argv = [request["python"], "-B", "-s", "-c", BOOT, folder, str(theirs.fileno())]
        process = subprocess.Popen(
            argv,
            cwd=request["cwd"],
            env=dict(os.environ, **request["env"]),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            preexec_fn=refuse_calls,
        )
        theirs.close()
        os.close(written)
        told = {name: request[name] for name in TOLD}
        with contextlib.suppress(OSError):  # it is gone already: that will be seen
            ours.settimeout(30)
            give(ours, json.dumps(told).encode())
        ours.setblocking(False)
        try:
            self._watch(process, ours, out)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end_all()
            ours.close()
            os.close(out)

    # -- until its end

    def _watch(self, process: "subprocess.Popen[bytes]", channel: socket.socket, out: int) -> None:
        open_fds = [channel.fileno(), out]
        while True:
            readable = select.select(open_fds, [], [], 0.1)[0]
            if out in readable:
                data = os.read(out, 65536)
                self._keep(data)
                if not data:
                    open_fds.remove(out)
            if channel.fileno() in readable and not self._hear(channel):
                open_fds.remove(channel.fileno())
            if self.ended is not None or (process.poll() is not None and not readable):
                break
            if time.monotonic() > min(self._deadline, self._since + self._request["test_s"]):
                self.culprit = "timeout"
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GONE_WITHIN)
        while out in select.select([out], [], [], 0)[0]:
            data = os.read(out, 65536)
            self._keep(data)
            if not data:
                break
        if process.returncode != self.ended:
            self.ended = None
            self.culprit = "crashed"

    def _keep(self, data: bytes) -> None:
        self.output = (self.output + data)[-self._request["kept_output"] :]

    def _hear(self, channel: socket.socket) -> bool:
        try:
            packet = channel.recv(1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not packet:
            return False
        event = opened(packet, self._request["word"], self._number + 1)
        if event is None:
            self._tell("something else was written to the reporter's channel")
            return True
        self._number += 1
        self._since = time.monotonic()
        if not self._take(event):
            self._tell("the reporter spoke out of turn ({})".format(event.get("event")))
        return True

    def _take(self, event: Event) -> bool:
        """Whether this may be said now."""
        kind = event.get("event")
        if kind in ("begun", "ready"):
            self.ready = self.ready or kind == "ready"
        elif kind == "tampering":
            self._tell(str(event.get("what"))[:200])
        elif kind == "ids":
            self.ids += [name if isinstance(name, list) else [name] for name in event["ids"]]
            return self._running is None
        elif kind == "collected":
            self.collected = True
            return event.get("count") == len(self.ids)
        elif kind == "start":
            fine = self._running is None and event.get("test") == self._next < len(self.ids)
            self._running = self._next
            return fine
        elif kind == "done":
            fine = self._running is not None and event.get("test") == self._running
            if fine and event.get("outcome") in OUTCOMES:
                self.outcomes[self._next] = event["outcome"]
                self.marked += [self._next] if event.get("marked") else []
            self._running = None
            self._next += 1
            return fine
        elif kind == "end":
            self.ended = int(event["code"])
            return self._running is None
        else:
            return False
        return True

    def _tell(self, what: str) -> None:
        if what not in self.tampering and len(self.tampering) < MAX_TAMPERING:
            self.tampering.append(what)

    @property
    def stuck(self) -> typing.List[str]:
        """The names of the test that was running when it ended."""
        return self.ids[self._running] if self._running is not None and self._running < len(self.ids) else []


def report_of(process: Process, probe: str) -> Request:
    """Of names that end with ``probe`` only what is wrong with them."""
    outcomes: typing.Dict[str, str] = {}
    tampering, notes = list(process.tampering), []
    for number, outcome in process.outcomes.items():
        for name in process.ids[number]:
            if name.endswith(probe) and outcome in ("passed", "xpassed", "xfailed", "skipped"):
                tampering.insert(0, f"a test that can only fail was reported as {outcome}")
            if name not in outcomes or outcome != "passed":  # several of one name are as good as the worst of them
                outcomes[name] = outcome
    if process.culprit:
        outcomes.update(dict.fromkeys(process.stuck, process.culprit))
        notes += [] if process.stuck else [f"{process.culprit} while no test was running"]
    collected = {name for names in process.ids for name in names}
    return {
        "outcomes": {name: outcome for name, outcome in outcomes.items() if not name.endswith(probe)},
        "collected": sorted(name for name in collected if not name.endswith(probe)),
        "marked": sorted({name for number in process.marked for name in process.ids[number]}),
        "ready": process.ready,
        "complete": process.ended is not None,
        "tampering": tampering[:MAX_TAMPERING],
        "notes": notes,
        "log": process.output.decode("utf-8", "replace"),
    }


def end_all() -> None:
    """Kill what the tests left running: we are its subreaper, so all of it is below us."""
    deadline = time.monotonic() + GONE_WITHIN
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        for found in below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(found, signal.SIGKILL)
        time.sleep(0.005)


def below(root: int) -> typing.List[int]:
    children: typing.Dict[int, typing.List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found: typing.List[int] = []
    pending = [root]
    while pending:
        new = children.get(pending.pop(), [])
        found += new
        pending += new
    return found


def run_command(request: Request) -> Request:
    """A program of the repository's own, for its log: there is nothing here to know its tests by."""
    out, written = os.pipe()
    process = subprocess.Popen(
        ["/bin/bash", "-c", request["command"]],
        cwd=request["cwd"],
        env=dict(os.environ, **request["env"]),
        stdin=subprocess.DEVNULL,
        stdout=written,
        stderr=written,
        start_new_session=True,
        preexec_fn=refuse_calls,
    )
    os.close(written)
    deadline, log, complete = time.monotonic() + request["total_s"], b"", False
    while time.monotonic() < deadline:
        if select.select([out], [], [], 0.2)[0]:
            data = os.read(out, 65536)
            log = (log + data)[-request["kept_output"] :]
            if not data:
                complete = True
                break
        elif process.poll() is not None:
            complete = True
            break
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    end_all()
    return {"outcomes": {}, "ready": complete, "complete": complete, "log": log.decode("utf-8", "replace")}


def emit(word: str, report: Request) -> None:
    text = base64.b64encode(json.dumps(report).encode()).decode()
    for start in range(0, len(text), PIECE):
        sys.stdout.write(f"{word} {text[start : start + PIECE]}\n")
    sys.stdout.write(f"{word} .\n")
    sys.stdout.flush()


def main(folder: str, path: str) -> None:
    hide_and_adopt()
    with open(path, "rb") as file:
        request = json.loads(file.read().decode())
    os.unlink(path)
    began = time.monotonic()
    report = run_command(request) if request["command"] else report_of(Process(request, folder), request["probe"])
    emit(request["word_out"], dict(report, seconds=time.monotonic() - began))
