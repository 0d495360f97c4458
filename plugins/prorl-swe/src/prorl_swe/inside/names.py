"""Which tests that are there are meant by the names of a row."""

# Python 3.6, and no module whose import costs time or could be another's
# ruff: noqa: UP006
import typing

Names = typing.Iterable[str]


def is_cut(name: str) -> bool:
    """A parametrised id that lost its end: data sets were made from logs, where a space ends a name."""
    return "[" in name and (not name.endswith("]") or name.count("[") > name.count("]"))


def bare(node_id: str) -> str:
    """``Class.test[x]`` of ``file.py::Class::test[x]``, as R2E-Gym names tests."""
    return ".".join(node_id.split("::")[1:]) or node_id


def spellings(node_id: str) -> typing.List[str]:
    """The id, and what the readers of logs made of it by which data sets name tests: of a path in brackets its last
    part (rows of requests, pylint and pydicom), of two members of an enum their numbers (matplotlib)."""
    head, bracket, option = node_id.partition("[")
    numbered = node_id.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
    found = [node_id] if numbered == node_id else [node_id, numbered]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        found.append(head + bracket + "/" + option.rpartition("/")[2])
    return found


class Wanted:
    """``by`` is ``id``, or ``name`` for names without a file."""

    def __init__(self, names: Names, by: str = "id") -> None:
        self._by = by
        self._exact = frozenset(names)
        self._cut = tuple(sorted(name for name in self._exact if is_cut(name)))

    def meant_by(self, node_id: str) -> typing.List[str]:
        """The names that this test answers to; none when nobody asked for it."""
        names = [bare(node_id)] if self._by == "name" else spellings(node_id)
        found = [name for name in names if name in self._exact]
        return found + [cut for cut in self._cut if any(name.startswith(cut) and name != cut for name in names)]
