"""``--set`` and the flags that stand for settings."""

from __future__ import annotations

from typing import Annotated

import click
import msgspec
import pytest
from click.testing import CliRunner

from prorl.api import ConfigError
from prorl.cli.options import Flag, assignments, settings_flags


class Table(msgspec.Struct):
    workers: Annotated[int, msgspec.Meta(description="how many at once")] = 3
    limit_s: Annotated[Annotated[float, msgspec.Meta(gt=0)] | None, msgspec.Meta(description="seconds")] = None
    host: str = "here"


FLAGS = (Flag("--workers", Table, "a.workers"), Flag("--limit-s", Table, "a.b.limit_s"), Flag("--host", Table, "host"))


@click.command()
@settings_flags(FLAGS)
def command(**flags: object) -> None:
    click.echo(repr([flags[flag.key] for flag in FLAGS]))


def test_help_and_default_are_the_settings_own():
    text = CliRunner().invoke(command, ["--help"]).output
    assert "How many at once. [default: 3]" in text
    assert "Seconds. [default: unset]" in text
    assert text.index("--workers") < text.index("--limit-s") < text.index("--host")


def test_not_given_is_none():
    assert CliRunner().invoke(command, []).output == "[None, None, None]\n"
    assert CliRunner().invoke(command, ["--workers", "4", "--limit-s", "1.5"]).output == "[4, 1.5, None]\n"
    assert CliRunner().invoke(command, ["--workers", "many"]).exit_code == 2


def test_assignments():
    assert assignments(["a.b=3", "a.c=[1, 'x']", "t=plain text", "f=true", "e=", 'q="x=y"']) == {
        "a": {"b": 3, "c": [1, "x"]},
        "t": "plain text",
        "f": True,
        "e": "",
        "q": "x=y",
    }


@pytest.mark.parametrize("texts", [["novalue"], ["=3"], ["a..b=3"], ["a=1", "a.b=2"]])
def test_bad_assignments(texts):
    with pytest.raises(ConfigError, match="--set"):
        assignments(texts)
