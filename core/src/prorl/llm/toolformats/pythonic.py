"""``[f(a=1), g(b="x")]``: a Python list of calls, as Llama 3.2, Llama 4, ToolACE and others write them.

The list's end is found first, which bounds its size and depth; then it is parsed to a tree of which only literals are
read. Nothing is evaluated. What Python refuses but every model writes is mended first: line breaks inside a plain
string, and parameters named like one of Python's own words.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Sequence
from typing import Any

from prorl.api.llm import ToolSchema
from prorl.llm.toolformats.base import ParsedReply, function_form
from prorl.llm.toolformats.hermes import wrapped
from prorl.llm.toolformats.reading import Read, broken, opening, read_reply, to_call
from prorl.llm.toolformats.values import MOST_DEPTH, literal, parse_python, shown
from prorl.wire.trajectory import ToolCall

_MOST_SOURCE = 1_000_000  # characters
_OPENERS = opening(r"(?:^[ \t]*|(?<=</think>)|<\|python_(?:tag|start)\|>\s*)\[(?=\s*(?P<first>[A-Za-z_][\w.]*)\s*\()")
_TAUGHT = re.compile(r"\[\w+\(\w+=")
_WORDS = "|".join(word for word in keyword.kwlist if word.islower())
_TOKEN = re.compile(
    r"(?P<string>(?P<quote>\"\"\"|'''|\"|'))"
    r"|(?P<open>[\[({])|(?P<close>[\])}])"
    rf"|(?<=[(,\s])(?P<word>{_WORDS})(?=\s*=(?!=))"
)
_STRING_ENDS = {
    '"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL),
    "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""', re.DOTALL),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL),
}
_RAW = re.compile(r"\\.|[\n\r\0]", re.DOTALL)
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\0": "\\x00"}
_MARK = "__is_a_parameter"
_AFTER = re.compile(r"\s*<\|python_end\|>")


class PythonicFormat:
    name = "pythonic"
    how = 'write [NAME(PARAMETER=VALUE, ...), ...] with plain values such as 1, "text", True, None, [1, 2], {"a": 1}'

    def matches(self, rendered: str) -> bool:
        return _TAUGHT.search(rendered) is not None

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        signatures = "\n\n".join(json.dumps(function_form(tool), indent=4, ensure_ascii=False) for tool in tools)
        return (
            "You may call functions. If you decide to invoke any of them, you MUST put the calls in the format of "
            "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)] and nothing "
            f"else.\n\nHere is a list of functions in JSON format:\n\n{signatures}"
        )

    def wrap_response(self, body: str) -> str:
        return wrapped(body)

    def write(self, *calls: ToolCall) -> str:
        return f"[{', '.join(map(_written, calls))}]"

    def parse(self, text: str, *, thinking: bool = False, tools: Sequence[ToolSchema] = ()) -> ParsedReply:
        known = {tool.name for tool in tools}

        def read(text: str, found: re.Match[str]) -> Read | None:
            return self._read(text, found, known)

        return read_reply(text, _OPENERS, read, how=self.how, thinking=thinking)

    def _read(self, text: str, found: re.Match[str], known: set[str]) -> Read | None:
        first = found["first"]
        # Brackets at the beginning of a line need not be a call: only one of a tool that exists can be a bad one.
        doubtful = first not in known
        try:
            source, end = _list_of_calls(text, found.end() - 1)
        except ValueError as error:
            return None if doubtful else Read([broken(str(error), self.how, first)], len(text))
        if after := _AFTER.match(text, end):
            end = after.end()
        try:
            tree = parse_python(source)
        except ValueError as error:
            return None if doubtful else Read([broken(f"the calls cannot be read ({error})", self.how, first)], end)
        if not (isinstance(tree, ast.List) and all(isinstance(item, ast.Call) for item in tree.elts)):
            return None if doubtful else Read([broken("the list must hold calls only", self.how, first)], end)
        calls = [self._call(item) for item in tree.elts if isinstance(item, ast.Call)]
        if doubtful and all(call.error is not None for call in calls):
            return None
        return Read(calls, end)

    def _call(self, node: ast.Call) -> ToolCall:
        name = _dotted(node.func)
        if node.args:
            return broken("every argument needs the name of its parameter", self.how, name)
        arguments: dict[str, Any] = {}
        try:
            for key, value in (pair for given in node.keywords for pair in _pairs(given)):
                if key in arguments:
                    return broken(f"the parameter {shown(key)} stands twice", self.how, name)
                arguments[key] = value
        except ValueError as error:
            return broken(f"the arguments cannot be read ({error})", self.how, name)
        return to_call(name, arguments, self.how)


def _list_of_calls(text: str, start: int) -> tuple[str, int]:
    """The list that begins at ``start``, mended, and where it ends. Raises ``ValueError``."""
    parts: list[str] = []
    at, mark, depth = start, start, 0
    while (token := _TOKEN.search(text, at)) is not None and token.start() - start <= _MOST_SOURCE:
        at = token.end()
        if token["string"]:
            if (end := _STRING_ENDS[token["quote"]].match(text, at)) is None:
                raise ValueError(f"a string is not closed by {token['quote']}")
            at = end.end()
            if len(token["quote"]) == 1:
                parts += text[mark : token.end()], _RAW.sub(_escaped, end[0])
                mark = at
        elif token["word"]:
            parts += text[mark:at], _MARK
            mark = at
        else:
            depth += 1 if token["open"] else -1
            if depth > MOST_DEPTH:
                raise ValueError("the calls are nested too deeply")
            if depth == 0:
                return "".join([*parts, text[mark:at]]), at
    raise ValueError("the list of calls is too long" if token else "the list of calls is not closed by ]")


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], found[0])


def _pairs(given: ast.keyword) -> list[tuple[str, Any]]:
    if given.arg is not None:
        return [(given.arg.removesuffix(_MARK), literal(given.value))]
    if isinstance(given.value, ast.Dict):  # f(**{"a-b": 1}), for what is no name in Python
        return list(literal(given.value).items())
    raise ValueError("** takes a dict that is written out")


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _written(call: ToolCall) -> str:
    plain = {key: value for key, value in call.arguments.items() if _is_name(key)}
    other = {key: value for key, value in call.arguments.items() if key not in plain}
    parts = [*(f"{key}={value!r}" for key, value in plain.items()), *([f"**{other!r}"] if other else [])]
    return f"{call.name}({', '.join(parts)})"


def _is_name(key: str) -> bool:
    return key.isascii() and key.isidentifier() and not keyword.iskeyword(key) and not key.endswith(_MARK)
