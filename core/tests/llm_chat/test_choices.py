"""What a job chooses of rendering reaches the template, or is refused: nothing is ignored."""

import pytest

from prorl.api import Message, TaskFault
from prorl.llm.rendering.cache import RendererCache
from prorl.wire.rendering import RenderingParams

USER = Message(role="user", content="Hi")


async def prompt(kit, name, **choices):
    cache = RendererCache()
    renderer = await cache.get(kit.lease(name).backend, RenderingParams(**choices))
    return await renderer.prompt([USER], now=kit.now)


async def test_thinking_off(kit):
    off = await prompt(kit, "qwen3", thinking=False)
    assert off.text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert kit.controls(off.ids)[-2:] == [kit.added["<think>"], kit.added["</think>"]]
    assert not off.opens_thinking
    assert off.text == kit.reference("qwen3", [USER], enable_thinking=False)
    for choice in ({}, {"thinking": True}, {"variables": {"enable_thinking": True}}):
        assert (await prompt(kit, "qwen3", **choice)).text.endswith("<|im_start|>assistant\n")
    assert await prompt(kit, "qwen3", variables={"enable_thinking": False}) == off
    assert await prompt(kit, "qwen3", variables={"enable_thinking": False}, thinking=False) == off


async def test_variables(kit):
    rendered = await prompt(kit, "llama3.1", variables={"date_string": "1 Jan 2031"})
    assert "Today Date: 1 Jan 2031\n" in rendered.text


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3-2507", "qwen3-2507-thinking", "qwen3-coder", "llama3.1", "chatml"])
async def test_a_template_without_the_switch(kit, name, thinking):
    with pytest.raises(TaskFault, match="no switch for thinking") as caught:
        await prompt(kit, name, thinking=thinking)
    assert caught.value.code == "rendering"


@pytest.mark.parametrize(
    ("name", "choices", "says"),
    [
        (
            "qwen3",
            {"variables": {"enable_thinkin": False}},
            "knows no variable 'enable_thinkin'; it knows enable_thinking",
        ),
        ("chatml", {"variables": {"x": 1}}, "it knows none"),
        ("qwen3", {"variables": {"reasoning_content": "x"}}, "knows no variable 'reasoning_content'"),
        ("qwen3", {"variables": {"messages": []}}, "may not set 'messages'"),
        ("qwen3", {"variables": {"tools": []}}, "may not set 'tools'"),
        ("qwen3", {"variables": {"add_generation_prompt": False}}, "may not set 'add_generation_prompt'"),
        ("llama3.1", {"variables": {"bos_token": "x"}}, "may not set 'bos_token'"),
        ("qwen3", {"variables": {"__class__": 1}}, "may not set '__class__'"),
        ("qwen3", {"thinking": True, "variables": {"enable_thinking": False}}, "disagree on enable_thinking"),
        ("llama3.1", {"variables": {"date_string": "x<|eot_id|>"}}, "holds the control token <|eot_id|>"),
        ("qwen3", {"tool_format": "morse"}, "no tool format 'morse'"),
    ],
)
async def test_what_is_refused(kit, name, choices, says):
    with pytest.raises(TaskFault, match=says) as caught:
        await prompt(kit, name, **choices)
    assert caught.value.code == "rendering"


async def test_another_tool_format_is_taught_in_words(kit):
    cache = RendererCache()
    renderer = await cache.get(kit.lease("qwen3").backend, RenderingParams(tool_format="qwen3-coder"))
    assert renderer.tool_format.name == "qwen3-coder"
    assert not renderer._manners.tools
    assert not renderer._manners.calls


async def test_one_renderer_per_choice_and_not_too_many(kit):
    cache, backend = RendererCache(), kit.lease("llama3.1").backend
    first = await cache.get(backend)
    assert await cache.get(backend, RenderingParams(history="segment")) is first
    dates = [RenderingParams(variables={"date_string": str(day)}) for day in range(70)]
    renderers = [await cache.get(backend, date) for date in dates]
    assert await cache.get(backend, dates[-1]) is renderers[-1]
    assert len(cache) <= 64
    again = await cache.get(backend, dates[0])
    assert again is not renderers[0]
    assert (await again.prompt([USER], now=kit.now)) == await renderers[0].prompt([USER], now=kit.now)
