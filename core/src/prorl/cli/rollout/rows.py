"""Rows of a JSONL file into job requests.

A job is known by its row's content and its sample number, so a run that broke off can tell what it already has:
``<run>.<row digest>[+<repetition>].<sample>``. The run part is new every time unless it is given: a server still
remembers the last run's ids, and would answer a second evaluation with the results of the first.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from prorl.api.errors import ConfigError
from prorl.wire import JobRequest

_SHOWN = 5
_LINES_SHOWN = 3
_SEED_STEP = 10_000  # samples of a prompt must differ, and each turn already uses seed + turn


@dataclass(frozen=True)
class Row:
    """``key`` is the digest of the content; a row that repeats an earlier one carries its repetition."""

    line: int
    key: str
    instance: dict[str, Any]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rollout comes from: the row's line in the file, from 1, and which of the row's rollouts it is, from 0."""

    line: int
    sample: int


def read_rows(path: Path, *, domain: str | None, limit: int | None = None) -> list[Row]:
    """Raises ``ConfigError`` naming the lines that cannot be used, before anything is run."""
    rows: list[Row] = []
    bad: defaultdict[str, list[int]] = defaultdict(list)
    seen: Counter[str] = Counter()
    taken = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                if limit is not None and taken >= limit:
                    break
                taken += 1
                try:
                    instance = _instance(line, domain)
                except ValueError as error:
                    bad[str(error)].append(number)
                    continue
                key = _digest(instance, domain)
                again = seen[key]
                seen[key] += 1
                rows.append(Row(line=number, key=f"{key}+{again}" if again else key, instance=instance))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if bad:
        said = [f"{lines_in_words(lines)}: {reason}" for reason, lines in list(bad.items())[:_SHOWN]]
        more = f"; and {sum(map(len, list(bad.values())[_SHOWN:]))} more" if len(bad) > _SHOWN else ""
        raise ConfigError(f"{path}: {'; '.join(said)}{more}")
    if not rows:
        raise ConfigError(f"{path} has no rows: it must hold one JSON object per line")
    return rows


def lines_in_words(lines: list[int]) -> str:
    """``line 3``, or ``100 rows (lines 1, 2, 3, ...)``."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    more = ", ..." if len(lines) > _LINES_SHOWN else ""
    return f"{len(lines):,} rows (lines {', '.join(map(str, lines[:_LINES_SHOWN]))}{more})"


def requests(
    rows: list[Row], template: JobRequest, *, run: str, samples: int, done: Container[str] = ()
) -> Iterator[tuple[Place, JobRequest]]:
    """The jobs still to do, all samples of a row together. ``done`` are keys of :func:`key_of`."""
    templates = [of_sample(template, sample) for sample in range(samples)]
    for row in rows:
        for sample, asked in enumerate(templates):
            key = f"{row.key}.{sample}"
            if key in done:
                continue
            yield (
                Place(line=row.line, sample=sample),
                msgspec.structs.replace(
                    asked, instance=row.instance, job_id=f"{run}.{key}", group_id=f"{run}.{row.key}"
                ),
            )


def of_sample(template: JobRequest, sample: int) -> JobRequest:
    """The same request with the sample's own seed, if it has one at all."""
    sampling = template.sampling_params
    if sampling.seed is None:
        return template
    seeded = msgspec.structs.replace(sampling, seed=sampling.seed + sample * _SEED_STEP)
    return msgspec.structs.replace(template, sampling_params=seeded)


def key_of(job_id: str) -> str:
    """The row-and-sample part of a job id that :func:`requests` made."""
    return job_id.partition(".")[2]


def sample_of(key: str) -> int:
    return int(key.rpartition(".")[2])


def _instance(line: bytes, domain: str | None) -> dict[str, Any]:
    try:
        instance = msgspec.json.decode(line)
    except ValueError as error:  # no UTF-8, too
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(instance, dict):
        raise ValueError(f"a JSON {type(instance).__name__}, not an object")  # noqa: TRY004 - a fact of the data
    if domain is None and not isinstance(instance.get("data_source"), str):
        raise ValueError("no data_source to pick a handler by: add it, or give --domain")
    return instance


def _digest(instance: dict[str, Any], domain: str | None) -> str:
    content = msgspec.json.encode((domain, instance), order="deterministic")
    return hashlib.sha256(content).hexdigest()[:20]
