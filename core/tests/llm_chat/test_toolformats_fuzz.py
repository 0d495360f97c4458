"""Every format under any text: it never raises, what it gives can travel, and its work grows with the text alone."""

import keyword
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from prorl.api import ToolSchema
from prorl.llm.toolformats import formats
from prorl.wire.trajectory import ToolCall, Turn

FORMATS = formats()
EVERY = pytest.mark.parametrize("name", FORMATS)
MANY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

integers = st.integers(-(2**63), 2**64 - 1)
plain = st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,12}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
arguments = st.dictionaries(names | st.text(max_size=6), values, max_size=5)
calls = st.lists(st.builds(ToolCall, name=names, arguments=arguments), min_size=1, max_size=4)

TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def schema_of(call):
    """The tool whose schema says of every argument what it is: formats without types need it."""
    kinds = {key: {"type": TYPES.get(type(value), "string")} for key, value in call.arguments.items()}
    return ToolSchema(name=call.name, description="", parameters={"type": "object", "properties": kinds})


def carried(name, call):
    """What this format can carry of any call."""
    if name != "qwen3-coder":
        return call
    kept = {}
    for key, value in call.arguments.items():
        plain_key = bool(key.strip()) and key == key.strip() and not set(key) & set("<>\n")
        if plain_key and not (isinstance(value, str) and ("<parameter=" in value or "</parameter>" in value)):
            kept[key] = value
    return ToolCall(name=call.name, arguments=kept)


def check(parsed):
    for call in parsed.tool_calls:
        assert call.error or call.name
        assert call.error is None or (len(call.error) < 400 and call.arguments == {})
    turn = Turn(role="assistant", segment=0, start=0, end=0, text="", tool_calls=parsed.tool_calls)
    msgspec.msgpack.encode(turn)
    assert msgspec.json.decode(msgspec.json.encode(turn), type=Turn).tool_calls == parsed.tool_calls


@EVERY
@MANY
@given(made=calls, thought=st.sampled_from(["", "<think>\nhm\n</think>\n\n", "I look.\n"]))
@example(made=[ToolCall(name="f", arguments={"a": 1.0, "b": "'\"\\\n\r\0\u2028", "from": [], "": {}})], thought="")
def test_what_was_written_is_read(name, made, thought):
    made = [carried(name, call) for call in {call.name: call for call in made}.values()]
    parsed = FORMATS[name].parse(thought + FORMATS[name].write(*made), tools=[schema_of(call) for call in made])
    assert parsed.tool_calls == made
    for call, again in zip(made, parsed.tool_calls, strict=True):
        assert [type(value) for value in again.arguments.values()] == [type(v) for v in call.arguments.values()] or (
            name == "pythonic" and {k: type(v) for k, v in again.arguments.items()}
        )
    assert parsed.content == thought.rstrip()
    check(parsed)


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=", "f>", "</function>", "<parameter=", "a>"),
    *("</parameter>", "<|python_tag|>", '{"name": "f"', ', "parameters": {', ', "arguments": {', "}", '"', "\n", ";"),
    *("[f(", "a=", ")", "]", "'", '"""', "\\", "1", ", ", "**{", "(", "[", "{", ":", " ", "from="),
]
jumbles = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=40).map("".join)


@EVERY
@MANY
@given(text=jumbles | st.text(), thinking=st.booleans(), known=st.booleans())
def test_any_text(name, text, thinking, known):
    tools = [ToolSchema(name="f", description="", parameters={})] if known else []
    parsed = FORMATS[name].parse(text, thinking=thinking, tools=tools)
    check(parsed)
    if not parsed.tool_calls:
        assert parsed.content == text


@EVERY
@MANY
@given(made=calls, data=st.data())
def test_valid_calls_with_a_fault_in_them(name, made, data):
    made = [carried(name, call) for call in made]
    text = FORMATS[name].write(*made)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 5))
        text = text[:at] + data.draw(st.sampled_from(["", *FRAGMENTS]) | st.text(max_size=3)) + text[at + cut :]
    check(FORMATS[name].parse(text, tools=[schema_of(call) for call in made]))


