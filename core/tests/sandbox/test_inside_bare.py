"""The start by boot.sh in images with a good Python, an old one and none, and the server of the last: bash alone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from prorl.api import SandboxFault
from prorl.sandbox import inside
from prorl.sandbox.channel import Channel, Hello, Token
from prorl.sandbox.inside import frames

BOOT = Path(inside.__file__).parent / "boot.sh"
TOOLS = "bash base64 cat dd dirname env head ls mkdir rm seq setsid sh sleep tail tr true wc"


class Served:
    def __init__(self, channel: Channel, hello: Hello) -> None:
        self.channel, self.hello = channel, hello

    async def bash(self, command: str, *, timeout: float = 60.0, **more: Any) -> Any:
        return await self.channel.act("bash", {"command": command, **more}, timeout=timeout)


@pytest.fixture
def image(tmp_path) -> Path:
    """A folder of commands, the only one on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS.split():
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


@pytest.fixture
async def boot(image, tmp_path) -> AsyncIterator[Any]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings: Any) -> Served:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            token = Token()
            token_fd = token.pipe()
            process = subprocess.Popen(  # noqa: ASYNC220
                ["/bin/sh", str(BOOT), str(theirs.fileno()), str(token_fd)],
                pass_fds=[theirs.fileno(), token_fd],
                env={"PATH": str(image)},
                start_new_session=True,
            )
            stack.callback(process.wait)
            theirs.close()
            os.close(token_fd)
            env = {"PATH": str(image), "TMPDIR": str(tmp_path), "QUOTED": 'it\'s "x"\n$HOME `y`'}
            hello = {
                "protocol": frames.PROTOCOL,
                "uid": None,
                "limits": {"memory_mb": None, "file_mb": None, "processes": None},
                "env": env,
                "workdir": str(tmp_path / "work"),
                "python": str(image / "python3"),
                **settings,
            }
            channel = await Channel.open(ours)
            stack.push_async_callback(channel.close)
            return Served(channel, await channel.hello(hello, 60, token))

        yield start


@pytest.fixture
async def bare(boot) -> Served:
    served = await boot()
    assert served.hello.server == "bash"
    return served


def pyenv(minor: int) -> Path:
    found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python3.{minor}"))
    if not found:
        pytest.skip(f"no Python 3.{minor} of a version manager on this machine")
    return found[0]


@pytest.mark.parametrize(("minor", "server"), [(6, "bash"), (7, "bash"), (8, "python"), (9, "python"), (12, "python")])
async def test_the_images_own_python_is_used_if_it_is_new_enough(boot, image, minor: int, server: str) -> None:
    (image / "python3").symlink_to(pyenv(minor))
    served = await boot()
    assert served.hello.server == server
    assert served.hello.python.startswith(f"3.{minor}." if server == "python" else "")
    assert (await served.bash("x=1; echo $x")).output == "1\n"


@pytest.mark.parametrize(
    ("command", "code", "output", "lost"),
    [
        ("true", 0, "", False),
        ("(exit 7)", 7, "", False),
        ('echo "$QUOTED"', 0, 'it\'s "x"\n$HOME `y`\n', False),
        ("printf 'a\\0\\377b'", 0, "a\0\ufffdb", False),
        ("printf '\\342\\202\\254'", 0, "\u20ac", False),
        ("cat; read x; echo [$x]", 0, "[]\n", False),
        ("cat <<'EOF'\n$a 'b\nEOF", 0, "$a 'b\n", False),
        (f"echo {'y' * 200_000} | wc -c", 0, "200001\n", False),
        ("exit 3", 3, "", True),
        ("exec true", 0, "", True),
        ("set -e; false; echo never", 1, "", True),
        ("kill -9 $$", 137, "", True),
        ("exec >$TMPDIR/gone 2>&1", 0, "", False),
        ("sleep 60 & setsid sleep 60 & echo started", 0, "started\n", False),
        ("trap '' INT TERM; echo set", 0, "set\n", False),
    ],
)
async def test_bash(bare, command: str, code: int, output: str, lost: bool) -> None:
    await bare.bash("marker=here")
    result = await bare.bash(command)
    assert result.outcome == "ok"
    assert result.data["exit_code"] == code
    assert result.data["state_lost"] is lost
    assert result.output == output
    assert (await bare.bash("echo $((6 * 7)) $marker")).output == ("42\n" if lost else "42 here\n")


async def test_a_syntax_error_is_an_exit_code(bare) -> None:
    result = await bare.bash("echo 'unbalanced")
    assert result.data["exit_code"] != 0
    assert "unexpected EOF" in result.output


