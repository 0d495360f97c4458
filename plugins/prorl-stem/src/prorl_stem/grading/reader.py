# ruff: noqa: RUF001 - look-alikes are what it reads
"""LaTeX of physics, read as a tree: products without signs, letters that keep their case, indices as part of a name.

Made for what science writes: ``\\hbar\\omega(v+1/2)`` is a product and no call of a function, ``M`` is not ``m``,
``\\Delta U`` is one symbol, ``\\frac{dM}{dt}`` is a derivative and does not cancel, ``\\hbar`` is h/2π, ``e`` is
Euler's number wherever it stands (a charge ``e`` has then the same value on both sides). What it cannot read (matrices,
integrals, sums, sets) raises :class:`Unreadable`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prorl_stem.grading.plain import SIGNS, unscripted, unwrap


class Unreadable(ValueError):  # noqa: N818 - what the text is
    """No expression of this grammar."""


@dataclass(frozen=True)
class Node:
    """``kind``: number, symbol, constant, add, mul, neg, inv, pow, or the name of a function; ``text`` for leaves."""

    kind: str
    parts: tuple[Node, ...] = ()
    text: str = ""


PI = Node("constant", text="pi")
FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "coth": "coth", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "asin": "asin",
    "acos": "acos", "atan": "atan", "ln": "log", "log": "log10", "lg": "log10", "exp": "exp", "sqrt": "sqrt",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "erf": "erf", "erfc": "erfc", "abs": "abs",
}  # fmt: skip
GREEK = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau
    upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega hbar ell infty nabla
    """.split()  # noqa: SIM905 - names, as they are read
)
UNICODE = {
    "π": r"\pi ", "Δ": r"\Delta ", "∆": r"\Delta ", "λ": r"\lambda ", "ω": r"\omega ", "θ": r"\theta ", "α": r"\alpha ",
    "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ", "ϵ": r"\epsilon ", "η": r"\eta ",
    "κ": r"\kappa ", "ν": r"\nu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ", "ϕ": r"\phi ",
    "χ": r"\chi ", "ψ": r"\psi ", "ξ": r"\xi ", "Ω": r"\Omega ", "Φ": r"\Phi ", "Ψ": r"\Psi ", "Γ": r"\Gamma ",
    "Λ": r"\Lambda ", "Σ": r"\Sigma ", "ħ": r"\hbar ", "ℏ": r"\hbar ", "∞": r"\infty ", "µ": r"\mu ", "√": r"\sqrt ",
    "ℓ": r"\ell ",
}  # fmt: skip
DECORATIONS = ("dot", "ddot", "hat", "vec", "bar", "tilde", "overline", "mathcal", "mathbb", "widehat")
FONT = re.compile(r"\\(?:mathbf|boldsymbol|mathit|mathsf|bf|bm|textbf|textit)\s*\{([^{}]*)\}")
UPRIGHT = re.compile(r"\\(?:text|mathrm|operatorname\*?|textrm|mbox|rm)\s*\{\s*~?([^{}]*?)\s*\}")
DERIVATIVE = re.compile(
    r"\\[dt]?frac\s*\{\s*(?:d|\\partial)\s*(\^\s*\{?\d\}?)?\s*([^{}]*(?:\{[^{}]*\})?)\s*\}\s*"
    r"\{\s*(?:d|\\partial)\s*([^{}]+?(?:\{[^{}]*\})?)\s*\}"
)
NOISE = re.compile(
    r"\\(?:left|right|displaystyle|[bB]igg?[lr]?|limits|,|;|:|!|>| |quad|qquad)(?![A-Za-z])|\\(?=\s)|&|\$"
)
TOKEN = re.compile(r"\s*(\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+|\\[A-Za-z]+|[A-Za-z]|[-+*/^_=(){}\[\]|,!'⟦⟧±])")
NAMES = re.compile("|".join(sorted((name for name in FUNCTIONS), key=len, reverse=True)) + "|pi|hbar")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
MAX_CHARS = 1500
MAX_DEPTH = 60


