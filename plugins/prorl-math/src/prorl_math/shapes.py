"""Equality of what answers are made of: lists, tuples, intervals, matrices, equations, inequalities, values.

A list has no order; a tuple has. ``(a, b)`` is a pair and an open interval at once, as in print. A list written without
braces and a tuple may stand for each other in the same order. An equation that gives a name a value answers the value.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Eq, Expr, FiniteSet, Interval, MatrixBase, Tuple
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from prorl_math.values import proportional, same_value

GREATER = (sympy.Gt, sympy.Ge)
STRICT = (sympy.Gt, sympy.Lt)
ORDERED = (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le)


def same(gold: Any, answer: Any) -> bool:
    """Whether two things that were parsed are the same, part by part."""
    gold, answer = last_equation(gold), last_equation(answer)
    if isinstance(gold, Eq) and isinstance(answer, Eq):
        return same_equation(gold, answer)
    if isinstance(gold, Eq) or isinstance(answer, Eq):
        left, right = assigned(gold), assigned(answer)
        return left is not None and right is not None and same(left, right)
    gold, answer = only_member(gold), only_member(answer)
    for compare in (same_matrix, same_list, same_interval, same_in_order, same_expression):
        if (found := compare(gold, answer)) is not None:
            return found
    return same_inequality(gold, answer) or same_region(gold, answer)


def same_list(gold: Any, answer: Any) -> bool | None:
    if isinstance(gold, FiniteSet) and isinstance(answer, FiniteSet):
        return same_members(list(gold.args), list(answer.args)) or same_region(gold, answer)
    return None


def same_interval(gold: Any, answer: Any) -> bool | None:
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        ends_alike = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
        return ends_alike and same_sequence([gold.start, gold.end], [answer.start, answer.end])
    return None


def same_in_order(gold: Any, answer: Any) -> bool | None:
    left, right = in_order(gold), in_order(answer)
    return None if left is None or right is None else same_sequence(left, right)


def same_expression(gold: Any, answer: Any) -> bool | None:
    return same_value(gold, answer) if isinstance(gold, Expr) and isinstance(answer, Expr) else None


def last_equation(value: Any) -> Any:
    """``x = 2 + 3 = 5`` says x = 5."""
    if isinstance(value, sympy.And) and all(isinstance(part, Eq) for part in value.args):
        parts = list(getattr(value, "_unsorted_args", value.args))
        return Eq(parts[0].lhs, parts[-1].rhs, evaluate=False)
    return value


def only_member(value: Any) -> Any:
    return value.args[0] if isinstance(value, FiniteSet) and len(value.args) == 1 else value


def assigned(value: Any) -> Any:
    """What an equation gives to a name: 5 for ``x = 5``, ``5 = x``, ``AB = 5``, ``f(x) = 5``, ``2 + 3 = 5``; ``None``
    for ``2x = 10``. What is no equation is itself."""
    if not isinstance(value, Eq):
        return value
    for name, given in ((value.lhs, value.rhs), (value.rhs, value.lhs)):
        if is_name(name) and not (name.free_symbols & given.free_symbols and not name.has(AppliedUndef)):
            return given
    constant = isinstance(value.lhs, Expr) and isinstance(value.rhs, Expr) and not value.free_symbols
    return value.rhs if constant and same_value(value.lhs, value.rhs) else None


def is_name(value: Any) -> bool:
    if isinstance(value, sympy.Mul):
        return all(isinstance(part, sympy.Symbol) for part in value.args)
    if isinstance(value, Tuple):
        return all(isinstance(part, sympy.Symbol) for part in value.args)
    if isinstance(value, Interval):
        return value.is_open is True and all(isinstance(part, sympy.Symbol) for part in (value.start, value.end))
    return isinstance(value, sympy.Symbol | AppliedUndef)


def same_equation(gold: Eq, answer: Eq) -> bool:
    """The same points satisfy both, or the same name is given the same."""
    if all(isinstance(side, Expr) for side in (gold.lhs, gold.rhs, answer.lhs, answer.rhs)):
        if proportional(gold.lhs - gold.rhs, answer.lhs - answer.rhs) is not None:
            return True
        if gold.lhs.has(AppliedUndef) == answer.lhs.has(AppliedUndef) and gold.lhs != answer.lhs:
            return False
    elif str(gold.lhs) != str(answer.lhs):
        return False
    left, right = assigned(gold), assigned(answer)
    return left is not None and right is not None and same(left, right)


def same_matrix(gold: Any, answer: Any) -> bool | None:
    """Of one shape, entry by entry; a vector may be given as a tuple."""
    if not (isinstance(gold, MatrixBase) or isinstance(answer, MatrixBase)):
        return None
    if isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase):
        return gold.shape == answer.shape and same_sequence(gold.flat(), answer.flat())
    left, right = in_order(gold), in_order(answer)
    braces = isinstance(gold, FiniteSet) or isinstance(answer, FiniteSet)
    return left is not None and right is not None and not braces and same_sequence(left, right)


def in_order(value: Any) -> list[Any] | None:
    """The items of what has an order, as written: a tuple, a pair, a vector, a list without braces."""
    if isinstance(value, Tuple):
        return list(value.args)
    if isinstance(value, Interval) and value.is_open:
        return [value.start, value.end]
    if isinstance(value, MatrixBase) and 1 in value.shape:
        return list(value.flat())
    if isinstance(value, FiniteSet) and hasattr(value, "_unsorted_args"):  # see reading.py: one in braces has none
        return [assigned(item) if isinstance(item, Eq) else item for item in value._unsorted_args]  # noqa: SLF001
    return None


def same_sequence(gold: list[Any], answer: list[Any]) -> bool:
    return len(gold) == len(answer) and all(same(*pair) for pair in zip(gold, answer, strict=True))


def same_members(gold: list[Any], answer: list[Any]) -> bool:
    """Each has its own twin; the lists may be in any order."""
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for member in gold:
        twin = next((other for other in left if same(member, other)), None)
        if twin is None:
            return False
        left.remove(twin)
    return True


def is_inequality(value: Any) -> bool:
    parts = value.args if isinstance(value, sympy.And) else (value,)
    return all(isinstance(part, Relational) and not isinstance(part, Eq) for part in parts)


def same_inequality(gold: Any, answer: Any) -> bool:
    """``y > 2x`` is ``2x < y``, and ``2y > 4x``; all parts of a chain must have their twin."""
    if not (is_inequality(gold) and is_inequality(answer)):
        return False
    left, right = (list(v.args) if isinstance(v, sympy.And) else [v] for v in (gold, answer))
    return len(left) == len(right) and all(any(same_half_plane(one, other) for other in right) for one in left)


def same_half_plane(gold: Relational, answer: Relational) -> bool:
    if not all(isinstance(side, Expr) for side in (gold.lhs, gold.rhs, answer.lhs, answer.rhs)):
        return False
    if isinstance(gold, sympy.Ne) and isinstance(answer, sympy.Ne):
        return proportional(gold.lhs - gold.rhs, answer.lhs - answer.rhs) is not None
    if not (isinstance(gold, ORDERED) and isinstance(answer, ORDERED)):
        return False
    if isinstance(gold, STRICT) != isinstance(answer, STRICT):
        return False
    factor = proportional(_above_zero(gold), _above_zero(answer))
    return factor is not None and bool(factor > 0)


def _above_zero(relation: Relational) -> Expr:
    return relation.lhs - relation.rhs if isinstance(relation, GREATER) else relation.rhs - relation.lhs


def same_region(gold: Any, answer: Any) -> bool:
    """Sets of numbers, written as intervals, unions or inequalities in one letter."""
    regions = [as_region(value) for value in (gold, answer)]
    if None in regions:
        return False
    left, right = regions
    if left == right:
        return True
    if isinstance(left, sympy.Union) and isinstance(right, sympy.Union):
        return same_members(list(left.args), list(right.args))
    return False if left.is_FiniteSet or right.is_FiniteSet else left.symmetric_difference(right).is_empty is True


def as_region(value: Any) -> Any:
    """The set of numbers that ``value`` describes; ``None`` for anything else. To sympy a letter is a Boolean too, and
    its region everything: only what is made of inequalities counts."""
    if isinstance(value, sympy.Set):
        return value
    parts = value.args if isinstance(value, sympy.And | sympy.Or) else (value,)
    if all(isinstance(part, sympy.And) or is_inequality(part) for part in parts) and len(value.free_symbols) == 1:
        (symbol,) = value.free_symbols
        return value.xreplace({symbol: sympy.Symbol("t", real=True)}).as_set()
    return None
