"""The entry point of ``prorl``: as little as it takes to say what is missing when the extra is not installed."""

from __future__ import annotations

import importlib
import sys

_OF_THE_EXTRA = ("click", "rich")


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 asked for something that cannot work, 130 interrupted."""
    try:
        app = importlib.import_module("prorl.cli.app")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_THE_EXTRA:
            raise
        sys.exit(f"prorl: the command line needs {missing}: pip install 'prorl[cli]'")
    sys.exit(app.run(sys.argv[1:]))
