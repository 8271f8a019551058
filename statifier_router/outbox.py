"""The outbox: what executions handed off, for a delivery run or the host to carry out after commit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, select

from statifier_router import dialect
from statifier_router.committed import after, below
from statifier_router.dialect import Link, Prepared
from statifier_router.jsontext import encode
from statifier_router.messages import Event, event_as_json
from statifier_router.schema import Schema

# What `add` inserts.
ADDED = ("queue", "key", "execution_id", "scope", "event", "context", "created_at")


def row_of(
    *,
    queue: str,
    key: str,
    execution_id: str,
    scope: str,
    event: Event,
    context: Mapping[str, str],
    now: datetime,
) -> dict[str, Any]:
    """One row, as it is stored."""
    return {
        "queue": queue,
        "key": key,
        "execution_id": execution_id,
        "scope": scope,
        "event": encode(event_as_json(event)),
        "context": encode(dict(context)) if context else None,
        "created_at": now,
    }


def add(link: Link, schema: Schema, row: Mapping[str, Any]) -> None:
    """Insert one row, or nothing where this key is there: the same step was driven before."""
    _add(schema, dialect.kind(link)).count(link, row)


@lru_cache
def _add(schema: Schema, kind: str) -> Prepared:
    table = schema.outbox
    return Prepared(
        dialect.insert_into(kind, table)
        .values({name: bindparam(name) for name in ADDED})
        .on_conflict_do_nothing(index_elements=[table.c.key])
        .inline()
    )


@lru_cache
def page(schema: Schema, *, scoped: bool) -> Select[Any]:
    """At most `limit` rows of `of_queue` after (`after_xid`, `after_number`), below the `horizon`."""
    table = schema.outbox
    return (
        _of_queue(schema, scoped=scoped)
        .where(after(table.c.xid, table.c.id), below(table.c.xid))
        .order_by(table.c.xid, table.c.id)
        .limit(bindparam("limit"))
    )


@lru_cache
def by_key(schema: Schema, *, scoped: bool) -> Select[Any]:
    """The rows of `of_queue` with these `keys`, whatever the horizon."""
    return _of_queue(schema, scoped=scoped).where(schema.outbox.c.key.in_(bindparam("keys", expanding=True)))


def _of_queue(schema: Schema, *, scoped: bool) -> Select[Any]:
    table = schema.outbox
    statement = select(table).where(table.c.queue == bindparam("of_queue"))
    return statement.where(table.c.scope == bindparam("of_scope")) if scoped else statement
