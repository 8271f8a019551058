"""The sweep: offers what found its execution in the meantime, and drops what waited too long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from attrs import field, frozen

from statifier_router import addresses, deferral_table, dialect, keeping
from statifier_router.ambient import Frame
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.driving import as_door
from statifier_router.errors import ConfigError, DatabaseFault, DeliveryError, IsolationConflict
from statifier_router.executions.operating import lock_execution
from statifier_router.jsontext import decode
from statifier_router.keeping import Keeper, Offered
from statifier_router.messages import Event, event_from_json
from statifier_router.paging import checked_execution_id, checked_limit
from statifier_router.savepoints import in_own_savepoint, travels
from statifier_router.sends import Sending
from statifier_router.transactions import reading, run

log = logging.getLogger("statifier_router")


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
    """What is kept, oldest first; of one execution, or everything.

    Reads on the transaction in force, else on its own; takes no lock.

    >>> from statifier_router import deferrals
    >>> from statifier_router.doctest_support import config
    >>> deferrals.pending(config())
    []
    """
    if execution_id is not None:
        execution_id = checked_execution_id(execution_id)
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
    then is dropped what waited past its time (`dropped: unmatched_event` in the ledger), and what is
    kept for an execution that has ended (`dropped: finished`). Each is a transaction of its own,
    under the address's and the execution's lock; several may run at once. What a suspended execution
    may still take stays; a delivery that fails is logged, left as it was, and bars no other.

    >>> from statifier_router import deferrals
    >>> from statifier_router.doctest_support import config
    >>> deferrals.sweep(config())
    Swept(offered=0, landed=0, expired=0)
    """
    instant = config.now() if now is None else as_utc(now, "now", ConfigError)
    limit = checked_limit(limit)
    total = Offered()
    _offer_places(config, instant, limit, connection, total)
    _drop_expired(config, instant, limit, connection, total)
    return Swept(offered=total.offered, landed=total.landed, expired=total.expired)


def _offer_places(config: Config, now: datetime, limit: int, connection: Any, total: Offered) -> None:
    handled, after = 0, 0
    while handled < limit:
        values = {"after": after, "limit": limit}
        with reading(config, connection) as own:
            places = own.execute(deferral_table.addressed(config.schema), values).all()
        for place in places:
            after = place.oldest
            did = _attempt(config, partial(_offer_place, config, place, now), connection)
            if did is not None:
                handled += 1
                _add(total, did)
            if handled == limit:
                return
        if len(places) < limit:
            return


def _drop_expired(config: Config, now: datetime, limit: int, connection: Any, total: Offered) -> None:
    with reading(config, connection) as own:
        expired = own.execute(deferral_table.expired(config.schema), {"now": now, "limit": limit}).all()
    done: set[Any] = set()
    for row in expired:
        whose = row.execution_id or (row.scope, row.document, row.key)
        if whose not in done:
            done.add(whose)
            one = _expire_execution if row.execution_id is not None else _expire_place
            _add(total, _attempt(config, partial(one, config, row, now), connection) or Offered())


def _attempt(config: Config, work: Callable[[Frame], Offered | None], connection: Any) -> Offered | None:
    """One transaction; None where there was nothing to do, or where it failed and left nothing."""
    try:
        return run(config, work, connection=connection)
    except DeliveryError as error:
        if isinstance(error, (DatabaseFault, IsolationConflict)):
            # Of the database or of a borrowed transaction: the next one would meet it too.
            raise
        log.warning("kept events not offered", exc_info=error)
        return None


def _add(total: Offered, one: Offered) -> None:
    total.offered += one.offered
    total.landed += one.landed
    total.expired += one.expired


def _keeper(config: Config, frame: Frame) -> Keeper:
    sending = Sending.of(config)
    return Keeper(config, frame, sending.executor, sending.outgoing)


def _offer_place(config: Config, place: Any, now: datetime, frame: Frame) -> Offered | None:
    """Give what is kept by an address to the execution that is there, and offer it."""

    def work() -> Offered | None:
        keeper = _keeper(config, frame)
        _lock_place(config, frame, place)
        return _offer_locked_place(keeper, place, now)

    return as_door(frame, work, Sending.of(config).settle)


def _lock_place(config: Config, frame: Frame, place: Any) -> None:
    # Before the execution's lock, as a delivery does that keeps an event by its address.
    if frame.lock_timeout is not None:
        dialect.bound_waits(frame.connection, frame.lock_timeout)
    keeping.lock_place(frame.connection, config, place.scope, place.document, place.key)


def _offer_locked_place(keeper: Keeper, place: Any, now: datetime) -> Offered | None:
    config, frame = keeper.config, keeper.frame
    address = addresses.find(config, place.scope, place.document, place.key, connection=frame.connection)
    if address is None:
        return None
    execution = lock_execution(config, frame, keeper.executor, address.execution_id)
    if execution is None or execution.status == "suspended":
        return None
    kept = _kept_by(keeper, place)
    execution = keeping.adopt(keeper, execution)
    belated = {row.id for row in kept if address.inserted_at <= row.until}
    return keeping.offer(keeper, execution, now, belated=belated)


def _kept_by(keeper: Keeper, place: Any) -> list[Any]:
    here = {"at_scope": place.scope, "at_document": place.document, "at_key": place.key}
    return list(keeper.frame.connection.execute(deferral_table.of_place(keeper.config.schema), here))


def _expire_place(config: Config, row: Any, now: datetime, frame: Frame) -> Offered:
    """Drop what waited by an address past its time, unless there is an execution to take it by now."""

    def work() -> Offered:
        keeper = _keeper(config, frame)
        _lock_place(config, frame, row)
        swept = _offer_if_it_can(keeper, row, now)
        for kept in _kept_by(keeper, row):
            if kept.until < now:
                keeping.drop(keeper, kept, None, now)
                swept.expired += 1
        return swept

    return as_door(frame, work, Sending.of(config).settle)


def _offer_if_it_can(keeper: Keeper, row: Any, now: datetime) -> Offered:
    """Offer once more; what is wrong with the execution does not keep its events past their time."""
    try:
        did = in_own_savepoint(keeper.frame, lambda: _offer_locked_place(keeper, row, now))
    except DeliveryError as error:
        if travels(error):
            raise
        log.warning("kept events not offered", exc_info=error)
        return Offered()
    return did or Offered()


def _expire_execution(config: Config, row: Any, now: datetime, frame: Frame) -> Offered:
    """Drop what waited for an execution past its time; no chart is asked."""
    keeper = _keeper(config, frame)
    execution = lock_execution(config, frame, keeper.executor, row.execution_id)
    if execution is None:
        return keeping.drop_all(keeper, row.execution_id, now)
    return keeping.expire(keeper, execution, now)
