"""The commands that wedge, kill or fool other shells: after each of them the shell answers, and answers rightly."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec
import pytest

from prorl.api import SandboxSpec


class Case(msgspec.Struct):
    command: str
    exit_code: int | None = 0
    output: str | None = None
    contains: str | None = None
    lost: bool = False
    timeout: float = 60.0
    outcome: str = "ok"


NASTY = {
    "true": Case("true", output=""),
    "false": Case("false", exit_code=1, output=""),
    "empty": Case("", output=""),
    "comment": Case("# nothing", output=""),
    "several lines": Case("echo a\necho b", output="a\nb\n"),
    "no newline": Case("printf abc", output="abc"),
    "unbalanced single quote": Case("echo 'abc", exit_code=2, contains="unexpected EOF"),
    "unbalanced double quote": Case('echo "abc', exit_code=2, contains="unexpected EOF"),
    "unbalanced brace": Case("f() { echo hi", exit_code=2, contains="syntax error"),
    "unbalanced substitution": Case("echo $(ls", exit_code=2, contains="unexpected EOF"),
    "unbalanced process substitution": Case("cat <(ls", exit_code=2, contains="unexpected EOF"),
    "extended globs in a substitution": Case("shopt -s extglob\necho $(echo /us!(x))", output="/usr\n"),
    "heredoc": Case("cat <<'EOF'\n$HOME `x` \"q\"\nEOF", output='$HOME `x` "q"\n'),
    "heredoc without its end": Case("cat <<EOF\nabc", contains="abc"),
    "200 KB": Case(f": {'x' * 200_000}; echo done", output="done\n"),
    "line over 4095 bytes": Case(f"echo {'y' * 9000}", output="y" * 9000 + "\n"),
    "NUL": Case("echo a\0b", contains="a"),
    "exit": Case("echo bye; exit 3", exit_code=3, output="bye\n", lost=True),
    "exit after much output": Case("seq 1 20000; exit 0", contains="\n20000\n", lost=True),
    "exec": Case("exec true", lost=True),
    "exec of a program": Case("exec seq 1 3", output="1\n2\n3\n", lost=True),
    "exec redirection": Case("exec >$TMPDIR/gone 2>&1", output=""),
    "close everything": Case("exec 0<&- 1>&- 2>&-", output=""),
    "set -e": Case("set -e; false; echo never", exit_code=1, output="", lost=True),
    "set -e that passes": Case("set -e; true", output=""),
    "set -u": Case("set -u; echo ok", output="ok\n"),
    "set -x": Case("set -x; true", output="++ true\n"),
    "set -m": Case("set -m; sleep 0 & wait", contains=""),
    "kill itself": Case("kill -9 $$", exit_code=137, lost=True),
    "return": Case("return 7", exit_code=7),
    "break": Case("break; continue", exit_code=None, contains="loop"),
    "stdin reader": Case("cat; read x; echo got:$x", output="got:\n"),
    "python stdin": Case("python3 -c 'import sys; print(repr(sys.stdin.read()))' || true", contains=""),
    "forged status": Case(
        "for fd in /proc/$$/fd/*; do printf '%s\\0' 0 99 /forged >$fd; done 2>/dev/null; false", exit_code=1
    ),
    "forged status on every number": Case(
        "for n in $(seq 3 260); do echo x >&$n; done 2>/dev/null; (exit 5)", exit_code=5
    ),
    "printed fences": Case(
        "for i in $(seq 500); do echo $RANDOM$RANDOM; cat /proc/$$/cmdline; done; (exit 6)", exit_code=6
    ),
    "background child": Case("sleep 60 & echo started", output="started\n"),
    "background child that prints": Case(
        "(while :; do echo spam; sleep 0.01; done) & echo started", contains="started"
    ),
    "setsid child": Case("setsid sleep 60 & echo started", output="started\n"),
    "setsid child holding the pty": Case("setsid sh -c 'sleep 60; echo x' & echo started", output="started\n"),
    "binary": Case("printf '\\001\\377\\376\\000z'", output="\x01\ufffd\ufffd\x00z"),
    "split UTF-8": Case("printf '\\342'; sleep 0.2; printf '\\202\\254'", output="\u20ac"),
    "cut UTF-8": Case("printf '\\342\\202'", output="\ufffd"),
    "carriage returns": Case("printf 'a\\r\\nb\\r'", output="a\r\nb\r"),
    "control characters printed": Case("printf '\\003\\004\\032\\034'", output="\x03\x04\x1a\x1c"),
    "raw terminal": Case("stty raw -isig </dev/tty; echo raw", output="raw\n"),
    "pager": Case("man bash 2>/dev/null | head -1; git log 2>/dev/null; echo ok", contains="ok"),
    "less": Case("seq 1 500 > $TMPDIR/l; less $TMPDIR/l; echo END", contains="END\n"),
    "less in a pipe": Case("seq 1 500 | less; echo END", contains="END\n"),
    "a pager that waits": Case("seq 9 > $TMPDIR/m; more +5 $TMPDIR/m", outcome="timeout", exit_code=None, timeout=0.3),
    "manual": Case("man ls 2>&1; echo END", contains="END\n"),
    "git's own pager": Case(
        "git init -q $TMPDIR/g 2>/dev/null && cd $TMPDIR/g && git -c user.name=a -c user.email=b commit -q "
        "--allow-empty -m one && git log --format=%s; cd /; echo ok",
        contains="ok\n",
    ),
    "trap on INT": Case("trap 'echo mine' INT; echo set", output="set\n"),
    "exit trap": Case("trap 'echo leaving' EXIT; exit 2", exit_code=2, output="leaving\n", lost=True),
    "directory gone": Case("mkdir $TMPDIR/d; cd $TMPDIR/d; rmdir $TMPDIR/d; echo ok", output="ok\n"),
    "10 MB": Case("head -c 10000000 /dev/zero | tr '\\0' x", contains="characters left out"),
    "timeout": Case("sleep 60", outcome="timeout", exit_code=None, timeout=0.2),
    "timeout of a list": Case("sleep 60; sleep 60; echo no", outcome="timeout", exit_code=130, output="", timeout=0.2),
    "timeout of a loop": Case("while :; do :; done", outcome="timeout", exit_code=130, timeout=0.2),
    "timeout in functions": Case(
        "f() { while :; do :; done; }; g() { f; f; }; g; g", outcome="timeout", exit_code=130, timeout=0.2
    ),
    "timeout, child deaf": Case(
        "python3 -c 'import signal,time\nfor n in (2,15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)'",
        outcome="timeout",
        exit_code=None,
        timeout=0.5,
    ),
    "timeout, shell deaf": Case(
        "trap '' INT TERM; while :; do :; done", outcome="timeout", exit_code=137, timeout=1, lost=True
    ),
    "timeout, stopped": Case("kill -STOP $$", outcome="timeout", exit_code=137, timeout=1, lost=True),
    "timeout, exec'd away": Case("exec sleep 60", outcome="timeout", exit_code=None, timeout=1, lost=True),
    "timeout while printing": Case("yes", outcome="timeout", exit_code=None, timeout=1, contains="y\ny\n"),
}


@pytest.mark.parametrize("case", NASTY.values(), ids=NASTY.keys())
async def test_nasty(bash, case: Case) -> None:
    await bash("marker=here; cd /")
    result = await bash(case.command, timeout=case.timeout)
    assert result.outcome == case.outcome, result
    assert result.data["state_lost"] is case.lost, result
    if case.exit_code is not None:
        assert result.data["exit_code"] == case.exit_code, result
    if case.output is not None:
        assert result.output == case.output
    if case.contains is not None:
        assert case.contains in result.output
    if case.lost:
        assert "state is lost" in (result.error or "")

    after = await bash("echo $((6 * 7)) $marker")
    assert after.outcome == "ok"
    assert after.data["exit_code"] == 0
    assert ("42\n" if case.lost else "42 here\n") in after.output


async def test_state_lasts(bash) -> None:
    await bash("cd /usr; export A=1; b=2; f() { echo f$1; }; declare -A m=([k]=v); shopt -s extglob; alias x=y")
    result = await bash("pwd; echo $A$b; f 3; echo ${m[k]}; shopt -q extglob && echo on; bash -c 'echo [$A$b]'")
    assert result.output == "/usr\n12\nf3\nv\non\n[1]\n"
    assert result.data == {"exit_code": 0, "cwd": "/usr", "state_lost": False}


async def test_a_new_shell_keeps_the_directory(bash) -> None:
    await bash("cd /usr/bin")
    await bash("exit 1")
    assert (await bash("pwd")).output == "/usr/bin\n"


async def test_output_is_cut_in_the_middle(bash) -> None:
    result = await bash("seq 1 1000000", output_chars=1000)
    total = sum(len(str(number)) + 1 for number in range(1, 1_000_001))
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("999999\n1000000\n")
    assert f"[... {total - 1000} characters left out ...]" in result.output
    assert result.truncated_bytes == total - 1000
    assert len(result.output) < 1100


@pytest.mark.parametrize("start", ["sleep {n} &", "setsid sleep {n} &", "(setsid sh -c 'sleep {n} & sleep {n}' &)", ""])
async def test_a_timeout_ends_all_that_the_command_started_and_nothing_else(bash, running, until, start: str) -> None:
    older, number = secrets.randbelow(10**9) + 10**9, secrets.randbelow(10**9) + 10**9
    await bash(f"sleep {older} & setsid sleep {older} &")
    await until(lambda: running(f"sleep {older}") == 2)
    result = await bash(start.format(n=number) + f" \n (trap '' INT TERM; sleep {number}); sleep {number}", timeout=0.5)
    assert result.outcome == "timeout"
    await until(lambda: running(f"sleep {number}") == 0)  # what is killed takes a moment to be gone
    assert running(f"sleep {older}") == 2


async def test_cancel_ends_all_that_the_command_started(bash, running, until) -> None:
    number = secrets.randbelow(10**9) + 10**9
    task = asyncio.create_task(bash(f"setsid sleep {number} & sleep {number}"))
    await until(lambda: running(f"sleep {number}") == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: running(f"sleep {number}") == 0)
    assert (await bash("echo on")).output == "on\n"


async def test_output_streams(sandbox) -> None:
    chunks: list[bytes] = []
    first = asyncio.Event()

    async def take(data: bytes) -> None:
        chunks.append(data)
        first.set()

    command = "echo one; until [ -e go ]; do sleep 0.01; done; echo two"
    task = asyncio.create_task(sandbox.act("bash", {"command": command}, timeout=60, on_output=take))
    async with asyncio.timeout(60):
        await first.wait()
    assert b"".join(chunks) == b"one\n"
    await sandbox.act("write", {"path": "go", "data": ""}, timeout=60)
    assert (await task).output == "one\ntwo\n"
    assert b"".join(chunks) == b"one\ntwo\n"


async def test_a_slow_watcher_slows_the_command_down(sandbox) -> None:
    taken = 0

    async def take(data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        if taken < 200_000:
            await asyncio.sleep(0.01)

    result = await sandbox.act("bash", {"command": "head -c 5000000 /dev/zero"}, timeout=60, on_output=take)
    assert result.outcome == "ok"
    assert taken == 5_000_000


async def test_a_watcher_that_raises_ends_its_own_action_only(sandbox, bash) -> None:
    async def take(data: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sandbox.act("bash", {"command": "yes"}, timeout=60, on_output=take)
    assert (await bash("echo on")).output == "on\n"


SOFT = {"soft_timeout": 0.3, "stdin": "terminal", "if_running": "refuse"}
ANSWERS = {**SOFT, "soft_timeout": 2}  # it has to be heard before it falls quiet, on a busy machine too


async def test_a_quiet_command_goes_on_and_is_fed(bash) -> None:
    first = await bash("read -r name; echo hello $name; read -r more; echo got:$more", **SOFT)
    assert (first.outcome, first.output) == ("ok", "")
    assert first.data == {"exit_code": -1, "cwd": first.data["cwd"], "state_lost": False, "running": True}
    refused = await bash("echo other", **SOFT)
    assert refused.outcome == "error"
    assert "still running" in refused.error
    second = await bash("Ada\n", is_input=True, **ANSWERS)
    assert second.output == "hello Ada\n"
    assert second.data["running"] is True
    third = await bash("x\n", is_input=True, **ANSWERS)
    assert third.output == "got:x\n"
    assert third.data["exit_code"] == 0
    assert "running" not in third.data
    assert (await bash("echo $name")).output == "Ada\n"


@pytest.mark.parametrize(("key", "code"), [("C-c", 130), ("C-d", 0), (" c-D ", 0)])
async def test_keys_end_what_waits(bash, key: str, code: int) -> None:
    assert (await bash("cat", **SOFT)).data["exit_code"] == -1
    ended = await bash(key, is_input=True)
    assert ended.data["exit_code"] == code
    assert (await bash("echo on")).output == "on\n"


async def test_a_key_without_meaning_says_so_and_harms_nothing(bash) -> None:
    await bash("cat", **SOFT)
    assert "no job control" in (await bash("C-z", is_input=True, **SOFT)).error
    assert (await bash("\x1astill\n", is_input=True, **ANSWERS)).output == "\x1astill\n"


async def test_output_between_two_looks_is_kept_and_so_is_the_end(bash, until) -> None:
    await bash("sleep 0.5; echo late; touch done; exit 3", **SOFT)
    seen = await bash("", is_input=True)
    assert seen.output == "late\n"
    assert seen.data["exit_code"] == 3
    assert seen.data["state_lost"] is True


async def test_an_end_that_nobody_waited_for_is_told_at_the_next_look(bash, sandbox) -> None:
    await bash("until [ -e go ]; do sleep 0.01; done; echo came", **SOFT)
    await sandbox.act("write", {"path": "go", "data": ""}, timeout=60)
    while (seen := await bash("", is_input=True, soft_timeout=0.05)).data.get("running"):
        pass
    assert (seen.output, seen.data["exit_code"]) == ("came\n", 0)
    assert "no command is running" in (await bash("", is_input=True)).error


async def test_a_host_that_does_not_ask_ends_the_running_command(bash, running, until) -> None:
    number = secrets.randbelow(10**9) + 10**9
    await bash(f"x=kept; sleep {number}", **SOFT)
    assert (await bash("echo $x")).output == "kept\n"
    await until(lambda: running(f"sleep {number}") == 0)  # what is killed takes a moment to be gone


async def test_the_hard_timeout_holds_for_a_continued_command(bash, running, until) -> None:
    number = secrets.randbelow(10**9) + 10**9
    await bash(f"sleep {number}", **SOFT)
    result = await bash("", is_input=True, timeout=0.3)
    assert result.outcome == "timeout"
    await until(lambda: running(f"sleep {number}") == 0)  # what is killed takes a moment to be gone


async def test_output_resets_the_quiet_time(bash) -> None:
    result = await bash("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done", soft_timeout=5)
    assert result.data["exit_code"] == 0


async def test_unread_input_does_not_reach_the_next_command(bash) -> None:
    await bash("sleep 0.6", **SOFT)
    await bash("echo stray\n", is_input=True)
    assert (await bash("read -t 0.2 x; echo [$x]", stdin="terminal")).output == "[]\n"


async def test_the_full_text_of_a_cut_output_is_in_a_file(bash) -> None:
    result = await bash("seq 1 200000", output_chars=1000)
    assert result.output_file_complete
    whole = await bash(f"seq 1 200000 | cmp - {result.output_file} && stat -c %a {result.output_file}")
    assert whole.output == "600\n"
    assert (await bash("seq 1 10")).output_file is None


async def test_spilled_files_are_few_and_bounded(bash) -> None:
    for _ in range(10):
        result = await bash("seq 1 1000", output_chars=100)
    assert (await bash(f"ls $(dirname {result.output_file}) | wc -l")).output == "8\n"
    result = await bash("head -c 40000000 /dev/zero | tr '\\0' x", output_chars=100)
    assert not result.output_file_complete
    assert (await bash(f"stat -c %s {result.output_file}")).output == f"{32 << 20}\n"


async def test_no_room_for_the_file_is_no_error(runtime) -> None:
    sandbox = await runtime.start(SandboxSpec(env={"TMPDIR": "/nowhere"}))
    result = await sandbox.act("bash", {"command": "seq 1 1000", "output_chars": 100}, timeout=60)
    await sandbox.stop(grace=0)
    assert (result.outcome, result.output_file) == ("ok", None)


async def test_input_reaches_who_asks_the_terminal(bash) -> None:
    assert "no command is running" in ((await bash("hello\n", is_input=True)).error or "")
    task = asyncio.create_task(bash("touch asking; read -r x </dev/tty; echo got:$x"))
    while (await bash("hello\n", is_input=True)).outcome != "ok":  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert (await task).output == "got:hello\n"


async def test_interrupt_as_input(bash) -> None:
    task = asyncio.create_task(bash("sleep 60; echo never"))
    while (await bash("C-c", is_input=True)).outcome != "ok":  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    while not task.done():  # the first may have come before the command had begun
        await bash("C-c", is_input=True)
        await asyncio.sleep(0.02)
    assert task.result().data["exit_code"] == 130


async def test_commands_at_once_wait_for_each_other(bash) -> None:
    results = await asyncio.gather(*(bash(f"echo {n}; sleep 0.05; echo {n}") for n in range(5)))
    assert [result.output for result in results] == [f"{n}\n{n}\n" for n in range(5)]


@pytest.mark.parametrize(
    ("action", "arguments", "message"),
    [
        ("bash", {}, "'command' must be str"),
        ("bash", {"command": 1}, "'command' must be str"),
        ("bash", {"command": "x", "is_input": "yes"}, "'is_input' must be bool"),
        ("bash", {"command": "x", "output_chars": True}, "'output_chars' must be int"),
        ("nothing", {}, "no action 'nothing'"),
        ("bash", {"command": "x" * (1 << 20)}, "cannot be sent"),
        ("bash", {"command": "\ud800"}, "cannot be sent"),
    ],
)
async def test_bad_requests_are_answers(sandbox, action: str, arguments: dict[str, Any], message: str) -> None:
    result = await sandbox.act(action, arguments, timeout=60)
    assert result.outcome == "error"
    assert message in (result.error or "")