def tidy(text: str) -> str:
    """One way of writing for what is written in many: Unicode, fonts, spacing, names of functions, derivatives."""
    text = unwrap(text).translate(SIGNS)
    for sign, command in UNICODE.items():
        text = text.replace(sign, command)
    text = unscripted(text).replace(r"\cdot", "*").replace(r"\times", "*").replace(r"\div", "/").replace("**", "^")
    text = text.replace(r"\pm", "±").replace(r"\lbrack", "[").replace(r"\rbrack", "]").replace(r"\dfrac", r"\frac")
    text = text.replace(r"\tfrac", r"\frac").replace(r"\,", " ")
    text = re.sub(r"\\dot\s+([A-Za-z])", r"\\dot{\1}", text)
    text = FONT.sub(r" \1 ", text)
    text = DERIVATIVE.sub(lambda match: _name(f"d{match[1] or ''}{match[2]}/d{match[3]}"), text)
    text = UPRIGHT.sub(lambda match: _upright(match[1]), text)
    text = NOISE.sub(" ", text)
    return re.sub(r"(?<![\\A-Za-z⟦])(?:" + NAMES.pattern + r")(?![a-z⟧])", lambda match: f"\\{match[0]} ", text)


def _upright(text: str) -> str:
    if text in FUNCTIONS or text in ("d", "e", "i"):
        return f"\\{text} " if text in FUNCTIONS else text
    return text if len(text) <= 1 else _name(text)


def _name(text: str) -> str:
    """A symbol of many letters, between brackets that no model writes."""
    return f"⟦{re.sub(r'[^A-Za-z0-9/]+', '', text) or 'x'}⟧"


