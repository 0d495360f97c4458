"""``prorl rollout``: rows of a file, out through a server, in as one result per line."""

from prorl.cli.rollout.command import command

__all__ = ["command"]
