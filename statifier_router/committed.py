"""Commit order: in which order rows that several transactions append may be read, so that none is missed.

The number of a row is drawn when it is written, and the row is seen when its transaction commits: who
reads in the order of numbers passes rows that are still to appear. So a row carries the id of its
transaction. Once every transaction up to some id has ended, all of their rows are there; below that
horizon, (transaction, number) is an order into which nothing is added any more.

On SQLite transactions that write never overlap: the order of numbers is the order of commits, and every
row's transaction is 0.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, ColumnElement, Connection, Executable, bindparam, column, text, tuple_

from statifier_router import dialect
from statifier_router.columns import XID

# Before everything: ids and numbers begin later.
START = (0, 0)
# Above everything.
_SETTLED = 2**62
_TRIES = 10


def after(xid: ColumnElement[Any], number: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a row stands after (`after_xid`, `after_number`)."""
    place: Any = (bindparam("after_xid", type_=XID), bindparam("after_number", type_=number.type))
    return tuple_(xid, number) > tuple_(*place)


def below(xid: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a row stands below the `horizon`, where the order is settled."""
    return xid < bindparam("horizon", type_=XID)


def horizon(connection: Connection) -> int:
    """Up to which transaction id everything in this database has ended.

    That is `pg_snapshot_xmin(pg_current_snapshot())` but for transactions in other databases of the same
    server: they write none of our rows, and need not be waited for.
    """
    if dialect.kind(connection) == "sqlite":
        return _SETTLED
    reached, fleeting = connection.execute(_horizon).one()
    for _ in range(_TRIES):
        if not fleeting:
            break
        # Whose that was cannot be told any more; it is over, so another look does without it.
        connection.execute(_look_anew)
        reached, fleeting = connection.execute(_horizon).one()
    return int(reached)


def held_back(connection: Connection, xid: int) -> str | None:
    """Why a committed row of this transaction is not read yet; None where it is."""
    if xid < horizon(connection):
        return None
    return "a transaction that began no later than its own is still open, and may add rows before it"


# The list of sessions is read after the snapshot was taken. Whoever is in both with another database's name
# is a stranger for certain; whoever is in neither list may have been one of ours. `backend_xid` has the
# lower 32 bits of the id.
_SQL = """\
WITH seen AS (SELECT pg_current_snapshot() AS snapshot),
open AS (
    SELECT running.xid, running.xid::text::bigint & 4294967295 AS short
    FROM seen, pg_snapshot_xip(seen.snapshot) AS running (xid)
),
sessions AS (
    SELECT backend_xid::text::bigint AS short, datname FROM pg_stat_activity WHERE backend_xid IS NOT NULL
),
oldest AS (
    SELECT open.xid, open.short FROM open
    WHERE NOT EXISTS (
        SELECT FROM sessions WHERE sessions.short = open.short AND sessions.datname <> current_database()
    )
    ORDER BY open.xid LIMIT 1
)
SELECT
    CASE WHEN pg_is_in_recovery() THEN pg_snapshot_xmin(seen.snapshot) ELSE
        LEAST(pg_snapshot_xmax(seen.snapshot), oldest.xid, pg_current_xact_id_if_assigned())
    END AS reached,
    oldest.xid IS NOT NULL
        AND NOT EXISTS (SELECT FROM sessions WHERE sessions.short = oldest.short)
        AND NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE transaction::text::bigint = oldest.short)
    AS fleeting
FROM seen LEFT JOIN oldest ON true"""
_horizon = text(_SQL).columns(column("reached", XID), column("fleeting", Boolean()))
# Within one transaction the list stays what it was at the first look.
_look_anew: Executable = text("SELECT pg_stat_clear_snapshot()")
