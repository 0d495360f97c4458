"""The code of the page on agents is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec

from prorl.agent import AgentSettings, Ended
from prorl.agent.handler import loop_metrics
from prorl.llm.toolformats import formats

CORE = Path(__file__).parents[2]
PAGE = (CORE / "docs" / "agents.md").read_text()
FILE = re.compile(r"^```python title=\"(?P<title>[^\"]+)\"\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    for block in FILE.finditer(PAGE):
        (tmp_path / block["title"]).write_text(block["code"])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reader.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_page_names_what_there_is() -> None:
    names = [*get_args(Ended), *formats(), *loop_metrics({}), "min_observation_tokens", "max_compactions"]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    settings = re.search(r"^```toml\n\[handlers\.capitals\]\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert settings is not None
    msgspec.toml.decode(settings[1].encode(), type=AgentSettings)
