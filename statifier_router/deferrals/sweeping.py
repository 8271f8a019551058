"""The sweep: offers what found its execution in the meantime, and drops what waited too long."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from attrs import field, frozen

from statifier_router import addresses, deferral_table, keeping
from statifier_router.ambient import Frame
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.driving import as_door
from statifier_router.errors import ConfigError
from statifier_router.executions.operating import lock_execution
from statifier_router.jsontext import decode
from statifier_router.keeping import Keeper, Offered
from statifier_router.messages import Event, event_from_json
from statifier_router.paging import checked_limit
from statifier_router.sends import Sending
from statifier_router.transactions import reading, run


@frozen
class KeptEvent:
    """An event that is kept. `execution_id` is None while it waits, by its address, for a creation."""

    id: int
    scope: str
    document: str
    key: str = field(repr=False)
    execution_id: str | None
    binding_id: str
    message_id: str
    event: Event
    until: datetime
    created_at: datetime


@frozen
class Swept:
    """What one sweep did: kept events that were offered, that landed, and that had expired."""

    offered: int
    landed: int
    expired: int


def pending(config: Config, *, execution_id: str | None = None, connection: Any = None) -> list[KeptEvent]:
    """What is kept, oldest first; of one execution, or everything."""
    statement = deferral_table.pending(config.schema, of_one=execution_id is not None)
    with reading(config, connection) as own:
        found = own.execute(statement, {"of_execution": execution_id} if execution_id else {})
        return [
            KeptEvent(
                id=row.id,
                scope=row.scope,
                document=row.document,
                key=row.key,
                execution_id=row.execution_id,
                binding_id=row.binding_id,
                message_id=row.message_id,
                event=event_from_json(decode(row.event)),
                until=row.until,
                created_at=row.created_at,
            )
            for row in found
        ]


def sweep(config: Config, *, now: datetime | None = None, limit: int = 100, connection: Any = None) -> Swept:
    """Handle at most `limit` addresses and `limit` expired events; call until it answers zeros.

    First what is kept by an address at which there is an execution by now is offered to it; only
    then is dropped what waited past its time (`dropped: unmatched_event` in the ledger). Each is a
    transaction of its own, under the execution's or the address's lock; several may run at once.
    """
    instant = config.now() if now is None else as_utc(now, "now", ConfigError)
    limit = checked_limit(limit)
    total = Offered()
    with reading(config, connection) as own:
        places = own.execute(deferral_table.addressed(config.schema), {"limit": limit}).all()
    for place in places:
        _add(total, run(config, partial(_sweep_place, config, place, instant), connection=connection))
    with reading(config, connection) as own:
        expired = own.execute(deferral_table.expired(config.schema), {"now": instant, "limit": limit}).all()
    done: set[Any] = set()
    for row in expired:
        whose = row.execution_id or (row.scope, row.document, row.key)
        if whose not in done:
            done.add(whose)
            work = partial(_sweep_expired, config, row, instant)
            _add(total, run(config, work, connection=connection))
    return Swept(offered=total.offered, landed=total.landed, expired=total.expired)


def _add(total: Offered, one: Offered) -> None:
    total.offered += one.offered
    total.landed += one.landed
    total.expired += one.expired


def _keeper(config: Config, frame: Frame) -> Keeper:
    sending = Sending.of(config)
    return Keeper(config, frame, sending.executor, sending.outgoing)


def _sweep_place(config: Config, place: Any, now: datetime, frame: Frame) -> Offered:
    """Give what is kept by an address to the execution that is there, and offer it."""
    keeper = _keeper(config, frame)
    found = addresses.look_up(frame.connection, config.schema, place.scope, place.document, place.key)
    if found.execution_id is None:
        return Offered()
    return _offer(config, keeper, frame, found.execution_id, now, adopts=True)


def _sweep_expired(config: Config, row: Any, now: datetime, frame: Frame) -> Offered:
    keeper = _keeper(config, frame)
    if row.execution_id is not None:
        return _offer(config, keeper, frame, row.execution_id, now, adopts=False)
    keeping.lock_place(frame.connection, config, row.scope, row.document, row.key)
    swept = _sweep_place(config, row, now, frame)
    place = {"at_scope": row.scope, "at_document": row.document, "at_key": row.key}
    for kept in frame.connection.execute(deferral_table.of_place(config.schema), place).all():
        if kept.until < now:
            keeping.drop(keeper, kept, None, now)
            swept.expired += 1
    return swept


def _offer(
    config: Config, keeper: Keeper, frame: Frame, execution_id: str, now: datetime, *, adopts: bool
) -> Offered:
    def work() -> Offered:
        execution = lock_execution(config, frame, keeper.executor, execution_id)
        if execution is None:
            return keeping.drop_all(keeper, execution_id, now)
        if adopts:
            execution = keeping.adopt(keeper, execution)
        if execution.status == "suspended":
            return keeping.expire(keeper, execution, now)
        return keeping.offer(keeper, execution, now)

    return as_door(frame, work, Sending.of(config).settle)
