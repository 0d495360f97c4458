"""Candidates that attack their judge. None gets a verdict that it did not earn, and none leaves anything behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prorl_code.settings import CodeSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")
QUICK = CodeSettings(time_limit_s=1.0, wall_factor=1.0)
ALL = CodeSettings(reward="fraction")
SECRET = "the-expected-word-4711"
# Each looks for WORD, of which it has two halves, so that its own source is not what it finds.
WALK = """
import os
def files(*tops):
    for top in tops:
        if not os.path.isdir(top): continue
        device = os.stat(top).st_dev
        for folder, folders, names in os.walk(top):  # not into what is mounted there: the interpreter's own packages
            folders[:] = [name for name in folders if os.lstat(os.path.join(folder, name)).st_dev == device]
            for name in names:
                try:
                    with open(os.path.join(folder, name), 'rb') as file: yield name, file.read(1 << 20)
                except OSError: pass
"""
SEARCHES = {
    "files": WALK
    + """
tops = '/workspace', '/tmp', '/dev/shm', '/run', '/var', '/home', '/root', '/etc', os.getcwd()
print(WORD if any(WORD.encode() in text for _, text in files(*tops)) else 'nothing')
""",
    "the memory of other processes": """
import os
found = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    if int(pid) == os.getpid(): continue
    try:
        with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb', 0) as memory:
            for line in maps:
                begin, end = (int(n, 16) for n in line.split()[0].split('-'))
                try:
                    memory.seek(begin)
                    if WORD.encode() in memory.read(min(end - begin, 1 << 26)): found.append(pid)
                except (OSError, OverflowError, ValueError): pass
    except OSError: pass
print(WORD if found else 'nothing')
""",
    "what the kernel tells of other processes": """
import os
found = []
for pid in filter(str.isdigit, os.listdir('/proc')):
    if int(pid) == os.getpid(): continue
    for name in ('environ', 'cmdline', 'fd/0', 'fd/1', 'fd/3', 'fd/4', 'fd/5'):
        try:
            fd = os.open(f'/proc/{pid}/{name}', os.O_RDONLY | os.O_NONBLOCK)
            if WORD.encode() in os.read(fd, 1 << 20): found.append(name)
        except OSError: pass
print(WORD if found else 'nothing')
""",
    "its own descriptors": """
import os
found = []
for fd in range(256):
    try:
        if WORD.encode() in os.pread(fd, 1 << 20, 0): found.append(fd)
    except OSError: pass
print(WORD if found else 'nothing')
""",
}


@pytest.mark.parametrize("name", SEARCHES)
async def test_what_is_expected_is_nowhere(court, name):
    source = f"WORD = {SECRET[:8]!r} + {SECRET[8:]!r}\n{SEARCHES[name]}"
    judged = await court.judge(source, ("", SECRET), settings=ALL)
    assert judged.outcome == "wrong_answer", judged.reason
    assert '"nothing"' in judged.reason


async def test_such_a_search_finds_what_is_there(court):
    """A search that could find nothing would prove nothing."""
    source = f"WORD = {SECRET[:8]!r} + {SECRET[8:]!r}\nopen('/workspace/left', 'w').write(WORD)\n{SEARCHES['files']}"
    assert (await court.judge(source, ("", SECRET), settings=ALL)).outcome == "passed"
    source = f"""
import os, subprocess, sys
WORD = {SECRET[:8]!r} + {SECRET[8:]!r}
child = subprocess.Popen([sys.executable, '-c', 'import sys, time; word = sys.stdin.read(); time.sleep(100)'], stdin=-1)
child.stdin.write(WORD.encode())
child.stdin.close()
import time; time.sleep(1)
{SEARCHES["the memory of other processes"]}
"""
    assert (await court.judge(source, ("", SECRET), settings=ALL)).outcome == "passed"


async def test_neither_the_judge_nor_the_inputs_of_other_tests_are_there(court):
    source = f"""
{WALK}
given = input()
there = [(name, text) for name, text in files('/workspace', '/tmp', '/dev/shm') if name != 'solution.py']
print('alone' if not [name for name, text in there if 'judge' in name or b'input-' in text] else there)
"""
    judged = await court.judge(source, *[(f"input-{n}", "alone") for n in range(4)], settings=ALL)
    assert judged.passed == 4, judged.reason


async def test_the_judges_own_process_cannot_be_read_or_traced(court):
    source = """
import ctypes, os
said = []
for name in ('mem', 'environ', 'maps', 'fd/0'):
    try:
        open(f'/proc/{os.getppid()}/{name}', 'rb').read(1)
        said.append(name)
    except PermissionError: pass
if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0: said.append('traced')
print(said or 'refused')
"""
    judged = await court.judge(source, ("", "refused"), settings=ALL)
    assert judged.passed == 1, judged.reason


# Each leaves something for the next test: the first run prints 'first', a later one that finds it 'again'.
LEAVES = {
    "a file in the temporary folder": "open('/tmp/left', 'x')",
    "a file in the working directory": "open('/workspace/left', 'x')",
    "a file beside the program": "open('left', 'x')",
    "a hidden folder": "import os; os.makedirs('/dev/shm/.x/y/z')",
    "a process in a session of its own": """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
os.wait()
""",
    "a start-up file for shells": """
