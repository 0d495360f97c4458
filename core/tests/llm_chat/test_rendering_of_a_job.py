"""A job's choices over HTTP, down to its trajectory, with a template that is served like any engine's."""

from pathlib import Path

import pytest

from prorl.api import AgentHandler, HandlerRecord, Message
from prorl.testing.bytebpe import write_tokenizer
from prorl.testing.lab import Lab
from prorl.wire.backends import BackendSpec

THOUGHT = "<think>\nhm\n</think>\n\n42"


class Talk(AgentHandler):
    async def init(self, job):
        return None, {}, {}

    async def run(self, job):
        chat = job.services.chat()
        await chat.open([Message(role="user", content="6*7?")])
        await chat.reply()
        await chat.observe([Message(role="user", content="And 7*8?")])
        await chat.reply()
        return {}

    async def eval(self, job):
        return {"reward": 1.0}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    write_tokenizer(folder)
    stock = Path(__file__).parent / "templates" / "qwen3.jinja"
    (folder / "chat_template.jinja").write_text(stock.read_text(encoding="utf-8"), encoding="utf-8")
    record = HandlerRecord(name="talk", factory=Talk, summary="two turns")
    with Lab([THOUGHT, "56"], handlers=[record]) as lab:
        lab.client.clear_llm_server()
        lab.client.add_llm_server(BackendSpec(url=lab.engine.url, tokenizer=str(folder)))
        yield lab


def test_history(lab):
    kept = lab.rollout({}, domain="talk").trajectory
    anew = lab.rollout({}, domain="talk", rendering={"history": "segment"}).trajectory
    assert [segment.origin for segment in kept.segments] == ["open"]
    assert any("would have rewritten earlier turns" in note for note in kept.notes)
    assert [(segment.origin, segment.parent) for segment in anew.segments] == [("open", None), ("rewrite", 0)]
    assert "hm" in anew.turns[1].text
    assert "assistant\n42<|im_end|>" in anew.turns[2].text
    assert "hm" not in anew.turns[2].text


def test_thinking(lab):
    off = lab.rollout({}, domain="talk", rendering={"thinking": False}).trajectory
    assert off.turns[0].text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("rendering", "says"),
    [
        ({"variables": {"enable_thoughts": True}}, "knows no variable 'enable_thoughts'; it knows enable_thinking"),
        ({"variables": {"tools": []}}, "may not set 'tools'"),
        ({"tool_format": "morse"}, "no tool format 'morse'"),
    ],
)
def test_what_the_template_does_not_know(lab, rendering, says):
    error = lab.rollout({}, domain="talk", rendering=rendering).error
    assert (error.kind, error.code, error.stage) == ("task", "rendering", "run")
    assert says in error.message
