"""No address is leased twice on one machine, whoever asks; none is lost with the process that had it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from ipaddress import IPv4Address

import pytest

from prorl.api import SandboxFault
from prorl.sandbox import leases

TAKE = """
import sys
from pathlib import Path
from prorl.sandbox import leases
taken = [leases.take(Path(sys.argv[1])) for _ in range(int(sys.argv[2]))]
print(*(lease.address for lease in taken), flush=True)
sys.stdin.read()
"""


def take_elsewhere(folder, count: int) -> tuple[subprocess.Popen[str], list[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE, str(folder), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()


def test_an_address_of_the_range_that_can_be_connected_to(tmp_path) -> None:
    lease = leases.take(tmp_path)
    assert IPv4Address("127.0.1.0") <= IPv4Address(lease.address) <= IPv4Address("127.255.255.254")
    with socket.create_server((lease.address, 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername()[0] == lease.address
    lease.release()
    lease.release()
    assert list(tmp_path.iterdir()) == []


def test_processes_never_share_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(leases, "LAST", leases.FIRST + 49)
    few = TAKE.replace("taken =", "leases.LAST = leases.FIRST + 49; taken =")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", few, str(tmp_path), "20"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    taken = [process.stdout.readline().split() for process in processes if process.stdout]
    ours = [leases.take(tmp_path) for _ in range(5)]
    everybody = [*taken[0], *taken[1], *(lease.address for lease in ours)]
    assert len(everybody) == len(set(everybody)) == 45
    for process in processes:
        process.communicate()
    for lease in ours:
        lease.release()


def test_when_all_are_taken_it_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(leases, "LAST", leases.FIRST + 1)
    one, two = leases.take(tmp_path), leases.take(tmp_path)
    with pytest.raises(SandboxFault, match="no loopback address is free"):
        leases.take(tmp_path)
    one.release()
    again = leases.take(tmp_path)
    assert again.address == one.address
    again.release()
    two.release()


def test_a_killed_holders_address_is_free_again_and_swept(tmp_path, monkeypatch) -> None:
    process, (address,) = take_elsewhere(tmp_path, 1)
    assert leases.sweep(tmp_path) == 0
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / address).exists()
    assert leases.sweep(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_inherits_it_holds_it_after_its_parent(tmp_path) -> None:
    """As a container holds the lease of a server that was killed, until it has ended itself."""
    lease = leases.take(tmp_path)
    child = subprocess.Popen(["sleep", "60"], pass_fds=[lease.fd])
    os.close(lease.fd)
    assert leases.sweep(tmp_path) == 0
    child.kill()
    child.wait()
    assert leases.sweep(tmp_path) == 1


def test_the_address_of_the_dead_is_reclaimed_and_nothing_else(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(leases, "DYING_WITHIN", 0.05)
    process, (address,) = take_elsewhere(tmp_path, 1)
    assert not leases.reclaim(tmp_path, address)
    process.kill()
    process.communicate()
    assert leases.reclaim(tmp_path, address)
    assert not leases.reclaim(tmp_path, address)
    (tmp_path / "precious").write_text("")
    assert not leases.reclaim(tmp_path / "leases", "../precious")
    assert (tmp_path / "precious").exists()


def test_a_folder_that_cannot_be_used_says_so(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxFault, match="cannot lease"):
        leases.take(tmp_path / "file" / "below")


def test_a_link_in_the_folder_is_not_followed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(leases, "LAST", leases.FIRST)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "127.0.1.0").symlink_to(tmp_path / "target")
    with pytest.raises(SandboxFault, match="no loopback address"):
        leases.take(tmp_path / "folder")
    assert not (tmp_path / "target").exists()


def test_what_is_no_lease_is_left_alone(tmp_path) -> None:
    (tmp_path / "127.0.1.0").mkdir()
    (tmp_path / "127.0.1.1").symlink_to("/etc/passwd")
    assert leases.sweep(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 2
    assert leases.sweep(tmp_path / "none") == 0
