"""From installed distributions to a registry: which plugins there are, which of them work, and what they offer."""

from prorl.plugins.discovery import discover
from prorl.plugins.errors import HandlerUnavailable, UnknownDomain
from prorl.plugins.registry import Registry

__all__ = ["HandlerUnavailable", "Registry", "UnknownDomain", "discover"]
