"""Folders in and out: what travels, and what no archive, however made, can do to the side that reads it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import SandboxFault
from prorl.sandbox.inside.archive import BLOCK, ArchiveError, Unpacker, pack


def tree_of(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.read_bytes(), path.stat().st_mode & 0o777)
    return found


@pytest.fixture
def project(tmp_path) -> Path:
    root = tmp_path / "project"
    (root / "src" / "deep" / ("n" * 120) / ("m" * 120)).mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a.txt").write_bytes(b"a")
    (root / "nothing").touch()
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "block").write_bytes(b"x" * 512)
    (root / "big").write_bytes(os.urandom(3_000_000))
    (root / "src" / "deep" / ("n" * 120) / ("m" * 120) / "ünïcode \n name").write_bytes(b"b")
    (root / "src" / "up").symlink_to("../a.txt")
    (root / "src" / "long").symlink_to("deep/" + "n" * 120)
    (root / "loop").symlink_to("loop")
    return root


async def test_a_folder_there_and_back(sandbox, bash, project, tmp_path) -> None:
    await sandbox.upload(project, "copy")
    assert (await bash("cd copy; ./run.sh && cat src/up && stat -c '%a %U' a.txt && stat -c %s big")).output.startswith(
        "a"
    )
    await sandbox.download("copy", tmp_path / "back" / "here")
    assert tree_of(tmp_path / "back" / "here") == tree_of(project)


async def test_a_file_there_and_back(sandbox, tmp_path) -> None:
    (tmp_path / "one").write_bytes(b"1" * 100_000)
    await sandbox.upload(tmp_path / "one", "some/where/two")
    await sandbox.download("some/where/two", tmp_path / "three")
    assert (tmp_path / "three").read_bytes() == b"1" * 100_000


async def test_an_empty_folder_and_files_over_files(sandbox, bash, tmp_path) -> None:
    (tmp_path / "d").mkdir()
    await sandbox.upload(tmp_path / "d", "d")
    (tmp_path / "d" / "f").write_bytes(b"new")
    await bash("echo a long old text > d/f; echo kept > d/g")
    await sandbox.upload(tmp_path / "d", "d")
    assert (await bash("cat d/f d/g")).output == "newkept\n"


async def test_what_arrives_belongs_to_the_agent(sandbox, bash, project) -> None:
    await sandbox.upload(project, "copy")
    assert (await bash("echo more >> copy/a.txt && rm -r copy && echo gone")).output == "gone\n"


@pytest.mark.parametrize(
    ("prepare", "remote", "message"),
    [
        ("true", "missing", "No such file"),
        ("mkfifo d/p", "d", "neither a file"),
        ("ln -s /etc/passwd d/l", "d", "leads? out|out of the folder"),
        ("ln -s ../../x d/l", "d", "lead out"),
        ("mkdir d/a; ln -s .. d/a/l; ln -s a/l/.. d/m", "d", "lead out"),
        ("head -c 2000000 /dev/zero > d/f", "d", "more than 1000000 bytes"),
        ("truncate -s 400M d/f", "d", "more than 1000000 bytes"),
    ],
)
async def test_what_does_not_come_out(sandbox, bash, tmp_path, prepare: str, remote: str, message: str) -> None:
    await bash(f"mkdir d; {prepare}")
    with pytest.raises(SandboxFault, match=message) as caught:
        await sandbox.download(remote, tmp_path / "out", max_bytes=1_000_000)
    assert caught.value.code in ("transfer_failed", "transfer_refused")
    assert (await bash("echo on")).output == "on\n"


async def test_what_does_not_go_in(sandbox, bash, tmp_path) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "p")
    with pytest.raises(SandboxFault, match="neither a file") as caught:
        await sandbox.upload(tmp_path / "d", "d")
    assert caught.value.code == "transfer_refused"
    with pytest.raises(SandboxFault, match="No such file"):
        await sandbox.upload(tmp_path / "missing", "d")
    (tmp_path / "f").write_bytes(b"x" * 100)
    with pytest.raises(SandboxFault, match="more than 50 bytes"):
        await sandbox.upload(tmp_path / "f", "f", max_bytes=50)
    await bash("mkdir taken; ln -s /usr link; mkfifo pipe")
    for remote, message in {
        "taken": "directory",
        "pipe": "regular file|No such device",
        "/proc/x/y": "No such|outside",
    }.items():
        with pytest.raises(SandboxFault, match=message):
            await sandbox.upload(tmp_path / "f", remote)
    assert (await bash("echo on")).output == "on\n"


async def test_an_upload_follows_no_link_that_the_agent_made(sandbox, bash, tmp_path) -> None:
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "f").write_bytes(b"x")
    await bash("mkdir d elsewhere; ln -s ../elsewhere d/sub")
    with pytest.raises(SandboxFault):
        await sandbox.upload(tmp_path / "d", "d")
    assert (await bash("ls elsewhere")).output == ""


async def test_a_download_follows_no_link_that_lies_there(sandbox, bash, tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "sub").symlink_to(outside)
    await bash("mkdir -p d/sub; echo x > d/sub/f")
    with pytest.raises(SandboxFault):
        await sandbox.download("d", tmp_path / "into")
    assert list(outside.iterdir()) == []


async def test_a_timeout_and_a_cancel_end_it(sandbox, bash, tmp_path) -> None:
    (tmp_path / "big").write_bytes(bytes(50_000_000))
    with pytest.raises(SandboxFault) as caught:
        await sandbox.upload(tmp_path / "big", "big", timeout=0.0)
    assert caught.value.code == "transfer_timeout"
    task = asyncio.create_task(sandbox.upload(tmp_path / "big", "big"))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await sandbox.upload(tmp_path / "big", "big")
    assert (await bash("stat -c %s big")).output == "50000000\n"


async def test_a_transfer_holds_up_nothing_else(sandbox, bash, tmp_path) -> None:
    (tmp_path / "big").write_bytes(bytes(100_000_000))
    upload = asyncio.create_task(sandbox.upload(tmp_path / "big", "big"))
    command = await bash("sleep 0.2 & sleep 0.1; echo on", timeout=30)
    assert command.output == "on\n"
    await upload


# -- archives that nobody here would make


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def archive(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


HOSTILE = {
    "absolute": [(member("/etc/x"), b"")],
    "climbing": [(member("../x"), b"")],
    "climbing inside": [(member("a/../../x"), b"")],
    "link out": [(member("l", tarfile.SYMTYPE, linkname="/etc"), b"")],
    "link up": [(member("l", tarfile.SYMTYPE, linkname=".."), b"")],
    "link through a link": [
        (member("a/b/l", tarfile.SYMTYPE, linkname="../.."), b""),
        (member("a/b/m", tarfile.SYMTYPE, linkname="l/.."), b""),
    ],
    "through its own link": [
        (member("l", tarfile.SYMTYPE, linkname="d"), b""),
        (member("l/x", content=b"x"), b"x"),
    ],
    "over its own link": [
        (member("l", tarfile.SYMTYPE, linkname="f"), b""),
        (member("l", content=b"x"), b"x"),
    ],
    "hard link": [(member("l", tarfile.LNKTYPE, linkname="f"), b"")],
    "device": [(member("d", tarfile.CHRTYPE, devmajor=1, devminor=3), b"")],
    "block device": [(member("d", tarfile.BLKTYPE, devmajor=8), b"")],
    "pipe": [(member("p", tarfile.FIFOTYPE), b"")],
    "too much": [(member("f", content=b"x" * 2_000_000), b"x" * 2_000_000)],
    "folder over file": [(member("f", content=b"x"), b"x"), (member("f/g", content=b"x"), b"x")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_archives_are_refused(tmp_path, members) -> None:
    (tmp_path / "root").mkdir()
    unpacker = Unpacker(str(tmp_path / "root"), 1_000_000)
    with pytest.raises((ArchiveError, OSError)):
        unpacker.feed(archive(*members))
    unpacker.close()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_tarfile_reads_ours_and_we_read_tarfiles(tmp_path, project, form: int) -> None:
    if form == tarfile.USTAR_FORMAT:  # it has no long names
        (project / "src" / "long").unlink()
        shutil.rmtree(project / "src" / "deep")
    ours = b"".join(pack(str(project), 1 << 30))
    with tarfile.open(fileobj=io.BytesIO(ours)) as tar:
        tar.extractall(tmp_path / "theirs", filter="fully_trusted")
    assert tree_of(tmp_path / "theirs") == tree_of(project)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        tar.add(project, ".")
    unpacker = Unpacker(str(tmp_path / "mine"), 1 << 30)
    unpacker.feed(stream.getvalue())
    assert unpacker.ended
    assert tree_of(tmp_path / "mine") == tree_of(project)


def test_special_bits_and_owners_stay_behind(tmp_path) -> None:
    Unpacker(str(tmp_path / "d"), 100).feed(archive((member("f", content=b"x", mode=0o6755, uid=0), b"x")))
    assert (tmp_path / "d" / "f").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"S", b"0"])
def test_a_huge_size_is_refused_by_the_header_alone(tmp_path, kind: bytes) -> None:
    info = member("f", kind)
    info.size = 8**11 - 1
    header = info.tobuf(tarfile.GNU_FORMAT)[:BLOCK]
    with pytest.raises(ArchiveError):
        Unpacker(str(tmp_path / "d"), 1 << 20).feed(header)


PATIENT = settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
NAMES = st.lists(st.sampled_from(["a", "b", "..", ".", "", "l"]), min_size=1, max_size=4).map("/".join)
KINDS = st.sampled_from([b"0", b"1", b"2", b"2", b"2", b"5", b"3", b"6", b"x", b"L", b"\0"])
MEMBERS = st.lists(st.tuples(NAMES, KINDS, NAMES, st.binary(max_size=20)), max_size=8)


@PATIENT
@given(MEMBERS, st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), max_size=3), st.integers(1, 700))
def test_no_archive_writes_outside(tmp_path_factory, members, flips, step: int) -> None:
    """Nor do the links it leaves lead anywhere else: every path below the root resolves below the root."""
    top = tmp_path_factory.mktemp("top")
    root = top / "x" / "root"
    data = bytearray()
    for name, kind, target, content in members:
        info = member(name, kind, content if kind in b"0L" else b"", linkname=target)
        data += info.tobuf(tarfile.GNU_FORMAT)[-BLOCK:] + content + bytes(-len(content) % BLOCK)
    for at, value in flips:
        if at < len(data):
            data[at] = value
    unpacker = Unpacker(str(root), 100)
    with contextlib.suppress(ArchiveError, OSError):
        for start in range(0, len(data), step):
            unpacker.feed(bytes(data[start : start + step]))
    unpacker.close()
    assert [path.name for path in top.iterdir()] in ([], ["x"])
    assert not (top / "x").exists() or [path.name for path in (top / "x").iterdir()] == ["root"]
    for path in root.rglob("*"):
        with contextlib.suppress(OSError, RuntimeError):
            assert path.resolve(strict=True).is_relative_to(root.resolve()), path


@PATIENT
@given(st.binary(max_size=3000))
def test_noise_is_refused(tmp_path_factory, data: bytes) -> None:
    unpacker = Unpacker(str(tmp_path_factory.mktemp("noise") / "root"), 100)
    with contextlib.suppress(ArchiveError, OSError):
        unpacker.feed(data)
    unpacker.close()
