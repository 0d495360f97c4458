"""What a row may name as its repository, where the server's owner has said it (``[swe] sources``).

Rows come with data sets, from anywhere. One that names its ``source`` has the server open it: a folder or file of its
own machine, or an image of a registry. A refusal says the same whether or not there is anything at the place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from prorl.api import TaskFault
from prorl_swe.rows.instance import CloneSource, ImageSource, Source

DOCKER = "docker://"


def check_sources(sources: Sequence[str]) -> None:
    """Raises ``ValueError`` for what is neither a folder nor the beginning of an image's name."""
    for place in sources:
        if not Path(place).is_absolute() and not (place.startswith(DOCKER) and place.removeprefix(DOCKER).strip("/")):
            raise ValueError(f"{place!r} is neither the absolute path of a folder nor {DOCKER}REGISTRY/OWNER")


def allowed(source: Source, sources: Sequence[str] | None) -> Source:
    """``source``, a path in it with its links followed; ``None`` allows everything. Raises ``TaskFault``. Blocks."""
    if sources is None:
        return source
    if isinstance(source, CloneSource):
        return msgspec.structs.replace(source, location=_below(source.location, sources))
    if isinstance(source, ImageSource):
        return msgspec.structs.replace(source, reference=_below(source.reference, sources))
    return source  # a source distribution comes from the package index that the server's owner has set, by its hash


def _below(named: str, sources: Sequence[str]) -> str:
    if named.startswith(DOCKER):
        if ".." not in named and named.startswith(tuple(f"{place.rstrip('/')}/" for place in sources)):
            return named
    elif Path(named).is_absolute():
        path = Path(os.path.realpath(named))
        if any(path.is_relative_to(os.path.realpath(place)) for place in sources if not place.startswith(DOCKER)):
            return str(path)
    where = ", ".join(sources) or "no place at all"
    raise TaskFault(
        f"source: this server opens no {named!r:.200} for a row, only what is in {where}: "
        "put it there, or have the server's owner add its folder to [swe] sources",
        code="source_refused",
    )
