"""Whose code it is: Python's and the environment's, the repository's as the grader knows it, or foreign.

Foreign is what the agent changed, and what was nowhere when the tests began: a file that is written then could hold
anything, and so could code that is made of text or of bytes and says that it is from somewhere else.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006, UP045
import hashlib
import os
import sys
import types
import typing

DEPTH = 4


def _homes(*modules: str) -> typing.List[str]:
    """Their folders, with a slash at the end."""
    files = [sys.modules[name].__file__ or "" for name in modules if name in sys.modules]
    return [file[: file.rindex("/") + 1] for file in files if "/" in file]


class Origin:
    """``changed``: real paths of the files that the agent changed. ``contents``: of those that it did not, by path, the
    ids that git gives their contents. ``worktree``: where both are.
    """

    def __init__(self, changed: typing.Iterable[str], contents: typing.Mapping[str, str], worktree: str) -> None:
        self.worktree = worktree + "/"
        self._changed = frozenset(changed)
        self._contents = contents
        self._known: typing.Dict[str, bool] = {}
        # Taken now: whatever these names mean later is somebody else's.
        self._realpath = os.path.realpath
        self._fsdecode = os.fsdecode
        self._sha1 = hashlib.sha1
        self._python = ""
        self._runners: typing.Tuple[str, ...] = ()
        self._roots: typing.Tuple[str, ...] = ()
        self.doubtful = False  # foreign code has made code that says it is somebody else's

    def settle(self) -> None:
        """What can be imported now is the environment's, but for what is in the working tree."""
        self._python, *runners = _homes("os", "_pytest", "pluggy", "prorl_inside")
        self._runners = tuple(runners)
        roots = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *sys.path]
        found = {self._realpath(root).rstrip("/") + "/" for root in roots if root.startswith("/")}
        repository = {root for root in found if self.worktree.startswith(root) or self._is_source(root)}
        self._roots = (self._python, *runners, *sorted(found - repository))

    def _is_source(self, root: str) -> bool:
        """In the working tree there may be an environment, too."""
        return root.startswith(self.worktree) and "-packages/" not in root and not root.startswith(self._python)

    def is_foreign(self, filename: str, *, nameless: bool = False) -> bool:
        """``nameless``: what is in no file is foreign."""
        if filename.startswith("<"):
            return nameless and bool(self._changed)
        found = self._known.get(filename)
        if found is None:
            real = filename if filename in self._changed else self._realpath(filename)
            found = real in self._changed or (real not in self._contents and not real.startswith(self._roots))
            found = self._known[filename] = found and bool(self._changed)
        return found

    def is_environments(self, path: str) -> bool:
        return path.startswith(self._roots)

    def is_kept(self, path: str) -> bool:
        """Whether it is the repository's, and the agent did not change it."""
        return path in self._contents

    def is_altered(self, path: str, content: bytes) -> bool:
        known = self._contents.get(path)
        if known is None or len(known) != 40:
            return False
        return self._sha1(b"blob %d\0" % len(content) + content).hexdigest() != known

    def real(self, path: typing.Any) -> str:
        """``""`` for what is no path."""
        if not isinstance(path, (str, bytes)):
            return ""
        text = self._fsdecode(path)
        if "\0" in text or text.startswith("<"):
            return ""
        return text if text in self._contents else self._realpath(text)

    def is_asked_by_foreign(self, frame: typing.Optional[types.FrameType]) -> bool:
        """Whether the innermost of the files that are not Python's own is a foreign one. What a module does that it
        imports, it does not do itself.
        """
        nameless = False
        while frame is not None:
            filename = frame.f_code.co_filename
            if filename.startswith("<frozen importlib"):
                return False
            if filename.startswith("<"):
                nameless = True
            elif not filename.startswith(self._python) or "-packages/" in filename:
                return self.is_foreign(filename)
            frame = frame.f_back
        return nameless and bool(self._changed)

    def is_imported(self, frame: typing.Optional[types.FrameType]) -> bool:
        """Whether a module is loaded here, by Python or by pytest: whoever else compiles may take a part of a file."""
        while frame is not None:
            filename = frame.f_code.co_filename
            if filename.startswith("<frozen importlib"):
                return True
            if not filename.startswith(self._python) or "-packages/" in filename:
                return filename.startswith(self._runners) and "/_pytest/assertion/" in filename
            frame = frame.f_back
        return False

    # -- of what was put in another's place

    def is_theirs(self, value: typing.Any, depth: int = 0) -> bool:
        """Whether it is foreign, or Python's or pytest's own, which is elsewhere than it was, or nowhere's. Packages
        and the repository's other files replace such things in good faith.
        """
        if not self._changed or depth > DEPTH:
            return False
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            return self.is_theirs(value.__func__, depth + 1)
        if isinstance(value, property):
            parts = [part for part in (value.fget, value.fset) if part is not None]
            return any(self.is_theirs(part, depth + 1) for part in parts)
        if isinstance(value, types.ModuleType):  # not by what it says of itself
            return any(map(self._has_foreign_code, list(vars(value).values())))
        if isinstance(value, types.FunctionType):
            return self._is_suspect(value.__code__.co_filename) or self._is_put_together(value, depth)
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        return self._has_foreign_code(value if isinstance(value, type) else type(value)) or self._is_suspect(
            getattr(module, "__file__", None) or "<nowhere>"
        )

    def _has_foreign_code(self, value: typing.Any) -> bool:
        parts = list(vars(value).values()) if isinstance(value, type) else [value]
        codes = [part.__code__ for part in parts if isinstance(part, types.FunctionType)]
        return any(self.is_foreign(code.co_filename, nameless=isinstance(value, types.FunctionType)) for code in codes)

    def _is_suspect(self, filename: str) -> bool:
        if self.doubtful or filename.startswith("<"):
            return True
        if filename.startswith(self._runners):
            return not filename.endswith("/_pytest/legacypath.py")
        own = filename.startswith(self._python) and "-packages/" not in filename[len(self._python) - 1 :]
        return own or self.is_foreign(filename)

    def _is_put_together(self, function: types.FunctionType, depth: int) -> bool:
        """A function of good name that works on what is not of its own module."""
        module = sys.modules.get(function.__module__ or "")
        if module is None or vars(module) is not function.__globals__:
            return True
        inner: typing.List[typing.Any] = list(function.__defaults__ or ())
        for cell in function.__closure__ or ():
            try:
                inner.append(cell.cell_contents)
            except ValueError:  # it is empty
                continue
        return any(
            self.is_theirs(part, depth + 1)
            for part in inner
            if isinstance(part, (types.FunctionType, types.MethodType))
        )
