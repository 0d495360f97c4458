"""What a cell shows beside text: images become files of the working directory, and their names are printed.

Runs in the IPython worker.
"""

from __future__ import annotations

import binascii
import io
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}
MAX_IMAGES = 20  # per cell
MAX_BYTES = 20 << 20


class Images:
    """Numbers and saves the images of one worker."""

    def __init__(self, workdir: str) -> None:
        self._workdir = workdir
        self._cell = 0
        self._count = 0

    def begin_cell(self) -> None:
        self._cell += 1
        self._count = 0

    def show(self, bundle: Mapping[str, Any]) -> bool:
        """Save the first image of a MIME bundle and print where; ``False`` when there is none."""
        for kind, suffix in SUFFIXES.items():
            content = bundle.get(kind)
            if content is not None:
                print(self._save(kind, suffix, content))  # noqa: T201
                return True
        return False

    def show_figures(self) -> None:
        """What matplotlib has drawn and nobody closed: as in a notebook, shown at the end of the cell and closed."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            content = io.BytesIO()
            try:
                pyplot.figure(number).savefig(content, format="png", bbox_inches="tight")
            except Exception as error:
                print(f"[figure {number} cannot be drawn: {type(error).__name__}: {error}]")  # noqa: T201
            else:
                self.show({"image/png": content.getvalue()})
        pyplot.close("all")

    def _save(self, kind: str, suffix: str, content: Any) -> str:
        try:
            data = self._decode(kind, content)
        except (ValueError, TypeError) as error:
            return f"[{kind}: {error}]"
        self._count += 1
        if self._count > MAX_IMAGES or len(data) > MAX_BYTES:
            return f"[{kind} not saved: more than {MAX_IMAGES} images in a cell, or {MAX_BYTES >> 20} MiB]"
        problem: object = None
        for parent in (self._workdir, tempfile.gettempdir()):
            path = os.path.join(parent, "images", f"cell-{self._cell}-{self._count}{suffix}")  # noqa: PTH118
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
                with open(path, "wb") as file:  # noqa: PTH123
                    file.write(data)
            except OSError as error:
                problem = error
            else:
                return f"[{kind} saved to {path}]"
        return f"[{kind} not saved: {problem}]"

    @staticmethod
    def _decode(kind: str, content: Any) -> bytes:
        """Formatters give bytes or, what a notebook would be sent, base64."""
        if isinstance(content, str):
            return content.encode() if kind == "image/svg+xml" else binascii.a2b_base64(content)
        return bytes(content)
