"""Commit order: in which order rows that several transactions append may be read, so that none is missed.

The number of a row is drawn when it is written, and the row is seen when its transaction commits: who
reads in the order of numbers passes rows that are still to appear. So a row carries the id of its
transaction. Once every transaction up to some id has ended, all of their rows are there; below that
horizon, (transaction, number) is an order into which nothing is added any more.

On SQLite transactions that write never overlap: the order of numbers is the order of commits, and every
row's transaction is 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select, tuple_

from statifier_router.columns import XID

# Before everything: ids and numbers begin later.
START = (0, 0)


def after(xid: ColumnElement[Any], number: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a row stands after (`after_xid`, `after_number`)."""
    place: Iterable[Any] = (bindparam("after_xid", type_=XID), bindparam("after_number", type_=number.type))
    return tuple_(xid, number) > tuple_(*place)


def horizon() -> ColumnElement[int]:
    """The oldest transaction that has not ended, as the statement sees it; PostgreSQL only."""
    return func.pg_snapshot_xmin(func.pg_current_snapshot(), type_=XID)


def below_horizon(statement: Select[Any], xid: ColumnElement[Any], kind: str) -> Select[Any]:
    """The statement over those rows alone whose order is settled."""
    return statement.where(xid < horizon()) if kind == "postgresql" else statement


def held_back(connection: Connection, xid: int, kind: str) -> str | None:
    """Why a committed row of this transaction is not read yet; None where it is."""
    if kind != "postgresql":
        return None
    open_since: int = connection.execute(select(horizon())).scalar_one()
    if xid < open_since:
        return None
    return "a transaction that began no later than its own is still open, and may add rows before it"
