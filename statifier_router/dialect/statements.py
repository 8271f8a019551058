"""Statements that the two databases spell differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, true
from sqlalchemy.dialects import postgresql, sqlite

from statifier_router.dialect.common import kind
from statifier_router.dialect.connections import lock_timeout_setting

if TYPE_CHECKING:
    from datetime import timedelta

    from sqlalchemy import Connection, Table


def insert_into(kind: str, table: Table) -> Any:
    """An INSERT into `table` that has ON CONFLICT clauses, for this kind of database.

    Its type is `Any`: the two databases' classes share these clauses and no base that names them.
    """
    return (postgresql.insert if kind == "postgresql" else sqlite.insert)(table)


def bound_waits(connection: Connection, timeout: timedelta) -> None:
    """Bound every later wait for a lock in this transaction; one statement, on PostgreSQL only.

    SQLite's one wait is at BEGIN, and `set_busy_timeout` bounds it.
    """
    if kind(connection) == "postgresql":
        setting = func.set_config("lock_timeout", lock_timeout_setting(timeout), true())
        connection.execute(select(setting))
