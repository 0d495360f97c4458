"""The page on tools: its example is run as it stands, its table is what is registered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prorl.plugins.claims import claims
from prorl.tools.plugin import prorl_tool_backends
from prorl.tools.schema import parameters

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


async def test_the_example_works(context) -> None:
    code = re.search(r'^```python title="prorl_wordcount/plugin.py"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    assert code
    plugin: dict[str, Any] = {}
    exec(compile(code[1], "plugin.py", "exec", dont_inherit=True), plugin)
    (record,) = plugin["prorl_tool_backends"]()
    assert ("prorl_tool_backends", "name", "wc") in set(claims("prorl_tool_backends", record))
    tool = record.factory()
    assert tool.schema().parameters["required"] == ["path"]
    await context.sandbox.act("bash", {"command": "printf 'a b\\nc\\n' > f"}, timeout=60)
    assert (await tool.call({"path": "f"}, context)).text == "3"
    assert (await tool.call({"path": "f", "unit": "lines"}, context)).text == "2"
    assert (await tool.call({"path": "f", "unit": "pages"}, context)).is_error
    assert (await tool.call({"path": "missing"}, context)).is_error
    assert "unknown field `file`" in (await tool.call({"file": "f"}, context)).text


def test_the_table_is_what_is_registered() -> None:
    rows = {}
    for name, aliases, arguments in re.findall(r"^\| `(\w+)` \|(.*?)\|(.*?)\|", PAGE, re.MULTILINE):
        rows[name] = (re.findall(r"`(\w+)`", aliases), re.findall(r"`(\w+)`", arguments))
    registered = {
        record.name: (list(record.aliases), list(parameters(record.factory().arguments)["properties"]))
        for record in prorl_tool_backends()
    }
    assert rows == registered
