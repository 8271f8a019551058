"""What the rest of the package asks of any engine or connection: which database, which driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

Kind = Literal["postgresql", "sqlite"]

# The keys of ours in a pooled connection's info.
PREPARED = "statifier_router_prepared"
BUSY_TIMEOUT = "statifier_router_busy_timeout"

# Milliseconds, on every connection of a prepared SQLite engine.
SQLITE_BUSY_TIMEOUT = 5_000

# The psycopg_async driver is the same one behind SQLAlchemy's bridge.
DRIVERS = {"postgresql": ("psycopg", "psycopg_async"), "sqlite": ("pysqlite",)}


def kind(bind: Engine | Connection) -> Kind:
    """Which of the two databases this is; `ConfigError` for a third."""
    name = bind.dialect.name
    if name not in DRIVERS:
        raise ConfigError(f"the database must be PostgreSQL or SQLite, not {name}")
    return cast("Kind", name)


def check_driver(field: str, database: str, driver: str) -> None:
    """Raise `ConfigError`, naming `field`, unless it is a database and a driver of ours."""
    if database not in DRIVERS:
        raise ConfigError(f"{field} must be one to PostgreSQL or SQLite, not {database}")
    if driver not in DRIVERS[database]:
        wanted = f"{database}+{DRIVERS[database][0]}"
        raise ConfigError(f"{field} must use the driver {wanted}, not {database}+{driver}")


def is_autocommit(bind: Engine | Connection, option: object) -> bool:
    """Whether this isolation level, or without one the engine's own, is autocommit."""
    level = option or getattr(bind.dialect, "_on_connect_isolation_level", None)
    return isinstance(level, str) and level.upper().replace("_", " ") == "AUTOCOMMIT"


def driver(connection: Connection) -> Any:
    """The driver's own connection, under SQLAlchemy's."""
    return connection.connection.driver_connection
