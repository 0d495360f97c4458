"""The documentation's code is run as it stands there."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from prorl.agent import AgentSettings, ToolAgentHandler
from prorl.api import HandlerRecord, Job, Message
from prorl.testing.lab import Lab

CORE = Path(__file__).parents[2]
PAGES = sorted((CORE / "docs").glob("*.md"))
ROOT = [page for page in (CORE.parent / "README.md",) if page.is_file()]
FENCE = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def test_write_a_task_makes_a_working_package(tmp_path: Path) -> None:
    page = (CORE / "docs" / "write-a-task.md").read_text()
    for block in FENCE.finditer(page):
        if block["title"]:
            file = tmp_path / block["title"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["code"])
    pytest.importorskip("hatchling", reason="hatchling builds the package of this page: pip install hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)  # what pip would do with it
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


class Sums(ToolAgentHandler):
    def messages(self, job: Job) -> list[Message]:
        return [Message(role="user", content=job.instance["problem"])]

    async def grade(self, job: Job) -> dict[str, Any]:
        return {"reward": float(job.instance["answer"] in job.run_output["answer"])}


CLIENTS = [CORE / "docs" / "http-api.md", CORE / "README.md", *ROOT]


@pytest.mark.parametrize("page", CLIENTS, ids=["http-api", "core", "root"][: len(CLIENTS)])
def test_the_client_examples_run(page: Path, tmp_path: Path) -> None:
    examples = [block["code"] for block in FENCE.finditer(page.read_text()) if block["kind"] == "python"]
    assert len(examples) == 1
    sums = HandlerRecord(name="math", factory=Sums, summary="for these pages", settings=AgentSettings)
    with Lab(["It is 42."], handlers=[sums]) as lab:
        script = tmp_path / "example.py"
        script.write_text(examples[0].replace("http://127.0.0.1:8089", lab.url))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed ")
    assert "1.0 ['0']" in done.stdout


@pytest.mark.parametrize("page", [*PAGES, CORE / "README.md", *ROOT], ids=lambda page: page.name)
def test_python_blocks_compile_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for block in FENCE.finditer(text):
        if block["kind"] == "python":
            compile(block["code"], f"{page.name}:{block['title']}", "exec")
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


OURS = (
    "user namespaces are off here",
    "there is no other user than root inside, so chown, apt and su fail",
    "needs subordinate ids in /etc/subuid and /etc/subgid",
    "is closed to ordinary users",
    "images are unpacked instead",
    "has no entry in the user database",
    "cannot set up a container",
    "no writable memory control group",
)


@pytest.mark.parametrize("words", OURS)
def test_the_cluster_page_quotes_what_the_probes_say(words: str) -> None:
    page = " ".join((CORE / "docs" / "shared-cluster.md").read_text().split())
    assert words in page
    sandbox = Path(importlib.import_module("prorl.sandbox").__path__[0])
    said = "".join(file.read_text() for file in sandbox.rglob("*.py"))
    assert words in re.sub(r'"\s+f?"', "", said)
