"""``[handlers.math]`` in prorl.toml, and a math job's ``settings``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from prorl.agent import AgentSettings

Reward = Annotated[float, msgspec.Meta(ge=-1000.0, le=1000.0)]


class MathSettings(AgentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's settings (tools, turns, prompt, sandbox) and the shape of the reward.

    ``read_from``: where the answer may stand, in this order: in the last ``box``, or else on the last answer ``line``
    ("Answer: 42", "The final answer is 42", "#### 42").
    ``reward_no_answer`` is for a rollout that ends without an answer in any of these places.
    ``grader_timeout_s``: seconds for one answer; an answer that can't be graded in that time is wrong.
    ``grader_processes``: grading processes of the whole server, about 80 MB each; ``grader_memory_mb``: the address
    space of each. Both are read at the server's first mathematics job.
    """

    read_from: Annotated[tuple[Literal["box", "line"], ...], msgspec.Meta(min_length=1)] = ("box", "line")
    reward_correct: Reward = 1.0
    reward_wrong: Reward = 0.0
    reward_no_answer: Reward = 0.0
    grader_timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=600.0)] = 10.0
    grader_processes: Annotated[int, msgspec.Meta(ge=1, le=256)] = 2
    grader_memory_mb: Annotated[int, msgspec.Meta(ge=512, le=65_536)] = 2048
