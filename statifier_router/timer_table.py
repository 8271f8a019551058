"""The statements over `timers`: arming, cancelling, and the states of a firing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, Select, bindparam, literal_column, select, update

from statifier_router import dialect
from statifier_router.dialect import Link, Prepared
from statifier_router.jsontext import encode
from statifier_router.messages import Event, event_as_json
from statifier_router.schema import Schema

# What `arm` inserts of a timer.
ARMED = ("key", "execution_id", "send_id", "target", "event", "context", "due_at", "next_try_at", "state")


def row_of(
    *,
    key: str,
    execution_id: str,
    send_id: str | None,
    target: str | None,
    event: Event,
    context: Mapping[str, str],
    due_at: datetime,
) -> dict[str, Any]:
    """One pending timer, as it is stored."""
    return {
        "key": key,
        "execution_id": execution_id,
        "send_id": send_id,
        "target": target,
        "event": encode(event_as_json(event)),
        "context": encode(dict(context)) if context else None,
        "due_at": due_at,
        "next_try_at": due_at,
        "state": "pending",
    }


def arm(link: Link, schema: Schema, row: Mapping[str, Any]) -> None:
    """Insert one timer, or nothing where this key is there: the step was driven before."""
    _arm(schema, dialect.kind(link)).count(link, row)


@lru_cache
def _arm(schema: Schema, kind: str) -> Prepared:
    table = schema.timers
    values: dict[str, Any] = {name: bindparam(name) for name in ARMED}
    values["tries"] = literal_column("0")
    return Prepared(
        dialect.insert_into(kind, table)
        .values(values)
        .on_conflict_do_nothing(index_elements=[table.c.key])
        .inline()
    )


def cancel(link: Link, schema: Schema, execution_id: str, send_id: str) -> int:
    """Cancel every pending timer of this send id, of this execution only; answers how many."""
    return _cancel(schema).count(link, {"of_execution": execution_id, "of_send": send_id})


@lru_cache
def _cancel(schema: Schema) -> Prepared:
    table = schema.timers
    return Prepared(
        update(table)
        .where(
            table.c.execution_id == bindparam("of_execution"),
            table.c.send_id == bindparam("of_send"),
            table.c.state == literal_column("'pending'"),
        )
        .values(state=literal_column("'cancelled'"))
    )


@lru_cache
def due(schema: Schema) -> Select[Any]:
    """Pending timers whose next try is due, in order, without locking."""
    table = schema.timers
    return (
        select(table.c.key, table.c.execution_id)
        .where(
            table.c.state == literal_column("'pending'"),
            table.c.next_try_at <= bindparam("now", type_=table.c.next_try_at.type),
        )
        .order_by(table.c.next_try_at, table.c.key)
        .limit(bindparam("limit"))
    )


@lru_cache
def one(schema: Schema) -> Select[Any]:
    """The pending timer of this key."""
    table = schema.timers
    return select(table).where(
        table.c.key == bindparam("of_key"), table.c.state == literal_column("'pending'")
    )


@lru_cache
def pending(schema: Schema, *, of_execution: bool) -> Select[Any]:
    """Pending timers, in the order in which they are due."""
    table = schema.timers
    statement = (
        select(table)
        .where(table.c.state == literal_column("'pending'"))
        .order_by(table.c.next_try_at, table.c.key)
    )
    if of_execution:
        statement = statement.where(table.c.execution_id == bindparam("of_execution"))
    return statement


@lru_cache
def settle(schema: Schema) -> Executable:
    """From pending to another state; touches no row where another worker or a cancel was first."""
    table = schema.timers
    return (
        update(table)
        .where(table.c.key == bindparam("of_key"), table.c.state == literal_column("'pending'"))
        .values(state=bindparam("to_state"))
    )


@lru_cache
def put_off(schema: Schema) -> Executable:
    """Try again later; keeps why where it failed."""
    table = schema.timers
    return (
        update(table)
        .where(table.c.key == bindparam("of_key"), table.c.state == literal_column("'pending'"))
        .values(
            tries=bindparam("to_tries"),
            next_try_at=bindparam("to_next"),
            last_error=bindparam("to_error"),
        )
    )


@lru_cache
def wake(schema: Schema) -> Executable:
    """A resumed execution's pending timers are due at their own time again."""
    table = schema.timers
    return (
        update(table)
        .where(
            table.c.execution_id == bindparam("of_execution"),
            table.c.state == literal_column("'pending'"),
        )
        .values(next_try_at=table.c.due_at)
    )
