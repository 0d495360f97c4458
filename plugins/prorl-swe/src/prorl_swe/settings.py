"""``[handlers.swe]`` in prorl.toml and a swe job's ``settings``; and ``[swe]``, which is the server's owner's."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from prorl.agent import AgentSettings
from prorl.api import RuntimeName
from prorl.api.sandbox import Limits, SandboxSpec
from prorl.wire import Budgets
from prorl_swe.repository.prepared import WORKTREE
from prorl_swe.rows import DEFAULT_IMAGE, Kind, KindSetting, check_images, check_sources

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=604_800.0)]
# A suite of tests writes more, and needs more, than a shell does.
LIMITS = Limits(memory_mb=4096, processes=1024, file_mb=1024, tmp_mb=1024)
# The first rollout of a repository may have to make its environment, in INIT; a repair takes long. Taking the patch of
# a run that was cut short has more than it allows itself (patches/take.py): a huge tree is judged as in any other run.
BUDGETS = Budgets(init_s=1800.0, run_s=1800.0, collect_s=400.0, eval_s=1800.0)


class SweSettings(AgentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's settings (tools, turns, prompt, sandbox) and the grader's.

    ``format``: of the rows; ``auto`` goes by their fields.
    ``images``: where the images of rows are: a template for all kinds of rows, or one per kind
    (:mod:`prorl_swe.rows.images`).
    ``instructions``: what is added to the problem statement; ``None`` takes the domain's own, ``{repository}`` in it is
    filled in.
    ``patch_mb``: a larger patch of the agent's is none.
    ``reward``: 1 only when the issue is ``resolved``, or the ``fraction`` of F2P that passed times that of P2P kept.
    ``test_timeout_s``: the longest that one test may take, ``tests_timeout_s``: all of them.
    ``grader_runtime``: the grader's sandbox runtime by name; ``None``: as ``runtime``.
    ``grader_limits``: of the grader's sandbox; the image and all else are as the agent's, and it has no network.
    """

    max_turns: Annotated[int, msgspec.Meta(ge=1)] = 50
    tool_timeout_s: Seconds = 120.0
    sandbox: SandboxSpec = SandboxSpec(workdir=WORKTREE, limits=LIMITS)
    format: KindSetting = "auto"
    images: str | dict[Kind, str] = DEFAULT_IMAGE
    instructions: str | None = None
    patch_mb: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] = 2.0
    reward: Literal["resolved", "fraction"] = "resolved"
    test_timeout_s: Seconds = 60.0
    tests_timeout_s: Seconds = 900.0
    grader_runtime: RuntimeName | None = None
    grader_limits: Limits = LIMITS

    def __post_init__(self) -> None:
        check_images(self.images)


class SweTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What concerns the server's machine; no request changes it.

    ``sources``: what rows may name as their ``source``: folders, for clones and images below them, and beginnings of
    images' names (``docker://ghcr.io/me``). ``None``: anything that the server can read.
    ``cache``: folder of the prepared repositories, ``None``: in the user's cache. ``cache_gb``: what is not in use is
    removed from it, beyond that.
    ``graders``: suites of tests that the whole server runs at once.
    """

    sources: tuple[str, ...] | None = None
    cache: str | None = None
    cache_gb: Annotated[float, msgspec.Meta(gt=0.0, le=1_000_000.0)] = 20.0
    graders: Count = 2

    def __post_init__(self) -> None:
        check_sources(self.sources or ())
