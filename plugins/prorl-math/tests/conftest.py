"""The grader's processes are started once for all tests: they are what a server keeps warm."""

import json
import os
from pathlib import Path

import pytest
import pytest_asyncio

from prorl.grading import GraderPool
from prorl_math.judge import GRADER, TEMPLATES

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("PRORL_SHARED") or HERE.parents[3] / "shared")


def read_rows(path):
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def own_rows():
    return read_rows(HERE / "data" / "rows.jsonl")


@pytest.fixture(params=["math_amc.jsonl", "math_deepscaler_form.jsonl"])
def shared_file(request):
    path = SHARED / "data" / request.param
    if not path.exists():
        pytest.skip(f"no {path}: set PRORL_SHARED to the folder that holds data/{request.param}")
    return path


@pytest.fixture
def shared_rows(shared_file):
    return read_rows(shared_file)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def graders():
    async with GraderPool(GRADER, size=1, confined=True, may_compile=TEMPLATES) as pool:
        yield pool
