"""A real sandbox for the tools that need one; the local runtime, for what is tested here is the tools."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from prorl.api import SandboxSpec, ToolContext
from prorl.sandbox.local import Local
from prorl.sandbox.settings import SandboxSettings


@pytest.fixture
async def context(tmp_path) -> AsyncIterator[ToolContext]:
    sandbox = await Local(SandboxSettings(scratch=str(tmp_path))).start(SandboxSpec())
    yield ToolContext(sandbox=sandbox, timeout=60.0)
    await sandbox.stop(grace=0)


@pytest.fixture
def nowhere() -> ToolContext:
    return ToolContext(sandbox=None, timeout=60.0)
