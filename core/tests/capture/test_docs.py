"""The page on the proxy: its domain works as it stands there, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from prorl.agent import CommandSettings
from prorl.api import HandlerRecord
from prorl.capture.apis import API_ROUTES
from prorl.testing.lab import Lab

PAGE = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()
BLOCKS = dict(re.findall(r"^```python title=\"([^\"]+)\"\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_domain_of_the_page_runs() -> None:
    module: dict[str, Any] = {"__name__": "clocks"}
    exec(compile(BLOCKS["clocks.py"], "clocks.py", "exec"), module)
    records: list[HandlerRecord] = module["prorl_agent_handlers"]()
    rows = [{"task": "What time is it? See clock.txt.", "expected": "ten past ten"}] * 2
    for said, reward in (("cat clock.txt", 1.0), ("date", 0.0)):
        with Lab([said], handlers=records) as lab:
            result = lab.rollout(rows[0], domain="clocks", settings={"runtime": "bubblewrap"})
        assert result.error is None, result.error
        assert result.reward == reward, result.artifacts


def test_the_page_names_what_there_is() -> None:
    for what in API_ROUTES:
        assert f"/v1/{what}`" in PAGE
    for field in msgspec.structs.fields(CommandSettings):
        assert f"`{field.name}`" in PAGE, f"{field.name} is not explained"
