"""Hand-made installed distributions (``tests/data/plugins``), found as pip's are: ``*.dist-info`` on ``sys.path``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from prorl.plugins import Registry, discover

DATA = Path(__file__).parent.parent / "data" / "plugins"
Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    def put_on_path(*folders: str | Path) -> None:
        for folder in folders:
            monkeypatch.syspath_prepend(str(DATA / folder))

    before = set(sys.modules)
    yield put_on_path
    for name in set(sys.modules) - before:
        if name.startswith("prorl_"):
            del sys.modules[name]


@pytest.fixture
def discovered(install: Install) -> Callable[..., Registry]:
    """Discovery over exactly these folders: what else is installed on this machine does not matter."""

    def run(*folders: str | Path, strict: bool = False) -> Registry:
        install(*folders)
        found = metadata.distributions(path=[str(DATA / folder) for folder in folders])
        return discover(distributions=found, strict=strict)

    return run
