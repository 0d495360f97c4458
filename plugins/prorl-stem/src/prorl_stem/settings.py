"""``[handlers.stem]`` in prorl.toml, and a STEM job's ``settings``.

What reaches out of the server (addresses, names of secrets, the open web), and what all jobs share (caches, paces), is
the operator's: it stands in prorl.toml and a job cannot change it (:data:`OPERATORS`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from prorl.agent import AgentSettings

Reward = Annotated[float, msgspec.Meta(ge=-1000.0, le=1000.0)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=600.0)]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s]+$(?!\n)")]
EnvName = Annotated[str, msgspec.Meta(pattern=r"^[A-Z][A-Z0-9_]*$(?!\n)")]
Retries = Annotated[int, msgspec.Meta(ge=0, le=10)]
Rate = Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)]

# Sites that hold data sets with their solutions, or sell them.
BLOCKED = (
    "bartleby.com",
    "brainly.com",
    "chegg.com",
    "coursehero.com",
    "gauthmath.com",
    "hf.co",
    "huggingface.co",
    "kaggle.com",
    "modelscope.cn",
    "numerade.com",
    "quizlet.com",
    "raw.githubusercontent.com",
    "studocu.com",
    "toppr.com",
    "vaia.com",
)


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[handlers.stem.search]``.

    ``backend``: offline, serper, tavily, exa, searxng, duckduckgo, or one that another package offers.
    ``url``: another address than the backend's own; searxng has none of its own. ``api_key_env``: the environment
    variable that holds its key. ``index``: a file made by ``prorl stem index``; unset: the corpus that comes along.
    ``results``: hits per query. ``per_second``: queries that the server sends, all jobs together.
    ``cache_entries``, ``cache_s``: queries whose hits are kept, and for how long.
    ``block_domains``: sites (and their subdomains) whose hits and pages are withheld. ``block_question``: so are those
    that hold the question word by word.
    """

    backend: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] = "offline"
    url: Url | None = None
    api_key_env: EnvName | None = None
    index: str | None = None
    results: Annotated[int, msgspec.Meta(ge=1, le=20)] = 5
    timeout_s: Seconds = 15.0
    retries: Retries = 2
    per_second: Rate = 5.0
    cache_entries: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10_000
    cache_s: Annotated[float, msgspec.Meta(ge=0.0)] = 3600.0
    block_domains: tuple[str, ...] = BLOCKED
    block_question: bool = True


class PageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[handlers.stem.pages]``: the fetch tool.

    ``web``: whether pages of the web may be fetched at all; documents of the offline index always may.
    ``ports``: that may be connected to. ``max_bytes``: of one page. ``chars``: of its text that are shown at once.
    ``cache_chars``: text of pages that is kept, all together.
    """

    web: bool = False
    ports: tuple[Annotated[int, msgspec.Meta(ge=1, le=65_535)], ...] = (80, 443)
    timeout_s: Seconds = 20.0
    max_bytes: Annotated[int, msgspec.Meta(ge=1_000, le=100_000_000)] = 5_000_000
    chars: Annotated[int, msgspec.Meta(ge=200, le=1_000_000)] = 8_000
    redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 5
    retries: Retries = 1
    per_second: Rate = 10.0
    cache_chars: Annotated[int, msgspec.Meta(ge=0)] = 50_000_000


class LlmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A language model behind an OpenAI-compatible URL (``https://host/v1``).

    ``api_key_env``: the environment variable that holds its key. ``max_tokens``: of a reply, any reasoning included.
    ``timeout_s``: for one reply. ``concurrency``: calls at once.
    """

    url: Url
    model: Annotated[str, msgspec.Meta(min_length=1)]
    api_key_env: EnvName | None = None
    timeout_s: Seconds = 60.0
    retries: Retries = 3
    max_tokens: Annotated[int, msgspec.Meta(ge=8, le=100_000)] = 2048
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16


class JudgeSettings(LlmSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[handlers.stem.judge]``: asked only about what no rule can tell.

    ``both_orders``: ask twice, the answers changing places; only twice "same" is right.
    """

    both_orders: bool = False


class StemSettings(AgentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent's settings (tools, turns, prompt, sandbox), search, pages, judge, and the shape of the reward.

    ``digits``: significant digits to which a number must agree; ``relative_tolerance``: instead, a share of the gold.
    ``undecided``: what becomes of an answer in words that is not the gold's, when there is no judge.
    ``reward_no_answer``: for a rollout that ends without an answer.
    ``grader_timeout_s``: seconds for one answer. ``grader_processes``: of the whole server, about 100 MB each.
    """

    search: SearchSettings = SearchSettings()
    pages: PageSettings = PageSettings()
    judge: JudgeSettings | None = None
    digits: Annotated[int, msgspec.Meta(ge=1, le=12)] = 3
    relative_tolerance: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] | None = None
    undecided: Literal["mask", "wrong"] = "mask"
    reward_correct: Reward = 1.0
    reward_wrong: Reward = 0.0
    reward_no_answer: Reward = 0.0
    grader_timeout_s: Seconds = 15.0
    grader_processes: Annotated[int, msgspec.Meta(ge=1, le=256)] = 2


OPERATORS = {
    "search": frozenset(SearchSettings.__struct_fields__) - {"backend", "results", "block_question"},
    "pages": frozenset(PageSettings.__struct_fields__) - {"chars"},
    "judge": frozenset(JudgeSettings.__struct_fields__) - {"both_orders"},
    "": frozenset({"grader_processes"}),
}


def operators_field(overrides: dict[str, Any]) -> str | None:
    """The first of a job's own settings that only prorl.toml may set."""
    for table, fields in OPERATORS.items():
        given = overrides if not table else overrides.get(table)
        for field in sorted(fields):
            if isinstance(given, dict) and field in given:
                return f"{table}.{field}" if table else field
    return None
