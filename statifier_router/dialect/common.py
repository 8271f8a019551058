"""What the rest of the package asks of any engine or connection: which database, which driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from statifier_router.dialect.held import Link

Kind = Literal["postgresql", "sqlite"]

# The keys of ours in a pooled connection's info.
PREPARED = "statifier_router_prepared"
BUSY_TIMEOUT = "statifier_router_busy_timeout"
# There while SQLAlchemy is told of a transaction that has begun.
BEGUN = "statifier_router_begun"

# Milliseconds, on every connection of a prepared SQLite engine.
SQLITE_BUSY_TIMEOUT = 5_000

# What begins and ends a transaction of ours on PostgreSQL.
BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
COMMIT = b"COMMIT"

DRIVERS = {"postgresql": ("psycopg",), "sqlite": ("pysqlite",)}
# The same drivers behind SQLAlchemy's asyncio bridge; its own psycopg is one for both.
ASYNC_DRIVERS = {"postgresql": ("psycopg", "psycopg_async"), "sqlite": ("aiosqlite",)}


def kind(bind: Engine | Link) -> Kind:
    """Which of the two databases this is; `ConfigError` for a third."""
    name = bind.dialect.name
    if name not in DRIVERS:
        raise ConfigError(f"the database must be PostgreSQL or SQLite, not {name}")
    return cast("Kind", name)


def check_driver(field: str, database: str, driver: str, *, asynchronous: bool = False) -> None:
    """Raise `ConfigError`, naming `field`, unless it is a database and a driver of ours."""
    ours, others = (ASYNC_DRIVERS, DRIVERS) if asynchronous else (DRIVERS, ASYNC_DRIVERS)
    if database not in ours:
        raise ConfigError(f"{field} must be one to PostgreSQL or SQLite, not {database}")
    if driver in ours[database]:
        return
    problem = f"{field} must use the driver {database}+{ours[database][0]}, not {database}+{driver}"
    if driver not in others[database]:
        raise ConfigError(problem)
    if asynchronous:
        raise ConfigError(f"{problem}, which would block the event loop")
    raise ConfigError(f"{problem}, which is asynchronous: statifier_router.aio has an engine for it")


def is_autocommit(bind: Engine | Connection, option: object) -> bool:
    """Whether this isolation level, or without one the engine's own, is autocommit."""
    level = option or getattr(bind.dialect, "_on_connect_isolation_level", None)
    return isinstance(level, str) and level.upper().replace("_", " ") == "AUTOCOMMIT"


def driver(connection: Link) -> Any:
    """The driver's own connection, under SQLAlchemy's."""
    pooled = connection.connection
    # Only what is awaited is wrapped.
    return pooled.driver_connection if connection.dialect.is_async else pooled.dbapi_connection
