"""`kvreshard`, the command: will these two engines work together, what will be sent, why was it refused."""

from __future__ import annotations

import sys

MISSING = "the command needs typer and rich: pip install 'kvreshard[cli]'"


def main() -> None:
    """Runs the command; exits with 0, 1 where something was refused or found wrong, 2 where it was asked wrongly."""
    try:
        from kvreshard.cli.app import app
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"{error}: {MISSING}", file=sys.stderr)
        sys.exit(2)
    app()
