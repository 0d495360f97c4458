"""What the tests of this package share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where repositories are kept: made once per run of the tests."""
    return tmp_path_factory.mktemp("repositories")