def read_expression(text: str) -> Node:
    """The tree of one expression (no comma, no equals sign). Raises :class:`Unreadable`."""
    if len(text) > MAX_CHARS:
        raise Unreadable("too long")
    reader = _Reader(text)
    node = reader.sum()
    if reader.peek() is not None:
        raise Unreadable(f"unexpected {reader.peek()}")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        if WORD.search(re.sub("⟦[^⟧]*⟧", "", text)):
            raise Unreadable("words")
        self._tokens: list[str] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            name = re.compile(r"\s*⟦([^⟧]*)⟧").match(text, at)
            match = name or TOKEN.match(text, at)
            if match is None:
                raise Unreadable(f"unexpected {text[at]!r}")
            self._tokens.append(f"⟦{match[1]}⟧" if name else match[1])
            at = match.end()
        if not self._tokens:
            raise Unreadable("empty")
        self._at = 0
        self._depth = 0

    def peek(self, ahead: int = 0) -> str | None:
        return self._tokens[self._at + ahead] if self._at + ahead < len(self._tokens) else None

    def take(self, wanted: str | None = None) -> str:
        piece = self.peek()
        if piece is None or (wanted is not None and piece != wanted):
            raise Unreadable(f"expected {wanted or 'more'}")
        self._at += 1
        return piece

    def sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("too deep")
        parts = []
        sign = self._signs()
        parts.append(_signed(self.product(), sign))
        while self.peek() in ("+", "-"):
            sign = self._signs()
            parts.append(_signed(self.product(), sign))
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Node("add", tuple(parts))

    def _signs(self) -> bool:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        return negative

    def product(self, *, arguments_only: bool = False) -> Node:
        """``arguments_only``: of a function without brackets, up to a sign, a stroke or the next function."""
        parts = [self.power()]
        while (piece := self.peek()) is not None:
            if piece == "*" and not arguments_only:
                self.take()
                negative = self._signs()
                parts.append(_signed(self.power(), negative))
            elif piece == "/" and not arguments_only:
                self.take()
                negative = self._signs()
                parts.append(Node("inv", (_signed(self.power(), negative),)))
            elif self._begins_factor(piece, arguments_only=arguments_only):
                parts.append(self.power())
            else:
                break
        return parts[0] if len(parts) == 1 else Node("mul", tuple(parts))

    def _begins_factor(self, piece: str, *, arguments_only: bool) -> bool:
        if arguments_only and (piece in ("(", "[") or piece.removeprefix("\\") in FUNCTIONS):
            return False
        return piece not in ("+", "-", "*", "/", ")", "}", "]", "|", "=", ",", "^", "_", "!", "'", "±")

    def power(self) -> Node:
        base = self.atom()
        while self.peek() in ("^", "!"):
            if self.take() == "!":
                base = Node("factorial", (base,))
                continue
            exponent = self._script()
            base = Node("pow", (base, exponent))
        return base

    def _script(self) -> Node:
        """What stands after ``^``: a group, or one sign-and-atom."""
        if self.peek() == "{":
            return self._group("{", "}")
        negative = self._signs()
        piece = self.peek()
        if piece is not None and piece.isdigit():
            return _signed(Node("number", text=self.take()), negative)
        return _signed(self.atom(), negative)

    def _group(self, opening: str, closing: str) -> Node:
        self.take(opening)
        node = self.sum()
        self.take(closing)
        return node

    def atom(self) -> Node:  # noqa: PLR0911, PLR0912 - one case per kind of piece
        piece = self.take()
        if piece[0].isdigit() or piece[0] == ".":
            return Node("number", text=piece.replace(",", ""))
        if piece in ("(", "[", "{"):
            self._at -= 1
            return self._group(piece, {"(": ")", "[": "]", "{": "}"}[piece])
        if piece == "|":
            node = self.sum()
            self.take("|")
            return Node("abs", (node,))
        if piece == r"\frac":
            above, below = self._argument(), self._argument()
            return Node("mul", (above, Node("inv", (below,))))
        name = piece.removeprefix("\\")
        if name in FUNCTIONS and piece != name:
            return self._function(name)
        if piece == r"\pi" and self.peek() != "_":
            return PI
        if piece in ("e", "i") and self.peek() != "_":
            return Node("constant", text=piece)
        if piece == r"\hbar":
            return Node("mul", (self._symbol("h"), Node("inv", (Node("mul", (Node("number", text="2"), PI)),))))
        if name in DECORATIONS and piece != name:
            return self._symbol(f"{name}:{self._raw_group()}")
        if piece in (r"\Delta", r"\delta", r"\partial") and (follows := self.peek()) and _is_letter(follows):
            inner = self.atom()
            return Node("symbol", text=f"{name} {inner.text}") if inner.kind == "symbol" else self._symbol(name)
        if name in GREEK and piece != name:
            return self._symbol({"varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta"}.get(name, name))
        if piece[0] == "⟦":
            return self._symbol(piece[1:-1])
        if len(piece) == 1 and piece.isalpha():
            return self._symbol(piece)
        raise Unreadable(f"unexpected {piece}")

    def _argument(self) -> Node:
        if self.peek() == "{":
            return self._group("{", "}")
        piece = self.peek()
        if piece is not None and piece.isdigit() and len(piece) > 1:  # \frac12
            self._tokens[self._at : self._at + 1] = list(piece)
        return self.atom()

    def _function(self, name: str) -> Node:
        kind = FUNCTIONS[name]
        if name == "sqrt":
            root = None
            if self.peek() == "[":
                root = self._group("[", "]")
            inner = self._argument()
            return Node("sqrt", (inner,)) if root is None else Node("pow", (inner, Node("inv", (root,))))
        base = exponent = None
        if self.peek() == "_":
            self.take()
            base = self._script()
        if self.peek() == "^":
            self.take()
            exponent = self._script()
        if self.peek() in ("(", "[", "{"):
            opening = self.peek()
            inner = self._group(opening, {"(": ")", "[": "]", "{": "}"}[opening])  # type: ignore[arg-type,index]
        else:
            negative = self._signs()
            inner = _signed(self.product(arguments_only=True), negative)
        if exponent == Node("neg", (Node("number", text="1"),)) and kind in ("sin", "cos", "tan"):
            return Node(f"a{kind}", (inner,))
        if base is not None:
            node = Node("mul", (Node("log", (inner,)), Node("inv", (Node("log", (base,)),))))
        else:
            node = Node(kind, (inner,))
        return node if exponent is None else Node("pow", (node, exponent))

    def _symbol(self, name: str) -> Node:
        while self.peek() in ("_", "'"):
            if self.take() == "'":
                name += "'"
            else:
                name += f"_{self._raw_group()}"
        return Node("symbol", text=name)

    def _raw_group(self) -> str:
        """An index, letter by letter: ``_{core}`` and ``_0``."""
        if self.peek() != "{":
            return self.take().strip("\\⟦⟧")
        self.take("{")
        parts: list[str] = []
        depth = 1
        while True:
            piece = self.take()
            depth += {"{": 1, "}": -1}.get(piece, 0)
            if not depth:
                return "".join(parts)
            if piece not in ("{", "}"):
                parts.append(piece.strip("\\⟦⟧"))


def _is_letter(piece: str) -> bool:
    return (len(piece) == 1 and piece.isalpha()) or piece.removeprefix("\\") in GREEK or piece[0] == "⟦"


def _signed(node: Node, negative: bool) -> Node:
    return Node("neg", (node,)) if negative else node
