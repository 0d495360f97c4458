"""IPython with state that lasts, and what happens when a cell does not end, or ends too much."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from prorl.api import SandboxSpec
from prorl.sandbox.bubblewrap import Bubblewrap
from prorl.sandbox.settings import SandboxSettings


async def test_state_lasts(ipython) -> None:
    assert (await ipython("import math\nx = 41")).output == ""
    result = await ipython("x + 1")
    assert result.output == "42\n"
    assert result.data == {"raised": None, "state_lost": False}
    assert (await ipython("math.pi")).output.startswith("3.14159")
    assert (await ipython("_ + 1")).output.startswith("4.14159")


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("print(1)\n2", "1\n2\n"),
        ("print('a', end='')", "a"),
        ("3;", ""),
        ("print('x')\n!echo y\nprint('z')", "x\ny\nz\n"),
        ("import subprocess; print(1); subprocess.run(['echo', '2']); print(3)", "1\n2\n3\n"),
        ("import os; print(1); os.system('echo 2'); print(3)", "1\n2\n3\n"),
        ("files = !echo a b\nfiles", "['a b']\n"),
        ("%env HOME", None),
        ("import asyncio\nawait asyncio.sleep(0)\n'done'", "'done'\n"),
        ("from IPython.display import display, Markdown\ndisplay([1])", "[1]\n"),
        ("print('\\ud800')", "?\n"),
        ("import sys; print(sys.stdin.read() == '')", "True\n"),
        ("import sys; print('e', file=sys.stderr)", "e\n"),
        ("%%bash\necho cell", "cell\n"),
        ("def f():\n    return 1\n\nf()", "1\n"),
        ("", ""),
        ("import os; os.getcwd() == os.environ.get('PWD', os.getcwd())", "True\n"),
    ],
)
async def test_cells(ipython, code: str, output: str | None) -> None:
    result = await ipython(code)
    assert result.outcome == "ok"
    assert result.data["raised"] is None, result.output
    if output is not None:
        assert result.output == output


@pytest.mark.parametrize(
    ("code", "raised", "text"),
    [
        ("1/0", "ZeroDivisionError", "division by zero"),
        ("1 +", "SyntaxError", "invalid syntax"),
        ("input('?')", "RuntimeError", "input() has no one to answer it"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise SystemExit(3)", "SystemExit", "SystemExit"),
        ("%no_such_magic", "UsageError", "not found"),
    ],
)
async def test_errors_are_shown_and_the_state_is_kept(ipython, code: str, raised: str, text: str) -> None:
    await ipython("x = 1")
    result = await ipython(code)
    assert result.outcome == "ok"
    assert text in result.output
    assert "\x1b[" not in result.output
    if raised != "UsageError":
        assert result.data["raised"] == raised
    assert (await ipython("x")).output == "1\n"


async def test_a_timeout_interrupts_and_keeps_the_state(ipython) -> None:
    await ipython("x = 1")
    result = await ipython("import time\nprint('begun')\ntime.sleep(60)", timeout=2)
    assert result.outcome == "timeout"
    assert result.output.startswith("begun\n")
    assert result.data == {"raised": "KeyboardInterrupt", "state_lost": False}
    assert (await ipython("x")).output == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "import signal, time\nsignal.signal(2, signal.SIG_IGN)\nx = 0\nwhile True: time.sleep(1)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["ignores SIGINT", "swallows KeyboardInterrupt", "stopped"],
)
async def test_what_does_not_yield_is_killed(ipython, code: str) -> None:
    await ipython("y = 1")
    result = await ipython(code, timeout=0.3)
    assert result.outcome == "timeout"
    if result.data["state_lost"]:
        assert "state is lost" in (result.error or "")
    assert (await ipython("2")).output == "2\n"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; print('last', flush=True); os._exit(7)", "exit code 7"),
        ("import os; print('last'); os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import ctypes; print('last'); ctypes.string_at(0)", "SIGSEGV"),
        ("import os; print('last'); os.closerange(3, 200)\nimport time; time.sleep(60)", "closed its connection"),
    ],
)
async def test_a_worker_that_dies_is_replaced(ipython, code: str, how: str) -> None:
    result = await ipython(code)
    assert result.outcome == "ok"
    assert result.output.startswith("last\n")
    assert result.data["state_lost"] is True
    assert how in (result.error or "")
    assert "state is lost" in (result.error or "")
    assert (await ipython("2")).output == "2\n"


async def test_frames_forged_by_the_agent_end_its_own_worker_only(ipython, bash) -> None:
    await bash("x=1")
    code = "import os, stat\nfor fd in range(3, 50):\n    try: os.write(fd, b'\\xff' * 100)\n    except OSError: pass"
    await ipython(code)
    assert (await ipython("1 + 1")).output == "2\n"
    assert (await bash("echo $x")).output == "1\n"


async def test_a_timeout_ends_what_the_cell_started(ipython, running, until) -> None:
    number = secrets.randbelow(10**9) + 10**9
    code = f"import subprocess\nsubprocess.Popen(['setsid', 'sleep', '{number}'])\n!sleep {number}"
    assert (await ipython(code, timeout=1)).outcome == "timeout"
    await until(lambda: running(f"sleep {number}") == 0)  # what is killed takes a moment to be gone


async def test_cancel(ipython, running, until) -> None:
    number = secrets.randbelow(10**9) + 10**9
    task = asyncio.create_task(ipython(f"!sleep {number}"))
    await until(lambda: running(f"sleep {number}") > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: running(f"sleep {number}") == 0)
    assert (await ipython("1")).output == "1\n"


async def test_much_output_is_cut(ipython) -> None:
    result = await ipython("print('x' * 3_000_000)")
    assert "characters left out" in result.output
    assert len(result.output) < 31_000


async def test_a_long_cell(ipython) -> None:
    assert (await ipython(f"len('{'x' * 500_000}')")).output == "500000\n"


async def test_bash_and_ipython_side_by_side(ipython, bash) -> None:
    shell, cell = await asyncio.gather(bash("sleep 0.3; echo b"), ipython("print('c')"))
    assert (shell.output, cell.output) == ("b\n", "c\n")


async def test_a_warm_interpreter_is_forked(sandbox, ipython) -> None:
    async with asyncio.timeout(60):
        while not (await sandbox.act("warm", {}, timeout=60)).data["ready"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await ipython("x = 1; x")).output == "1\n"
    assert (await sandbox.act("warm", {}, timeout=60)).data["ready"]
    await ipython("import os; os._exit(0)")
    assert (await ipython("'x' in globals()")).output == "False\n"


async def test_a_bash_only_sandbox_pays_for_no_interpreter(bash) -> None:
    seen = await bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c inside.worke[r]")
    assert seen.output in ("0\n", "1\n")  # the local runtime sees its neighbours
    assert (await bash("ps -o args= --ppid $PPID 2>/dev/null | grep -c worke[r]")).output == "0\n"


async def test_a_killed_zygote_is_replaced(ipython, bash) -> None:
    await ipython("x = 1")
    zygote = "for p in /proc/[0-9]*; do grep -q '^PPid:.'$PPID'$' $p/status 2>/dev/null && grep -qa inside.worker "
    assert (await bash(zygote + "$p/cmdline && kill -9 ${p#/proc/}; done; true")).data["exit_code"] == 0
    last = await ipython("2")  # the worker may have been among them
    assert last.outcome == "ok"
    assert (await ipython("3")).output == "3\n"


async def test_a_timeout_that_comes_before_the_interpreter_is_up(ipython) -> None:
    result = await ipython("1", timeout=0)
    assert result.outcome == "timeout"
    assert (await ipython("2")).output == "2\n"


PNG = (
    "import base64\npng = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUB"
    "AScY42YAAAAASUVORK5CYII=')\nfrom IPython.display import display, Image, SVG, HTML, clear_output\n"
)


async def test_images_are_files(ipython, sandbox, bash) -> None:
    result = await ipython(PNG + "display(Image(png)); clear_output(); Image(png)")
    folder = f"{sandbox.workdir}/images"
    assert result.output == f"[image/png saved to {folder}/cell-1-1.png]\n[image/png saved to {folder}/cell-1-2.png]\n"
    assert (await bash(f"head -c 4 {folder}/cell-1-2.png | tail -c 3")).output == "PNG"
    result = await ipython("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')")
    assert result.output == f"[image/svg+xml saved to {folder}/cell-2-1.svg]\n"
    assert (await ipython("HTML('<b>x</b>')")).output.startswith("<IPython.core.display.HTML object>")
    result = await ipython("for _ in range(25): display(Image(png))")
    assert result.output.count("saved to") == 20
    assert result.output.count("not saved: more than 20") == 5


async def test_an_image_that_cannot_be_saved_says_so(ipython) -> None:
    result = await ipython(PNG + "import os, shutil\nopen('images', 'w').close()\nImage(png)")
    assert "saved to" in result.output  # beside, in the temporary directory


async def test_figures_are_files(ipython, bash) -> None:
    pytest.importorskip("matplotlib")
    result = await ipython("import matplotlib.pyplot as plt\nplt.plot([1, 2]);\nplt.show()\nprint('after')")
    assert "Warning" not in result.output
    assert "after\n[image/png saved to " in result.output
    path = result.output.rpartition("saved to ")[2].rstrip("]\n")
    assert (await bash(f"head -c 4 {path} | tail -c 3")).output == "PNG"
    assert "saved" not in (await ipython("1")).output


async def test_tables_are_text(ipython) -> None:
    pytest.importorskip("pandas")
    result = await ipython("import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
    assert result.output == "   a  b\n0  1  x\n1  2  y\n"


async def test_who_asks_for_input_is_told(ipython) -> None:
    for code in ("input('?')", "import getpass; getpass.getpass()", "import sys; raise EOFError(sys.stdin.readline())"):
        assert (await ipython(code, timeout=20)).data["raised"] in ("RuntimeError", "EOFError")


async def test_a_python_without_ipython_is_an_error_that_says_so() -> None:
    runtime = Bubblewrap(SandboxSettings(python="/usr/bin/python3"))
    probe = await runtime.probe()
    if not probe.works:
        pytest.skip(f"bubblewrap with /usr/bin/python3: {probe.reason}")
    if probe.capabilities["ipython"]:
        pytest.skip("this machine's /usr/bin/python3 has IPython")
    assert "No module named 'IPython'" in probe.why_not["ipython"]
    sandbox = await runtime.start(SandboxSpec())
    try:
        for _ in range(2):
            result = await sandbox.act("ipython", {"code": "1"}, timeout=60)
            assert result.outcome == "error"
            assert "IPython does not work with /usr/bin/python3" in (result.error or "")
    finally:
        await sandbox.stop()
