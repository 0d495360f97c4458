"""``prorl stem``."""

import click


@click.group("stem")
def command() -> None:
    """Rows, answers and the index of the STEM domain."""
