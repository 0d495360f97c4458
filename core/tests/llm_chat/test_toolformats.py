"""Tool calls are parsed, never evaluated; what is wrong with one becomes a text that the model can act on."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl.api import TaskFault, ToolSchema
from prorl.llm.rendering.template import ChatTemplate
from prorl.llm.toolformats import HermesFormat, choose, formats

PARSE = HermesFormat().parse
CALL = '<tool_call>\n{"name": "run", "arguments": {"code": "1+1"}}\n</tool_call>'


def test_text_then_calls():
    parsed = PARSE(f"Let me see.\n{CALL}\n{CALL.replace('run', 'think')}\n")
    assert [(call.name, call.arguments, call.error) for call in parsed.tool_calls] == [
        ("run", {"code": "1+1"}, None),
        ("think", {"code": "1+1"}, None),
    ]
    assert parsed.answer == "Let me see."


@pytest.mark.parametrize(
    ("text", "answer", "calls", "thinking"),
    [
        ("plain", "plain", 0, False),
        ("<think>a</think>\n\nb", "b", 0, False),
        ("a</think>b", "b", 0, False),
        (f"{CALL}</think>b", "b", 0, False),
        (f"<think>{CALL}</think>{CALL}", "", 1, False),
        ("<think>never closed", "", 0, True),
        (f"<think>never closed {CALL}", "", 1, True),
        ("x<think>a</think>y", "xy", 0, False),
        ("<think>a</think>b</think>c", "b</think>c", 0, False),
        ("", "", 0, False),
    ],
)
def test_thinking_is_neither_answer_nor_call(text, answer, calls, thinking):
    parsed = PARSE(text)
    assert (parsed.answer, len(parsed.tool_calls), parsed.thinking) == (answer, calls, thinking)


def test_thinking_that_the_prompt_opened():
    assert PARSE("cut amidst", thinking=True).answer == ""
    assert PARSE(f"{CALL}</think>done", thinking=True).tool_calls == []


def test_json_may_hold_tags():
    code = "print('</tool_call><think>')"
    parsed = PARSE(f"<tool_call>{json.dumps({'name': 'run', 'arguments': {'code': code}})}</tool_call>ok")
    assert parsed.tool_calls[0].arguments == {"code": code}
    assert parsed.answer == "ok"


def test_arguments_as_a_json_string():
    body = json.dumps({"name": "run", "arguments": '{"code": "1"}'})
    assert PARSE(f"<tool_call>{body}</tool_call>").tool_calls[0].arguments == {"code": "1"}


def test_no_arguments_is_an_empty_object():
    assert PARSE('<tool_call>{"name": "done"}</tool_call>').tool_calls[0].error is None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"name": "run", "arguments": {"code": }}', "not valid JSON (Expecting value at character 38 of the call)"),
        ("{'name': 'run'}", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ('"run"', "must be a JSON object"),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": 3}', 'no "name"'),
        ('{"name": ""}', 'no "name"'),
        ('{"name": "run", "arguments": [1]}', '"arguments" must be a JSON object'),
        ('{"name": "run", "arguments": null}', '"arguments" must be a JSON object'),
        ('{"name": "run", "arguments": "1"}', '"arguments" must be a JSON object'),
        ('{"name": "run", "arguments": "{"}', "string that is not valid JSON"),
        ('{"name": "run", "arguments": {"x": NaN}}', "NaN is not JSON"),
        ('{"name": "run", "arguments": {"x": "\\ud800"}}', "cannot be used"),
        ('{"name": "run", "arguments": {"x": 99999999999999999999999999}}', "cannot be used"),
        ('{"name": "run", "arguments": {"x": 1e999}}', "too large"),
        ('{"name": "run"} trailing', "text after the JSON object"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("__import__('os').system('x')", "not valid JSON"),
    ],
)
def test_broken_calls_say_what_to_mend(body, says):
    parsed = PARSE(f"a<tool_call>{body}</tool_call>b{CALL}c")
    broken, good = parsed.tool_calls
    assert says in broken.error
    assert "<tool_call>" in broken.error, "shows the right form"
    assert len(broken.error) < 400
    assert broken.arguments == {}
    assert good.error is None
    assert parsed.answer == "abc"


@pytest.mark.parametrize("body", ['{"name": "run", "arguments": {"x": "', '{"name": "run", "arguments": {}}', ""])
def test_unclosed(body):
    [call] = PARSE(f"a<tool_call>{body}").tool_calls
    assert "not closed" in call.error


def test_too_many_calls_are_cut_off():
    calls = PARSE(CALL * 1000).tool_calls
    assert len(calls) == 65
    assert "only 64 calls" in calls[-1].error


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 200_000,
        "<tool_call>{" * 200_000 + "</tool_call>" * 10,
        '<tool_call>["</tool_call>' * 100_000,
        "<tool_call></tool_call>" * 100_000,
        "<think>" * 200_000 + "</think>" * 200_000,
        "<" * 2_000_000,
        '<tool_call>{"a": "' + "\\" * 2_000_000,
        "<tool_call>" + " " * 2_000_000,
    ],
    ids=range(8),
)
def test_hostile_text_ends(text):
    """Megabytes of it: anything worse than linear would run into the time limit of the test."""
    PARSE(text)


FRAGMENTS = ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "run"', ', "arguments": {', "}", '"', "\n"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=40).map("".join), st.booleans())
def test_any_text_parses(text, thinking):
    parsed = PARSE(text, thinking=thinking)
    for call in parsed.tool_calls:
        assert (call.error is None) == bool(call.error is None and call.name)
    msgspec.json.encode(parsed.tool_calls)


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=5), st.text() | st.integers(-(2**63), 2**63) | st.booleans() | st.none()),
    st.booleans(),
)
def test_round_trip(arguments, ascii_only):
    body = json.dumps({"name": "run", "arguments": arguments}, ensure_ascii=ascii_only)
    [call] = PARSE(f"<tool_call>\n{body}\n</tool_call>").tool_calls
    assert call.arguments == arguments


def test_description_teaches_what_is_parsed():
    tool = ToolSchema(name="run", description="é", parameters={"type": "object", "properties": {"x": {}}})
    text = HermesFormat().describe([tool])
    assert HermesFormat().matches(text)
    signature = json.loads(text.split("<tools>\n")[1].split("\n</tools>")[0])
    assert signature["function"]["parameters"] == tool.parameters


TEMPLATES = Path(__file__).parent / "templates"
LLAMA_3_2 = (
    "{% if tools %}If you decide to invoke any of the function(s), you MUST put it in the format of "
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]{{ tools | tojson }}"
    "{% endif %}{{ messages[0].content }}"
)
LLAMA_TAGS = (
    "{% for tool in tools %}Use the function '{{ tool.function.name }}'{{ tool.function | tojson }}{% endfor %}"
    '<function=example_function_name>{"example_name": "example_value"}</function>{{ messages[0].content }}'
)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("qwen2.5", "hermes"),
        ("qwen3", "hermes"),
        ("qwen3-2507-thinking", "hermes"),
        ("qwen3-coder", "qwen3-coder"),
        ("llama3.1", "llama-json"),
        ("smollm2", "hermes"),  # knows no tools: the default
        (LLAMA_3_2, "pythonic"),
        (LLAMA_TAGS, "function-tag"),
        ("{{ raise_exception('no') }}", "hermes"),
    ],
)
def test_the_format_is_what_the_template_teaches(template, name):
    source = template if "{" in template else (TEMPLATES / f"{template}.jinja").read_text()
    chosen = choose(None, ChatTemplate(source, variables={"bos_token": "<s>", "eos_token": "</s>"}))
    assert chosen.name == name


def test_a_format_by_name_wins_over_the_template():
    template = ChatTemplate((TEMPLATES / "qwen3.jinja").read_text())
    assert [choose(name, template).name for name in formats()] == list(formats())
    with pytest.raises(TaskFault, match="no tool format 'qwen3_coder'; the formats are function-tag, hermes") as caught:
        choose("qwen3_coder", template)
    assert caught.value.code == "rendering"
