"""The README's code is run as it stands there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from repairs import REPAIR

from prorl.testing.engines import LlamaEngine
from prorl.testing.lab import Lab
from prorl_swe.handler import SweHandler
from prorl_swe.settings import SweSettings, SweTable

PACKAGE = Path(__file__).resolve().parents[1]
README = (PACKAGE / "README.md").read_text()
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
ROWS = "plugins/prorl-swe/tests/data/pypi.jsonl"


def blocks(kind: str) -> list[str]:
    return [block["code"] for block in FENCE.finditer(README) if block["kind"] == kind]


def uncommented(text: str) -> str:
    """The settings that are only shown, in place of those of the same name."""
    shown = re.compile(r"# \w+ = |\[(handlers\.)?swe\]")
    return "\n".join(line.removeprefix("# ") for line in text.splitlines() if shown.match(line))


def test_links_lead_somewhere() -> None:
    if not (PACKAGE.parent / "prorl-math").is_dir():
        pytest.skip("not a checkout of the whole repository")
    pages = [PACKAGE / "README.md", *(PACKAGE / "docs").glob("*.md")]
    broken = [
        (page.name, target)
        for page in pages
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_settings_are_all_there_with_their_defaults() -> None:
    *_, text = blocks("toml")
    table = tomllib.loads(text)["handlers"]["swe"]
    assert table.pop("tools") == list(SweHandler.tools)
    assert msgspec.convert(table, SweSettings) == SweSettings()
    assert msgspec.convert(tomllib.loads(text)["swe"], SweTable) == SweTable()
    own = set(SweTable.__struct_fields__) | set(SweSettings.__struct_fields__) - set(
        SweSettings.__mro__[1].__struct_fields__
    )
    missing = [name for name in own if not re.search(rf"^(?:# )?(?:\[handlers\.swe\.)?{name}\b", text, re.MULTILINE)]
    assert missing == []
    shown = tomllib.loads(uncommented(text))
    assert msgspec.convert(shown["handlers"]["swe"], SweSettings) != SweSettings()
    assert msgspec.convert(shown["swe"], SweTable) != SweTable()


def test_what_rows_may_name() -> None:
    assert msgspec.convert(tomllib.loads(blocks("toml")[0])["swe"], SweTable).sources


def test_where_images_are() -> None:
    _, text, _ = blocks("toml")
    assert msgspec.convert(tomllib.loads(text)["handlers"]["swe"], SweSettings) == SweSettings()
    shown = [line[2:] for line in text.splitlines() if line.startswith("# images")]
    assert len(shown) == 2
    for line in shown:
        msgspec.convert(tomllib.loads(line), SweSettings)


def test_the_example_of_a_trainer(tmp_path: Path, cache: Path) -> None:
    (code,) = blocks("python")
    settings = {"swe": {"cache": str(cache)}}
    with Lab(REPAIR["pyflakes"], settings=settings, max_context=65_536) as lab:
        script = tmp_path / "example.py"
        script.write_text(
            code.replace("http://127.0.0.1:8089", lab.url).replace(ROWS, str(PACKAGE / "tests/data/pypi.jsonl"))
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    first, _, patch = done.stdout.partition("\n")
    assert first == "completed 1.0 1 701"
    assert patch.startswith("diff --git a/pyflakes/checker.py b/pyflakes/checker.py\n")


@pytest.mark.timeout(600)
@pytest.mark.skipif(LlamaEngine.available() is not None, reason=str(LlamaEngine.available()))
def test_a_run_against_a_real_model(tmp_path: Path, cache: Path) -> None:
    """The README's commands, on ports that are free."""
    found = re.search(r"<!-- run -->\n```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found
    engine, server = free_port(), free_port()
    block = found[1].replace(ROWS, str(PACKAGE / "tests/data/pypi.jsonl")).replace("8000", str(engine))
    block = block.replace("prorl serve", f"prorl serve --port {server} --set swe.cache={json.dumps(str(cache))}")
    block = block.replace("prorl rollout", f"prorl rollout --server http://127.0.0.1:{server}")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (tmp_path / "said").open("w") as said:
        running = subprocess.Popen(
            ["bash", "-c", block], cwd=tmp_path, env=environment, start_new_session=True, stdout=said, stderr=said
        )
        try:
            code = running.wait(timeout=400)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # what was begun with & ignores ^C
            running.wait()
    assert code == 0, (tmp_path / "said").read_text()
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(result["status"], result["error"], result["reward"]) for result in results] == [
        ("completed", None, 0.0)
    ] * 3


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
