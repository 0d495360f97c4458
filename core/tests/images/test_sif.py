"""Reading a SIF that may have been made to hurt."""

from __future__ import annotations

import struct
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl.api import SandboxFault
from prorl.sandbox.images.sif import DESCRIPTOR, DESCRIPTOR_SIZE, HEADER, PARTITION, find_squashfs

OFFSET = 4096


def make_sif(*, magic: bytes = b"SIF_MAGIC\0", total: int = 2, table: int = 128, offset: int = OFFSET, size: int = 64,
             filesystem: int = 1, version: bytes = b"01\0", squashfs: bytes = b"hsqs") -> bytes:  # fmt: skip
    head = HEADER.pack(b"#!/usr/bin/env run-singularity\n", magic, version, b"02\0", b"i" * 16, 0, 0, 0, total, table, 0, 0, 0)  # fmt: skip # noqa: E501
    other = DESCRIPTOR.pack(0x4001, 1, 1, 0, 0, 3000, 10, 10).ljust(DESCRIPTOR_SIZE, b"\0")
    fields = DESCRIPTOR.pack(PARTITION, 1, 2, 0, 0, offset, size, size).ljust(201, b"\0")
    descriptor = (fields + struct.pack("<ii", filesystem, 2)).ljust(DESCRIPTOR_SIZE, b"\0")
    return (head + other + descriptor).ljust(OFFSET, b"\0") + squashfs + bytes(60)


def test_the_squashfs_of_a_real_one(apptainer, small_rootfs, tmp_path) -> None:
    image = tmp_path / "x.sif"
    done = subprocess.run([apptainer, "build", image, small_rootfs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = find_squashfs(image)
    listed = subprocess.run([apptainer, "sif", "list", image], capture_output=True, text=True, check=True).stdout
    assert f"|{found.offset}-{found.offset + found.size}" in listed
    assert image.read_bytes()[found.offset :][:4] == b"hsqs"


def test_one_made_by_hand(tmp_path) -> None:
    (tmp_path / "x.sif").write_bytes(make_sif())
    found = find_squashfs(tmp_path / "x.sif")
    assert (found.offset, found.size, found.id) == (4096, 64, (b"i" * 16).hex())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\x7fELF" + bytes(200), "no SIF"),
        (make_sif(version=b"99\0"), "version"),
        (make_sif(total=-1), "table of contents"),
        (make_sif(total=1 << 40), "table of contents"),
        (make_sif(table=1 << 60), "table of contents"),
        (make_sif(table=-4), "table of contents"),
        (make_sif(offset=1 << 60), "cut off"),
        (make_sif(offset=-5), "cut off"),
        (make_sif(size=1 << 62), "cut off"),
        (make_sif(size=-1), "cut off"),
        (make_sif(filesystem=2), "no squashfs"),
        (make_sif(squashfs=b"what"), "magic"),
        (make_sif()[:4100], "cut off"),
    ],
)
def test_one_that_lies(tmp_path, content: bytes, message: str) -> None:
    (tmp_path / "x.sif").write_bytes(content)
    with pytest.raises(SandboxFault, match=message) as caught:
        find_squashfs(tmp_path / "x.sif")
    assert caught.value.code == "bad_image"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_bytes_are_an_answer_or_a_fault(tmp_path, data) -> None:
    content = bytearray(make_sif())
    for at in data.draw(st.lists(st.integers(0, 128 + 2 * DESCRIPTOR_SIZE), max_size=12)):
        content[at] = data.draw(st.integers(0, 255))
    (tmp_path / "x.sif").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        found = find_squashfs(tmp_path / "x.sif")
    except SandboxFault:
        return
    assert 0 < found.offset < len(content)
    assert found.offset + found.size <= len(content)
