"""Rows of a JSONL file into job requests.

A job is known by its row's content and its sample number, so a run that broke off can tell what it already has:
``<run>.<row digest>[+<repetition>].<sample>``. The run part is new every time unless it is given: a server still
remembers the last run's ids, and would answer a second evaluation with the results of the first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from prorl.api.errors import ConfigError
from prorl.wire import JobRequest

_SHOWN = 5
_SEED_STEP = 10_000  # samples of a prompt must differ, and each turn already uses seed + turn


@dataclass(frozen=True)
class Row:
    """``key`` is the digest of the content; a row that repeats an earlier one carries its repetition."""

    line: int
    key: str
    instance: dict[str, Any]


def read_rows(path: Path, *, domain: str | None, limit: int | None = None) -> list[Row]:
    """Raises ``ConfigError`` naming the lines that cannot be used, before anything is run."""
    rows: list[Row] = []
    bad: list[str] = []
    seen: Counter[str] = Counter()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                if limit is not None and len(rows) >= limit:
                    break
                try:
                    instance = _instance(line, domain)
                except ValueError as error:
                    bad.append(f"line {number}: {error}")
                    continue
                key = _digest(instance, domain)
                again = seen[key]
                seen[key] += 1
                rows.append(Row(line=number, key=f"{key}+{again}" if again else key, instance=instance))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if bad:
        more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise ConfigError(f"{path}: {'; '.join(bad[:_SHOWN])}{more}")
    if not rows:
        raise ConfigError(f"{path} has no rows: it must hold one JSON object per line")
    return rows


def requests(
    rows: list[Row], template: JobRequest, *, run: str, samples: int, done: set[str]
) -> Iterator[tuple[Row, JobRequest]]:
    """The jobs still to do, all samples of a row together. ``done`` are keys of :func:`key_of`."""
    for row in rows:
        for sample in range(samples):
            key = f"{row.key}.{sample}"
            if key in done:
                continue
            sampling = template.sampling_params
            if sampling.seed is not None:
                sampling = msgspec.structs.replace(sampling, seed=sampling.seed + sample * _SEED_STEP)
            yield (
                row,
                msgspec.structs.replace(
                    template,
                    instance=row.instance,
                    job_id=f"{run}.{key}",
                    group_id=f"{run}.{row.key}",
                    sampling_params=sampling,
                ),
            )


def key_of(job_id: str) -> str:
    """The row-and-sample part of a job id that :func:`requests` made."""
    return job_id.partition(".")[2]


def _instance(line: bytes, domain: str | None) -> dict[str, Any]:
    instance = msgspec.json.decode(line)
    if not isinstance(instance, dict):
        raise ValueError(f"is a JSON {type(instance).__name__}, not an object")  # noqa: TRY004 - a fact of the data
    if domain is None and not isinstance(instance.get("data_source"), str):
        raise ValueError("has no data_source to pick a handler by: add it, or give --domain")
    return instance


def _digest(instance: dict[str, Any], domain: str | None) -> str:
    content = msgspec.json.encode((domain, instance), order="deterministic")
    return hashlib.sha256(content).hexdigest()[:20]
