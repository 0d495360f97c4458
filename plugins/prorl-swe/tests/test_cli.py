"""``prorl-swe cache``, as somebody at a terminal meets it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from prorl_swe import cli
from prorl_swe.repository.store import Store

ROWS = Path(__file__).parent / "data" / "pypi.jsonl"


@pytest.fixture
def run(monkeypatch, capsys):
    """``(exit status, stdout, stderr)`` of a command."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["prorl-swe", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return command


@pytest.fixture
def folder(tmp_path) -> Path:
    async def content(part: Path, lock: int) -> str:
        (part / "content").write_bytes(b"x" * 100_000)
        return "[something] 1.0"

    async def fill() -> None:
        for key in ("a" * 32, "b" * 32):
            (await Store(tmp_path / "cache").take("base", key, content)).close()

    asyncio.run(fill())
    return tmp_path / "cache"


def test_list(run, folder) -> None:
    code, out, err = run("cache", "list", "--folder", str(folder))
    assert (code, err) == (0, "")
    assert out.count("[something] 1.0") == 2
    code, out, _ = run("cache", "list", "--folder", str(folder), "--json")
    assert {one["key"] for one in json.loads(out)} == {"a" * 32, "b" * 32}
    assert run("cache", "list", "--folder", str(folder / "none"), "--json") == (0, "[]\n", "")


def test_prune(run, folder) -> None:
    code, out, _ = run("cache", "prune", "--folder", str(folder), "--max-gb", "0.00015", "--json")
    assert (code, len(json.loads(out))) == (0, 1)
    code, out, _ = run("cache", "prune", "--folder", str(folder), "--older-than", "0", "--json")
    assert (code, len(json.loads(out))) == (0, 1)
    assert run("cache", "list", "--folder", str(folder), "--json")[1] == "[]\n"


def test_the_cache_is_where_the_servers_settings_say(run, folder, tmp_path, monkeypatch) -> None:
    (tmp_path / "prorl.toml").write_text(f"[swe]\ncache = {json.dumps(str(folder))}\n")
    assert len(json.loads(run("cache", "list", "--config", str(tmp_path / "prorl.toml"), "--json")[1])) == 2
    monkeypatch.chdir(tmp_path)
    assert len(json.loads(run("cache", "list", "--json")[1])) == 2
    assert len(json.loads(run("cache", "prune", "--older-than", "0", "--json")[1])) == 2
    (tmp_path / "prorl.toml").write_text("[swe]\ncahce = 'x'\n")
    code, _, err = run("cache", "list")
    assert code == 2
    assert "prorl.toml: [swe]: unknown field 'cahce'" in err


def test_rows_are_held_to_the_servers_sources(run, tmp_path) -> None:
    rows, config = tmp_path / "rows.jsonl", tmp_path / "prorl.toml"
    row = json.loads(ROWS.read_text().splitlines()[0])
    source = {"type": "clone", "location": "/private/repository", "commit": "a" * 40}
    rows.write_text(json.dumps({**row, "source": source}))
    config.write_text('[swe]\nsources = ["/repos"]\n')
    code, _, err = run("cache", "prepare", str(rows), "--config", str(config), "--folder", str(tmp_path / "cache"))
    assert code == 2
    assert "line 1: source: this server opens no '/private/repository' for a row" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cache", "prune"], "--max-gb, --older-than"),
        (["cache", "prune", "--max-gb", "-1"], "max-gb"),
        (["cache", "prepare", "/no/such.jsonl"], "does not exist"),
        (["cache", "nonsense"], "No such command"),
    ],
)
def test_what_cannot_work_is_one_line(run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_rows_that_are_none(run, tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    for content in ("", "{}\n", "no json\n"):
        rows.write_text(content)
        code, _, err = run("cache", "prepare", str(rows), "--folder", str(tmp_path / "cache"))
        assert code == 2
        assert err.count("\n") == 1
        assert "line 1" in err or "no rows" in err


@pytest.mark.parametrize("group", [(), ("cache",)])
def test_a_group_alone_is_its_help(run, group) -> None:
    code, out, err = run(*group)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(('prorl-swe', *group))} [OPTIONS] COMMAND")
    assert run(*group, "-h")[1] == out


@pytest.mark.timeout(600)
def test_prepare(run, tmp_path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    line = next(line for line in ROWS.read_text().splitlines() if "pyflakes" in line)
    Path("rows.jsonl").write_text(line)
    code, out, err = run("cache", "prepare", "rows.jsonl", "--folder", "../cache", "--json")
    (outcome,) = json.loads(out)
    assert (code, err, outcome["error"]) == (0, "", None)
    _, out, _ = run("cache", "list", "--folder", "../cache", "--json")
    assert sorted(stored["kind"] for stored in json.loads(out)) == ["base", "env"]
