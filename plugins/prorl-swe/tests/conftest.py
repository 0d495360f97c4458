"""What the tests of this package share."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from courts import Court, Courts

from prorl.plugins import discover
from prorl.sandbox.manager import SandboxManager
from prorl_swe.repository.cache import RepositoryCache


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where repositories are kept: made once per run of the tests."""
    return tmp_path_factory.mktemp("repositories")


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def courts(cache: Path, tmp_path_factory: pytest.TempPathFactory):
    """``await courts("PyJWT")``: real sandboxes and a real repository to grade patches in."""
    repositories, sandboxes = RepositoryCache(cache), SandboxManager(discover().runtimes)
    yield Courts(repositories, sandboxes, tmp_path_factory.mktemp("trees"))
    await sandboxes.close()
    await repositories.close()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def jwt(courts: Courts) -> Court:
    return await courts("PyJWT")
