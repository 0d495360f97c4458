"""The file of results: one JSON line per finished rollout, appended as it comes, so that a run can go on later."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

from prorl.api.errors import ConfigError
from prorl.cli.console import check_writable
from prorl.cli.rollout.rows import Place
from prorl.wire import Budgets, JobRequest, RolloutResult, SamplingParams


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How the rollout was asked for."""

    domain: str | None = None
    sampling_params: SamplingParams = SamplingParams()
    budgets: Budgets = Budgets()
    settings: dict[str, Any] = {}

    @classmethod
    def of(cls, request: JobRequest) -> Self:
        return cls(**{name: getattr(request, name) for name in cls.__struct_fields__})

    def differences(self, other: Self) -> list[str]:
        """The options that are not the same in both."""
        mine, others = (_flat(msgspec.to_builtins(each)) for each in (self, other))
        return [name for name in mine | others if mine.get(name) != others.get(name)]


class Line(RolloutResult, kw_only=True):
    """A line of the file: the result, and beside it which row it is of and how it was asked for.

    Both are ``None`` in files that other programs wrote; programs that read a plain result pass over them.
    """

    row: Place | None = None
    asked: Asked | None = None


_decoder = msgspec.json.Decoder(Line)


def _flat(asked: dict[str, Any]) -> dict[str, Any]:
    """The names as options have them: ``temperature``, ``run_s``, a setting's own."""
    inner = {"domain": asked["domain"]}
    for table in ("sampling_params", "budgets", "settings"):
        inner |= asked[table]
    return inner


class ResultFile:
    """Held open and locked for one run. A torn last line (the last run was killed while it wrote) is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        check_writable(self.path, "--out")
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigError(
                f"{self.path} is being written by another run: wait for it, or give another --out"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.flush()
        os.fsync(self._opened.fileno())
        self._opened.close()

    def earlier(self) -> Iterator[Line]:
        """The results already there. Raises ``ConfigError`` for a file that is not one of results."""
        self._opened.seek(0)
        position = 0
        for number, line in enumerate(self._opened, start=1):
            try:
                result = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if line.endswith(b"\n"):
                    raise ConfigError(
                        f"{self.path}, line {number} is not a rollout result ({error}): give another --out"
                    ) from error
                self._opened.truncate(position)
                return
            if not line.endswith(b"\n"):  # only the line's end was lost
                self._opened.write(b"\n")
            position += len(line)
            yield result

    def append(self, result: RolloutResult, *, row: Place | None = None, asked: Asked | None = None) -> None:
        fields = {name: getattr(result, name) for name in RolloutResult.__struct_fields__}
        self._opened.write(msgspec.json.encode(Line(**fields, row=row, asked=asked)) + b"\n")
        self._opened.flush()

    @property
    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise RuntimeError("ResultFile is used outside its with block")
        return self._file
