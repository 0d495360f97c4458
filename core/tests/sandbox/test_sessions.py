"""A session is killed to the last process, and never one that only has its number."""

from __future__ import annotations

import subprocess
import sys
import time

from prorl.sandbox import sessions
from prorl.sandbox.sessions import Witness

# A leader with children in process groups of their own that ignore every signal one can ignore.
FAMILY = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setpgid(0, 0)
        os.write(1, b".")
        time.sleep(600)
os.write(1, b".")
time.sleep(600)
"""


def family() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    got = b""
    while len(got) < 4:
        got += process.stdout.read(1)
    process.stdout.close()
    return process


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any((found := sessions.witness(pid)) and found.alive() for pid in pids):
            return True
        time.sleep(0.01)
    return False


def test_all_of_it_is_killed() -> None:
    leader = family()
    members = sessions.members(leader.pid)
    assert len(members) == 4
    assert sessions.end(leader.pid, [members[0]]) == 4
    assert sessions.members(leader.pid) == []
    leader.wait()


def test_daemons_are_killed_though_the_leader_is_gone() -> None:
    leader = family()
    members = sessions.members(leader.pid)
    leader.kill()
    leader.wait()
    assert sessions.end(leader.pid, members) == 3
    assert gone([member.pid for member in members])


def test_the_leader_that_was_not_reaped_vouches_for_the_number() -> None:
    leader = family()
    leader.kill()
    assert sessions.end(leader.pid) in (3, 4)  # 4 when it was still dying
    leader.wait()
    assert sessions.members(leader.pid) == []


def test_a_session_of_the_same_number_that_is_not_the_one_is_left_alone() -> None:
    leader = family()
    members = sessions.members(leader.pid)
    earlier = [Witness(member.pid, member.started - 1) for member in members]
    assert sessions.end(leader.pid, earlier) == 0
    assert sessions.end(leader.pid, []) == 0
    for process in earlier:
        sessions.kill(process)
    assert sessions.members(leader.pid) == members
    sessions.end(leader.pid)
    leader.wait()


def test_nobody_of_that_number() -> None:
    assert sessions.witness(1 << 30) is None
    assert not Witness(1 << 30, 1).alive()
    assert sessions.end(1 << 30, [Witness(1 << 30, 1)]) == 0
