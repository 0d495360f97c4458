"""The code of the page on rendering runs, and the page names what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from prorl.wire.rendering import RenderingParams

CORE = Path(__file__).parents[2]
PAGE = (CORE / "docs" / "rendering.md").read_text()
FILE = re.compile(r"^```python title=\"(?P<title>[^\"]+)\"\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_runs(tmp_path: Path) -> None:
    (block,) = FILE.finditer(PAGE)
    (tmp_path / block["title"]).write_text(block["code"])
    command = [sys.executable, block["title"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_field_has_its_row() -> None:
    fields = [field.name for field in msgspec.structs.fields(RenderingParams)]
    assert [name for name in fields if f"\n| `{name}` |" not in PAGE] == []


def test_every_template_that_is_tested_is_a_family_of_the_page() -> None:
    folder = CORE / "tests" / "llm_chat" / "templates"
    of_models = {row.split("`")[1] for row in (folder / "README.md").read_text().splitlines() if row.startswith("| `")}
    assert {path.name for path in folder.glob("*.jinja")} == of_models
