"""What the README shows is run as it stands there."""

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from prorl.testing.lab import Lab
from prorl.wire import JobRequest
from prorl_math.check import command
from prorl_math.handler import MathHandler
from prorl_math.plugin import DOMAINS, PREFIXES
from prorl_math.rows import ANSWERS, QUESTIONS
from prorl_math.settings import MathSettings

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text(encoding="utf-8")
PAGES = [HERE / "README.md", *(HERE / "docs").glob("*.md")]


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_settings_are_the_defaults_and_all_of_the_domains_own():
    (block,) = blocks("toml")
    shown = tomllib.loads(block)["handlers"]["math"]
    read = msgspec.convert(shown, MathSettings)
    assert msgspec.structs.replace(read, tools=None) == MathSettings()
    assert read.tools == MathHandler.tools
    own = set(MathSettings.__struct_fields__) - set(MathSettings.__bases__[0].__struct_fields__)
    assert own <= set(shown)


def test_the_request_runs():
    (body,) = re.findall(r"-d '(\{.*?\n\})'", README, re.DOTALL)
    request = msgspec.json.decode(body.encode(), type=JobRequest)
    with Lab([r"It is $\boxed{55}$."]) as lab:
        result = lab.client.process(request)
    assert (result.error, result.reward) == (None, 1.0)


def test_what_the_command_prints(tmp_path, monkeypatch):
    shown = next(block for block in blocks("console") if "math-rows train" in block)
    rows = [{"problem": "?", "answer": "1"}] * 7 + [{"prompt": "?", "reward_model": {"ground_truth": 2.0}}]
    rows[2], rows[6] = {"problem": "?", "answer": ""}, {"problem": "?", "answer": "))(("}
    rows.insert(3, rows.pop())
    rows[6], rows[7] = rows[7], rows[6]
    rows = rows[:7]
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert CliRunner().invoke(command, ["train.jsonl"]).output == shown.partition("\n")[2]


def test_the_names_of_fields_and_data_sources():
    for name in (*QUESTIONS, *ANSWERS, *DOMAINS, *PREFIXES):
        assert f"`{name}`" in README, name


def test_the_number_of_verdicts():
    rows = [
        line for line in (HERE / "docs" / "grading.md").read_text(encoding="utf-8").splitlines() if line[:3] == "| `"
    ]
    answers = sum(len(re.findall(r"`[^`]+`", row)) - 1 for row in rows)
    assert f"Of the {answers} verdicts on that page" in " ".join(README.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
