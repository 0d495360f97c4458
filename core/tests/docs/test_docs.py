"""The documentation's code is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    (tmp_path / "prorl_capitals" / "__init__.py").touch()
    # What `pip install` would make of pyproject.toml, without the network.
    info = tmp_path / "prorl_capitals-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: prorl-capitals\nVersion: 0.1.0\nRequires-Dist: prorl[server]>=0.1,<0.2\n"
    )
    (info / "entry_points.txt").write_text("[prorl]\ncapitals = prorl_capitals.plugin\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_first_example_of_the_api_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    class Sums(ToolAgentHandler):
        def messages(self, job: Job) -> list[Message]:
            return [Message(role="user", content=job.instance["problem"])]

        async def grade(self, job: Job) -> dict[str, Any]:
            return {"reward": float(job.instance["answer"] in job.run_output["answer"])}

    page = (CORE / "docs" / "http-api.md").read_text()
    example = next(block["code"] for block in FENCE.finditer(page) if block["title"] == "try_it.py")
    sums = HandlerRecord(name="math", factory=Sums, summary="for this page", settings=AgentSettings)
    with Lab(["It is 42."], handlers=[sums]) as lab:
        exec(compile(example.replace("http://127.0.0.1:8089", lab.url), "try_it.py", "exec"), {})
    assert capsys.readouterr().out == "completed 1.0 ['0']\n"


@pytest.mark.parametrize("page", [*PAGES, CORE / "README.md", *ROOT], ids=lambda page: page.name)
def test_python_blocks_compile_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for block in FENCE.finditer(text):
        if block["kind"] == "python":
            compile(block["code"], f"{page.name}:{block['title']}", "exec")
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
