"""``prorl verify``: is every token of these results the sampled one?"""

from prorl.cli.verify.command import command

__all__ = ["command"]
