"""What the README shows is so."""

import json
import re
import tomllib
from pathlib import Path

import msgspec
from click.testing import CliRunner

from prorl_stem.command import command
from prorl_stem.handler import StemHandler
from prorl_stem.rows import read_row
from prorl_stem.settings import OPERATORS, JudgeSettings, StemSettings

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def block(kind):
    return re.search(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1]


def test_its_rows_can_be_read():
    rows = [json.loads(line) for line in block("json rows").splitlines()]
    assert [read_row(row).gold for row in rows] == ["2.998e8 m/s", "B", "6", "F=ma"]


def test_its_settings_are_the_defaults():
    shown = tomllib.loads(block("toml settings"))["handlers"]["stem"]
    assert tuple(shown["tools"]) == StemHandler.tools
    assert msgspec.convert(shown, StemSettings) == StemSettings(tools=StemHandler.tools)


def test_every_own_setting_is_shown_and_marked():
    text = block("toml settings")
    judge = tomllib.loads(
        re.sub(r"^# ", "", text.partition("# [handlers.stem.judge]")[2], flags=re.MULTILINE).partition("\n")[2]
    )
    assert msgspec.convert(judge, JudgeSettings) == JudgeSettings(**judge)
    assert set(judge) == set(JudgeSettings.__struct_fields__)
    assert OPERATORS["judge"] == set(judge) - {"both_orders"}
    for table, name in ((StemSettings().search, "search"), (StemSettings().pages, "pages")):
        part = text.partition(f"[handlers.stem.{name}]")[2].partition("\n\n")[0]
        shown = dict(re.findall(r"^#? ?([a-z_]+) = .*?(†?)(?: .*)?$", part, re.MULTILINE))
        assert set(shown) == set(table.__struct_fields__)
        marked = set(re.findall(r"^#? ?([a-z_]+) = .*†", part, re.MULTILINE))
        assert marked == set(OPERATORS[name])


def test_its_commands_are_there():
    named = set(re.findall(r"^prorl stem (\w+)", README, re.MULTILINE))
    assert named == set(command.commands)
    for name in named:
        options = re.findall(
            r"--[a-z-]+", " ".join(re.findall(rf"^prorl stem {name} (.*?)(?:  #.*)?$", README, re.MULTILINE))
        )
        helped = CliRunner().invoke(command, [name, "--help"]).output
        assert all(option in helped for option in options)
