from pathlib import Path

import pytest

from prorl.grading import GraderPool


@pytest.fixture
def pools(monkeypatch):
    """Make pools over the functions in this folder; the test must close none of them itself."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made = []

    def make(worker, **options):
        pool = GraderPool(worker, **options)
        made.append(pool)
        return pool

    yield make
    assert all(pool._closed for pool in made), "a test left a pool open"
