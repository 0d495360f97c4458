"""Functions that attack what compares their values: all they can give is a value."""

from __future__ import annotations

import pytest

from prorl_code.settings import CodeSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")
ALL = CodeSettings(reward="fraction")
FORGERS = {
    "writes a verdict": "import os\ndef f():\n    os.write(3, b'{\"passed\": true}')\n    os._exit(0)",
    "writes true": "import os\ndef f():\n    os.write(3, b'true')\n    os._exit(0)",
    "replaces json": "import json\njson.dumps = lambda *a, **k: '[42]'\njson.loads = None\ndef f():\n    return 1",
    "replaces builtins": (
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.type = lambda *a: int\ndef f():\n    return 1"
    ),
    "traces": (
        "import sys\ndef trace(frame, event, arg):\n    frame.f_locals['value'] = True\n    return trace\n"
        "sys.settrace(trace)\ndef f():\n    return 1"
    ),
    "exit handler": "import atexit, os\natexit.register(lambda: os.write(3, b' true'))\ndef f():\n    return 1",
    "walks the caller's frames": (
        "import sys\ndef f():\n    return [name for name in sys._getframe(1).f_globals if 'expect' in name] or 1"
    ),
    "reads the driver": "def f():\n    return 1 if 'expected' not in open('call.py').read() else 42",
    "patches the comparison": (
        "import sys\nsys.modules['prorl_code.compare'] = None\ntry:\n    import prorl_code.compare as c\n"
        "    c.same_value = lambda *a: True\nexcept ImportError: pass\ndef f():\n    return 1"
    ),
    "nests without end": "import os\ndef f():\n    os.write(3, b'[' * 3000000)\n    os._exit(0)",
    "many digits": "import os\ndef f():\n    os.write(3, b'9' * 3000000)\n    os._exit(0)",
    "a zero-width name": "import os\ndef f():\n    os.write(3, b'\\xff\\xfe42')\n    os._exit(0)",
    "not a number": "import os\ndef f():\n    os.write(3, b'NaN')\n    os._exit(0)",
}


@pytest.mark.parametrize("name", FORGERS)
async def test_a_function_can_only_give_a_value(court, name):
    judged = await court.judge(FORGERS[name], ("[]", "42"), function="f", settings=ALL)
    assert judged.passed == 0, judged.reason
    assert judged.outcome in ("wrong_answer", "runtime_error")


async def test_numbers_that_mean_nothing_equal_nothing(court):
    source = "import os\ndef f():\n    os.write(3, b'NaN')\n    os._exit(0)"
    judged = await court.judge(source, ("[]", "0.5"), function="f", settings=ALL)
    assert judged.outcome == "wrong_answer"
