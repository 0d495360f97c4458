"""docs/engines.md says what is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from prorl.llm.plugin import prorl_llm_dialects
from prorl.wire import BackendSpec

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
FENCE = re.compile(r"^```(json|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_dialect_is_described_in_the_order_in_which_servers_are_asked():
    records = sorted(prorl_llm_dialects(), key=lambda record: -record.preference)
    names = [record.name for record in records]
    assert re.findall(r"^\d\. `([\w-]+)`", PAGE, re.MULTILINE) == names
    rows = re.findall(r"^\| `([\w-]+)` \| ", PAGE, re.MULTILINE)
    assert rows[: len(names)] == rows[len(names) : 2 * len(names)] == names
    said = " ".join(PAGE.split()).partition("(vLLM ")[2].partition(")")[0]
    assert [int(number) for number in re.findall(r"-?\b\d+\b", said)] == [record.preference for record in records]


def test_the_registrations_are_valid():
    blocks = FENCE.findall(PAGE)
    assert len(blocks) == 4
    for kind, code in blocks:
        for spec in [msgspec.json.decode(code)] if kind == "json" else tomllib.loads(code)["backends"]:
            msgspec.convert(spec, BackendSpec)


def test_every_code_of_a_fault_is_described():
    package = Path(__file__).parents[2] / "src" / "prorl" / "llm"
    files = [package / "pool" / "checks.py", *(package / "dialects").glob("*.py")]
    used = {code for file in files for code in re.findall(r'code="(\w+)"', file.read_text())}
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE, re.MULTILINE))))
    assert used - {"timeout", "unsupported"} <= described  # of calls with a limit; of scoring (certificate.md)


@pytest.mark.parametrize(
    "variable", ["PATH", "AWS_SECRET_ACCESS_KEY", "prorl_llm_key", "PRORL_LLM_KEY-X", "PRORL_LLM_KEY\n", ""]
)
def test_no_other_secret_can_be_named(variable):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"url": "http://a", "api_key_env": variable}, BackendSpec)
    assert msgspec.convert({"url": "http://a", "api_key_env": "PRORL_LLM_KEY_2"}, BackendSpec)
