"""What the code under test does to the machinery that tests it: replaced functions, and looks where it has no business.

Not a wall, for both live in one process; but it speaks up before anything can be done about it. Only what comes from
files that the agent changed counts, for tests and packages of good faith do such things too.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006, UP045, SLF001
import builtins
import os
import sys
import types
import typing

Say = typing.Callable[[str], None]
WATCHED = ("_pytest", "pytest", "pluggy", "unittest", "builtins", "prorl_inside")
AUDITED = (
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "sys.settrace",
    "sys.setprofile",
    "sys.addaudithook",
    "ctypes.PyObj_FromPtr",
    "ctypes.string_at",
    "ctypes.cdata",
    "ctypes.cdata/buffer",
    "ctypes.dlopen",
    "ctypes.dlsym",
)
MEMORY = ("mem", "maps", "smaps", "fd", "fdinfo", "environ")
KINDS = (types.FunctionType, types.BuiltinFunctionType, type, staticmethod, classmethod, property)
Place = typing.Tuple[typing.Any, str]


def _homes(*modules: str) -> typing.List[str]:
    """Their folders, with a slash at the end."""
    files = [sys.modules[name].__file__ or "" for name in modules if name in sys.modules]
    return [file[: file.rindex("/") + 1] for file in files if "/" in file]


class Guard:
    """``changed``: real paths of the files that the agent changed."""

    def __init__(self, changed: typing.Iterable[str], say: Say) -> None:
        self._changed = frozenset(changed)
        self._say = say
        self._said: typing.Set[str] = set()
        self._seen: typing.Dict[Place, typing.Tuple[typing.Any, typing.Any]] = {}
        self._kept: typing.List[typing.Tuple[typing.Any, str, typing.Any]] = []
        # Taken now: whatever these names mean later is somebody else's.
        self._frame = sys._getframe
        self._fspath = os.path.realpath
        self._python = ""
        self._runners: typing.Tuple[str, ...] = ()

    def watch(self) -> None:
        """Remember what is there. Called when all of the machinery is imported, and nothing of the repository."""
        self._python, *runners = _homes("os", "_pytest", "pluggy", "prorl_inside")
        self._runners = tuple(runners)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in WATCHED and isinstance(module, types.ModuleType):
                self._remember(module)
        if hasattr(sys, "addaudithook"):
            sys.addaudithook(self._audit)

    def _remember(self, module: types.ModuleType) -> None:
        for name, value in list(vars(module).items()):
            if isinstance(value, KINDS):
                self._seen[module, name] = value, getattr(value, "__code__", None)
            if isinstance(value, type) and value.__module__ == module.__name__ and module is not builtins:
                for inner, method in list(vars(value).items()):
                    if isinstance(method, KINDS):
                        self._seen[value, inner] = method, getattr(method, "__code__", None)

    def keep(self, owner: typing.Any) -> None:
        """What an object of ours has now it will always have."""
        self._kept += [(owner, name, value) for name, value in list(vars(owner).items())]

    def check(self) -> None:
        """Say what is no longer what it was."""
        for thing, name, was in self._kept:
            if thing.__dict__.get(name) is not was:
                self._tell(f"{type(thing).__name__}.{name} was replaced")
        for (owner, name), (value, code) in self._seen.items():
            now = owner.__dict__.get(name)
            if (now is not value or getattr(now, "__code__", None) is not code) and self._is_theirs(now):
                self._tell("{}.{} was replaced".format(getattr(owner, "__name__", owner), name))

    def is_changed(self, filename: str) -> bool:
        return filename in self._changed or self._fspath(filename) in self._changed

    def _is_theirs(self, value: typing.Any) -> bool:
        inner = getattr(value, "__func__", value)
        for _ in range(10):
            if not hasattr(inner, "__wrapped__"):
                break
            inner = inner.__wrapped__ if not hasattr(inner, "__code__") else inner
            if hasattr(inner, "__code__"):
                break
        code = getattr(inner, "__code__", None)
        if code is not None:
            return self._is_suspect(code.co_filename)
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        return self._is_suspect(getattr(module, "__file__", None) or "<nowhere>")

    def _is_suspect(self, filename: str) -> bool:
        """A changed file's, or made of a string, which could be one's; or Python's or pytest's own, which is elsewhere
        than it was. Packages and the repository's other files replace such things in good faith.
        """
        if not self._changed:
            return False
        packages = self._python + "site-packages/", self._python + "dist-packages/"
        own = filename.startswith(self._runners) and not filename.endswith("/_pytest/legacypath.py")
        own = own or (filename.startswith(self._python) and not filename.startswith(packages))
        return filename.startswith("<") or own or self.is_changed(filename)

    def _audit(self, event: str, arguments: typing.Any) -> None:
        if event == "open":
            path = arguments[0]
            if not isinstance(path, (str, bytes)):
                return
            parts = (path.decode("utf-8", "replace") if isinstance(path, bytes) else path).split("/")
            if parts[:2] != ["", "proc"] or not set(parts[3:4]) & set(MEMORY):
                return
            event = "open {}".format("/".join(parts))
        elif event not in AUDITED:
            return
        if self._asked_by_changed():
            self._tell(event)

    def _asked_by_changed(self) -> bool:
        """Whether the innermost of the files that are not Python's own is a changed one. What a module does that it
        imports, it does not do itself.
        """
        frame: typing.Optional[types.FrameType] = self._frame(2)
        while frame is not None:
            filename = frame.f_code.co_filename
            if self.is_changed(filename):
                return True
            if filename.startswith("<frozen importlib"):
                return False
            if not filename.startswith(("<", self._python)) or "-packages/" in filename:
                return False
            frame = frame.f_back
        return False

    def _tell(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(what)
