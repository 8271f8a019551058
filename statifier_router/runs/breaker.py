"""The breaker of a target: it opens after five faults of the target in a row, for every rule at once.

It never touches what the host says of its connections; its cool-down is the recovery. While it is
open no call is made. After the cool-down one call alone tries whether the target is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import evolve, frozen

from statifier_router import dialect
from statifier_router.dialect import Link, in_full
from statifier_router.runs import breaker_rows
from statifier_router.runs.faults import Gone, RecordFault, Rejected, Throttled
from statifier_router.runs.retry_after import wait_asked_for
from statifier_router.runs.rules import TRIP_AFTER

if TYPE_CHECKING:
    from statifier_router.schema import Schema

FIRST_COOL_DOWN: Final = timedelta(seconds=60)
LONGEST_COOL_DOWN: Final = timedelta(minutes=15)


@frozen(kw_only=True)
class Breaker:
    """The state of one target; `CLOSED` for a target that nobody has a row of."""

    state: Literal["closed", "open"] = "closed"
    failures: int = 0
    open_until: datetime | None = None
    probe_until: datetime | None = None
    trips: int = 0


CLOSED: Final = Breaker()

Change = Callable[[Breaker], Breaker]


def admits(breaker: Breaker, now: datetime) -> Literal["call", "probe", "none"]:
    """Whether a call may be made now, as any other or as the one that tries whether the target is back."""
    if breaker.state == "closed":
        return "call"
    if breaker.open_until is not None and breaker.open_until > now:
        return "none"
    if breaker.probe_until is not None and breaker.probe_until > now:
        # Somebody else is trying. One that died in it is not waited for longer than this.
        return "none"
    return "probe"


def probing(breaker: Breaker, until: datetime) -> Breaker:
    """One job alone may try the target, until then."""
    return evolve(breaker, probe_until=until)


def freed(breaker: Breaker, until: datetime | None = None) -> Breaker:
    """The probe came to no answer that tells anything; another may try.

    `until` is what a job knows its probe by: it frees no other one.
    """
    if until is not None and breaker.probe_until != until:
        return breaker
    return evolve(breaker, probe_until=None)


def after_answer(breaker: Breaker, fault: RecordFault | None, now: datetime) -> Breaker:
    """What an answer of the target makes of its breaker; `fault` is None for a success."""
    if isinstance(fault, Throttled) and (wait := wait_asked_for(fault.retry_after, now)) is not None:
        return _left_alone(breaker, now + wait)
    if fault is not None and fault.of_target:
        return _after_fault(breaker, now)
    if fault is None or isinstance(fault, (Rejected, Gone)):
        # An answer to a call that was made before it opened does not end the cool-down.
        return breaker if _cooling(breaker, now) else CLOSED
    return freed(breaker)


def after_ping(breaker: Breaker, fault: RecordFault | None, now: datetime) -> Breaker:
    """What an answer to a ping makes of the breaker: any fault says that the target is not back."""
    if fault is None:
        return after_answer(breaker, None, now)
    if isinstance(fault, Throttled) and (wait := wait_asked_for(fault.retry_after, now)) is not None:
        return _left_alone(breaker, now + wait)
    return _after_fault(breaker, now)


def _cooling(breaker: Breaker, now: datetime) -> bool:
    return breaker.state == "open" and breaker.open_until is not None and breaker.open_until > now


def _left_alone(breaker: Breaker, until: datetime) -> Breaker:
    longest = until if breaker.open_until is None else max(until, breaker.open_until)
    return evolve(breaker, state="open", open_until=longest, probe_until=None)


def _after_fault(breaker: Breaker, now: datetime) -> Breaker:
    if _cooling(breaker, now):
        return breaker
    failures = breaker.failures + 1
    if breaker.state == "closed" and failures < TRIP_AFTER:
        return evolve(breaker, failures=failures)
    cool_down = min(FIRST_COOL_DOWN * 2 ** min(breaker.trips, 10), LONGEST_COOL_DOWN)
    return Breaker(state="open", failures=failures, open_until=now + cool_down, trips=breaker.trips + 1)


def of_facts(told: Mapping[str, Any]) -> Breaker:
    """The breaker as it was read with a job's lease."""
    if told["breaker_state"] is None:
        return CLOSED
    return Breaker(
        state=told["breaker_state"],
        failures=told["breaker_failures"],
        open_until=_instant(told["breaker_open_until"]),
        probe_until=_instant(told["breaker_probe_until"]),
        trips=told["breaker_trips"],
    )


def _instant(value: datetime | str | None) -> datetime | None:
    """In UTC, however the driver spells it."""
    if value is None:
        return None
    return datetime.fromisoformat(value) if isinstance(value, str) else value.astimezone(UTC)


def changed(link: Link, schema: Schema, target: str, change: Change) -> Breaker:
    """Change the target's breaker under the lock of its row, in the transaction in hand."""
    connection, of_target = in_full(link), {"of_target": target}
    row = connection.execute(breaker_rows.locked(schema), of_target).mappings().one_or_none()
    if row is None:
        connection.execute(breaker_rows.ensure(schema, dialect.kind(connection)), of_target)
        row = connection.execute(breaker_rows.locked(schema), of_target).mappings().one()
    before = Breaker(**row)
    after = change(before)
    if after != before:
        values = {f"to_{name}": getattr(after, name) for name in breaker_rows.FIELDS}
        connection.execute(breaker_rows.store(schema), of_target | values)
    return after
