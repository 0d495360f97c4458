"""Why a page could not be had."""

from __future__ import annotations

from prorl_stem.patience import Setback


class PageFault(Setback):
    """The message completes, for the model, "the page cannot be read: ..."."""
