"""Keeping early events, and offering them again after every step of their execution.

Every change happens under the execution's lock, or, for an event kept by its address, under the lock
of that address: an event must not be kept just after the creation looked for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import attrs
from attrs import define, frozen
from sqlalchemy import Connection

from statifier_router import charts, deferral_table, dialect, ledger
from statifier_router.ambient import Frame
from statifier_router.bindings import Defer
from statifier_router.config import Config
from statifier_router.driving import Driving, Input, OutgoingFor
from statifier_router.errors import StepFailed
from statifier_router.executions.rows import StoredExecution
from statifier_router.executor import Execution, Executor, Stepped
from statifier_router.jsontext import decode, digest, encode
from statifier_router.messages import Event, event_as_json, event_from_json
from statifier_router.savepoints import in_own_savepoint
from statifier_router.tasks import Task


@frozen
class Keeper:
    """What it takes to offer kept events inside one transaction."""

    config: Config
    frame: Frame
    executor: Executor
    outgoing_for: OutgoingFor


@define
class Offered:
    """What became of kept events: how many were offered, how many landed, how many had expired."""

    offered: int = 0
    landed: int = 0
    expired: int = 0


def is_full(keeper: Keeper, execution: Execution, defer: Defer) -> bool:
    """Whether the execution has as many kept events as the binding allows."""
    return _count(keeper, execution) >= defer.limit


def keep(keeper: Keeper, task: Task, defer: Defer, execution: Execution) -> Execution:
    """Keep the task's event for an execution whose lock is held; answers it with its new count."""
    count = _count(keeper, execution) + 1
    _add(keeper.frame.connection, keeper.config, task, defer, execution.id)
    return _with_count(keeper, execution, count)


def lock_place(connection: Connection, config: Config, scope: str, document: str, key: str) -> None:
    """Order keeping by this address and creating at it. SQLite's one writer needs no lock."""
    if dialect.kind(connection) == "postgresql":
        number = deferral_table.lock_number(config.tables, scope, document, key)
        connection.execute(deferral_table.lock_place(), {"number": number})


def keep_by_place(keeper: Keeper, task: Task, defer: Defer) -> bool:
    """Keep the task's event by its address, whose lock is held; False where the limit is reached."""
    own = keeper.frame.connection
    kept = own.execute(deferral_table.of_place(keeper.config.schema), _place(task)).all()
    if len(kept) >= defer.limit:
        return False
    _add(own, keeper.config, task, defer, None)
    keeper.config.kept_documents.add(task.document)
    return True


def adopt(keeper: Keeper, execution: Execution) -> Execution:
    """Give an execution what is kept by its address; answers it with its new count."""
    own = keeper.frame.connection
    lock_place(own, keeper.config, execution.scope, execution.document, execution.key)
    before = _count(keeper, execution)
    adopted = own.execute(
        deferral_table.adopt(keeper.config.schema),
        {**_place(execution), "to_execution": execution.id},
    ).rowcount
    return _with_count(keeper, execution, before + adopted) if adopted else execution


def may_be_kept(execution: Execution) -> bool:
    """Whether anything may be kept for it: a host's own executor knows nothing of that."""
    return type(execution) is not StoredExecution or execution.deferred > 0


def offer(keeper: Keeper, execution: Execution, now: datetime, *, belated: Collection[int] = ()) -> Offered:
    """Offer what is kept for an execution whose lock is held, in order, until none of it moves.

    Each that lands is an input of its own and writes its ledger row; each whose time is up is
    dropped, except the `belated` rows: those were in time, and nobody had offered them. When the
    execution ends, so does the rest.
    """
    result = Offered()
    count = _count(keeper, execution)
    if count == 0:
        return result
    keeper.frame.flush()
    kept = _drop_expired(keeper, execution, now, result, belated)
    landed = True
    while landed and kept and not execution.terminal:
        landed = False
        for row in kept:
            result.offered += 1
            stepped = _drive(keeper, execution, row, now)
            if stepped is None:
                continue
            execution = stepped.execution
            result.landed += 1
            _settle(keeper, row, "delivered", execution.id, now)
            kept.remove(row)
            landed = True
            break
    if execution.terminal:
        for row in kept:
            _settle(keeper, row, "dropped: finished", execution.id, now)
        kept = []
    if len(kept) != count:
        _with_count(keeper, execution, len(kept))
    return result


