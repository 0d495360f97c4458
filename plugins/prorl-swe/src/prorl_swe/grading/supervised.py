"""One call of the supervisor in a sandbox, and its report, out of lines that nobody else can write."""

from __future__ import annotations

import base64
import binascii
import secrets
import shlex
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from prorl.api import Sandbox, SandboxFault
from prorl_swe.grading.verdict import Outcome
from prorl_swe.repository.prepared import Prepared

BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from prorl_inside.supervise import main; main(sys.argv[1], sys.argv[2])"
)
UPLOAD_S = 60.0
MARGIN_S = 120.0  # for the supervisor itself, on a machine with other things to do
MAX_REPORT = 128 << 20


class LostError(Exception):
    """The supervisor was ended, or could not be heard, before it was done."""


class Said(msgspec.Struct, kw_only=True):
    """The supervisor's report. ``ready``: what runs the tests has started; ``collected``: ids of the named tests;
    ``marked``: those that were run and are expected to fail.
    """

    outcomes: dict[str, Outcome]
    ready: bool
    complete: bool
    seconds: float
    log: str
    collected: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    tampering: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


async def run_supervised(sandbox: Sandbox, prepared: Prepared, runner: str, request: dict[str, Any]) -> Said:
    """``runner`` is the folder of the runner's package in the sandbox. Raises :class:`LostError`."""
    folder = f"/tmp/.prorl-swe-{secrets.token_hex(8)}"  # noqa: S108 - the sandbox's own
    reading = _Reading(request["word_out"])
    words = [prepared.python, "-I", "-S", "-B", "-c", BOOT, runner, f"{folder}/request"]
    command = f"{prepared.activate}\n{shlex.join(words)}"
    try:
        with tempfile.TemporaryDirectory(prefix="prorl-swe-") as local:
            (Path(local) / "request").write_bytes(msgspec.json.encode(request))
            await sandbox.upload(local, folder, timeout=UPLOAD_S)
        timeout = request["total_s"] + MARGIN_S
        ended = await sandbox.act("bash", {"command": command}, timeout=timeout, on_output=reading.feed)
        return msgspec.json.decode(reading.text(), type=Said)
    except (SandboxFault, binascii.Error, msgspec.DecodeError) as error:
        raise LostError(str(error)) from error
    except EOFError as error:
        raise LostError(f"{error}: {ended.output[-1000:]}") from error


class _Reading:
    """The text behind the secret word, out of whatever else is written to the supervisor's terminal."""

    def __init__(self, word: str) -> None:
        self._mark = word.encode() + b" "
        self._line = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False

    async def feed(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > MAX_REPORT:
            self._line = b""
        for line in lines:
            _, mark, text = line.partition(self._mark)
            if not mark or self._ended:
                continue
            text = text.rstrip(b"\r")
            self._ended = text == b"."
            self._size += len(text)
            if not self._ended and self._size <= MAX_REPORT:
                self._parts.append(text)

    def text(self) -> bytes:
        """Raises ``EOFError`` when it did not come to its end, and ``binascii.Error`` for what is no base64."""
        if not self._ended:
            raise EOFError("the report did not come to its end")
        return base64.b64decode(b"".join(self._parts), validate=True)
