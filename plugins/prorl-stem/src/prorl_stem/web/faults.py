"""Why a page could not be had."""

from __future__ import annotations


class PageFault(Exception):  # noqa: N818 - it becomes an observation
    """The message ends "The page cannot be read: ..." for the model. ``again``: asking again may help."""

    def __init__(self, message: str, *, again: bool = False, after: float | None = None) -> None:
        super().__init__(message)
        self.again = again
        self.after = after
