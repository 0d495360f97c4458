"""Why a request found no handler.

::

    ProrlError
    ├── UnknownDomain         nobody serves it (404): the message lists what is served
    └── HandlerUnavailable    a plugin serves it but cannot be used (503): the message says which and why
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from prorl.api.errors import ProrlError
from prorl.wire.service import PluginReport


def describe(report: PluginReport) -> str:
    """``foo (prorl-foo 1.2)``: a plugin as people find it again in ``pip list``."""
    return f"{report.name} ({report.distribution} {report.version})"


def complain(report: PluginReport) -> str:
    """``foo (prorl-foo 1.2): import-failed: ImportError: ...``, one line."""
    if report.state == "active":
        return describe(report)
    return f"{describe(report)}: {report.state}: {report.reason}"


class UnknownDomain(ProrlError):  # noqa: N818 - named as the request's fate, like Fault
    """No plugin serves ``domain`` (``None``: the request named none). ``failed`` are plugins that did not load."""

    def __init__(self, domain: str | None, known: Sequence[str], failed: Sequence[PluginReport] = ()) -> None:
        self.domain = domain
        self.known = tuple(sorted(known, key=lambda name: (name.endswith("*"), name)))  # plain names first
        self.failed = tuple(failed)
        served = ", ".join(self.known) if self.known else "none (install a plugin, e.g. prorl-math)"
        if domain is None:
            message = (
                f"the request names no domain: set `domain`, or a string in instance['data_source']; known: {served}"
            )
        else:
            close = difflib.get_close_matches(domain, [name for name in self.known if not name.endswith("*")], n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            message = (
                f"no plugin serves the domain {domain!r}: {meant}set `domain` to a known one, or install a plugin that "
                f"serves it; known: {served}"
            )
        if self.failed:
            message += f"; not loaded (see `prorl plugins`): {', '.join(describe(report) for report in self.failed)}"
        super().__init__(message)


class HandlerUnavailable(ProrlError):  # noqa: N818
    """``domain`` belongs to a plugin that cannot be used; ``reports`` are all the plugins concerned."""

    def __init__(self, domain: str, reports: Sequence[PluginReport]) -> None:
        self.domain = domain
        self.reports = tuple(reports)
        why = "; ".join(complain(report) for report in self.reports)
        super().__init__(f"the handler for {domain!r} cannot be used: {why}; repair that and restart the server")
