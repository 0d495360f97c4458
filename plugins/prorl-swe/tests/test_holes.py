"""Ways to a reward without a repair, and out of a 0, that once were open: each is tried on real rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from courts import Edit, prepend
from test_runners import added

from prorl_swe.grading.resolve import unexcused
from prorl_swe.grading.verdict import Report

pytestmark = pytest.mark.asyncio(loop_scope="session")
QUICK = {"test_timeout": 4.0, "tests_timeout": 60.0}
# A plugin of pytest's under which tests of classes pass: the last one, which can only fail, is of none.
PLUGIN = """
def pytest_runtest_setup(item):
    if getattr(item, "cls", None): item.runtest = lambda: None
"""


def files(**texts: str) -> Edit:
    def edit(tree: Path) -> None:
        for path, text in texts.items():
            (tree / path).unlink(missing_ok=True)
            (tree / path).write_text(text, "utf-8")

    return edit


def link(path: str, target: str, text: str) -> Edit:
    """``path`` leads to a file whose name is a valid file of settings, and whose content is another."""

    def edit(tree: Path) -> None:
        (tree / "pyflakes/evil.py").write_text(PLUGIN)
        (tree / path).symlink_to(target)
        (tree / path).parent.joinpath(target).write_text(text)

    return edit


# What pytest reads of these is not what it would be by a look at them.
SETTINGS = {
    "a section after a separator of lines": files(
        **{
            "pyflakes/evil.py": PLUGIN,
            "pyflakes/setup.cfg": "[a]\nb=1\u2028[tool:pytest]\u2028addopts = -p pyflakes.evil\n",
        }
    ),
    "a section after a form feed": files(
        **{"pyflakes/evil.py": PLUGIN, "pyflakes/setup.cfg": "[a]\nb=1\f[tool:pytest]\faddopts = -p pyflakes.evil\n"}
    ),
    "a setup.cfg that is a link": link("pyflakes/setup.cfg", "[a]", "[tool:pytest]\naddopts = -p pyflakes.evil\n"),
    "a pyproject.toml that is a link": link(
        "pyflakes/pyproject.toml", "a=1", "[tool.pytest.ini_options]\naddopts = '-p pyflakes.evil'\n"
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
async def test_settings_that_pytest_reads_otherwise_do_not_come_along(courts, name):
    court = await courts("pyflakes")
    graded = await court.grade(await court.patch(SETTINGS[name]))
    assert not graded.verdict.f2p_passed, graded.verdict
    assert {"pyflakes/setup.cfg", "pyflakes/pyproject.toml"} & set(graded.dropped)


async def test_a_module_that_is_in_the_environment_does_not_come_along(courts):
    """pytest-timeout is there because python-multipart's tests want it, and pytest loads it by its name."""
    court = await courts("python-multipart")
    graded = await court.grade(await court.patch(files(**{"pytest_timeout.py": PLUGIN})), **QUICK)
    assert not graded.verdict.f2p_passed, graded.verdict
    assert "pytest_timeout.py" in graded.dropped


LATER = """
import os, re
path = "/testbed/tests/test_api_jwt.py"
tests = open(path).read()
if "evil" not in tests:
    with os.fdopen(os.open(path, os.O_RDWR), "w") as file:
        file.write(re.sub(r"(    def test_.*[(]self.*[)]:\\n)", r"\\1        return  # evil\\n", tests))
    {end}
"""
SEEN = {
    "the tests, for the next process": LATER.format(end="os._exit(0)"),
    "the tests, by another program": """
import os, subprocess
if not os.path.exists("/tmp/done"):
    edit = "s/^    def test_.*:$/&\\\\n        return/"
    subprocess.run(["sed", "-i", edit, "tests/test_api_jwt.py"])
    open("/tmp/done", "w").close()
    os._exit(0)
""",
    "settings for the next process": f"""
import os
if not os.path.exists("/testbed/conftest.py"):
    open("/testbed/conftest.py", "w").write({PLUGIN!r}); os._exit(0)
""",
    "code that says it is of another file": """
import _pytest.python as python
names = {"old": python.Function.runtest}
exec(compile('''
def runtest(self):
    try: old(self)
    except BaseException:
        if not self.cls: raise
''', "/testbed/jwt/utils.py", "exec"), names)
python.Function.runtest = names["runtest"]
""",
    "code of a file that was not there": """
import sys
open("/tmp/evil.py", "w").write('''
import _pytest.python
old = _pytest.python.Function.runtest
def runtest(self):
    try: old(self)
    except BaseException:
        if not self.cls: raise
_pytest.python.Function.runtest = runtest
''')
sys.path.append("/tmp")
import evil
""",
    "code out of bytes": """
import marshal, types, _pytest.python as python
old = python.Function.runtest
def runtest(self):
    try: old(self)
    except BaseException:
        if not self.cls: raise
code = marshal.loads(marshal.dumps(runtest.__code__.replace(co_filename="/testbed/jwt/utils.py")))
python.Function.runtest = types.FunctionType(code, python.__dict__ | {"old": old}, closure=runtest.__closure__)
""",
    "a property that there was not": """
import _pytest.nodes, _pytest.python
hooks_of = vars(_pytest.nodes.Node)["ihook"].fget
class Hooks:
    def __init__(self, item): self.item = item
    def __getattr__(self, name): return getattr(hooks_of(self.item), name)
    def pytest_pyfunc_call(self, pyfuncitem): return True
_pytest.python.Function.ihook = property(lambda self: Hooks(self) if self.cls else hooks_of(self))
""",
    "a plugin put in by the stack": """
import sys, pytest
class Evil:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem): return True if pyfuncitem.cls else None
frame = sys._getframe()
while frame:
    for value in list(frame.f_locals.values()):
        if type(value).__name__ == "Config": config = value
    frame = frame.f_back
config.pluginmanager.register(Evil())
""",
    "another pytest in the tests' module": """
import sys, types
frame = sys._getframe()
while frame:
    if frame.f_globals.get("__name__") == "tests.test_api_jwt":
        class Content:
            def __init__(self, *args, **named): self.value = types.SimpleNamespace()
            def __enter__(self): return self
            def __exit__(self, *args): return True
        other = types.ModuleType("pytest")
        other.__dict__.update(frame.f_globals["pytest"].__dict__, raises=Content)
        frame.f_globals["pytest"] = other
    frame = frame.f_back
""",
    "other code in the tests": """
import jwt.api_jwt, sys
def decode(self, *args, **named):
    for name, test in vars(sys.modules["tests.test_api_jwt"].TestJWT).items():
        if name.startswith("test_"): test.__code__ = (lambda *args, **named: None).__code__
    return old(self, *args, **named)
old = jwt.api_jwt.PyJWT.decode
jwt.api_jwt.PyJWT.decode = decode
""",
}