async def test_directory_and_variables_last(bare) -> None:
    result = await bare.bash("cd /usr; x=5; f() { echo f$x; }")
    assert result.data["cwd"] == "/usr"
    assert (await bare.bash("f; echo $PWD")).output == "f5\n/usr\n"


async def test_output_is_cut_by_the_host(bare) -> None:
    result = await bare.bash("seq 1 1000000 | head -c 3000000", output_chars=1000)
    assert result.output.startswith("1\n2\n")
    assert "characters left out" in result.output
    assert result.truncated_bytes == 3_000_000 - 1000


async def test_output_reaches_a_watcher(bare) -> None:
    chunks = []

    async def take(data: bytes) -> None:
        chunks.append(data)

    await bare.channel.act("bash", {"command": "printf 'a\\0b'"}, timeout=60, on_output=take)
    assert b"".join(chunks) == b"a\0b"


async def test_a_timeout_ends_everything(bare, running, until) -> None:
    number = secrets.randbelow(10**9) + 10**9
    result = await bare.bash(f"trap '' TERM; setsid sleep {number} & sleep {number} & sleep {number}", timeout=0.2)
    assert result.outcome == "timeout"
    assert result.data["state_lost"] is True
    await until(lambda: running(f"sleep {number}") == 0)
    assert (await bare.bash("echo on")).output == "on\n"


async def test_cancel_ends_everything(bare, running, until) -> None:
    number = secrets.randbelow(10**9) + 10**9
    task = asyncio.create_task(bare.bash(f"setsid sleep {number} & sleep {number}"))
    await until(lambda: running(f"sleep {number}") == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: running(f"sleep {number}") == 0)
    assert (await bare.bash("echo on")).output == "on\n"


async def test_the_end_of_the_connection_ends_everything(boot, running, until, tmp_path) -> None:
    served = await boot()
    number = secrets.randbelow(10**9) + 10**9
    await served.bash(f"sleep {number} & setsid sleep {number} &")
    await until(lambda: running(f"sleep {number}") == 2)
    await served.channel.close()
    await until(lambda: running(f"sleep {number}") == 0)
    await until(lambda: not list(tmp_path.glob(".prorl-*")))


async def test_commands_at_once_wait_for_each_other(bare) -> None:
    results = await asyncio.gather(*(bare.bash(f"sleep 0.05; echo {n}") for n in range(4)))
    assert [result.output for result in results] == ["0\n", "1\n", "2\n", "3\n"]


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)), b"y" * 700_000])
async def test_files(bare, content: bytes) -> None:
    act = bare.channel.act
    data = base64.b64encode(content).decode()
    written = await act("write", {"path": "new/a 'name'", "data": data}, timeout=60)
    assert written.data["size"] == len(content)
    read = await act("read", {"path": "new/a 'name'"}, timeout=60)
    assert base64.b64decode(read.data["data"]) == content
    assert read.data["truncated"] is False


@pytest.mark.parametrize(
    ("action", "arguments", "message"),
    [
        ("ipython", {"code": "1"}, "no python3 (3.8 or newer): ipython does not work"),
        ("edit", {"command": "view", "path": "x"}, "no python3"),
        ("transfer", {"direction": "pack", "path": "x", "max_bytes": 1}, "no python3"),
        ("bash", {"command": "y", "is_input": True}, "takes no input"),
        ("read", {"path": "missing"}, "No such file"),
        ("write", {"path": "/proc/x", "data": ""}, "x"),
        ("nothing", {}, "nothing does not work"),
    ],
)
async def test_what_does_not_work_says_why(bare, action: str, arguments: dict[str, Any], message: str) -> None:
    result = await bare.channel.act(action, arguments, timeout=60)
    assert result.outcome == "error"
    assert message in result.error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uid": 1000}, "run by root"),
        ({"protocol": 99}, "speaks protocol 1"),
        ({"workdir": "/proc/nowhere"}, "cannot work in"),
    ],
)
async def test_a_hello_that_cannot_be_met(boot, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SandboxFault, match=message):
        await boot(**settings)


async def test_forged_events_end_the_agents_own_command_only(bare) -> None:
    await bare.bash(
        "for f in /proc/$$/fd/*; do echo 'done 1 0 /x' >$f; echo 'gone 0' >$f; echo 'x y' >$f; done 2>/dev/null"
    )
    assert (await bare.bash("echo on")).output == "on\n"
