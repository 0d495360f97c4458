"""The grader's processes are started once for all tests: they are what a server keeps warm."""

import json
import os
from pathlib import Path

import pytest
import pytest_asyncio

from prorl.grading import GraderPool

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("PRORL_SHARED") or HERE.parents[3] / "shared")
SHARED_FILES = ("stem_mcqa.jsonl", "stem_physics.jsonl", "stem_scp_form.jsonl")


def read_lines(path):
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def shared(name):
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"no {path}: set PRORL_SHARED to the folder that holds data/{name}")
    return path


@pytest.fixture(scope="session")
def own_rows():
    return read_lines(HERE / "data" / "rows.jsonl")


@pytest.fixture
def shared_file():
    """``shared_file(name)``: its path; skips, with the reason, where it is not."""
    return shared


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """The index of the corpus is made once, and not in the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def graders():
    async with GraderPool("prorl_stem.grading.ladder:grade", size=1) as pool:
        yield pool