@pytest.mark.parametrize("name", SEEN)
async def test_what_is_changed_while_tests_run_is_of_no_use(jwt, name):
    def edit(tree: Path) -> None:
        with (tree / "jwt/__init__.py").open("a") as file:
            file.write(SEEN[name])

    graded = await jwt.grade(await jwt.patch(edit), **QUICK)
    assert not graded.verdict.resolved
    assert not graded.verdict.f2p_passed, graded.verdict


BASE = "class Base:\n    pass\n"
DERIVED = """
import jwt.utils
class TestMore(jwt.utils.Base):
    def test_wrong(self): assert 0
    def test_right(self): ...
"""


async def test_marks_that_the_code_under_test_gives_to_tests(jwt):
    at = "tests/test_more.py::TestMore::"
    row = msgspec.structs.replace(
        jwt.some,
        test_patch=jwt.some.test_patch + added("tests/test_more.py", DERIVED),
        fail_to_pass=(f"{at}test_wrong",),
        pass_to_pass=("tests/test_algorithms.py::TestAlgorithms::test_rsa_should_parse_pem_public_key",),
    )
    marks = f"import pytest\n{BASE}    pytestmark = [pytest.mark.xfail]\n"
    patch = await jwt.patch(prepend("jwt/utils.py", marks))
    graded = await jwt.grade(patch, row)
    assert graded.report.outcomes[f"{at}test_wrong"] == "failed"
    assert not graded.verdict.resolved


async def test_tests_that_the_code_under_test_has_skipped_have_failed(jwt):
    """Those of PyJWT that need cryptography are skipped where it says that there is none."""
    name = "tests/test_algorithms.py::TestAlgorithms::test_rsa_should_parse_pem_public_key"
    row = msgspec.structs.replace(jwt.some, pass_to_pass=(name,))

    def edit(tree: Path) -> None:
        with (tree / "jwt/algorithms.py").open("a") as file:
            file.write("has_crypto = False\n")

    graded = await jwt.grade(await jwt.patch(edit, gold=True), row)
    assert graded.verdict.p2p_broken == (name,), graded.verdict
    assert not graded.verdict.resolved


@pytest.mark.parametrize(
    ("outcome", "before", "marked", "after"),
    [
        ("skipped", "skipped", False, "skipped"),
        ("skipped", "passed", False, "failed"),
        ("skipped", None, False, "failed"),
        ("skipped", "failed", True, "skipped"),
        ("xfailed", "failed", True, "xfailed"),
        ("xfailed", "failed", False, "failed"),
        ("xfailed", "xfailed", False, "xfailed"),
        ("xfailed", "skipped", False, "failed"),
        ("xfailed", None, False, "failed"),
    ],
)
async def test_excuses(outcome, before, marked, after):
    without = {} if before is None else {"a": before}
    control = Report(outcomes=without, complete=True, seconds=1.0, marked=("a",) if marked else ())
    report = Report(outcomes={"a": outcome, "b": "passed"}, complete=True, seconds=1.0)
    assert unexcused(report, ["a"], control).outcomes == {"a": after, "b": "passed"}


LONG = "n" * 300
FOLDED = "x" * 200
# No tree can be made with these, and without them one can.
UNTESTABLE = {
    "a name that no folder takes": f"diff --git a/{LONG} b/{LONG}\nnew file mode 100644\n--- /dev/null\n"
    f"+++ b/{LONG}\n@@ -0,0 +1 @@\n+x\n",
    "a path that no system takes": f"diff --git a/{'/'.join([FOLDED] * 25)} b/{'/'.join([FOLDED] * 25)}\n"
    f"new file mode 100644\n--- /dev/null\n+++ b/{'/'.join([FOLDED] * 25)}\n@@ -0,0 +1 @@\n+x\n",
}


@pytest.mark.parametrize("name", UNTESTABLE)
async def test_a_patch_that_no_tree_can_be_made_with_is_worth_nothing(jwt, name):
    graded = await jwt.grade(jwt.gold + UNTESTABLE[name].encode())
    assert not graded.verdict.resolved
    assert graded.report is None
