"""``python -m intently``: the command line, for launchers that take a module."""

from __future__ import annotations

from intently.cli.app import main

if __name__ == "__main__":
    main()
