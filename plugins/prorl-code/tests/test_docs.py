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

from prorl.testing.engines import LlamaEngine
from prorl.testing.lab import Lab
from prorl_code.settings import CodeSettings

PACKAGE = Path(__file__).resolve().parents[1]
README = (PACKAGE / "README.md").read_text()
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def blocks(kind: str) -> list[str]:
    return [block["code"] for block in FENCE.finditer(README) if block["kind"] == kind]


def test_links_lead_somewhere() -> None:
    if not (PACKAGE.parent / "prorl-math").is_dir():
        pytest.skip("not a checkout of the whole repository")
    assert [target for target in LINK.findall(README) if not (PACKAGE / target).exists()] == []


def test_the_settings_are_all_there_with_their_defaults() -> None:
    (text,) = blocks("toml")
    table = tomllib.loads(text)["handlers"]["code"]
    assert table.pop("sandbox") == {}
    assert table.pop("tools") == ["str_replace_editor", "execute_bash", "execute_ipython_cell", "finish"]
    assert msgspec.convert(table, CodeSettings) == CodeSettings()
    own = set(CodeSettings.__struct_fields__) - set(CodeSettings.__mro__[1].__struct_fields__)
    missing = [name for name in own if not re.search(rf"^(?:# )?{name} = ", text, re.MULTILINE)]
    assert missing == []
    commented = tomllib.loads("\n".join(line[2:] for line in text.splitlines() if re.match(r"# \w+ = ", line)))
    msgspec.convert({name: value for name, value in commented.items() if name != "image"}, CodeSettings)


def test_the_example_of_a_trainer(tmp_path: Path) -> None:
    (code,) = blocks("python")
    program = "```python\nprint(sum(map(int, input().split())))\n```"
    with Lab([program], max_context=16_384) as lab:
        script = tmp_path / "example.py"
        script.write_text(code.replace("http://127.0.0.1:8089", lab.url))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("completed 1.0 passed 2\n", "")


@pytest.mark.timeout(600)
@pytest.mark.skipif(LlamaEngine.available() is not None, reason=str(LlamaEngine.available()))
def test_a_run_against_a_real_model(tmp_path: Path) -> None:
    """The README's commands, on ports that are free."""
    found = re.search(r"<!-- run -->\n```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found
    engine, server = free_port(), free_port()
    rows = PACKAGE / "tests" / "data" / "rows.jsonl"
    block = found[1].replace("plugins/prorl-code/tests/data/rows.jsonl", str(rows)).replace("8000", str(engine))
    block = block.replace("prorl serve", f"prorl serve --port {server}")
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
    assert [result["row"]["line"] for result in sorted(results, key=lambda result: result["row"]["line"])] == [
        1,
        2,
        3,
        4,
    ]
    assert [(result["status"], result["error"]) for result in results] == [("completed", None)] * 4


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
