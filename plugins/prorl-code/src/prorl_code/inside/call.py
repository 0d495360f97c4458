"""Calls a function of the candidate's: ``python3 call.py NAME``, arguments as a JSON list on standard input.

What it returns is written as JSON to descriptor 3. The candidate runs in this very process, so what arrives there is
only ever a value to be compared, by somebody who knows the right one; it can't be a verdict.
"""

# ruff: noqa: PTH123, S102
from __future__ import annotations

import json
import os
import sys
from typing import Any

PRELUDE = """
from typing import *
import bisect, collections, copy, datetime, decimal, fractions, functools, heapq, itertools, math, operator, random
import re, statistics, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate, chain, combinations, count, groupby, permutations, product
from math import ceil, comb, floor, gcd, inf, log2, sqrt
from operator import itemgetter
"""
VALUE_FD = 3


def unlimited_digits() -> None:
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)


def plain(value: Any, depth: int = 0) -> Any:
    """JSON's own types; tuples and other sequences become lists, keys become text, as JSON has it."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (bool, int, float, str)):
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
    if depth > 500:
        raise ValueError("the value is nested too deeply")
    if isinstance(value, dict):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, depth + 1) for item in value), key=lambda item: (str(type(item)), item))
    if hasattr(value, "tolist") and not isinstance(value, (list, tuple)):  # arrays and numbers of numpy
        return plain(value.tolist(), depth + 1)
    return [plain(item, depth + 1) for item in value]


def find(namespace: dict[str, Any], name: str) -> Any:
    solution = namespace.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    if callable(namespace.get(name)):
        return namespace[name]
    raise SystemExit(f"there is neither a function {name} nor a class Solution that has one")


def main(name: str) -> None:
    unlimited_digits()
    arguments = json.loads(sys.stdin.buffer.read())
    namespace: dict[str, Any] = {"__name__": "solution", "__builtins__": __builtins__}
    exec(PRELUDE, namespace)
    with open("solution.py", "rb") as file:
        source = file.read()
    dumps = json.dumps
    exec(compile(source, "solution.py", "exec"), namespace)
    value = find(namespace, name)(*arguments)
    unlimited_digits()
    data = dumps(plain(value)).encode()
    while data:
        data = data[os.write(VALUE_FD, data) :]


if __name__ == "__main__":
    main(sys.argv[1])
