"""The command line: `statifier-router`, brought by the extra `cli`.

Exit codes: 0 done; 1 something was refused, failed or is not known; 2 the command or the configuration
is faulty; 130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from statifier_router.errors import MissingExtra

__all__ = ["main"]


def main() -> None:
    """Run the command that the process's arguments name, and exit with its code."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"error: {MissingExtra('cli', 'the command line')}\n")
        sys.exit(2)
    from statifier_router.cli.program import program

    program()
