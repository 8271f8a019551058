"""What a database error means for a delivery, by SQLSTATE and error code."""

from __future__ import annotations

import sqlite3
import sys
from typing import Any, Literal

from attrs import frozen
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout


@frozen
class Trouble:
    """What a database error means for a delivery.

    `"retry"`: the same work may succeed at once. `"busy"`: a bounded wait ran out. `"schema"`: a table
    may be missing. `sqlstate` is None where the server sent none.
    """

    kind: Literal["retry", "busy", "schema"]
    sqlstate: str | None = None


# Deadlock, serialization failure, shutdown (three), too many connections.
_RETRY = frozenset({"40P01", "40001", "57P01", "57P02", "57P03", "53300"})
_BUSY = frozenset({"55P03"})
# Undefined table, schema, column.
_SCHEMA = frozenset({"42P01", "3F000", "42703"})
_SQLITE_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE_UNIQUE = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        sqlite3.SQLITE_CONSTRAINT_UNIQUE,
        sqlite3.SQLITE_CONSTRAINT_ROWID,
    }
)


def trouble_of(error: BaseException) -> Trouble | None:
    """What kind of database trouble this error is; None where it is none that we treat.

    Takes SQLAlchemy's wrappers and the drivers' own errors alike.
    """
    if isinstance(error, PoolTimeout):
        return Trouble("busy")
    origin = _origin(error)
    trouble: Trouble | None = None
    if _is_psycopg(origin):
        trouble = _postgresql_trouble(origin)
    elif (code := _sqlite_code(origin)) is not None:
        trouble = _sqlite_trouble(code)
    if trouble is None and isinstance(error, DBAPIError) and error.connection_invalidated:
        return Trouble("retry", getattr(origin, "sqlstate", None))
    return trouble


def is_serialization(error: BaseException) -> bool:
    """Whether PostgreSQL refused because the transaction's snapshot is too old (40001)."""
    return getattr(_origin(error), "sqlstate", None) == "40001"


def is_unique_violation(error: BaseException, constraint: str) -> bool:
    """Whether this unique constraint or primary key was violated.

    SQLite names the columns, not the constraint: there any unique violation answers True.
    """
    origin = _origin(error)
    if _is_psycopg(origin):
        violated: bool = origin.sqlstate == "23505" and origin.diag.constraint_name == constraint
        return violated
    return _sqlite_code(origin) in _SQLITE_UNIQUE


def _is_psycopg(error: BaseException) -> bool:
    # A host on SQLite may have no libpq, without which psycopg cannot even be imported.
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(error, psycopg.Error)


def _origin(error: BaseException) -> Any:
    # SQLAlchemy's async bridge wraps the driver's error once more.
    if isinstance(error, DBAPIError) and error.orig is not None:
        return getattr(error.orig, "driver_exception", error.orig)
    return error


def _postgresql_trouble(error: Any) -> Trouble | None:
    import psycopg

    state: str | None = error.sqlstate
    if state is None:
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return Trouble("retry") if lost else None
    if state in _RETRY or state.startswith("08"):
        return Trouble("retry", state)
    if state in _BUSY:
        return Trouble("busy", state)
    return Trouble("schema", state) if state in _SCHEMA else None


def _sqlite_code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(code, int) else None


def _sqlite_trouble(code: int) -> Trouble | None:
    if code & 0xFF in _SQLITE_BUSY:
        return Trouble("busy")
    # The generic code: a missing table or column, or a faulty statement. Who asks has to look.
    return Trouble("schema") if code == sqlite3.SQLITE_ERROR else None
