"""Whether two formulas are the same function of the same symbols, by their values at points that none of them chose.

Two expressions that agree to 12 digits at six points, complex ones where a root or logarithm needs them, are equal.
Equations are equal when one is a constant multiple of the other. Lists without brackets have no order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

from prorl_stem.grading.numbers import Number, Tolerance, same_number
from prorl_stem.grading.reader import FUNCTIONS, Node, Unreadable, read_expression, tidy

POINTS = 6
EXACT = 1e-12
ROUNDED = 1e-3  # where a coefficient is a decimal: three digits
DIGITS = 30
MAX_PARTS = 20


@dataclass(frozen=True)
class Formula:
    """``sides``: one expression, or the two of an equation. ``values``: more than one for a list or a ±."""

    values: tuple[tuple[Node, ...], ...]
    ordered: bool = False


def read_formula(text: str) -> Formula:
    """Raises :class:`Unreadable`."""
    text = tidy(text)
    ordered = False
    parts = split(text, ",")
    if len(parts) == 1 and (inside := re.fullmatch(r"\s*\((.*)\)\s*", text, re.DOTALL)):
        inner = split(inside[1], ",")
        if len(inner) > 1:
            parts, ordered = inner, True
    if len(parts) > MAX_PARTS:
        raise Unreadable("too many parts")
    values = []
    for part in parts:
        variants = [part]
        if "±" in part:
            variants = [part.replace("±", "+"), part.replace("±", "-")]
        for variant in variants:
            sides = split(variant, "=")
            if len(sides) > 2:
                sides = [sides[0], sides[-1]]
            values.append(tuple(read_expression(side) for side in sides))
    return Formula(tuple(values), ordered)


def split(text: str, sign: str) -> list[str]:
    """At ``sign``, outside of all brackets. ``1,000`` is one number."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
        if (
            character == sign
            and depth == 0
            and not (sign == "," and re.match(r"\d,\d{3}(?!\d)", text[max(at - 1, 0) :]))
        ):
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def same_formula(gold: Formula, answer: Formula, tolerance: Tolerance) -> tuple[bool | None, str]:
    """``None`` when the two do not speak of the same symbols, so that names may be all that differs."""
    if len(gold.values) != len(answer.values):
        return False, "another number of values"
    left = list(answer.values)
    unsure = False
    for position, value in enumerate(gold.values):
        candidates = [left[position]] if gold.ordered and answer.ordered else left
        verdicts = [(same_value(value, other, tolerance), other) for other in candidates]
        twin = next((other for same, other in verdicts if same), None)
        if twin is None:
            unsure |= any(same is None for same, _ in verdicts)
            return (None, "other symbols") if unsure else (False, "another value")
        if not (gold.ordered and answer.ordered):
            left.remove(twin)
    return True, "the same value"


def same_value(gold: tuple[Node, ...], answer: tuple[Node, ...], tolerance: Tolerance) -> bool | None:
    if len(gold) != len(answer):  # E = h f is also answered by h f
        longer, shorter = (gold, answer) if len(gold) > len(answer) else (answer, gold)
        return same_expression(longer[1], shorter[0], tolerance) if longer[0].kind == "symbol" else None
    if len(gold) == 1:
        return same_expression(gold[0], answer[0], tolerance)
    if gold[0].kind == answer[0].kind == "symbol" and not names(gold[1]) and not names(answer[1]):
        return gold[0] == answer[0] and same_constant(gold[1], answer[1], tolerance)
    return same_equation(gold, answer)


def same_expression(one: Node, other: Node, tolerance: Tolerance) -> bool | None:
    """``one`` is the gold."""
    if not names(one) and not names(other):
        return same_constant(one, other, tolerance)
    if names(one) != names(other):
        known = names(one) | names(other)
        return (
            True if agree(values_at(one, known), values_at(other, known), EXACT) else None
        )  # a symbol that cancels out
    relative = ROUNDED if decimals(one) or decimals(other) else EXACT
    return agree(values_at(one, names(one)), values_at(other, names(one)), relative)


