"""Connections: what a caller may lend, and how long a wait may last."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from statifier_router.dialect.common import (
    BUSY_TIMEOUT,
    PREPARED,
    SQLITE_BUSY_TIMEOUT,
    check_driver,
    driver,
    is_autocommit,
    kind,
)
from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.dialect.held import Link

_MEND_ENGINE = "make it with statifier_router.create_engine(url), or pass it through prepare_engine(engine)"


def check_borrowed(connection: Connection) -> None:
    """Refuse a caller's connection on which a delivery could not be undone; it sends no statement.

    Raises `ConfigError` for another database or driver, for autocommit however it was set, and for a
    SQLite connection that is not from a prepared engine.
    """
    dialect = connection.dialect
    check_driver("connection", dialect.name, dialect.driver, asynchronous=dialect.is_async)
    if kind(connection) == "sqlite":
        autocommit = is_autocommit(connection, connection.get_execution_options().get("isolation_level"))
    else:
        # SQLAlchemy, the options of an engine and the host all set this one attribute.
        autocommit = bool(driver(connection).autocommit)
    if autocommit:
        raise ConfigError(
            "connection is in autocommit, so nothing on it could be undone; "
            "hand over one in a transaction: with engine.begin() as connection"
        )
    if kind(connection) == "sqlite" and PREPARED not in connection.info:
        raise ConfigError(f"connection is from a SQLite engine that was not prepared; {_MEND_ENGINE}")


@lru_cache(maxsize=16)
def lock_timeout_setting(timeout: timedelta) -> str:
    """The timeout as PostgreSQL's `lock_timeout` takes it; never 0, which would be no limit.

    >>> lock_timeout_setting(timedelta(seconds=5))
    '5000ms'
    """
    return f"{_milliseconds(timeout)}ms"


def set_busy_timeout(connection: Link, timeout: timedelta) -> None:
    """On SQLite, the longest wait for the write lock, set before BEGIN; nothing on PostgreSQL.

    It stays with the pooled connection until `restore_busy_timeout`.
    """
    if connection.dialect.name == "sqlite":
        _busy_timeout(connection, _milliseconds(timeout))


def restore_busy_timeout(connection: Link) -> None:
    """Undo `set_busy_timeout`, so that a host's own use of the connection waits as it did."""
    if connection.dialect.name == "sqlite" and not (connection.closed or connection.invalidated):
        _busy_timeout(connection, SQLITE_BUSY_TIMEOUT)


def _busy_timeout(connection: Link, milliseconds: int) -> None:
    info = connection.connection.info
    if info.get(BUSY_TIMEOUT) != milliseconds:
        # Not the driver's own connection: that of an asynchronous driver would have to be awaited.
        opened: Any = connection.connection.dbapi_connection
        opened.execute(f"PRAGMA busy_timeout = {milliseconds:d}")
        info[BUSY_TIMEOUT] = milliseconds


@lru_cache(maxsize=16)
def _milliseconds(timeout: timedelta) -> int:
    # Both databases keep it in a signed 32-bit integer.
    return min(max(-(-timeout // timedelta(milliseconds=1)), 1), 2**31 - 1)
