"""What models really write, format by format: the calls that must be read from it, and the text that must be left."""

import pytest

from prorl.api import ToolSchema
from prorl.llm.toolformats import formats

FORMATS = formats()


def schema(**properties):
    return {"type": "object", "properties": properties}


TOOLS = [
    ToolSchema(
        name="get_weather",
        description="",
        parameters=schema(
            city={"type": "string"},
            days={"type": "integer"},
            metric={"enum": ["celsius", "fahrenheit"]},
            detailed={"type": "boolean"},
            limit={"type": "number"},
            cities={"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            place={"$ref": "#/$defs/Place"},
            since={"type": ["string", "null"]},
            id={"oneOf": [{"type": "integer"}, {"type": "string"}]},
        )
        | {"$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}}}},
    ),
    ToolSchema(name="bash", description="", parameters=schema(command={"type": "string"})),
    ToolSchema(name="finish", description="", parameters=schema()),
]


def bash(command):
    return ("bash", {"command": command})


def weather(**arguments):
    return ("get_weather", arguments)


def tags(call):
    return f"<tool_call>\n{call}\n</tool_call>"


def xml(name, **parameters):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return tags(f"<function={name}>\n{body}</function>")


LONG = "cat > a.py <<'EOF'\nprint('</tool_call>')\n\n\tx = {\"a\": [1, 2]}\nEOF"

# (what was written, the calls, the answer); a call given as a text is a part of its error
HERMES = [
    (tags('{"name": "bash", "arguments": {"command": "ls"}}'), [bash("ls")], ""),
    ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', [bash("ls")], ""),
    ('<tool_call>\n\n {"arguments": {"command": "ls"}, "name": "bash"} \n</tool_call>', [bash("ls")], ""),
    ('I look.\n\n<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>', [("finish", {})], "I look."),
    (tags('{"name": "finish"}'), [("finish", {})], ""),
    (tags('{"name": "bash", "arguments": {"command": "echo \\"a\\"\\n"}}'), [bash('echo "a"\n')], ""),
    (
        tags('{"name": "bash", "arguments": {"command": "a"}}') + "\n" + tags('{"name": "finish", "arguments": {}}'),
        [bash("a"), ("finish", {})],
        "",
    ),
    (tags('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}'), [bash("ls")], ""),
    ('<think>\nI call {"name"}.\n</think>\n\n' + tags('{"name": "finish"}'), [("finish", {})], ""),
    (tags('{"name": "bash", "arguments": {"command": "echo </tool_call>"}}'), [bash("echo </tool_call>")], ""),
    (
        tags('{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "detailed": true, "since": null}}'),
        [weather(city="Zürich", days=3, detailed=True, since=None)],
        "",
    ),
    (tags('{"name": "bash", "arguments": {"command": "ls"}'), ["not valid JSON"], ""),
    (tags('{"name": "bash", "arguments": {"command": "ls"}}}'), ["text after the JSON object"], ""),
    (tags("{'name': 'bash', 'arguments': {'command': 'ls'}}"), ["not valid JSON"], ""),
    (tags('```json\n{"name": "bash", "arguments": {}}\n```'), ["not valid JSON"], ""),
    (tags('{"name": "bash", "arguments": {"command": "a\nb"}}'), ["Invalid control character"], ""),
    (tags('{"name": "bash", "arguments": {"command": "a", "command": "b"}}'), ["'command' stands twice"], ""),
    ('<tool_call>\n{"name": "bash", "arguments": {"command": "l', ["not closed by </tool_call>"], ""),
    ("The JSON {} is not a call.", [], "The JSON {} is not a call."),
]
QWEN3_CODER = [
    (xml("bash", command="ls"), [bash("ls")], ""),
    ("<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>", [bash("ls")], ""),
    (f"I look.\n{xml('bash', command='ls')}", [bash("ls")], "I look."),
    (xml("bash", command=LONG), [bash(LONG)], ""),
    (xml("bash", command="\n  indented\n"), [bash("\n  indented\n")], ""),
    (xml("bash", command=""), [bash("")], ""),
    (xml("finish"), [("finish", {})], ""),
    (tags("<function=finish>\n</function>"), [("finish", {})], ""),
    (xml("bash", command="a") + "\n" + xml("finish"), [bash("a"), ("finish", {})], ""),
    # the opening tag is forgotten now and then
    ("<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", [bash("ls")], ""),
    ("<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>", [bash("ls")], ""),
    (
        xml("get_weather", city="5", days="5", limit="2.5", detailed="true"),
        [weather(city="5", days=5, limit=2.5, detailed=True)],
        "",
    ),
    (xml("get_weather", detailed="False", cities='["NYC"]'), [weather(detailed=False, cities=["NYC"])], ""),
    (xml("get_weather", cities="null", since="null", city="null"), [weather(cities=None, since=None, city="null")], ""),
    (xml("get_weather", cities="['NYC', 'LA']", days=" 3 "), [weather(cities=["NYC", "LA"], days=3)], ""),
    (xml("get_weather", place='{"x": 1.5}', limit="3"), [weather(place={"x": 1.5}, limit=3)], ""),
    (xml("get_weather", id="7", metric="celsius", days="3.0"), [weather(id=7, metric="celsius", days=3)], ""),
    (xml("get_weather", id="seven", days="many", since="2020"), [weather(id="seven", days="many", since="2020")], ""),
    (xml("unheard_of", x="5"), [("unheard_of", {"x": "5"})], ""),
    (xml("bash", unheard_of="[1]"), [("bash", {"unheard_of": "[1]"})], ""),
    (xml("bash", command="echo </parameter> </function>"), [bash("echo </parameter> </function>")], ""),
    ("<think>\nhm\n</think>\n" + xml("bash", command="ls"), [bash("ls")], ""),
    (
        tags("<function=bash>\n<parameter=command>\na\n<parameter=other>\nb\n</parameter>\n</function>"),
        ["'command' is not closed by </parameter>"],
        "",
    ),
    (
        tags(
            "<function=bash>\n<parameter=command>\na\n</parameter>\n<parameter=command>\nb\n</parameter>\n</function>"
        ),
        ["'command' stands twice"],
        "",
    ),
    ("<tool_call>\n<function=bash>\n<parameter=command>\nls -", ["'command' is not closed"], ""),
    ("<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n", ["not closed by </function>"], ""),
    (tags('{"name": "bash", "arguments": {"command": "ls"}}'), ["does not begin with <function=NAME>"], ""),
    (tags("<function=bash\n<parameter=command>\nls\n</parameter>\n</function>"), ["does not begin with"], ""),
    (
        tags("<function=bash>\n<parameter=command>\nls\n</function>") + xml("finish"),
        ["not closed by </parameter>", ("finish", {})],
        "",
    ),
    ("Use a<b and c>d.", [], "Use a<b and c>d."),
]
LLAMA_JSON = [
    ('{"name": "bash", "parameters": {"command": "ls"}}', [bash("ls")], ""),
    ('<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}', [bash("ls")], ""),
    ('<|python_tag|> \n{"name": "bash", "parameters": {"command": "ls"}}', [bash("ls")], ""),
    ('{"name": "bash", "arguments": {"command": "ls"}}', [bash("ls")], ""),
    ('{"type": "function", "name": "bash", "parameters": {"command": "ls"}}', [bash("ls")], ""),
    ('{"type": "function", "function": {"name": "bash", "parameters": {"command": "ls"}}}', [bash("ls")], ""),
    ('{"name": "bash", "parameters": {"command": "a"}}; {"name": "finish", "parameters": {}}', 2, ""),
    ('{"name": "bash", "parameters": {"command": "a"}};{"name": "finish", "parameters": {}}', 2, ""),
    ('{"name": "bash", "parameters": {"command": "a"}} ;\n{"name": "finish", "parameters": {}}', 2, ""),
    ('{"name": "bash", "parameters": {"command": "a"}}\n{"name": "finish", "parameters": {}}', 2, ""),
    ('<|python_tag|>{"name": "bash", "parameters": {"command": "a"}}; {"name": "finish", "parameters": {}}', 2, ""),
    ('I call it: {"name": "bash", "parameters": {"command": "ls"}} Good?', [bash("ls")], "I call it:  Good?"),
    ('{"name": "bash", "parameters": {"command": "x"}} I used {bash}.', [bash("x")], "I used {bash}."),
    ('{"name": "bash", "parameters": {"command": "{a} [b] \\"c\\""}}', [bash('{a} [b] "c"')], ""),
    ('{"name": "get_weather", "parameters": {"place": {"x": 1}}}', [weather(place={"x": 1})], ""),
    ('{"name": "finish"}', [("finish", {})], ""),
    ('{"name": "bash", "parameters": "{\\"command\\": \\"ls\\"}"}', [bash("ls")], ""),
    ('<think>hm</think>\n\n{"name": "bash", "parameters": {"command": "ls"}}', [bash("ls")], ""),
    ('{"name": "Bob", "age": 7}', [], '{"name": "Bob", "age": 7}'),
    ('{"parameters": {}}', [], '{"parameters": {}}'),
    ('The answer is {"name": oops}.', [], 'The answer is {"name": oops}.'),
    ('{"name": "bash", "parameters": {command}}', ["not valid JSON"], ""),
    ('{"name": "bash", "parameters": {"command": "l', ["not valid JSON"], ""),
    ('{"name": "bash", "parameters": ["ls"]}', ['"parameters" must be a JSON object'], ""),
    ('{"name": "finish", "parameters": {}}; {"name": "bash", "param', [("finish", {}), "not valid JSON"], ""),
    ("<|python_tag|>import os\nos.listdir()", ["no JSON object"], ""),
    ('<|python_tag|>brave_search.call(query="x")', ["no JSON object"], ""),
]
TWO = [bash("a"), ("finish", {})]
PYTHONIC = [
    ("[bash(command='ls')]", [bash("ls")], ""),
    ('[bash(command="ls")]', [bash("ls")], ""),
    ("<|python_start|>[bash(command='ls')]<|python_end|>", [bash("ls")], ""),
    ("<|python_tag|>[bash(command='ls')]", [bash("ls")], ""),
    ("[bash(command='a'), finish()]", TWO, ""),
    ("[\n  bash(command='a'),\n  finish(),\n]", TWO, ""),
    ("I look.\n[bash(command='ls')]\n", [bash("ls")], "I look."),
    ("<think>hm</think>[bash(command='ls')]", [bash("ls")], ""),
    ("<think>hm</think>\n\n[bash(command='ls')]", [bash("ls")], ""),
    (
        "[register(name='John Doe', age=37, address={'city': 'X', 'state': 'CA'}, role=None, ok=True, aliases=['J'])]",
        [
            (
                "register",
                {
                    "name": "John Doe",
                    "age": 37,
                    "address": {"city": "X", "state": "CA"},
                    "role": None,
                    "ok": True,
                    "aliases": ["J"],
                },
            )
        ],
        "",
    ),
    ("[f(a={}, b=[], c=(1, 2), d=-1, e=-2.5)]", [("f", {"a": {}, "b": [], "c": [1, 2], "d": -1, "e": -2.5})], ""),
    ("[f(a=null, b=true, c=false)]", [("f", {"a": None, "b": True, "c": False})], ""),
    (r"[get_weather(city='Martha\'s Vineyard', metric='\"cool\"')]", 1, ""),
    ("[a.b.c(x=1)]", [("a.b.c", {"x": 1})], ""),
    ("[bash(command='one\ntwo')]", [bash("one\ntwo")], ""),
    ('[bash(command="""one\n"two"\n""")]', [bash('one\n"two"\n')], ""),
    ("[bash(command='grep \"\\d\" x')]", [bash('grep "\\d" x')], ""),
    ("[f(from=1, in='x', class=None)]", [("f", {"from": 1, "in": "x", "class": None})], ""),
    ("[f(**{'a-b': 1})]", [("f", {"a-b": 1})], ""),
    ("[bash(command='a ]) b')]", [bash("a ]) b")], ""),
    ("[bash('ls')]", ["every argument needs the name"], ""),
    ("[bash(command=b'z'), finish()]", ["not a literal", ("finish", {})], ""),
    ("[bash(command=open('x').read())]", ["Call is not a literal value"], ""),
    ("[bash(command=f'{1+1}')]", ["JoinedStr is not a literal value"], ""),
    ("[bash(command=x)]", ["Name is not a literal value"], ""),
    ("[bash(command='a' * 1000000000)]", ["BinOp is not a literal value"], ""),
    ("[bash(command=1e999)]", ["too large"], ""),
    ("[bash(command='a', command='b')]", ["'command' stands twice"], ""),
    ("[bash(command={1: 2})]", ["must be strings"], ""),
    ("[bash(command='ls'", ["not closed by ]"], ""),
    ("[bash(command='ls)]", ["a string is not closed"], ""),
    ("[bash(command='a 'b', c='d')]", ["a string is not closed"], ""),
    ("[bash(command='a' b)]", ["cannot be read"], ""),
    ("[bash(command='ls'), 5]", ["calls only"], ""),
    ("[f(x) for x in y]", [], "[f(x) for x in y]"),
    ("[link(1)](http://example.org)", [], "[link(1)](http://example.org)"),
    ("The list [f(1)] is short.", [], "The list [f(1)] is short."),
]
FUNCTION_TAG = [
    ('<function=bash>{"command": "ls"}</function>', [bash("ls")], ""),
    ('<function=bash>\n{"command": "ls"}\n</function>', [bash("ls")], ""),
    ("<function=finish>{}</function>", [("finish", {})], ""),
    ('I look. <function=bash>{"command": "ls"}</function>', [bash("ls")], "I look."),
    ('<function=bash>{"command": "a"}</function><function=finish>{}</function>', TWO, ""),
    ('<function=bash>{"command": "a"}</function>\n<function=finish>{}</function>', TWO, ""),
    ('<function=bash>{"command": "echo </function>"}</function>', [bash("echo </function>")], ""),
    ('<function= bash >{"command": "ls"}</function>', [bash("ls")], ""),
    ('<think>hm</think>\n<function=bash>{"command": "ls"}</function>', [bash("ls")], ""),
    ('<function=get_weather>{"place": {"x": 1}, "days": 2}</function>', [weather(place={"x": 1}, days=2)], ""),
    ('<function=a.b-c>{"x": 1}</function>', [("a.b-c", {"x": 1})], ""),
    ('<function=bash>{"command": "l', ["not closed by </function>"], ""),
    ('<function=bash>{"command": "ls"}', ["not closed by </function>"], ""),
    ("<function=bash>{'command': 'ls'}</function>", ["not valid JSON"], ""),
    ("<function=bash></function>", ["not valid JSON"], ""),
    ('<function=bash>["ls"]</function>', ["must be an object"], ""),
    ('<function=bash>{"command": "a"} and so on</function>', ["text after the JSON object"], ""),
    ('<function=>{"command": "a"}</function>', ["no name"], ""),
    ('<function=bash{"command": "a"}</function>', ["is not complete"], ""),
    ('<function=bash>{"command": "a", "command": "b"}</function>', ["'command' stands twice"], ""),
    ("<function=bash>oops</function><function=finish>{}</function>", ["not valid JSON", ("finish", {})], ""),
    ("Call a <function> now.", [], "Call a <function> now."),
]
CORPUS = {
    "hermes": HERMES,
    "qwen3-coder": QWEN3_CODER,
    "llama-json": LLAMA_JSON,
    "pythonic": PYTHONIC,
    "function-tag": FUNCTION_TAG,
}


def test_every_format_has_its_samples():
    assert set(CORPUS) == set(FORMATS)
    assert all(len(samples) >= 15 for samples in CORPUS.values())


@pytest.mark.parametrize(
    ("name", "text", "calls", "answer"), [(name, *sample) for name, samples in CORPUS.items() for sample in samples]
)
def test_samples(name, text, calls, answer):
    parsed = FORMATS[name].parse(text, tools=TOOLS)
    assert parsed.answer == answer
    assert not parsed.thinking
    if isinstance(calls, int):
        calls = TWO if calls == 2 else [weather(city="Martha's Vineyard", metric='"cool"')]
    assert len(parsed.tool_calls) == len(calls), parsed.tool_calls
    for made, expected in zip(parsed.tool_calls, calls, strict=True):
        if isinstance(expected, str):
            assert made.error is not None
            assert expected in made.error
            assert FORMATS[name].how in made.error, "says how a call is written"
            assert len(made.error) < 400
            assert made.arguments == {}
        else:
            assert made.error is None
            assert (made.name, made.arguments) == expected
            assert [type(value) for value in made.arguments.values()] == [type(v) for v in expected[1].values()]


@pytest.mark.parametrize("name", FORMATS)
def test_the_parts_of_a_reply(name):
    format_ = FORMATS[name]
    [good] = format_.parse(next(text for text, calls, _ in CORPUS[name] if calls == [bash("ls")])).tool_calls
    call = format_.write(good)
    parsed = format_.parse(f"<think>\nI think.\n</think>\n\nI look.\n{call}", tools=TOOLS)
    assert (parsed.reasoning, parsed.answer) == ("I think.", "I look.")
    assert parsed.content == "<think>\nI think.\n</think>\n\nI look."
    assert parsed.tool_calls == [good]

    opened = format_.parse(f"I think.\n</think>\n\nI look.\n{call}", thinking=True, tools=TOOLS)
    assert (opened.reasoning, opened.answer, opened.tool_calls) == ("I think.", "I look.", [good])
    assert opened.content == "I think.\n</think>\n\nI look."

    unknown = format_.parse(f"I think.\n{call}\n</think>\nI look.", tools=TOOLS)
    assert (unknown.reasoning, unknown.answer, unknown.tool_calls) == (f"I think.\n{call}", "I look.", [])
    assert unknown.content == f"I think.\n{call}\n</think>\nI look."

    drafted = format_.parse(f"<think>\nI could:\n{call}\n", tools=TOOLS)
    assert drafted.thinking
    assert drafted.answer == ""
    assert drafted.reasoning.startswith("I could:")
    [refused] = drafted.tool_calls
    assert "inside thinking" in refused.error


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_cannot_be_read_stays_in_the_content(name):
    bad = next(text for text, calls, _ in CORPUS[name] if isinstance(calls, list) and calls and type(calls[0]) is str)
    parsed = FORMATS[name].parse(bad, tools=TOOLS)
    assert parsed.tool_calls[0].error
    assert parsed.content == bad.rstrip()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", "[f(x) for x in y]"),
        ("pythonic", "[a(b"),
        ("llama-json", '{"name": oops}'),
        ("llama-json", '{"name": "B"}'),
    ],
)
def test_without_tools_brackets_are_an_answer(name, text):
    parsed = FORMATS[name].parse(text)
    assert (parsed.answer, parsed.tool_calls) == (text, [])