def same_constant(gold: Node, answer: Node, tolerance: Tolerance) -> bool:
    (left,), (right,) = values_at(gold, set(), 1), values_at(answer, set(), 1)
    if left is None or right is None:
        return False
    if decimals(gold) or decimals(answer):
        if abs(left.imag) < EXACT and abs(right.imag) < EXACT and mpmath.isfinite(left) and mpmath.isfinite(right):
            numbers = [Number(Fraction(mpmath.nstr(value.real, 20))) for value in (left, right)]
            return same_number(numbers[0], numbers[1], tolerance)
        return near(left, right, ROUNDED)
    return near(left, right, EXACT)


def same_equation(gold: tuple[Node, ...], answer: tuple[Node, ...]) -> bool | None:
    """``a = b`` is ``2a - 2b = 0`` and not ``a = -b``."""
    known = set().union(*(names(side) for side in (*gold, *answer)))
    differences = []
    for left, right in (gold, answer):
        differences.append(values_at(Node("add", (left, Node("neg", (right,)))), known))
    ratios = [
        one / other for one, other in zip(*differences, strict=True) if one is not None and other is not None and other
    ]
    if len(ratios) < 3:
        return None
    if all(near(ratio, ratios[0], 1e-9) for ratio in ratios) and ratios[0]:
        return True
    same_symbols = set().union(*map(names, gold)) == set().union(*map(names, answer))
    return False if same_symbols else None


def agree(left: list[Any], right: list[Any], relative: float) -> bool:
    pairs = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
    return len(pairs) >= POINTS // 2 and all(near(one, other, relative) for one, other in pairs)


def near(left: Any, right: Any, relative: float) -> bool:
    return bool(abs(left - right) <= relative * max(abs(left), abs(right)))


def names(node: Node) -> set[str]:
    found = {node.text} if node.kind == "symbol" else set()
    for part in node.parts:
        found |= names(part)
    return found


def decimals(node: Node) -> bool:
    return (node.kind == "number" and "." in node.text) or any(map(decimals, node.parts))


def values_at(node: Node, symbols: set[str], count: int = POINTS) -> list[Any]:
    """The values at ``count`` points; ``None`` where there is none (a pole)."""
    with mpmath.workdps(DIGITS):
        return [_value_or_none(node, {name: _coordinate(name, at) for name in symbols}) for at in range(count)]


def _coordinate(name: str, at: int) -> Any:
    """Between 0.4 and 2.4, fixed for a name, in no simple relation to any other."""
    digest = hashlib.sha256(f"{name}|{at}".encode()).digest()
    return mpmath.mpf(int.from_bytes(digest[:12], "big")) / mpmath.mpf(2**96) * 2 + mpmath.mpf("0.4")


def _value_or_none(node: Node, at: dict[str, Any]) -> Any:
    try:
        value = mpmath.mpc(value_of(node, at))
    except (ZeroDivisionError, ValueError, OverflowError, mpmath.libmp.ComplexResult):
        return None
    return value if mpmath.isfinite(value) else None


def value_of(node: Node, at: dict[str, Any]) -> Any:
    match node.kind:
        case "number":
            return mpmath.mpf(node.text)
        case "symbol":
            return at[node.text]
        case "constant":
            return {"i": mpmath.mpc(0, 1), "e": mpmath.e(), "pi": mpmath.pi()}[node.text]
        case _:
            return OPERATIONS[node.kind](*(value_of(part, at) for part in node.parts))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda *parts: mpmath.fsum(parts),
    "mul": lambda *parts: mpmath.fprod(parts),
    "neg": lambda part: -part,
    "inv": lambda part: 1 / part,
    "pow": mpmath.power,
    "abs": abs,
    "factorial": mpmath.factorial,
    **{kind: getattr(mpmath, kind) for kind in set(FUNCTIONS.values()) - {"abs"}},
}
