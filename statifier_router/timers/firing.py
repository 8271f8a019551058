"""Firing what is due: each timer in a transaction of its own, under its execution's lock."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import attrs
from attrs import frozen

from statifier_router import charts, dialect, keeping, ledger
from statifier_router import timer_table as rows
from statifier_router.ambient import Frame
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.driving import Driving, Input, as_door
from statifier_router.errors import ConfigError, DatabaseFault, ExecutionBusy, IsolationConflict
from statifier_router.executions.operating import lock_execution
from statifier_router.executions.sql_executor import refusal_event
from statifier_router.executor import Execution
from statifier_router.jsontext import decode, digest
from statifier_router.keeping import Keeper
from statifier_router.messages import Event, event_from_json
from statifier_router.paging import checked_execution_id, checked_limit
from statifier_router.sends import Sending
from statifier_router.text import error_text
from statifier_router.transactions import around, reading, run

log = logging.getLogger("statifier_router")

# Before a timer that failed is tried again: doubled at each failure.
FIRST_WAIT = timedelta(seconds=10)
LONGEST_WAIT = timedelta(hours=1)

_Result = Literal["fired", "discarded", "waits", "gone"]


@frozen
class Timer:
    """A delayed send that has not fired. `next_try_at` is `due_at` until a try failed or waited."""

    key: str
    execution_id: str
    send_id: str | None
    target: str | None
    event: Event
    due_at: datetime
    tries: int
    next_try_at: datetime
    last_error: str | None


@frozen
class Fired:
    """What one call of `fire_due` did; a timer that failed is tried again later."""

    fired: int
    discarded: int
    failed: int


def pending(config: Config, *, execution_id: str | None = None, connection: Any = None) -> list[Timer]:
    """The pending timers, in the order in which they are due; of one execution, or of all.

    Reads on the transaction in force, else on its own; takes no lock.

    >>> from statifier_router import timers
    >>> from statifier_router.doctest_support import config
    >>> timers.pending(config())
    []
    """
    if execution_id is not None:
        execution_id = checked_execution_id(execution_id)
    statement = rows.pending(config.schema, of_execution=execution_id is not None)
    with reading(config, connection) as own:
        found = own.execute(statement, {"of_execution": execution_id} if execution_id else {})
        return [
            Timer(
                key=row.key,
                execution_id=row.execution_id,
                send_id=row.send_id,
                target=row.target,
                event=event_from_json(decode(row.event)),
                due_at=row.due_at,
                tries=row.tries,
                next_try_at=row.next_try_at,
                last_error=row.last_error,
            )
            for row in found
        ]


def fire_due(
    config: Config, *, now: datetime | None = None, limit: int = 100, connection: Any = None
) -> Fired:
    """Fire at most `limit` timers that are due at `now`, the longest due first: call until 0.

    Candidates are read without locking; each is fired in one transaction that takes its execution's
    lock first, so that a cancel and a fire never both win, and several workers may run this at once.
    One that was armed due within the call fires in it. A finished execution's timer is discarded, a
    suspended one's waits. One that fails is put off with a growing pause, its error kept, and does
    not hold up those behind it. On a borrowed `connection` a fault that makes its caller start again
    is raised.

    >>> from statifier_router import timers
    >>> from statifier_router.doctest_support import config
    >>> timers.fire_due(config())
    Fired(fired=0, discarded=0, failed=0)
    """
    instant = config.now() if now is None else as_utc(now, "now", ConfigError)
    limit = checked_limit(limit)
    counts = {"fired": 0, "discarded": 0, "failed": 0}
    seen: set[str] = set()
    while (left := limit - sum(counts.values())) > 0:
        # Those of this call that are due still (nobody could put them off) stand before the fresh ones.
        with reading(config, connection) as own:
            found = own.execute(rows.due(config.schema), {"now": instant, "limit": left + len(seen)}).all()
        fresh = [row for row in found if row.key not in seen][:left]
        if not fresh:
            break
        still_due = {row.key for row in found} & seen
        seen = still_due | {row.key for row in fresh}
        for row in fresh:
            result = _fire(config, row.key, row.execution_id, instant, connection)
            if result in counts:
                counts[result] += 1
    return Fired(**counts)


def _fire(config: Config, key: str, execution_id: str, now: datetime, connection: Any) -> str:
    work = partial(_fire_one, config, key, execution_id, now)
    try:
        scope = _scope(config, execution_id, connection)
        return around(config, scope, "timer", lambda: run(config, work, connection=connection))
    except Exception as error:
        if connection is not None and _spoils(error):
            raise
        _put_off(config, key, now, error_text(f"{type(error).__name__}: {error}"), connection)
        if isinstance(error, ConfigError):
            # Misuse by the host; the next call goes on with the timers behind this one.
            raise
        return "failed"


def _scope(config: Config, execution_id: str, connection: Any) -> str:
    """What `around_delivery` is told; read for its sake alone."""
    if config.around_delivery is None:
        return ""
    with reading(config, connection) as own:
        execution = Sending.of(config).executor.fetch(own, config, execution_id, lock=False)
    return "" if execution is None else execution.scope


def _spoils(error: Exception) -> bool:
    """Whether a borrowed transaction cannot go on after this."""
    return isinstance(error, (DatabaseFault, IsolationConflict))


def _fire_one(config: Config, key: str, execution_id: str, now: datetime, frame: Frame) -> str:
    sending = Sending.of(config)
    return as_door(frame, lambda: _fire_locked(config, key, execution_id, now, frame), sending.settle)


def _fire_locked(config: Config, key: str, execution_id: str, now: datetime, frame: Frame) -> _Result:
    sending = Sending.of(config)
    own = frame.connection
    execution = lock_execution(config, frame, sending.executor, execution_id)
    row = own.execute(rows.one(config.schema), {"of_key": key}).one_or_none()
    if row is None:
        return "gone"
    if execution is None or execution.terminal:
        return _discard(config, frame, row, execution, now)
    if execution.status == "suspended":
        # It is tried again later, so that it never stands before timers that can fire.
        values = {"of_key": key, "to_tries": row.tries, "to_next": now + _wait(row.tries + 1)}
        own.execute(rows.put_off(config.schema), values | {"to_error": row.last_error})
        return "waits"
    if not _settled(config, frame, key, "fired"):
        return "gone"
    event = event_from_json(decode(row.event))
    context = {} if row.context is None else decode(row.context)
    driven = Input(
        execution_id=execution.id,
        scope=execution.scope,
        document=execution.document,
        key=execution.key,
        message_id=key,
        now=now,
        context=context,  # type: ignore[arg-type]  # it was text to text when it was stored
        door="timer",
        digest=digest({"event": event.name, "data": event.data}),
    )
    if row.target is not None:
        refused = sending.outgoing(frame, driven).hand_off_later(row.target, event, key)
        if refused is None:
            _record(config, frame, key, execution_id, execution, "timer_fired", now)
            return "fired"
        # Its sender hears of it in a step of its own: the one that sent has long ended.
        driven = attrs.evolve(driven, door="reentry")
        event = refusal_event(refused, event.name, row.target, event.send_id)
    chart = charts.for_execution(config, execution)
    driving = Driving(config, frame, sending.executor, sending.outgoing, driven)
    stepped = driving.step(execution, chart, event)
    _record(config, frame, key, execution_id, execution, "timer_fired", now)
    keeper = Keeper(config, frame, sending.executor, sending.outgoing)
    keeping.offer(keeper, stepped.execution, now)
    return "fired"


def _discard(config: Config, frame: Frame, row: Any, execution: Execution | None, now: datetime) -> _Result:
    if not _settled(config, frame, row.key, "discarded"):
        return "gone"
    _record(config, frame, row.key, row.execution_id, execution, "timer_discarded", now)
    return "discarded"


def _settled(config: Config, frame: Frame, key: str, state: str) -> bool:
    """Whether this transaction is the one that takes the timer out of the pending ones."""
    values = {"of_key": key, "to_state": state}
    return frame.connection.execute(rows.settle(config.schema), values).rowcount == 1


def _record(
    config: Config,
    frame: Frame,
    key: str,
    execution_id: str,
    execution: Execution | None,
    outcome: str,
    now: datetime,
) -> None:
    entry = ledger.Entry(
        binding_id="timer",
        message_id=key,
        scope="" if execution is None else execution.scope,
        outcome=outcome,
        inserted_at=now,
        key=None if execution is None else execution.key,
        execution_id=execution_id,
    )
    ledger.write(frame.connection, config.schema, entry)


def _put_off(config: Config, key: str, now: datetime, error: str, connection: Any) -> None:
    def work(frame: Frame) -> None:
        own = frame.connection
        if frame.lock_timeout is not None:
            dialect.bound_waits(own, frame.lock_timeout)
        row = own.execute(rows.one(config.schema), {"of_key": key}).one_or_none()
        if row is not None:
            values = {"of_key": key, "to_tries": row.tries + 1, "to_next": now + _wait(row.tries + 1)}
            own.execute(rows.put_off(config.schema), values | {"to_error": error})

    try:
        run(config, work, connection=connection)
    except ExecutionBusy:
        # Whoever holds the row is firing or cancelling it at this moment.
        log.warning("timer not put off", extra={"statifier_router.timer": key})


def _wait(tries: int) -> timedelta:
    doubled: int = 2 ** min(tries - 1, 20)
    return min(FIRST_WAIT * doubled, LONGEST_WAIT)
