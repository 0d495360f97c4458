"""Web search as a tool: backends found by entry point, one desk per backend that caches and keeps the pace."""

from prorl_stem.search.backend import Hit, Refused, SearchBackend, SearchFault
from prorl_stem.search.desk import Desk
from prorl_stem.search.tool import Search

__all__ = ["Desk", "Hit", "Refused", "Search", "SearchBackend", "SearchFault"]
