"""Pages of the web for the agent: only public addresses, bounded, as text."""

from prorl_stem.web.faults import PageFault
from prorl_stem.web.pages import Page, Pages
from prorl_stem.web.tool import Fetch

__all__ = ["Fetch", "Page", "PageFault", "Pages"]
