"""``[handlers.code]`` in prorl.toml, and a code job's ``settings``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from prorl.agent import AgentSettings
from prorl.api import RuntimeName
from prorl_code.rows import Format

Reward = Annotated[float, msgspec.Meta(ge=-1000.0, le=1000.0)]
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class CodeSettings(AgentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's settings (tools, turns, prompt, sandbox), the judge's, and the shape of the reward.

    ``format``: of the rows; ``auto`` goes by their fields.
    ``public_tests_only``: judge LiveCodeBench's problems on their public tests.
    ``answer_file``: where the agent leaves its program; without that file the last fenced block of its last message is
    the answer.
    ``instructions``: what is added to the task; ``None`` takes the domain's own, ``{answer_file}`` in it is filled in.
    ``reward``: ``all`` tests must pass, or the ``fraction`` that does counts.
    ``early_stop``: end judging with the first test that fails; ``None``: with ``all``, but not with ``fraction``, where
    tests that were not run count as failed.
    ``max_tests``: judge on the row's first so many tests.
    ``time_limit_s``: CPU seconds for a test where the row sets no limit; a row's own limit is multiplied by
    ``time_factor``, for rows mean a compiled language.
    ``wall_factor``: a test's wall-clock limit in its CPU limits, two seconds more.
    ``memory_mb``: address space of a program, and more if the row allows more.
    ``processes``, ``output_mb`` (of each file, standard output among them), ``tmp_mb`` (files of one run at once).
    ``whitespace``: ``words`` compares word by word, ``lines`` line by line without what trails.
    ``float_tolerance``: absolute or relative, in problems about floats.
    ``judge_runtime``: the judge's sandbox runtime by name; ``None``: as ``runtime``.
    ``judge_programs``: how many candidates the whole server judges at once, ``comparers``: processes that compare
    outputs; both are read at its first job.
    """

    format: Format = "auto"
    public_tests_only: bool = False
    answer_file: str = "/workspace/solution.py"
    instructions: str | None = None
    reward: Literal["all", "fraction"] = "all"
    reward_right: Reward = 1.0
    reward_wrong: Reward = 0.0
    reward_no_answer: Reward = 0.0
    early_stop: bool | None = None
    max_tests: Count | None = None
    time_limit_s: Positive = 10.0
    time_factor: Positive = 3.0
    wall_factor: Positive = 3.0
    memory_mb: Annotated[int, msgspec.Meta(ge=64, le=1_000_000)] = 1024
    processes: Annotated[int, msgspec.Meta(ge=8, le=100_000)] = 64
    output_mb: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    tmp_mb: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 64
    whitespace: Literal["words", "lines"] = "words"
    float_tolerance: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 1e-6
    compare_timeout_s: Positive = 20.0
    judge_runtime: RuntimeName | None = None
    judge_programs: Count = 2
    comparers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
