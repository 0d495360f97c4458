"""What a competent policy does with the three repositories: looks, edits, tests, finishes. All by real tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prorl.testing.scripted import ScriptedRequest

DATA = Path(__file__).parent / "data" / "pypi.jsonl"
ROWS: dict[str, dict[str, Any]] = {
    row["repo"].removeprefix("pypi/"): row for row in map(json.loads, DATA.read_text().splitlines())
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def bash(command: str) -> str:
    return call("execute_bash", command=command)


def replace(path: str, old: str, new: str) -> str:
    return call("str_replace_editor", command="str_replace", path=f"/testbed/{path}", old_str=old, new_str=new)


def view(path: str, first: int, last: int) -> str:
    return call("str_replace_editor", command="view", path=f"/testbed/{path}", view_range=[first, last])


FINISH = call("finish", message="It is repaired.")
FIX = {
    "pyflakes": replace(
        "pyflakes/checker.py",
        "        self.handleNodeLoad(node.target)\n        self.handleNode(node.value, node)",
        "        node.target._pyflakes_parent = node\n"
        "        self.handleNodeLoad(node.target)\n"
        "        self.handleNode(node.value, node)",
    ),
    "PyJWT": replace(
        "jwt/api_jwt.py",
        '        if isinstance(issuer, Sequence):\n            if payload["iss"] not in issuer:\n',
        "        if isinstance(issuer, str):\n            issuer = [issuer]\n"
        '        if isinstance(issuer, Sequence):\n            if payload["iss"] not in issuer:\n',
    ),
    "python-multipart": replace(
        "python_multipart/multipart.py",
        "                # Do nothing and just consume a byte in the end state.\n"
        "                if c not in (CR, LF):\n"
        "                    self.logger.warning(\"Consuming a byte '0x%x' in the end state\", c)"
        "  # pragma: no cover\n",
        '                self.logger.warning("Skipping data after last boundary")\n'
        "                i = length\n"
        "                break\n",
    ),
}
# python-multipart: the messages of one line a byte are half of what is slow.
MORE = {
    "python-multipart": [
        replace(
            "python_multipart/multipart.py",
            '                    self.logger.debug("Skipping leading CR/LF at %d", i)\n',
            "",
        )
    ]
}
REPAIR = {
    "pyflakes": [
        bash("echo 'print += 1' | python -m pyflakes 2>&1 | tail -n 2; grep -n 'def AUGASSIGN' pyflakes/checker.py"),
        view("pyflakes/checker.py", 2045, 2056),
        FIX["pyflakes"],
        bash(
            "echo 'print += 1' | python -m pyflakes; python -m pytest -q pyflakes/test/test_other.py 2>&1 | tail -n 3"
        ),
        FINISH,
    ],
    "PyJWT": [
        bash("git log --oneline | cat; grep -n '_validate_iss' -A 14 jwt/api_jwt.py | tail -n 16"),
        FIX["PyJWT"],
        bash("python -m pytest -q tests/test_api_jwt.py 2>&1 | tail -n 3"),
        FINISH,
    ],
    "python-multipart": [
        bash("grep -n 'MultipartState.END:' -A 4 python_multipart/multipart.py"),
        FIX["python-multipart"],
        *MORE["python-multipart"],
        bash("python -m pytest -q tests/test_multipart.py 2>&1 | tail -n 3; git status --short"),
        FINISH,
    ],
}


def repository_of(request: ScriptedRequest) -> str:
    return next(name for name in ROWS if f"pypi/{name} lies in" in request.prompt)


def by_repository(replies: Callable[[str], Sequence[str]]) -> Callable[[ScriptedRequest], str]:
    """A policy whose replies depend on which repository the task is about."""

    def policy(request: ScriptedRequest) -> str:
        said = replies(repository_of(request))
        return said[request.call] if request.call < len(said) else "I have nothing to add."

    return policy
