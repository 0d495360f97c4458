"""What foreign code asks of the interpreter that a repair has no business with. Python 3.8 and newer."""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: SLF001
import os
import sys
import types
import typing

from .origin import Origin

Tell = typing.Callable[[str], None]
ASKED = frozenset((
    "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys.settrace", "sys.setprofile", "sys.addaudithook",
    "ctypes.PyObj_FromPtr", "ctypes.string_at", "ctypes.cdata", "ctypes.cdata/buffer", "ctypes.dlopen", "ctypes.dlsym",
))  # fmt: skip
MADE = frozenset(("code.__new__", "marshal.loads"))
MOVED = frozenset(("os.rename", "os.link", "os.symlink"))
MEMORY = frozenset(("mem", "maps", "smaps", "fd", "fdinfo", "environ"))
# Read by pytest by their name alone.
SETTINGS = frozenset((
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml",
))  # fmt: skip


class Audit:
    """The interpreter's audit hook: called with every event and its arguments."""

    def __init__(self, origin: Origin, tell: Tell) -> None:
        self._origin = origin
        self._tell = tell
        self._frame = sys._getframe
        self._here = sys._getframe().f_code.co_filename
        self._written = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def __call__(self, event: str, arguments: typing.Any) -> None:
        if event == "compile":
            self._compiled(arguments[0], self._origin.real(arguments[1]))
        elif event == "open":
            self._opened(arguments[0], arguments[2])
        elif event in ASKED or (event == "object.__setattr__" and arguments[1] == "__code__"):
            if self._is_foreign():
                self._tell(event if event in ASKED else "a function's code was replaced")
        elif event in MADE:
            if self._is_foreign():
                self._origin.doubtful = True
        elif event in MOVED:
            self._written_to(arguments[1])

    def _caller(self) -> types.FrameType:
        frame = self._frame(1)
        while frame.f_back is not None and frame.f_code.co_filename == self._here:
            frame = frame.f_back
        return frame

    def _is_foreign(self) -> bool:
        return self._origin.is_asked_by_foreign(self._caller())

    def _compiled(self, source: typing.Any, path: str) -> None:
        """The tests are compiled here: from what is in the patch's tree, or from what was put in its place since."""
        origin, kept = self._origin, self._origin.is_kept(path)
        if kept and isinstance(source, bytes) and origin.is_altered(path, source):
            if origin.is_imported(self._caller()):
                self._tell(f"{path} is not what it was")
            elif self._is_foreign():
                origin.doubtful = True
        elif (kept or origin.is_environments(path)) and not isinstance(source, bytes) and self._is_foreign():
            origin.doubtful = True

    def _opened(self, path: typing.Any, flags: typing.Any) -> None:
        if not isinstance(path, (str, bytes)):
            return
        parts = os.fsdecode(path).split("/")
        if parts[:2] == ["", "proc"] and MEMORY.intersection(parts[3:4]):
            if self._is_foreign():
                self._tell("open {}".format("/".join(parts)))
        elif isinstance(flags, int) and flags & self._written:
            self._written_to(path)

    def _written_to(self, path: typing.Any) -> None:
        """What is read when tests are run is not the code under test's to write."""
        origin, real = self._origin, self._origin.real(path)
        name = real.rpartition("/")[2]
        read = name in SETTINGS or name.endswith((".pyc", ".pth")) or (name.endswith(".py") and origin.is_kept(real))
        if (origin.is_environments(real) or (read and real.startswith(origin.worktree))) and self._is_foreign():
            self._tell(f"{real} was written to")