def expire(keeper: Keeper, execution: Execution, now: datetime) -> Offered:
    """Drop what waited too long for an execution whose lock is held; for an ended one, everything."""
    result = Offered()
    kept = _drop_expired(keeper, execution, now, result)
    if execution.terminal:
        for row in kept:
            _settle(keeper, row, "dropped: finished", execution.id, now)
            result.expired += 1
        kept = []
    _with_count(keeper, execution, len(kept))
    return result


def drop_all(keeper: Keeper, execution_id: str, now: datetime) -> Offered:
    """Drop what is kept for an execution that is gone."""
    result = Offered()
    for row in _kept(keeper, execution_id):
        drop(keeper, row, execution_id, now)
        result.expired += 1
    return result


def drop(keeper: Keeper, row: Any, execution_id: str | None, now: datetime) -> None:
    """Drop one kept event whose time is up."""
    _settle(keeper, row, "dropped: unmatched_event", execution_id, now, "expired")


def _kept(keeper: Keeper, execution_id: str) -> list[Any]:
    statement = deferral_table.of_execution(keeper.config.schema)
    return list(keeper.frame.connection.execute(statement, {"of_execution": execution_id}))


def _drop_expired(
    keeper: Keeper, execution: Execution, now: datetime, result: Offered, belated: Collection[int] = ()
) -> list[Any]:
    kept = []
    for row in _kept(keeper, execution.id):
        if row.until < now and row.id not in belated:
            drop(keeper, row, execution.id, now)
            result.expired += 1
        else:
            kept.append(row)
    return kept


def _drive(keeper: Keeper, execution: Execution, row: Any, now: datetime) -> Stepped | None:
    """Step with a kept event; None where the execution still does not take it."""
    chart = charts.for_execution(keeper.config, execution)
    event = event_from_json(decode(row.event))
    context: Any = {} if row.context is None else decode(row.context)
    driving = Driving(
        config=keeper.config,
        frame=keeper.frame,
        executor=keeper.executor,
        outgoing_for=keeper.outgoing_for,
        input=Input(
            execution_id=execution.id,
            scope=execution.scope,
            document=execution.document,
            key=execution.key,
            message_id=row.message_id,
            now=now,
            context=context,
            door="deferred",
            digest=_digest(event),
        ),
        keeps_unmatched=True,
    )
    try:
        stepped = in_own_savepoint(keeper.frame, lambda: driving.step(execution, chart, event))
    except StepFailed:
        # One bad event that was kept must not take the message that is being delivered with it.
        return None
    if isinstance(stepped, Stepped) and stepped.step.outcome in ("moved", "unknown"):
        return stepped
    return None


def _settle(
    keeper: Keeper,
    row: Any,
    outcome: str,
    execution_id: str | None,
    now: datetime,
    reason: str | None = None,
) -> None:
    own, schema = keeper.frame.connection, keeper.config.schema
    own.execute(deferral_table.remove(schema), {"of_id": row.id})
    entry = ledger.Entry(
        binding_id=row.binding_id,
        message_id=row.message_id,
        scope=row.scope,
        outcome=outcome,
        inserted_at=now,
        key=row.key,
        execution_id=execution_id,
        reason=reason,
    )
    ledger.write(own, schema, entry)


def _add(connection: Connection, config: Config, task: Task, defer: Defer, execution_id: str | None) -> None:
    connection.execute(
        deferral_table.add(config.schema),
        {
            "scope": task.scope,
            "document": task.document,
            "key": task.key,
            "execution_id": execution_id,
            "binding_id": task.binding_id,
            "message_id": task.message_id,
            "event": encode(event_as_json(task.event)),
            "context": encode(dict(task.context)) if task.context else None,
            "until": task.keeps_until(defer),
            "created_at": task.now,
        },
    )


def _count(keeper: Keeper, execution: Execution) -> int:
    if isinstance(execution, StoredExecution):
        return execution.deferred
    # A host's own executor knows nothing of kept events.
    found = keeper.frame.connection.execute(
        deferral_table.count_of_execution(keeper.config.schema), {"of_execution": execution.id}
    )
    return int(found.scalar_one())


def _with_count(keeper: Keeper, execution: Execution, count: int) -> Execution:
    """Write how many events are kept for it; a host's own executor has no row for that."""
    if not isinstance(execution, StoredExecution):
        return execution
    keeper.frame.connection.execute(
        deferral_table.set_count(keeper.config.schema),
        {"of_execution": execution.id, "to_count": count},
    )
    return attrs.evolve(execution, deferred=count)


def _place(of: Task | Execution) -> Mapping[str, str]:
    return {"at_scope": of.scope, "at_document": of.document, "at_key": of.key}


def _digest(event: Event) -> str:
    return digest({"event": event.name, "data": event.data})
