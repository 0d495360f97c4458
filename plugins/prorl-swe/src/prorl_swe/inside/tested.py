"""That pytest's tests and plugins are what the grader's files and the environment made of them, and nobody else."""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006, PTH123
import ast
import sys
import types
import typing

from .guard import WATCHED, Guard

Imports = typing.List[typing.Tuple[str, typing.Any]]
# Methods of a test's class that say how, and whether, the test is run.
STEERING = ("run", "__call__", "debug", "_callTestMethod", "__getattribute__")


class Tests:
    """The tests that were collected: their functions, and what their modules have of pytest and unittest."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._functions: typing.Dict[str, typing.Tuple[typing.Any, typing.Any]] = {}
        self._imports: typing.Dict[types.ModuleType, Imports] = {}

    def keep(self, item: typing.Any) -> None:
        inner = function = getattr(item, "function", None)
        code = getattr(function, "__code__", None)
        self._functions[item.nodeid] = function, code
        while inner is not None and hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        codes = [getattr(inner, "__code__", code)]
        codes += [getattr(getattr(getattr(item, "cls", None), name, None), "__code__", None) for name in STEERING]
        if any(self._guard.origin.is_foreign(getattr(code, "co_filename", "<")) for code in codes):
            self._guard.tell(f"the test {item.name} is in a file that was changed, or is run by it")
        module = getattr(item, "module", None)
        if isinstance(module, types.ModuleType) and module not in self._imports:
            self._imports[module] = list(_imported(module))
        self._check_imports(item)

    def check(self, item: typing.Any) -> None:
        """Called when it is about to be run."""
        function, code = self._functions.get(item.nodeid, (None, None))
        now = getattr(item, "function", None)
        called = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
        replaced = [part for part in (now, called) if part is not None and part is not function]
        replaced += [function] if getattr(function, "__code__", None) is not code else []
        replaced += [vars(item)[name] for name in ("runtest", "setup", "ihook") if name in vars(item)]
        if any(map(self._guard.origin.is_theirs, replaced)):
            self._guard.tell(f"the test {item.name} was replaced")
        self._check_imports(item)

    def _check_imports(self, item: typing.Any) -> None:
        module = getattr(item, "module", None)
        if not isinstance(module, types.ModuleType):
            return
        for name, was in self._imports.get(module, ()):
            now = vars(module).get(name, was)
            if now is not was and self._guard.origin.is_theirs(now):
                self._guard.tell(f"{module.__name__}.{name} was replaced")


def _imported(module: types.ModuleType) -> typing.Iterator[typing.Tuple[str, typing.Any]]:
    """What its file imports of what runs tests, by the name that it has there."""
    try:
        with open(module.__file__ or "", "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                if name.partition(".")[0] in WATCHED and name in sys.modules:
                    yield alias.asname or name, sys.modules[name]
        elif isinstance(node, ast.ImportFrom) and node.module in sys.modules and not node.level:
            for alias in node.names:
                if str(node.module).partition(".")[0] in WATCHED and hasattr(sys.modules[str(node.module)], alias.name):
                    yield alias.asname or alias.name, getattr(sys.modules[str(node.module)], alias.name)


class Plugins:
    """pytest's plugins: those of the grader's files and of the environment, and none that foreign code puts in."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._manager: typing.Any = None
        self._known: typing.Set[int] = set()
        self._kept: typing.List[typing.Any] = []  # so that no other has its id

    def begin(self, config: typing.Any) -> None:
        """What is there before tests are collected is there by name: of an entry point, of a setting."""
        self._manager = config.pluginmanager
        named = {id(plugin) for plugin, _ in self._manager.list_plugin_distinfo()}
        for plugin in self._manager.get_plugins():
            if id(plugin) in named or isinstance(getattr(plugin, "__file__", None), str):
                self._keep(plugin)
        self.check()

    def check(self) -> None:
        for plugin in self._manager.get_plugins() if self._manager is not None else ():
            if id(plugin) not in self._known:
                self._keep(plugin)
                if self._is_foreign(plugin):
                    self._guard.tell(f"a plugin of pytest's was put in: {type(plugin).__name__}")

    def _is_foreign(self, plugin: typing.Any) -> bool:
        is_foreign = self._guard.origin.is_foreign
        file = getattr(plugin, "__file__", None)
        if isinstance(file, str):
            return is_foreign(file)
        hooks = [getattr(plugin, caller.name, None) for caller in self._manager.get_hookcallers(plugin) or ()]
        codes = [getattr(hook, "__code__", None) for hook in hooks]
        return any(is_foreign(code.co_filename, nameless=True) for code in codes if code is not None)

    def _keep(self, plugin: typing.Any) -> None:
        self._known.add(id(plugin))
        self._kept.append(plugin)
