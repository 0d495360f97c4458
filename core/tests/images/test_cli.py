"""``prorl image``, as people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prorl.cli.app import run


@pytest.fixture
def config(tmp_path, monkeypatch) -> str:
    """A settings file, as a server would have it."""
    path = tmp_path / "prorl.toml"
    path.write_text(f'[sandbox.images]\nfolder = "{tmp_path}/cache"\ntmp = "{tmp_path}"\n')
    return str(path)


def test_build_list_prune(apptainer, small_rootfs, tmp_path, config, capsys) -> None:
    template = tmp_path / "mine.def.j2"
    template.write_text("Bootstrap: localimage\nFrom: {{ base }}\n%post\n    echo building {{ version }}\n")
    build = ["image", "build", f"def:{template}", "--var", f"base={small_rootfs}", "--var", "version=3.10"]
    assert run([*build, "--config", config]) == 0
    printed = capsys.readouterr()
    image = Path(printed.out.strip())
    assert image.is_file()
    assert "building 3.10" in printed.err
    assert "built mine-" in printed.err

    assert run([*build, "--config", config]) == 0
    assert "reused mine-" in capsys.readouterr().err
    assert run([*build, "--config", config, "--cache", "scratch"]) == 0
    assert "building 3.10" in capsys.readouterr().err

    assert run(["image", "list", "--json", "--config", config]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {stored["built"]["mode"] for stored in listed} == {"versioned", "scratch"}
    assert str(image) in {stored["path"] for stored in listed}
    assert run(["image", "list", "--config", config]) == 0
    assert "mine-" in capsys.readouterr().out

    assert run(["image", "prune", "--max-gb", "0", "--config", config]) == 0
    assert "mine-" in capsys.readouterr().out
    assert not image.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "def:nonesuch"], "no definition template 'nonesuch'; known: default, qemu-gui"),
        (["build", "docker://debian", "--var", "a=b"], "are for templates"),
        (["build", "def:default", "--var", "base"], "write NAME=VALUE"),
        (["build", "/no/such.sif"], "is not there"),
        (["prune"], "say what may go"),
    ],
)
def test_what_cannot_work_is_one_line(arguments: list[str], message: str, config, capsys) -> None:
    assert run(["image", *arguments, "--config", config]) == 2
    assert message in capsys.readouterr().err