import os
open('/tmp/home/.bashrc', 'a').write('x')
""",
}


@pytest.mark.parametrize("name", LEAVES)
async def test_a_sandbox_in_which_something_was_left_is_not_used_again(court, name):
    before = len(court.opened)
    judged = await court.judge(f"{LEAVES[name]}\nprint('done')", *[("", "done")] * 3, settings=ALL)
    assert judged.passed == 3, judged.reason
    assert judged.sandboxes == len(court.opened) - before == 3
    assert court.alive == 0


async def test_a_program_that_leaves_nothing_has_one_sandbox_for_all(court):
    source = "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'x')\nprint(input())"
    judged = await court.judge(source, *[(str(n), str(n)) for n in range(20)], settings=ALL)
    assert (judged.passed, judged.sandboxes) == (20, 1), judged.reason


KEPT = {
    "a System V segment": "shmget(4711, 100, 0o1666)",
    "a System V semaphore": "semget(4711, 1, 0o1666)",
    "a System V queue": "msgget(4711, 0o1666)",
    "a message queue": "mq_open(b'/left', 0o102, 0o600, None)",
    "a key": "syscall(NUMBER['add_key'], b'user', b'left', b'x', 1, -4)",
    "a memory file": "syscall(NUMBER['memfd_create'], b'left', 0)",
    "a trace": "ptrace(16, os.getppid(), 0, 0)",
}


@pytest.mark.parametrize("name", KEPT)
async def test_what_outlives_a_program_or_escapes_its_limits_is_refused(court, name):
    source = f"""
import ctypes, os
NUMBER = dict(add_key=248, memfd_create=319) if os.uname().machine == 'x86_64' else dict(add_key=217, memfd_create=279)
ctypes.set_errno(0)
print(ctypes.CDLL(None, use_errno=True).{KEPT[name]}, ctypes.get_errno())
"""
    judged = await court.judge(source, ("", "-1 1"), settings=ALL)
    assert judged.passed == 1, judged.reason


# Each ends or stops the judge's own process; the right answers that others gave before stay right.
KILLERS = {
    "everything": "os.kill(-1, signal.SIGKILL)",
    "its parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "stops its parent": "os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(100)",
    "the shell": "[os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KILLERS)
async def test_who_ends_the_judge_fails_that_test_and_is_no_fault(court, monkeypatch, name):
    monkeypatch.setattr("prorl_code.judge.bench.START_S", 5.0)
    source = f"""
import os, signal, time
if input() == 'attack':
    {KILLERS[name].replace(chr(10), chr(10) + "    ")}
print('done')
"""
    tests = [("work", "done"), ("attack", "done"), ("work", "done")]
    judged = await court.judge(
        source, *tests, settings=CodeSettings(time_limit_s=4.0, wall_factor=2.0, reward="fraction")
    )
    assert dict(judged.outcomes) == {"passed": 2, "runtime_error": 1}, judged.reason
    assert judged.failed == 2
    assert court.alive == 0


LATE = """
import os, time
if os.fork() == 0:
    time.sleep(0.2)
    print('late', flush=True)
    os._exit(0)
print('done', flush=True)
os._exit(0)
"""
BOMBS = {
    "forks": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "timeout"),
    "forks that end": (
        "import os\nprint('done', flush=True)\nfor _ in range(500):\n    if os.fork() == 0: os._exit(0)",
        None,
    ),
    "threads": (
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(100,)).start()",
        None,
    ),
    "files": ("n = 0\nwhile True:\n    open(f'{n}', 'w').write('x' * 100000)\n    n += 1", "runtime_error"),
    "one file": ("with open('x', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", "runtime_error"),
    "children that hold the output": (
        "import os, time\nif os.fork() == 0: time.sleep(1000)\nprint('done')",
        "passed",
    ),
    "children that write after the end": (LATE, "passed"),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_bombs_end_within_the_limits_and_harm_nobody_else(court, name):
    source, outcome = BOMBS[name]
    judged = await court.judge(source, ("", "done"), settings=QUICK)
    assert outcome is None or judged.outcome == outcome, judged.reason
    after = await court.judge("print('done')", ("", "done"), settings=ALL)
    assert after.passed == 1, after.reason
    assert court.alive == 0


async def test_there_is_no_network(court):
    source = """
import socket
try:
    socket.create_connection(('1.1.1.1', 53), timeout=2)
    print('connected')
except OSError:
    print('none')
"""
    judged = await court.judge(source, ("", "none"), settings=ALL)
    assert judged.passed == 1, judged.reason


async def test_what_is_written_to_the_terminal_is_not_heard(court):
    forged = json.dumps({"ended": "exit", "code": 0, "stdout": "ZG9uZQ=="})
    source = f"""
import os
for name in filter(str.isdigit, os.listdir('/dev/pts')):
    try:
        with open('/dev/pts/' + name, 'w') as terminal:
            for word in ('', 'word ', '0' * 32 + ' '):
                terminal.write(word + {forged!r} + chr(10))
            terminal.write('x' * 300000)
    except OSError:
        pass
print('wrong')
"""
    judged = await court.judge(source, *[("", "done")] * 3, settings=ALL)
    assert dict(judged.outcomes) == {"wrong_answer": 3}, judged.reason


async def test_nothing_is_left_on_this_machine(court):
    mark = "prorl-attack-4711"
    source = f"""
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp('sleep', ['{mark}', '1000'])
        os._exit(0)
print('done')
"""
    judged = await court.judge(source, ("", "done"), settings=ALL)
    assert judged.passed == 1, judged.reason
    assert mark.encode() not in command_lines()


def command_lines() -> bytes:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_bytes())
        except OSError:
            continue
    return b"".join(lines)
