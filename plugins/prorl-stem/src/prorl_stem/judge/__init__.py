"""An LLM that says whether two answers are the same: asked last, about words that no rule can compare."""

from prorl_stem.judge.judge import Judge, Opinion
from prorl_stem.judge.prompt import speaks_to_judge
from prorl_stem.judge.worth import worth_judging

__all__ = ["Judge", "Opinion", "speaks_to_judge", "worth_judging"]
