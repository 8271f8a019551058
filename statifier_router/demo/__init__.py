"""A small shipping company: what `statifier-router demo` runs, and an example to read and change.

`statifier_router.demo:config` is its configuration, for every command of the command line.
"""

from __future__ import annotations

import os
from pathlib import Path

from statifier_router.config import Config
from statifier_router.demo.bindings import BINDINGS, ROUTES
from statifier_router.demo.charts import charts
from statifier_router.dialect import create_engine
from statifier_router.errors import ConfigError

__all__ = ["DEFAULT_DATABASE", "VARIABLE", "charts", "config"]

VARIABLE = "STATIFIER_ROUTER_DEMO_DATABASE"
DEFAULT_DATABASE = "parcels.db"


def config(database: Path | None = None) -> Config:
    """The demo's configuration on its SQLite file, which must exist.

    Without `database` it is the one that the environment variable `STATIFIER_ROUTER_DEMO_DATABASE`
    names, else `parcels.db` in the current directory. Raises `ConfigError` where there is none,
    and `MissingExtra` without the extra `statemachine`.
    """
    path = database or Path(os.environ.get(VARIABLE) or DEFAULT_DATABASE)
    if not path.is_file():
        raise ConfigError(
            f"the demo has no database at {path}: run statifier-router demo first, "
            f"or name its file in {VARIABLE}"
        )
    return Config(create_engine(f"sqlite:///{path}"), charts=charts(), bindings=BINDINGS, routes=ROUTES)
