"""``python -m prorl``: the same as the ``prorl`` command."""

from prorl.cli.main import main

if __name__ == "__main__":
    main()
