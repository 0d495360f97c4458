"""Fields of a row, each read with a limit on its size: a fault names the field and says what it must be."""

from __future__ import annotations

import json
import re
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from prorl.api import GraderFault, TaskFault
from prorl_swe.rows.paths import patched_files, path_problem

MAX_TEXT = 1 << 20
MAX_PATCH = 32 << 20
MAX_JSON = 64 << 20
MAX_TESTS = 200_000
MAX_NAME = 4096
IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")
REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}/[A-Za-z0-9_.][A-Za-z0-9._-]{0,199}")
COMMIT = re.compile(r"[0-9a-f]{7,64}")
PROGRESS = re.compile(r"\[ *[0-9]{1,3}%\]")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def bad(field: str, problem: str, value: object) -> TaskFault:
    found = "it is missing" if value is None else f"it is {value!r:.80}"
    return TaskFault(f"{field} {problem}; {found}", code="bad_row")


def no_tests(field: str) -> GraderFault:
    return GraderFault(f"{field} names no test: nothing could be judged", code="no_tests")


def read_text(field: str, value: object, *, empty: bool = False, limit: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or not (empty or value.strip()):
        raise bad(field, "must be text" if empty else "must be text that is not empty", value)
    if len(value) > limit:
        raise bad(field, f"must be at most {limit} characters long", f"{len(value)} long")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad(field, "must be text that UTF-8 can say (no lone surrogates)", value) from None
    return value


def read_identifier(field: str, value: object) -> str:
    if not isinstance(value, str) or not IDENTIFIER.fullmatch(value):
        raise bad(field, "must be letters, digits, _ . + and -, 200 at most and not a dot first", value)
    return value


def read_repo(field: str, value: object) -> str:
    if not isinstance(value, str) or not REPO.fullmatch(value):
        raise bad(field, "must be OWNER/NAME", value)
    return value


def read_commit(field: str, value: object) -> str:
    if not isinstance(value, str) or not COMMIT.fullmatch(value):
        raise bad(field, "must be the id of a commit, 7 hexadecimal digits or more", value)
    return value


def read_json(field: str, value: object) -> Any:
    """``value``, decoded if it is text, as data sets keep nested values."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_JSON:
        raise bad(field, f"must be at most {MAX_JSON} characters long", f"{len(value)} long")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise bad(field, f"must be JSON ({error})", value) from None


def read_table(field: str, value: object) -> dict[str, Any]:
    decoded = read_json(field, value)
    if not isinstance(decoded, dict):
        raise bad(field, "must be an object, or JSON of one", value)
    return decoded


def read_texts(field: str, value: object, *, limit: int = 1000) -> tuple[str, ...]:
    """A list of short texts of one line each, or JSON of one; what comes twice is kept once."""
    decoded = read_json(field, value)
    if not isinstance(decoded, list):
        raise bad(field, "must be a list of texts, or JSON of one", value)
    if len(decoded) > limit:
        raise bad(field, f"must have at most {limit} entries", f"{len(decoded)} long")
    for index, item in enumerate(decoded):
        where = f"{field}[{index}]"
        read_text(where, item, limit=MAX_NAME)
        if CONTROL.search(item):
            raise bad(where, "must be one line without control characters", item)
    return tuple(dict.fromkeys(decoded))


def read_requirements(field: str, value: object) -> tuple[str, ...]:
    """By name alone. An address or a path would have an installer read this machine's files, and run what it finds."""
    texts = read_texts(field, value)
    for index, text in enumerate(texts):
        try:
            plain = Requirement(text).url is None
        except InvalidRequirement:
            plain = False
        if not plain:
            raise bad(f"{field}[{index}]", "must be a requirement by name, without address, path or option", text)
    return texts


def read_tests(row: dict[str, Any], required: str, kept: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """F2P and P2P. A name that is in both is to pass: it is F2P. Some rows (of pytest itself) name a test ``[100%]``,
    which was progress in a log."""
    f2p, p2p = (
        tuple(name for name in read_texts(field, value, limit=MAX_TESTS) if not PROGRESS.fullmatch(name))
        for field, value in ((required, row.get(required)), (kept, row.get(kept, [])))
    )
    if not f2p:
        raise no_tests(required)
    named = set(f2p)
    return f2p, tuple(name for name in p2p if name not in named)


def read_patch(field: str, value: object, *, empty: bool = False) -> str:
    """A patch none of whose paths leads out of the repository."""
    patch = read_text(field, value, empty=empty, limit=MAX_PATCH)
    files = patched_files(patch)
    if patch.strip() and not files:
        raise bad(field, "must be a patch as `git diff` writes it", patch)
    for path in files:
        if problem := path_problem(path):
            raise bad(field, f"must stay in the repository: the path {path!r:.80} {problem}", patch)
    return patch
