"""`python -m statifier_router.cli`, where the script `statifier-router` is not on the path."""

from __future__ import annotations

from statifier_router.cli import main

if __name__ == "__main__":
    main()
