"""Short answers for rows that have only a solution (SCP-116K): by rule, and by a language model where no rule tells."""

from prorl_stem.extract.draw import Drawing, draw_rows

__all__ = ["Drawing", "draw_rows"]
