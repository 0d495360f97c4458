from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prorl.agent import AgentSettings
from prorl.api import ProrlError
from prorl_swe.handler import SweHandler
from prorl_swe.plugin import prorl_agent_handlers, prorl_demos, prorl_settings
from prorl_swe.rows import read_row
from prorl_swe.settings import SweSettings, SweTable


def test_the_record():
    [record] = prorl_agent_handlers()
    assert record.name == "swe"
    assert isinstance(record.factory(), SweHandler)
    assert record.settings is SweSettings
    assert issubclass(SweSettings, AgentSettings)
    assert (record.settings().max_turns, record.budgets.run_s, record.budgets.collect_s) == (50, 1800, 400)
    sources = ["swe-bench", "SWE-Gym/SWE-Gym", "princeton-nlp/SWE-bench_Verified", "NovaSky-AI/SkyRL-v0-293-data"]
    assert all(source in record.domains or source.startswith(record.prefixes) for source in sources)


def test_doctor_is_told_of_a_machine_without_git(monkeypatch):
    [record] = prorl_agent_handlers()
    record.needs()
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ProrlError, match="install git"):
        record.needs()


def test_what_is_the_owners_is_no_setting_of_a_job():
    [record] = prorl_settings()
    assert (record.name, record.type) == ("swe", SweTable)
    assert record.type().sources is None
    assert not set(SweTable.__struct_fields__) & set(SweSettings.__struct_fields__)


def test_the_demos_row_is_a_row_and_has_a_script():
    [record] = prorl_demos()
    [row] = record.rows
    assert read_row(row).fail_to_pass
    said = [record.script(row, turn) or "" for turn in range(4)]
    assert [name in text for name, text in zip(("bash", "editor", "bash", "finish"), said, strict=True)] == [True] * 4
    assert record.script(row, 4) is None


@pytest.mark.timeout(600)
def test_the_demo(tmp_path: Path):
    prorl = str(Path(sys.executable).parent / "prorl")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "COLUMNS": "100"}
    done = subprocess.run(
        [prorl, "demo", "--domain", "swe"], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    [scripted] = [line for line in done.stdout.splitlines() if line.startswith("scripted ") and "1.0" in line]
    assert "Augmented" in scripted


def test_the_demo_where_no_index_can_be_reached(tmp_path: Path):
    prorl = str(Path(sys.executable).parent / "prorl")
    unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **unreachable}
    done = subprocess.run(
        [prorl, "demo", "--domain", "swe"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "swe        left out: pyflakes-3.0.0.tar.gz cannot be fetched" in done.stdout
    assert "no demo can be shown here" in done.stderr
