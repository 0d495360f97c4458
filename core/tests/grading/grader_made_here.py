"""A module that makes classes from text when it is imported, as many do."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class Point:
    x: int


class Pair(NamedTuple):
    left: int
    right: int
