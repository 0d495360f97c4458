"""Where in a SIF its squashfs lies. The file comes from anywhere, so every number in it is checked before it is used.

Layout (SIF 01): a 128-byte header, ``Dtotal`` descriptors of 585 bytes each, then the data. All little-endian.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from prorl.api.errors import SandboxFault

HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")  # launch, magic, version, arch, id, ctime, mtime, dfree, dtotal, ...
DESCRIPTOR = struct.Struct("<iBIIIqqq")  # type, used, id, group, link, offset, size, size with padding
DESCRIPTOR_SIZE = 585
MAX_DESCRIPTORS = 4096
MAGIC = b"SIF_MAGIC\0"
SQUASHFS_MAGIC = b"hsqs"
PARTITION_FIELDS = 201  # after type, used, three ids, offset, sizes, times, owner and a name of 128 bytes
PARTITION = 0x4004
SQUASHFS = 1
SYSTEM = (1, 2)  # system partition, primary system partition


class Squashfs(msgspec.Struct, frozen=True):
    """``offset`` and ``size`` in bytes; ``id`` is the image's own, made anew by every build."""

    offset: int
    size: int
    id: str


def find_squashfs(path: str | os.PathLike[str]) -> Squashfs:
    """The root file system of a SIF. Raises :class:`SandboxFault` (``code="bad_image"``) for anything else."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                raise _bad(path, "it is too short")
            _, magic, version, _, identity, _, _, _, total, at, _, _, _ = HEADER.unpack(header)
            if magic != MAGIC:
                raise _bad(path, "it is no SIF: convert it with `apptainer build image.sif FILE`")
            if version.rstrip(b"\0") != b"01":
                raise _bad(path, f"SIF version {version!r} is not known")
            if not 0 < total <= MAX_DESCRIPTORS or not HEADER.size <= at <= size - total * DESCRIPTOR_SIZE:
                raise _bad(path, "its table of contents does not fit into it")
            file.seek(at)
            table = file.read(total * DESCRIPTOR_SIZE)
            for start in range(0, len(table) - DESCRIPTOR_SIZE + 1, DESCRIPTOR_SIZE):
                found = _squashfs(table[start : start + DESCRIPTOR_SIZE])
                if found is None:
                    continue
                offset, length = found
                if not 0 < offset < size or not 0 < length <= size - offset:
                    raise _bad(path, "it is cut off")
                file.seek(offset)
                if file.read(4) != SQUASHFS_MAGIC:
                    raise _bad(path, "its squashfs has no squashfs magic")
                return Squashfs(offset, length, identity.hex())
    except OSError as error:
        raise SandboxFault(f"cannot read the image {path}: {error.strerror}", code="image_missing") from error
    raise _bad(path, "it holds no squashfs (encrypted and ext3 images are not supported)")


def _squashfs(descriptor: bytes) -> tuple[int, int] | None:
    kind, used, _, _, _, offset, length, _ = DESCRIPTOR.unpack_from(descriptor)
    if kind != PARTITION or not used:
        return None
    filesystem, partition = struct.unpack_from("<ii", descriptor, PARTITION_FIELDS)
    return (offset, length) if filesystem == SQUASHFS and partition in SYSTEM else None


def _bad(path: Path, why: str) -> SandboxFault:
    return SandboxFault(f"{path} is not an image that can be used: {why}", code="bad_image")
