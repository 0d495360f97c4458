"""What a search backend is, and what it may answer.

A backend is a class with a ``name``, made from :class:`~prorl_stem.settings.SearchSettings`, and found by an entry
point in the group ``prorl_stem.search``; the ones of this package are registered in the same way::

    # pyproject.toml
    [project.entry-points."prorl_stem.search"]
    library = "mypackage.search:Library"
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

import msgspec

from prorl.api import ConfigError
from prorl_stem.patience import Setback
from prorl_stem.settings import SearchSettings

GROUP = "prorl_stem.search"


class Hit(msgspec.Struct, frozen=True):
    """One result. All three are text from outside: shown to the model, never believed."""

    url: str
    title: str
    snippet: str


class SearchFault(Setback):
    """This query got no answer; the message is for the model."""


class Refused(Exception):  # noqa: N818 - it becomes a task fault
    """No query can succeed: no key, a wrong one, a spent plan. The operator's doing, never the policy's."""


@runtime_checkable
class SearchBackend(Protocol):
    @property
    def name(self) -> str: ...

    async def search(self, query: str, limit: int) -> list[Hit]:
        """At most ``limit`` hits, best first. Raises :class:`SearchFault`, :class:`Refused`."""
        ...


def backend_names() -> list[str]:
    return sorted({point.name for point in entry_points(group=GROUP)})


def make_backend(settings: SearchSettings) -> SearchBackend:
    """The backend that the settings name. Raises ``ConfigError`` for one that is not there or cannot be made."""
    found = [point for point in entry_points(group=GROUP) if point.name == settings.backend]
    if not found:
        known = ", ".join(backend_names()) or "none"
        raise ConfigError(f"no package offers the search backend {settings.backend!r}; known: {known}")
    if len({point.value for point in found}) > 1:
        raise ConfigError(f"several packages offer the search backend {settings.backend!r}: uninstall all but one")
    try:
        backend = found[0].load()(settings)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the search backend {settings.backend!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(backend, SearchBackend):
        raise ConfigError(f"{found[0].value} makes no search backend")
    return backend
