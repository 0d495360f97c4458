"""Small files, in and out."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from prorl.api import SandboxSpec


@pytest.fixture
def put(sandbox):
    async def write(path: str, content: bytes) -> Any:
        data = base64.b64encode(content).decode()
        return await sandbox.act("write", {"path": path, "data": data}, timeout=60)

    return write


@pytest.fixture
def get(sandbox):
    async def read(path: str, **more: Any) -> Any:
        return await sandbox.act("read", {"path": path, **more}, timeout=60)

    return read


@pytest.mark.parametrize("content", [b"", b"text\n", bytes(range(256)), b"x" * 700_000])
async def test_round_trip(put, get, sandbox, content: bytes) -> None:
    written = await put("some/new/folder/f", content)
    assert written.data == {"path": f"{sandbox.workdir}/some/new/folder/f", "size": len(content)}
    result = await get("some/new/folder/f")
    assert base64.b64decode(result.data["data"]) == content
    assert result.data["truncated"] is False


async def test_overwriting_shortens(put, get) -> None:
    await put("f", b"a long text")
    await put("f", b"short")
    assert base64.b64decode((await get("f")).data["data"]) == b"short"


async def test_limit(put, get) -> None:
    await put("f", b"0123456789")
    result = await get("f", limit=4)
    assert base64.b64decode(result.data["data"]) == b"0123"
    assert (result.data["size"], result.data["truncated"]) == (10, True)


@pytest.mark.parametrize(
    ("prepare", "path", "message"),
    [
        ("", "missing", "No such file"),
        ("mkdir d", "d", "not a regular file"),
        ("mkfifo p", "p", "not a regular file"),
        ("", "/dev/zero", ""),
        ("", "", "must be the path"),
        ("", "a\0b", "must be the path"),
        ("touch f; chmod 000 f", "f/x", ""),
    ],
)
async def test_what_cannot_be_read_says_why(bash, get, prepare: str, path: str, message: str) -> None:
    await bash(prepare)
    result = await get(path)
    assert result.outcome == "error"
    assert message in result.error


async def test_bad_base64(sandbox) -> None:
    result = await sandbox.act("write", {"path": "f", "data": "%%%"}, timeout=60)
    assert result.outcome == "error"
    assert "base64" in result.error


async def test_local_refuses_paths_that_lead_out(local) -> None:
    sandbox = await local.start(SandboxSpec())
    await sandbox.act("bash", {"command": "ln -s /etc out; ln -s /etc/hostname name"}, timeout=60)
    for path in ("/etc/hostname", "../../../../etc/hostname", "out/hostname", "name", "../owner.json/../../x"):
        for action, more in (("read", {}), ("write", {"data": ""})):
            result = await sandbox.act(action, {"path": path, **more}, timeout=60)
            assert result.outcome == "error", path
            assert "outside of the sandbox" in (result.error or "") or "No such file" in (result.error or ""), path
    await sandbox.stop()
