"""Firing what is due: each timer in a transaction of its own, under its execution's lock."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from attrs import frozen

from statifier_router import charts, keeping, ledger
from statifier_router import timer_table as rows
from statifier_router.ambient import Frame
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.driving import Driving, Input, as_door
from statifier_router.errors import ConfigError
from statifier_router.executions.operating import lock_execution
from statifier_router.executions.sql_executor import refusal_event
from statifier_router.executor import Execution
from statifier_router.jsontext import decode, digest
from statifier_router.keeping import Keeper
from statifier_router.messages import Event, event_from_json
from statifier_router.paging import checked_limit
from statifier_router.sends import Sending
from statifier_router.text import error_text
from statifier_router.transactions import around, reading, run

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
    """The pending timers, in the order in which they are due; of one execution, or of all."""
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
    not hold up those behind it.
    """
    instant = config.now() if now is None else as_utc(now, "now", ConfigError)
    limit = checked_limit(limit)
    counts = {"fired": 0, "discarded": 0, "failed": 0}
    seen: set[str] = set()
    while sum(counts.values()) < limit:
        with reading(config, connection) as own:
            found = own.execute(rows.due(config.schema), {"now": instant, "limit": limit}).all()
        # Those that wait for a suspended execution were put off, and count for nothing.
        fresh = [row for row in found if row.key not in seen]
        if not fresh:
            break
        for row in fresh[: limit - sum(counts.values())]:
            seen.add(row.key)
            result = _fire(config, row.key, row.execution_id, instant, connection)
            if result in counts:
                counts[result] += 1
    return Fired(**counts)


def _fire(config: Config, key: str, execution_id: str, now: datetime, connection: Any) -> str:
    work = partial(_fire_one, config, key, execution_id, now)
    execution = None
    try:
        with reading(config, connection) as own:
            execution = Sending.of(config).executor.fetch(own, config, execution_id, lock=False)
        scope = "" if execution is None else execution.scope
        return around(config, scope, "timer", lambda: run(config, work, connection=connection))
    except Exception as error:
        if isinstance(error, ConfigError):
            raise
        _put_off(config, key, now, error_text(f"{type(error).__name__}: {error}"), connection)
        return "failed"


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
        own.execute(rows.settle(config.schema), {"of_key": key, "to_state": "discarded"})
        _record(config, frame, key, execution_id, execution, "timer_discarded", now)
        return "discarded"
    if execution.status == "suspended":
        # It is tried again later, so that it never stands before timers that can fire.
        values = {"of_key": key, "to_tries": row.tries, "to_next": now + _wait(row.tries + 1)}
        own.execute(rows.put_off(config.schema), values | {"to_error": row.last_error})
        return "waits"
    own.execute(rows.settle(config.schema), {"of_key": key, "to_state": "fired"})
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
    after = execution
    if row.target is None:
        after = _step(config, frame, driven, execution, event)
    else:
        refused = sending.outgoing(frame, driven).hand_off_later(row.target, event, key)
        if refused is not None:
            told = refusal_event(refused, event.name, row.target, event.send_id)
            after = _step(config, frame, driven, execution, told)
    _record(config, frame, key, execution_id, execution, "timer_fired", now)
    if after is not execution:
        keeper = Keeper(config, frame, sending.executor, sending.outgoing)
        keeping.offer(keeper, after, now)
    return "fired"


def _step(config: Config, frame: Frame, driven: Input, execution: Execution, event: Event) -> Execution:
    sending = Sending.of(config)
    chart = charts.for_execution(config, execution)
    driving = Driving(config, frame, sending.executor, sending.outgoing, driven)
    return driving.step(execution, chart, event).execution


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
        row = frame.connection.execute(rows.one(config.schema), {"of_key": key}).one_or_none()
        if row is not None:
            frame.connection.execute(
                rows.put_off(config.schema),
                {
                    "of_key": key,
                    "to_tries": row.tries + 1,
                    "to_next": now + _wait(row.tries + 1),
                    "to_error": error,
                },
            )

    run(config, work, connection=connection)


def _wait(tries: int) -> timedelta:
    doubled: int = 2 ** min(tries - 1, 20)
    return min(FIRST_WAIT * doubled, LONGEST_WAIT)
