"""The file of results: one JSON line per finished rollout, appended as it comes, so that a run can go on later."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from prorl.api.errors import ConfigError
from prorl.wire import RolloutResult

_decoder = msgspec.json.Decoder(RolloutResult)


class ResultFile:
    """Held open and locked for one run. A torn last line (the last run was killed while it wrote) is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
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

    def earlier(self) -> Iterator[RolloutResult]:
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

    def append(self, result: RolloutResult) -> None:
        self._opened.write(msgspec.json.encode(result) + b"\n")
        self._opened.flush()

    @property
    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise RuntimeError("ResultFile is used outside its with block")
        return self._file
