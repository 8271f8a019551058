"""Transactions that are open on the server: who holds scans back, and since when."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from attrs import frozen
from sqlalchemy import BigInteger, Interval, Text, column, text

from statifier_router import dialect

if TYPE_CHECKING:
    from sqlalchemy import Connection

log = logging.getLogger("statifier_router")


@frozen(kw_only=True)
class OpenTransaction:
    """A transaction of this database that has begun to write and has not ended.

    One of a session has its process id on the server, user, application and state; a prepared one, which
    survives its session, the name under which it is to be committed or rolled back. `age` is None where the
    server does not tell this user: it takes the role pg_read_all_stats. `short_xid` is the lower half of its
    id.
    """

    short_xid: int
    pid: int | None
    user: str | None
    application: str | None
    state: str | None
    prepared: str | None
    age: timedelta | None

    def __str__(self) -> str:
        if self.prepared is not None:
            told = f"prepared transaction {self.prepared!r} of user {self.user!r}"
        else:
            told = f"session {self.pid} of user {self.user!r}"
            if self.application:
                told += f", application {self.application!r}"
            if self.state is not None:
                told += f", {self.state}"
        return (
            told
            if self.age is None
            else f"{told}, open for {timedelta(seconds=int(self.age.total_seconds()))}"
        )


def open_transactions(connection: Connection) -> list[OpenTransaction]:
    """Those that have begun to write, but this connection's own; the oldest id first. None on SQLite."""
    if dialect.kind(connection) == "sqlite":
        return []
    return [OpenTransaction(**row) for row in connection.execute(_open).mappings()]


# Their ids are compared by how old they are: they go round. Without one of its own a transaction has not
# written yet.
_open = text("""\
SELECT short.xid::text::bigint AS short_xid, pid, "user", application, state, prepared, age
FROM (
    SELECT backend_xid, pid, usename, application_name, state, NULL, clock_timestamp() - xact_start
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()
    UNION ALL
    SELECT transaction, NULL, owner, NULL, NULL, gid, clock_timestamp() - prepared
    FROM pg_prepared_xacts WHERE database = current_database()
) AS short (xid, pid, "user", application, state, prepared, age)
ORDER BY pg_catalog.age(short.xid) DESC""").columns(
    column("short_xid", BigInteger()),
    column("pid", BigInteger()),
    column("user", Text()),
    column("application", Text()),
    column("state", Text()),
    column("prepared", Text()),
    column("age", Interval()),
)


def warn_of_old_ones(connection: Connection, overlap: timedelta, *, table: str) -> None:
    """Log those that have been open for more than half of `overlap`, the oldest one by name.

    What it has written, and commits after the whole of it, the scan of `table` does not find any more.
    """
    found = [
        each for each in open_transactions(connection) if each.age is not None and each.age > overlap / 2
    ]
    if not found:
        return
    oldest = max(found, key=lambda each: each.age or timedelta(0))
    log.warning(
        "write transaction is open for long",
        extra={
            "statifier_router.table": table,
            "statifier_router.overlap": overlap.total_seconds(),
            "statifier_router.count": len(found),
            "statifier_router.pid": oldest.pid,
            "statifier_router.user": oldest.user,
            "statifier_router.application": oldest.application,
            "statifier_router.prepared": oldest.prepared,
            "statifier_router.age": None if oldest.age is None else oldest.age.total_seconds(),
        },
    )
