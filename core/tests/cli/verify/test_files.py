"""Files of results in every form they are kept in, and what is none."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from click.testing import CliRunner

from prorl.api import ConfigError
from prorl.cli.verify import command
from prorl.wire import JobView


def test_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="put them into a file"):
        CliRunner().invoke(command, [str(tmp_path / "pipe")], standalone_mode=False, catch_exceptions=False)


@pytest.mark.parametrize("form", ["jsonl", "one", "indented", "list", "view", "msgpack", "msgpack list"])
def test_forms_of_files(results, verify, form):
    one = msgspec.json.encode(results[0])
    view = JobView(job_id="j", state="completed", handler="answer", result=results[0])
    content = {
        "jsonl": one + b"\n\n" + one,
        "one": one,
        "indented": msgspec.json.format(one, indent=2),
        "list": msgspec.json.format(msgspec.json.encode(results), indent=2),
        "view": msgspec.json.encode(view),
        "msgpack": msgspec.msgpack.encode(results[0]),
        "msgpack list": msgspec.msgpack.encode(results),
    }[form]
    status, out = verify(content, "--json", name="r.msgpack" if "msgpack" in form else "r.json")
    assert status == 0, out
    assert json.loads(out)["results"] == {"jsonl": 2, "list": 3, "msgpack list": 3}.get(form, 1)


@pytest.mark.parametrize(
    "content", [b"", b"no JSON\n", b'{"job_id": 3}\n', b"[1, 2]\n", b'{"job_id": "j"', b"\xff\xfe\n"]
)
def test_what_is_no_file_of_results(verify, content):
    try:
        status, out = verify(content)
    except ConfigError as error:
        status, out = 2, str(error)
    assert status == 2
    assert "no result" in out or "empty" in out


def test_a_file_that_was_cut_off(recorded, verify):
    """What came before is still looked at."""
    whole = b"".join(recorded)
    status, out = verify(whole[:-200], "--json")
    report = json.loads(out)
    assert status == 2
    assert report["results"] == 2
    assert [each["line"] for each in report["wrong"]] == [3]
    assert "cut off" in report["wrong"][0]["unreadable"]
