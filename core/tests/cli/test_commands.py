"""``prorl`` as people run it: a process, its exit status, and what goes where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data" / "plugins"


@pytest.fixture
def prorl(tmp_path):
    def run(*arguments: str, plugins: tuple[str, ...] = (), python: tuple[str, ...] = ("-m", "prorl")):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(DATA / name) for name in plugins),
            "COLUMNS": "80",
        }
        return subprocess.run(
            [sys.executable, *python, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=100,
            check=False,
        )

    return run


def test_version(prorl):
    done = prorl("--version")
    assert done.stdout == f"prorl, version {metadata.version('prorl')}\n"
    assert done.returncode == 0


def test_the_installed_script_is_the_same(tmp_path):
    script = Path(sys.executable).parent / "prorl"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert metadata.version("prorl") in done.stdout


def test_help_lists_every_command_without_importing_one(prorl):
    code = (
        "import sys; from prorl.cli.app import run; status = run(['--help']); "
        "heavy = {'litestar', 'uvicorn', 'tokenizers', 'prorl.cli.serve', 'prorl.cli.sandbox'}; "
        "print(heavy.intersection(sys.modules)); "
        "sys.exit(status)"
    )
    done = prorl(python=("-c", code))
    for name in ("serve", "rollout", "plugins", "doctor", "sandbox", "demo"):
        assert f"\n  {name} " in done.stdout
    assert done.stdout.endswith("set()\n")
    assert done.returncode == 0


def test_a_plugins_command_is_there_and_a_broken_plugin_hurts_nobody(prorl):
    done = prorl("good", plugins=("good", "exits", "import-error", "raises"))
    assert (done.stdout, done.returncode) == ("good works\n", 0)


def test_a_command_that_cannot_be_loaded_breaks_only_itself(prorl):
    listed = prorl("--help", plugins=("bad-command",))
    assert "bad-command" in listed.stdout
    done = prorl("bad-command", plugins=("bad-command",))
    assert done.returncode == 2
    assert "'bad-command' cannot be loaded: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
    assert prorl("plugins", plugins=("bad-command",)).returncode == 0


def test_debug_shows_the_traceback(prorl):
    done = prorl("--debug", "bad-command", plugins=("bad-command",))
    assert "Traceback" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [("nosuch",), ("plugins", "--nosuch"), ("rollout",)])
def test_usage_errors(prorl, arguments):
    done = prorl(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.endswith("--help`)\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("group", [(), ("sandbox",), ("image",)])
def test_no_command_is_help(prorl, group):
    done = prorl(*group)
    assert done.stdout == prorl(*group, "--help").stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_plugins_table_fits_80_columns(prorl):
    done = prorl("plugins", plugins=("good", "newer", "claim-one", "claim-two"))
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    table, _, reasons = done.stdout.partition("\n\n")
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "prorl-good 1.2" in table
    assert "newer: needs prorl>=99" in reasons
    assert "'shared' is claimed by one (prorl-claim-one 1.0) and two (prorl-claim-two 1.0)" in reasons


def test_json_is_the_only_thing_on_stdout(prorl):
    done = prorl("plugins", "--json", plugins=("good", "chatty"))
    reports = {report["name"]: report for report in json.loads(done.stdout)}
    assert reports["chatty"]["state"] == "active"
    assert reports["good"]["offers"]["prorl_agent_handlers"] == ["good"]
    assert "printed while imported" in done.stderr


def test_the_command_line_without_its_extra(prorl):
    block = "import sys; sys.modules['rich'] = None; sys.argv = ['prorl']; from prorl.cli.main import main; main()"
    done = prorl(python=("-c", block))
    assert done.returncode == 1
    assert done.stderr.strip() == "prorl: the command line needs rich: pip install 'prorl[cli]'"


def test_serve_without_the_servers_extra(prorl):
    block = "import sys; sys.modules['litestar'] = None; from prorl.cli.app import run; sys.exit(run(['serve']))"
    done = prorl(python=("-c", block))
    assert done.returncode == 2
    assert "pip install 'prorl[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_into_a_closed_pipe(tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m prorl plugins --json | head -c 1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout == "["
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plugins", "--server", "http://127.0.0.1:1"), "no rollout server answers at http://127.0.0.1:1"),
        (("plugins", "--server", "http://127.0.0.1:99999"), "write http://127.0.0.1:8089"),
        (("plugins", "--server", "localhost:8089"), "write http://localhost:8089"),
        (("demo", "--save", "no/such/out.jsonl"), "the folder no/such does not exist"),
    ],
)
def test_what_a_user_can_mend_is_no_error_of_prorl(prorl, arguments, words):
    done = prorl(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert "an error of prorl" not in done.stderr
