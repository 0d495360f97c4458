"""Chemical formulas: ``H2O``, ``\\ce{SO4^2-}``, ``Ca(OH)₂``. Two of them differ when their atoms or charges do.

The same atoms in another order may be another substance (ethanol, dimethyl ether), so that decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter

from prorl_stem.grading.plain import plain

SYMBOLS = frozenset(
    """
    H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr
    Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir
    Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl
    Mc Lv Ts Og
    """.split()  # noqa: SIM905 - the periodic table, as it is read
)
PIECE = re.compile(r"([A-Z][a-z]?)(\d{0,4})|([(\[])|([)\]])(\d{0,4})")
CHARGE = re.compile(r"\^\s*\(?(\d{0,3})([+-])\)?$|\^\s*\(?([+-])(\d{0,3})\)?$|(?<=[A-Za-z\d)\]])([+-])$")
MAX_CHARS = 200

Atoms = tuple[frozenset[tuple[str, int]], int]


def spelling(text: str) -> str:
    """The formula without blanks and marks: for comparing two of them letter by letter."""
    return re.sub(r"[\s_]+", "", plain(text))


def read_formula(text: str) -> Atoms | None:
    """Atoms and charge; ``None`` for what is no formula of at least two atoms."""
    text = spelling(text)
    text = re.sub(r"\((?:s|l|g|aq)\)$", "", text)
    charge = 0
    if match := CHARGE.search(text):
        size = int(match[1] or match[4] or 1)
        charge = size if (match[2] or match[3] or match[5]) == "+" else -size
        text = text[: match.start()]
    atoms = _atoms(text) if len(text) <= MAX_CHARS else None
    return None if atoms is None or atoms.total() < 2 else (frozenset(atoms.items()), charge)


def _atoms(text: str) -> Counter[str] | None:
    groups: list[Counter[str]] = [Counter()]
    at = 0
    while at < len(text):
        piece = PIECE.match(text, at)
        if piece is None:
            return None
        element, count, opening, closing, times = piece.groups()
        if opening:
            groups.append(Counter())
        elif closing and len(groups) > 1:
            inner = groups.pop()
            groups[-1].update({symbol: number * int(times or 1) for symbol, number in inner.items()})
        elif element in SYMBOLS:
            groups[-1][element] += int(count or 1)
        else:
            return None
        at = piece.end()
    return groups[0] if len(groups) == 1 else None
