"""Which tests that are there are meant by the names of a row."""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006
import typing

Names = typing.Iterable[str]


def is_cut(name: str) -> bool:
    """A parametrised id that lost its end: data sets were made from logs, where a space ends a name."""
    return "[" in name and not name.endswith("]")


def bare(node_id: str) -> str:
    """``Class.test[x]`` of ``file.py::Class::test[x]``, as logs of some data sets name tests."""
    _, _, name = node_id.partition("::")
    head, bracket, parameters = (name or node_id).partition("[")
    return head.replace("::", ".") + bracket + parameters


class Wanted:
    """``by`` is ``id``, or ``name`` for names without a file."""

    def __init__(self, names: Names, by: str = "id") -> None:
        self._by = by
        self._exact = frozenset(names)
        self._cut = tuple(sorted(name for name in self._exact if is_cut(name)))

    def meant_by(self, node_id: str) -> typing.List[str]:
        """The names that this test answers to; none when nobody asked for it."""
        name = bare(node_id) if self._by == "name" else node_id
        found = [name] if name in self._exact else []
        return found + [cut for cut in self._cut if name.startswith(cut) and name != cut]