@EVERY
@MANY
@given(made=calls, data=st.data())
def test_calls_that_were_cut(name, made, data):
    text = FORMATS[name].write(*(carried(name, call) for call in made))
    check(FORMATS[name].parse(text[: data.draw(st.integers(0, len(text)))]))


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@EVERY
@pytest.mark.parametrize("depth", [40, 70, 300, 5_000, 200_000])
def test_deep_nesting(name, depth):
    brackets = "[" * depth + "]" * depth
    shapes = {
        "hermes": f'<tool_call>{{"name": "f", "arguments": {{"a": {brackets}}}}}</tool_call>',
        "llama-json": f'{{"name": "f", "parameters": {{"a": {brackets}}}}}',
        "function-tag": f'<function=f>{{"a": {brackets}}}</function>',
        "pythonic": f"[f(a={brackets})]",
        "qwen3-coder": f"<tool_call><function=f><parameter=a>{brackets}</parameter></function></tool_call>",
    }
    tool = schema_of(ToolCall(name="f", arguments={"a": []}))
    parsed = FORMATS[name].parse(shapes[name], tools=[tool])
    check(parsed)
    [call] = parsed.tool_calls
    if depth == 40:
        assert call.arguments == {"a": nested(depth - 1)}
    elif call.error is None:  # text, as the tool will be told
        assert name == "qwen3-coder"
        assert call.arguments == {"a": brackets}
    else:
        assert "nested too deeply" in call.error


OPENERS = {
    "hermes": "<tool_call>",
    "llama-json": '{"name": ',
    "function-tag": "<function=f>",
    "pythonic": "\n[f(",
    "qwen3-coder": "<tool_call><function=f><parameter=",
}


# Texts that make a careless reader look over and over at the same part.
HOSTILE = [
    *("<tool_call>{", '<tool_call>["</tool_call>', "<tool_call></tool_call>", "<think></think>", "<think>"),
    *('{"name": ', '{"name": [', '{"name":"a","parameters":', '{"type":{"name":', "<|python_tag|>"),
    *("[f(", "\n[f(", "\n[f('", "[f(a='''", "\n[f(a=1)", "\n[f(a)]", "<function=", "<function=f>{", "\n[f(-"),
    *("<tool_call><function=f>\n<parameter=", "<tool_call><function=f><parameter=a>\n</parameter>"),
    *("</parameter>", "</parameter> ", "</function></tool_call>", "<", "\\", " ", "\n", "[", '"', "'''", "\n "),
    *("f(a=1),", "a=from=", "***", "- ", "1+", ".a", "lambda:"),
]


@EVERY
@pytest.mark.parametrize("unit", HOSTILE)
def test_work_grows_with_the_text_alone(name, unit):
    """Counted as calls of functions, Python's and C's alike; what C does inside one is bounded by the test's time."""

    def work(size):
        body = unit * (size // len(unit))
        counted = 0

        def count(frame, event, argument):
            nonlocal counted
            counted += event in ("call", "c_call")

        texts = [body, OPENERS[name] + body]
        sys.setprofile(count)
        try:
            for text in texts:
                check(FORMATS[name].parse(text))
        finally:
            sys.setprofile(None)
        return counted

    small, large = work(4_000), work(40_000)
    assert large <= 12 * small + 2_000
    for text in (unit * (1_000_000 // len(unit)), OPENERS[name] + unit * (1_000_000 // len(unit))):
        check(FORMATS[name].parse(text))


@pytest.mark.parametrize("end", ["</parameter>", "x</parameter>", "\n</parameter>", "</parameter>\n", ""])
def test_a_megabyte_of_parameters(end):
    parameters = "".join(f"<parameter=p{i}>\n{end}" for i in range(40_000))
    check(FORMATS["qwen3-coder"].parse(f"<tool_call><function=f>{parameters}</function></tool_call>"))
    check(FORMATS["qwen3-coder"].parse(f"<tool_call><function=f>{parameters}"))


@EVERY
def test_a_reply_of_a_megabyte(name):
    call = ToolCall(name="f", arguments={"text": "0123456789\n'\"\\" * 25_000, "n": 1})
    parsed = FORMATS[name].parse("x" * 500_000 + "\n" + FORMATS[name].write(call), tools=[schema_of(call)])
    assert parsed.tool_calls == [call]
    assert len(parsed.answer) == 500_000


@EVERY
def test_nothing_is_evaluated(name, tmp_path):
    ran = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(ran)!r}).touch()"
    for body in (f"[f(a={code})]", f"[{code}]", f"[f(**{{'a': {code}}})]", code):
        for text in (body, f"<tool_call>{body}</tool_call>", f"<function=f>{body}</function>", f"<|python_tag|>{body}"):
            for call in FORMATS[name].parse(text).tool_calls:
                assert call.error
    tags = f"<tool_call><function=f><parameter=a>{code}</parameter></function></tool_call>"
    FORMATS["qwen3-coder"].parse(tags, tools=[schema_of(ToolCall(name="f", arguments={"a": {}}))])
    assert not ran.exists()


@EVERY
def test_descriptions_teach_the_format_and_hold_the_schemas(name):
    tool = ToolSchema(name="run", description="é", parameters={"type": "object", "properties": {"x": {}}})
    text = FORMATS[name].describe([tool])
    assert next(each.name for each in FORMATS.values() if each.matches(text)) == name
    assert '"run"' in text
    assert "é" in text
