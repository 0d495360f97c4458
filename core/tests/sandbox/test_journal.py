"""What a killed server leaves is found; what belongs to a living one, or to nobody any more, is not touched."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prorl.sandbox import journal
from prorl.sandbox.journal import Begun, Journal, sweep, unfinished
from prorl.sandbox.sessions import Witness

WRITE = """
import sys
from pathlib import Path
from prorl.sandbox.journal import Begun, Journal, boot_id
book = Journal(Path(sys.argv[1]), "kind")
for id in sys.argv[2:]:
    book.begin(Begun(id=id, boot=boot_id()))
book.end(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


def begun(id: str, **more) -> Begun:
    return Begun(id=id, boot=journal.boot_id(), **more)


def nothing(entry: Begun) -> int:
    raise AssertionError(entry)


def test_the_file_is_private_and_goes_with_the_last_entry(tmp_path) -> None:
    folder = tmp_path / "state"
    book = Journal(folder, "kind")
    assert not folder.exists()
    book.begin(begun("a"))
    book.begin(begun("b"))
    (path,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    book.end("a")
    assert [entry.id for entry in unfinished(path.read_bytes())] == ["b"]
    book.end("b")
    assert list(folder.iterdir()) == []
    book.begin(begun("c"))
    assert len(list(folder.iterdir())) == 1
    book.close()
    assert list(folder.iterdir()) == []


def test_the_last_word_on_an_entry_counts(tmp_path) -> None:
    book = Journal(tmp_path, "kind")
    book.begin(begun("a"))
    book.begin(begun("a", session=7, witnesses=(Witness(7, 70),)))
    (path,) = tmp_path.iterdir()
    (entry,) = unfinished(path.read_bytes())
    assert (entry.session, entry.witnesses) == (7, (Witness(7, 70),))
    book.close()


def test_only_what_a_dead_server_left_is_swept(tmp_path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path), "a", "b", "c"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert sweep(tmp_path, "kind", nothing) == 0
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert sweep(tmp_path, "other", nothing) == 0
    seen: list[str] = []

    def end(entry: Begun) -> int:
        seen.append(entry.id)
        return 2

    assert sweep(tmp_path, "kind", end) == 4
    assert seen == ["b", "c"]
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_fails_keeps_the_journal(tmp_path) -> None:
    (tmp_path / "kind-1-x.jsonl").write_bytes(b'{"type":"begun","id":"a","boot":""}\n')
    with pytest.raises(AssertionError):
        sweep(tmp_path, "kind", nothing)
    assert sweep(tmp_path, "kind", lambda _: 1) == 1


@pytest.mark.parametrize("garbage", [b"", b"{", b'{"type":"begun"}', b"\x00\xff\n", b'{"type":"ended","id":"z"}\n[]\n'])
def test_lines_that_make_no_sense_are_left_out(garbage: bytes) -> None:
    line = b'{"type":"begun","id":"a","boot":"x"}\n'
    assert [entry.id for entry in unfinished(line + garbage)] == ["a"]
    assert [entry.id for entry in unfinished(garbage + b"\n" + line)] == ["a"]


def test_where_it_lives(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert journal.state_folder("/some/where") == Path("/some/where/sandboxes/node7")
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert journal.state_folder(None) == Path("/xdg/prorl/sandboxes/node7")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert journal.state_folder(None) == tmp_path / ".local/state/prorl/sandboxes/node7"
