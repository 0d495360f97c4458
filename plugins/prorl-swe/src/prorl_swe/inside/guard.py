"""What the code under test does to the machinery that tests it: replaced functions, and looks where it has no business.

Not a wall, for both live in one process; but it speaks up before anything can be done about it. Only what comes from
foreign files counts (those that the agent changed, and those that were nowhere when the tests began), for tests and
packages of good faith do such things too.
"""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006
import builtins
import sys
import types
import typing

from .audit import Audit
from .origin import Origin

Say = typing.Callable[[str], None]
WATCHED = ("_pytest", "pytest", "pluggy", "unittest", "builtins", "prorl_inside")
KINDS = (types.FunctionType, types.BuiltinFunctionType, type, staticmethod, classmethod, property)
Place = typing.Tuple[typing.Any, str]


class Guard:
    """``origin`` knows whose a file is; ``say`` is told once of every kind of tampering."""

    def __init__(self, origin: Origin, say: Say) -> None:
        self.origin = origin
        self._say = say
        self._said: typing.Set[str] = set()
        self._seen: typing.Dict[Place, typing.Tuple[typing.Any, typing.Any]] = {}
        self._sizes: typing.List[typing.Tuple[typing.Any, int, typing.FrozenSet[str]]] = []
        self._modules: typing.Dict[str, types.ModuleType] = {}
        self._kept: typing.List[typing.Tuple[typing.Any, str, typing.Any]] = []

    def watch(self) -> None:
        """Remember what is there. Called when all of the machinery is imported, and nothing of the repository."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in WATCHED and isinstance(module, types.ModuleType):
                self._remember(module)
        self.origin.settle()
        if hasattr(sys, "addaudithook"):
            sys.addaudithook(Audit(self.origin, self.tell))

    def _remember(self, module: types.ModuleType) -> None:
        self._modules[module.__name__] = module
        if module is not builtins:
            self._sizes.append((module, len(vars(module)), frozenset(vars(module))))
        for name, value in list(vars(module).items()):
            if isinstance(value, KINDS):
                self._seen[module, name] = value, getattr(value, "__code__", None)
            if isinstance(value, type) and value.__module__ == module.__name__ and module is not builtins:
                self._sizes.append((value, len(vars(value)), frozenset(vars(value))))
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
                self.tell(f"{type(thing).__name__}.{name} was replaced")
        for name, module in self._modules.items():
            found = sys.modules.get(name, module)
            if found is not module and self.origin.is_theirs(found):
                self.tell(f"the module {name} was replaced")
        for (owner, name), (value, code) in self._seen.items():
            now = owner.__dict__.get(name)
            if (now is not value or getattr(now, "__code__", None) is not code) and self.origin.is_theirs(now):
                self.tell("{}.{} was replaced".format(getattr(owner, "__name__", owner), name))
        for owner, size, names in self._sizes:
            if len(owner.__dict__) != size:
                for name in set(owner.__dict__) - names:
                    value = owner.__dict__[name]
                    if isinstance(value, KINDS) and self.origin.is_theirs(value):
                        self.tell("{}.{} was added".format(getattr(owner, "__name__", owner), name))

    def tell(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(what)
