"""Executions as rows: reading, creating and moving them, and appending to their input log."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

import attrs
from attrs import field, frozen
from sqlalchemy import Connection

from statifier_router import dialect
from statifier_router.dialect import Link, Row
from statifier_router.errors import ExecutionExists, StaleRevision
from statifier_router.executions import statements
from statifier_router.executor import Door, Execution, ExecutionStatus
from statifier_router.jsontext import Json, decode, encode, encode_names
from statifier_router.messages import Event, event_from_json
from statifier_router.paging import chunks
from statifier_router.schema import Schema
from statifier_router.values import unchecked


@frozen
class StoredExecution(Execution):
    """An execution of `SQLExecutor`, with the number of events that are kept for it."""

    deferred: int = field(default=0, kw_only=True, repr=False)


@frozen
class Input:
    """One row of an execution's input log, in the order of `seq`.

    Row 0 is the create: `details` holds its data, chart hash and interpreter. `event` is None on it
    and on the rows of operators' acts. `errors` are those the chart met and handled itself.
    """

    seq: int
    door: Door
    event: Event | None
    message_id: str | None
    actor: str | None
    errors: tuple[str, ...]
    at: datetime
    details: Json = field(default=None, repr=False)


_stored = unchecked(StoredExecution)


def read(link: Link, schema: Schema, execution_id: str, *, lock: bool) -> Execution | None:
    """The execution, or None; `lock` waits for its row lock."""
    row = statements.read(schema, lock=lock).first(link, {"execution_id": execution_id})
    return None if row is None else from_row(row)


def from_row(row: Row) -> Execution:
    """The execution of a row of `statements.read`."""
    (
        execution_id, document, scope, key, content_hash, interpreter, status,
        position, active, revision, failure, created_at, ended_at, deferred,
    ) = row  # fmt: skip
    return _stored(
        execution_id,
        document,
        scope,
        key,
        content_hash,
        interpreter,
        status,
        None if position is None else decode(position),
        _names(active),
        revision,
        failure,
        created_at,
        ended_at,
        deferred,
    )


def after_step(
    before: Execution,
    *,
    status: ExecutionStatus,
    position: Json,
    active: tuple[str, ...],
    failure: str | None,
    ended_at: datetime | None,
) -> Execution:
    """The execution as a step leaves it, one revision on."""
    if type(before) is not StoredExecution:
        # A host's own, whose further fields are its own matter.
        return attrs.evolve(
            before,
            status=status,
            position=position,
            active=active,
            revision=before.revision + 1,
            failure=failure,
            ended_at=ended_at,
        )
    return _stored(
        before.id,
        before.document,
        before.scope,
        before.key,
        before.content_hash,
        before.interpreter,
        status,
        position,
        active,
        before.revision + 1,
        failure,
        before.created_at,
        ended_at,
        before.deferred,
    )


def statuses(connection: Connection, schema: Schema, execution_ids: list[str]) -> dict[str, str]:
    """The statuses of those executions that exist."""
    found: dict[str, str] = {}
    for some in chunks(execution_ids):
        rows = connection.execute(statements.statuses(schema), {"execution_ids": some})
        found.update((row.id, row.status) for row in rows)
    return found


def add(link: Link, schema: Schema, execution: Execution) -> None:
    """Insert it. Raises `ExecutionExists` where the id is taken, leaving the transaction usable."""
    adding = statements.add(schema, dialect.kind(link))
    if adding.first(link, as_values(execution)) is None:
        raise ExecutionExists(execution.id)


def as_values(execution: Execution) -> dict[str, Any]:
    """The columns of a whole execution, as they are stored."""
    return {
        "id": execution.id,
        "document": execution.document,
        "scope": execution.scope,
        "key": execution.key,
        "content_hash": execution.content_hash,
        "interpreter": execution.interpreter,
        "status": execution.status,
        "position": encode(execution.position),
        "active": encode_names(execution.active),
        "revision": execution.revision,
        "deferred": 0,
        "failure": execution.failure,
        "created_at": execution.created_at,
        "ended_at": execution.ended_at,
    }


def changes_of(before: Execution, after: Execution, *, moved: bool) -> dict[str, Any]:
    """What a step changes, as it is stored, and where it may be written."""
    values: dict[str, Any] = {
        "execution_id": before.id,
        "from_revision": before.revision,
        "status": after.status,
        "failure": after.failure,
        "ended_at": after.ended_at,
    }
    if moved:
        values["position"] = encode(after.position)
        values["active"] = encode_names(after.active)
    return values


def move(link: Link, schema: Schema, before: Execution, after: Execution, *, moved: bool) -> None:
    """Write what a step made of `before`. Raises `StaleRevision` where the row is no longer that."""
    values = changes_of(before, after, moved=moved)
    if statements.move(schema, moved=moved).count(link, values) != 1:
        raise StaleRevision(before.id, before.revision)


def change_chart(link: Link, schema: Schema, before: Execution, after: Execution) -> None:
    """Write another chart and the position on it. Raises `StaleRevision` as `move` does."""
    values = {
        "execution_id": before.id,
        "from_revision": before.revision,
        "content_hash": after.content_hash,
        "interpreter": after.interpreter,
        "position": encode(after.position),
        "active": encode_names(after.active),
    }
    if statements.change_chart(schema).count(link, values) != 1:
        raise StaleRevision(before.id, before.revision)


def log(link: Link, schema: Schema, execution_id: str, values: dict[str, Any]) -> None:
    """Append one row to the input log, of these columns."""
    statements.log(schema).count(link, {"execution_id": execution_id, **values})


def inputs(connection: Connection, schema: Schema, execution_id: str) -> list[Input]:
    """The whole input log, in order; empty for an unknown or pruned execution."""
    rows = connection.execute(statements.inputs(schema), {"execution_id": execution_id})
    return [
        Input(
            seq=row.seq,
            door=row.door,
            event=None if row.event is None else event_from_json(decode(row.event)),
            message_id=row.message_id,
            actor=row.actor,
            errors=() if row.errors is None else tuple(_texts(row.errors)),
            at=row.at,
            details=None if row.details is None else decode(row.details),
        )
        for row in rows
    ]


@lru_cache(maxsize=256)
def _names(text: str) -> tuple[str, ...]:
    """Active states: there are few combinations of them, and every step reads one."""
    return tuple(_texts(text))


def _texts(text: str) -> list[str]:
    values = decode(text)
    assert isinstance(values, list)
    return [str(value) for value in values]
