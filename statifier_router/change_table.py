"""The statements over `changes`: appending one version of a record, and reading it back in commit order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, Text, bindparam, cast, insert, literal_column, select, true

from statifier_router.arrays import column_types, given_rows
from statifier_router.columns import BIG
from statifier_router.committed import after, below
from statifier_router.dialect import Link, Prepared
from statifier_router.jsontext import Json, digest, encode
from statifier_router.schema import Schema

# What `append` inserts; the database adds its number and its transaction.
ADDED = ("entity", "source_id", "signal", "data", "deleted", "created_at")


def row_of(
    *, entity: str, source_id: str, data: Json, signal: str | None, deleted: bool, now: datetime
) -> dict[str, Any]:
    """One row, as it is stored. Without a signal of the host's own it has the digest of what it says."""
    return {
        "entity": entity,
        "source_id": source_id,
        "signal": signal_of(data, deleted=deleted) if signal is None else signal,
        "data": None if deleted and data is None else encode(data),
        "deleted": deleted,
        "created_at": now,
    }


def signal_of(data: Json, *, deleted: bool) -> str:
    """One text for equal versions: the digest of the data, and of whether the record is deleted."""
    return digest({"data": data, "deleted": deleted})


def append(link: Link, schema: Schema, row: Mapping[str, Any]) -> None:
    """Insert one row. Never a second time the same: no two rows are compared."""
    _append(schema).count(link, row)


@lru_cache
def _append(schema: Schema) -> Prepared:
    return Prepared(insert(schema.changes).values({name: bindparam(name) for name in ADDED}).inline())


@lru_cache
def page(schema: Schema) -> Select[Any]:
    """At most `limit` rows of `of_entity` after (`after_xid`, `after_number`), below the `horizon`."""
    table = schema.changes
    return (
        select(table)
        .where(table.c.entity == bindparam("of_entity"), after(table.c.xid, table.c.seq), below(table.c.xid))
        .order_by(table.c.xid, table.c.seq)
        .limit(bindparam("limit"))
    )


@lru_cache
def newest(schema: Schema) -> Select[Any]:
    """The newest row of the record `of_source_id` of the entity `of_entity`, whatever the horizon."""
    table = schema.changes
    return (
        select(table)
        .where(table.c.entity == bindparam("of_entity"), table.c.source_id == bindparam("of_source_id"))
        .order_by(table.c.seq.desc())
        .limit(literal_column("1"))
    )


# The columns of `newest_one`, in order.
NEWEST = ("source_id", "signal", "data", "deleted", "xid", "seq")


@lru_cache
def newest_one(schema: Schema) -> Prepared:
    """The same in the columns `NEWEST`, for the driver: every value but `deleted` as Python has it."""
    table = schema.changes
    columns: list[Any] = [table.c[name] for name in NEWEST]
    # No driver reads the type itself.
    columns[NEWEST.index("xid")] = cast(cast(table.c.xid, Text()), BIG).label("xid")
    # Without one the dialect of SQLite adds it, as a parameter.
    from_the_first: Any = literal_column("0")
    return Prepared(newest(schema).with_only_columns(*columns).offset(from_the_first))


@lru_cache
def newest_of_many(schema: Schema) -> Select[Any]:
    """The same for each of `source_id`, an array: one probe of the index a record; PostgreSQL only."""
    table = schema.changes
    given = given_rows(column_types(table, ["source_id"]))
    found = (
        select(table)
        .where(table.c.entity == bindparam("of_entity"), table.c.source_id == given.c.source_id)
        .order_by(table.c.seq.desc())
        .limit(1)
        .lateral("newest")
    )
    return select(found).select_from(given.join(found, true()))
