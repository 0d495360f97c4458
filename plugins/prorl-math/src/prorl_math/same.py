"""Equality of parsed answers where math-verify is too lenient (small numbers) or too strict (roots, regions).

Each function says ``None`` or ``False`` when the question does not arise for what it was given.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Eq, Expr, FiniteSet, Float, Interval, Tuple

DIGITS = 40
INEQUALITIES = (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le, sympy.Ne)
# Relative: 1/3 is 0.333333 and not 0.33333, and a whole number is itself only.
DECIMAL_TOLERANCE = 2e-6
INTEGER_TOLERANCE = 1e-9
EXACT_TOLERANCE = 1e-30
# Where two functions are compared: no zeros, no special values, both signs, none a rational of another.
POINTS = tuple(
    sympy.Rational(p, q) for p, q in ((37, 23), (-41, 29), (53, 19), (-17, 31), (211, 47), (13, 43), (-97, 37))
)


def unwrap(value: Any) -> Any:
    """``x = 5`` answers 5."""
    if isinstance(value, Eq) and value.lhs.is_Symbol and not value.rhs.free_symbols:
        return value.rhs
    return value


def same_number(gold: Any, answer: Any) -> bool | None:
    """For two real constants; the tolerance is relative, so that 2^-99 is not 2^-98."""
    if not (is_real_number(gold) and is_real_number(answer)):
        return None
    gold, answer = gold.doit(), answer.doit()
    if gold == answer:
        return True
    if gold.is_Rational and answer.is_Rational:
        return False
    left, right = gold.evalf(DIGITS), answer.evalf(DIGITS)
    if not (left.is_comparable and right.is_comparable):
        return None
    scale = max(abs(left), abs(right))
    tolerance = EXACT_TOLERANCE
    if gold.has(Float) or answer.has(Float):
        tolerance = INTEGER_TOLERANCE if gold.is_integer else DECIMAL_TOLERANCE
    return bool(abs(left - right) <= tolerance * scale)


def is_real_number(value: Any) -> bool:
    return isinstance(value, Expr) and not value.free_symbols and bool(value.is_real) and value.is_finite is not False


def same_parts(gold: Any, answer: Any) -> bool | None:
    """For two sets, tuples or intervals of real constants, part by part; a set has no order."""
    if isinstance(gold, FiniteSet) and isinstance(answer, FiniteSet):
        return same_members(list(gold.args), list(answer.args))
    if isinstance(gold, Tuple) and isinstance(answer, Tuple):
        return same_sequence(list(gold.args), list(answer.args))
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        ends = same_sequence([gold.start, gold.end], [answer.start, answer.end])
        return ends and (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
    return None


def same_sequence(gold: list[Any], answer: list[Any]) -> bool | None:
    if not all(map(is_real_number, gold + answer)):
        return None
    return len(gold) == len(answer) and all(same_number(*pair) for pair in zip(gold, answer, strict=True))


def same_members(gold: list[Any], answer: list[Any]) -> bool | None:
    if not all(map(is_real_number, gold + answer)):
        return None
    left = list(answer)
    for member in gold:
        twin = next((other for other in left if same_number(member, other)), None)
        if twin is None:
            return False
        left.remove(twin)
    return not left


def same_region(gold: Any, answer: Any) -> bool:
    """An interval given as inequalities in one variable, or the other way round."""
    regions = [as_region(value) for value in (gold, answer)]
    return None not in regions and regions[0] == regions[1]


def as_region(value: Any) -> Any:
    """The set that ``value`` describes; ``None`` for anything else. To sympy a letter is a Boolean too, and its region
    everything: only what is made of inequalities counts."""
    if isinstance(value, sympy.Set):
        return value
    parts = value.args if isinstance(value, sympy.And) else (value,)
    if all(isinstance(part, INEQUALITIES) for part in parts) and len(value.free_symbols) == 1:
        (symbol,) = value.free_symbols
        real = sympy.Symbol("t", real=True)
        return sympy.And(*(part.subs(symbol, real) for part in parts)).as_set()
    return None


def same_function(gold: Any, answer: Any) -> bool:
    """Equal at every sample point where the gold one is real: 1/sqrt(n) is sqrt(1/n), and |x| is not x."""
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)) or not gold.free_symbols:
        return False
    # latex2sympy gives one letter different assumptions in different expressions: the name is what counts
    if names(gold) != names(answer):
        return False
    compared = 0
    for shift in range(len(POINTS)):
        values = {name: POINTS[(shift + index) % len(POINTS)] for index, name in enumerate(sorted(names(gold)))}
        left, right = value_at(gold, values), value_at(answer, values)
        if left is None or not left.is_real:
            continue
        if right is None or abs(left - right) > sympy.Float(EXACT_TOLERANCE) * max(1, abs(left)):
            return False
        compared += 1
    return compared >= 2


def names(expression: Expr) -> set[str]:
    return {symbol.name for symbol in expression.free_symbols}


def value_at(expression: Expr, values: dict[str, sympy.Rational]) -> Any:
    """The number at a point, or None where there is none."""
    value = expression.subs({symbol: values[symbol.name] for symbol in expression.free_symbols}).evalf(DIGITS)
    real, imaginary = value.as_real_imag()
    return value if real.is_comparable and imaginary.is_comparable and value.is_finite else None
