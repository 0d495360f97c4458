"""Whether two parsed values or expressions are equal, by value and not by form.

Constants are compared to 40 digits and by relative tolerance, so that 2^-99 is not 2^-98. Expressions with letters are
compared where the gold one is real, at points drawn from both texts, so that no answer can aim at them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import sympy
from sympy import Expr, Float
from sympy.core.function import AppliedUndef

DIGITS = 40
# Relative: 1/3 is 0.333333 and not 0.33333.
DECIMAL_TOLERANCE = sympy.Float("2e-6", DIGITS)
WHOLE_TOLERANCE = sympy.Float("1e-12", DIGITS)  # of decimals that were computed with; written ones are compared exactly
EXACT_TOLERANCE = sympy.Float("1e-30", DIGITS)
SAMPLES = 9
ENOUGH_SAMPLES = 2


def same_value(gold: Expr, answer: Expr) -> bool:
    """Constants by their number, all else as functions of its letters. ``i`` is the imaginary unit."""
    gold, answer = plain(gold), plain(answer)
    if gold == answer:
        return True
    if not (names(gold) or names(answer)):
        return same_constant(gold, answer)
    return same_function(gold, answer)


def plain(value: Expr) -> Expr:
    """Without what depends on how it was written: f(x) becomes a letter, the letter i the imaginary unit, and letters
    lose the assumptions that latex2sympy gives them in one expression and not in the other."""
    value = value.replace(lambda part: isinstance(part, AppliedUndef), lambda part: sympy.Symbol(str(part)))
    return value.xreplace(
        {symbol: sympy.I if symbol.name == "i" else sympy.Symbol(symbol.name) for symbol in value.free_symbols}
    )


def same_constant(gold: Expr, answer: Expr) -> bool:
    left, right = gold.evalf(DIGITS), answer.evalf(DIGITS)
    if left == right and left.is_infinite:
        return True
    if not (is_number(left) and is_number(right)):
        return is_zero(gold - answer)
    decimal = gold.has(Float) or answer.has(Float)
    tolerance = EXACT_TOLERANCE if not decimal else WHOLE_TOLERANCE if gold.is_integer else DECIMAL_TOLERANCE
    if not near(left, right, tolerance):
        return not (left and right) and not decimal and is_zero(gold - answer)
    if decimal:
        return True
    gold, answer = gold.doit(), answer.doit()  # beyond 40 digits whole numbers may still differ
    return bool(gold == answer) if gold.is_Rational and answer.is_Rational else True


def is_number(value: Expr) -> bool:
    return all(part.is_comparable and part.is_finite for part in value.as_real_imag())


def near(left: Expr, right: Expr, tolerance: Float) -> bool:
    return bool(abs(left - right) <= tolerance * max(abs(left), abs(right)))


def is_zero(difference: Expr) -> bool:
    """For what has no digits to compare, such as a sum that cancels."""
    return bool(sympy.simplify(difference) == 0)


def same_function(gold: Expr, answer: Expr) -> bool:
    """Equal at every sample point where the gold one is real (any number, if it is about complex ones)."""
    tolerance = DECIMAL_TOLERANCE if gold.has(Float) or answer.has(Float) else EXACT_TOLERANCE
    complex_too = gold.has(sympy.I)
    compared = 0
    for point in points(gold, answer):
        left, right = gold.subs(point).evalf(DIGITS), answer.subs(point).evalf(DIGITS)
        if not is_number(left) or not (complex_too or left.is_real):
            continue
        if not is_number(right) or not (near(left, right, tolerance) or is_zero_pair(left, right)):
            return False
        compared += 1
    if compared >= ENOUGH_SAMPLES:
        return True
    return names(gold) == names(answer) and is_zero(gold - answer)


def is_zero_pair(left: Expr, right: Expr) -> bool:
    """Both nothing but rounding errors."""
    return bool(max(abs(left), abs(right)) <= EXACT_TOLERANCE)


def proportional(gold: Expr, answer: Expr) -> Expr | None:
    """The one factor k with ``gold = k * answer`` at every sample point; ``None`` when there is none."""
    gold, answer = plain(gold), plain(answer)
    if names(gold) != names(answer):
        return None
    factor, compared = None, 0
    for point in points(gold, answer):
        left, right = gold.subs(point).evalf(DIGITS), answer.subs(point).evalf(DIGITS)
        if not (is_number(left) and is_number(right)) or not left or not right:
            continue
        ratio = left / right
        tolerance = DECIMAL_TOLERANCE if gold.has(Float) or answer.has(Float) else EXACT_TOLERANCE
        if factor is not None and not near(factor, ratio, tolerance):
            return None
        factor, compared = ratio, compared + 1
    return factor if compared >= ENOUGH_SAMPLES else None


def points(gold: Expr, answer: Expr) -> Iterator[dict[sympy.Symbol, sympy.Rational]]:
    """Fractions of both signs for every letter; which ones, both texts decide."""
    letters = sorted(names(gold) | names(answer))
    seed = f"{sympy.srepr(gold)}|{sympy.srepr(answer)}"
    for sample in range(SAMPLES):
        yield {sympy.Symbol(name): _fraction(f"{seed}|{sample}|{name}", sample) for name in letters}


def _fraction(seed: str, sample: int) -> sympy.Rational:
    drawn = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6])
    sign = -1 if sample % 3 == 2 else 1  # most at positive points: many answers are about lengths and counts
    return sympy.Rational(sign * (drawn // 1000 % 9000 + 11), 1009 + 2 * (drawn % 1000))


def names(expression: Expr) -> set[str]:
    return {symbol.name for symbol in expression.free_symbols}
