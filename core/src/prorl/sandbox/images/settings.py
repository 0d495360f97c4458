"""The ``[sandbox.images]`` table of prorl.toml."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

import msgspec


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where images are kept and how they are built.

    ``folder`` may be shared by the servers of many nodes (default: ``$XDG_CACHE_HOME/prorl/images``); ``tmp`` should be
    a local disk with room for an unpacked image (default: where temporary files go). ``build_timeout`` is in seconds.
    After a build the cache is pruned to ``max_gb``. ``roots`` says how bubblewrap gets at a SIF's files: ``fuse``
    mounts it, ``unpack`` unpacks it once, ``auto`` mounts where that works.
    """

    folder: str | None = None
    tmp: str | None = None
    build_timeout: float = 3600.0
    max_gb: float | None = None
    roots: Literal["auto", "fuse", "unpack"] = "auto"

    def cache_folder(self) -> Path:
        if self.folder is not None:
            return Path(self.folder).absolute()
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "prorl" / "images"

    def tmp_folder(self) -> Path:
        return Path(self.tmp or os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir()).absolute()
