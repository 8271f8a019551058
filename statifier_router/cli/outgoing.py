"""What an execution sent, step by step, and what waits for it: read from the rows that say so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from attrs import frozen
from sqlalchemy import Connection, Executable, Select, bindparam, select

from statifier_router import deferrals, timers
from statifier_router.config import Config
from statifier_router.deferrals import KeptEvent
from statifier_router.executions import Input
from statifier_router.jsontext import decode
from statifier_router.schema import Schema
from statifier_router.timers import Timer
from statifier_router.transactions import reading


@frozen
class Sent:
    """One send, or what became of it. `revision` is that of the step, None for a key of another's making.

    `kind` says which row tells of it: one in the outbox, a timer, or a ledger row (of the execution it was
    sent to, or of its refusal). `event` and `to` are None where that row does not know them.
    """

    key: str
    revision: int | None
    kind: Literal["outbox", "timer", "execution", "refused"]
    event: str | None
    to: str | None
    became: str
    at: datetime


@frozen
class Outgoing:
    """What an execution sent in order, which of its timers are pending, and what is kept for it."""

    sends: tuple[Sent, ...]
    timers: tuple[Timer, ...]
    kept: tuple[KeptEvent, ...]


def outgoing_of(config: Config, execution_id: str) -> Outgoing:
    """Read it all; nothing is locked."""
    with reading(config) as connection:
        sends = [*_handed_off(connection, config.schema, execution_id)]
        sends += _timers(connection, config.schema, execution_id)
        sends += _recorded(connection, config.schema, execution_id)
    return Outgoing(
        sends=tuple(sorted(sends, key=_order)),
        timers=tuple(timers.pending(config, execution_id=execution_id)),
        kept=tuple(deferrals.pending(config, execution_id=execution_id)),
    )


def kept_of(config: Config, message_id: str) -> list[KeptEvent]:
    """What is kept of a message, whichever binding keeps it."""
    return [kept for kept in deferrals.pending(config) if kept.message_id == message_id]


def revisions(log: Sequence[Input]) -> list[int]:
    """The revision after each input. What a chart heard of its refused sends belongs to the same step."""
    found: list[int] = []
    for before, row in zip([None, *log], log, strict=False):
        same_step = before is None or (row.door == "reentry" and row.message_id == before.message_id)
        found.append((found[-1] if found else 0) + (not same_step))
    return found


def _order(sent: Sent) -> tuple[Any, ...]:
    _, wave, index = _parts(sent.key)
    return (sent.revision is None, sent.revision or 0, wave, index, sent.at, sent.kind)


def _parts(key: str) -> tuple[int | None, str, int]:
    """The revision, the wave and the index that an idempotency key names."""
    try:
        _, revision, wave, index, _ = key.rsplit(":", 4)
        return int(revision), wave, int(index)
    except ValueError:
        return None, "", 0


def _handed_off(connection: Connection, schema: Schema, execution_id: str) -> list[Sent]:
    rows = connection.execute(_outbox(schema), {"of_execution": execution_id})
    return [
        Sent(
            key=row.key,
            revision=_parts(row.key)[0],
            kind="outbox",
            event=_name(row.event),
            to=f"outbox {row.queue}",
            became="in the outbox",
            at=row.created_at,
        )
        for row in rows
    ]


def _timers(connection: Connection, schema: Schema, execution_id: str) -> list[Sent]:
    rows = connection.execute(_all_timers(schema), {"of_execution": execution_id})
    return [
        Sent(
            key=row.key,
            revision=_parts(row.key)[0],
            kind="timer",
            event=_name(row.event),
            to="itself" if row.target is None else f"route {row.target}",
            became=f"{row.state}, due {row.due_at:%Y-%m-%d %H:%M:%S}",
            at=row.due_at,
        )
        for row in rows
    ]


def _recorded(connection: Connection, schema: Schema, execution_id: str) -> list[Sent]:
    # Every key of its sends begins with its id; ';' follows ':'.
    values = {"first": f"{execution_id}:", "beyond": f"{execution_id};"}
    rows = connection.execute(_ledger(schema), values)
    return [
        Sent(
            key=row.message_id,
            revision=_parts(row.message_id)[0],
            kind="refused" if row.outcome == "send_refused" else "execution",
            event=None,
            to=None if row.key is None else f"execution at key {row.key}",
            became=row.outcome if row.reason is None else f"{row.outcome} ({row.reason})",
            at=row.inserted_at,
        )
        for row in rows
    ]


def _name(stored: str) -> str:
    event: Any = decode(stored)
    return str(event["name"])


@lru_cache
def _outbox(schema: Schema) -> Select[Any]:
    # No index leads with the execution: the outbox holds what is still to be carried out.
    table = schema.outbox
    return select(table).where(table.c.execution_id == bindparam("of_execution")).order_by(table.c.id)


@lru_cache
def _all_timers(schema: Schema) -> Select[Any]:
    table = schema.timers
    return select(table).where(table.c.execution_id == bindparam("of_execution")).order_by(table.c.due_at)


@lru_cache
def _ledger(schema: Schema) -> Executable:
    table = schema.ledger
    return (
        select(table)
        .where(
            table.c.message_id >= bindparam("first"),
            table.c.message_id < bindparam("beyond"),
            table.c.binding_id == "execution",
        )
        .order_by(table.c.id)
    )
