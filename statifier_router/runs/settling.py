"""What an answer makes of a record's row, and of the doubt about it. Nothing here asks the database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, Literal

from attrs import asdict, evolve, field, frozen

from statifier_router.runs.calling import Landed, Refused
from statifier_router.runs.deciding import DELETED, TERMINAL, Call, Rest, Status, View
from statifier_router.runs.faults import Gone, RecordFault, Rejected, Throttled, Unclassified
from statifier_router.runs.retry_after import wait_asked_for
from statifier_router.runs.scrubbing import scrubbed
from statifier_router.runs.writers import WriterTraits

UNADDRESSABLE: Final = "unaddressable"
OUTDATED: Final = "outdated"

_NO_ADDRESS = "the target took the record and answered no address to update it by: adopt the one it has there"
_FOLLOWS = "an older version reached the target; the current one follows"


@frozen
class NotThere:
    """A lookup found nothing: the call in doubt took no effect."""


@frozen
class Unclassifiable:
    """The writer raised the same unclassified fault for the third time at this record, and at no other."""

    fault: Unclassified


Answer = Landed | Refused | NotThere | Unclassifiable


@frozen(kw_only=True)
class Outcome:
    """What is written of a record."""

    status: Status
    remote_id: str | None
    signal: str
    attempts: int
    generation: int
    next_attempt_at: datetime | None = None
    error_kind: str | None = None
    last_error: str | None = field(default=None, repr=False)
    parked_at: datetime | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of the statement that writes it."""
        return {f"to_{name}": value for name, value in asdict(self).items()}


@frozen(kw_only=True)
class Settled:
    """What follows from an answer, or from there being no call.

    `outcome` is None where the row stays. `operation` says whether the doubt is over. `goes_on`: the
    visit to this record has not ended.
    """

    outcome: Outcome | None
    operation: Literal["settled", "in_doubt", "none"]
    goes_on: bool = False


def at_rest(view: View, rest: Rest, now: datetime) -> Settled:
    """A record that needs no call. An operation that is open stays in doubt beside it."""
    return Settled(
        outcome=Outcome(
            status=rest.status,
            remote_id=view.remote_id,
            signal=view.signal,
            attempts=view.attempts if rest.status == "exhausted" else 0,
            generation=view.generation,
            error_kind=rest.reason,
            last_error=rest.text,
            parked_at=now if rest.status in TERMINAL else None,
        ),
        operation="none" if view.operation is None else "in_doubt",
    )


def left(view: View) -> Settled:
    """A record at which nothing is done. An operation that is open stays in doubt beside its row."""
    return Settled(outcome=None, operation="none" if view.operation is None else "in_doubt")


def after(view: View, call: Call, answer: Answer, *, now: datetime, not_before: datetime) -> Settled:
    """What the answer to a call makes of the record. `not_before`: no next attempt is earlier than this."""
    if isinstance(answer, NotThere):
        return Settled(outcome=None, operation="settled", goes_on=True)
    if isinstance(answer, Unclassifiable):
        return _unclassifiable(view, call, answer.fault, now)
    if isinstance(answer, Landed):
        return _landed(view, call, answer.remote_id, now, not_before)
    fault = answer.fault
    if isinstance(fault, Gone) and call.verb == "delete":
        return _landed(view, call, None, now, not_before)
    return _refused(view, call, fault, now, not_before)


# --- it took effect -----------------------------------------------------------------------------------


def _landed(view: View, call: Call, remote_id: str | None, now: datetime, not_before: datetime) -> Settled:
    creates = call.verb in ("create", "lookup")
    if creates and remote_id is None and view.rule.kind == "state":
        return Settled(outcome=_unaddressable(view, call, now), operation="settled")
    outcome = Outcome(
        status="delivered",
        remote_id=remote_id if creates else view.remote_id,
        signal=call.signal,
        attempts=0,
        generation=view.generation + 1,
    )
    if call.verb == "delete":
        outcome = evolve(
            outcome,
            status="suppressed",
            remote_id=None,
            error_kind=DELETED,
            last_error="deleted at the target",
        )
    if not call.outdated:
        return Settled(outcome=outcome, operation="settled")
    # Due, so that the current version follows even where this visit is cut short.
    outcome = evolve(
        outcome,
        status="failed",
        attempts=view.attempts,
        next_attempt_at=max(now, not_before),
        error_kind=OUTDATED,
        last_error=_FOLLOWS,
    )
    return Settled(outcome=outcome, operation="settled", goes_on=True)


def _unaddressable(view: View, call: Call, now: datetime) -> Outcome:
    return Outcome(
        status="exhausted",
        remote_id=None,
        signal=call.signal,
        attempts=view.attempts + 1,
        generation=view.generation,
        error_kind=UNADDRESSABLE,
        last_error=_NO_ADDRESS,
        parked_at=now,
    )


# --- it was refused, or nobody knows ------------------------------------------------------------------


def _refused(view: View, call: Call, fault: RecordFault, now: datetime, not_before: datetime) -> Settled:
    gone = isinstance(fault, Gone) and call.verb == "update"
    attempts = view.attempts + 1
    outcome = Outcome(
        status="remote_gone" if gone else "exhausted",
        remote_id=view.remote_id,
        signal=call.signal,
        attempts=attempts,
        generation=view.generation,
        error_kind=fault.kind if gone or not isinstance(fault, Gone) else Rejected.kind,
        last_error=scrubbed(fault) or type(fault).__name__,
        parked_at=now,
    )
    if not gone and attempts < view.rule.retry.max_attempts:
        due = max(next_attempt(view, fault, attempts, now), not_before)
        outcome = evolve(outcome, status="failed", next_attempt_at=due, parked_at=None)
    # What is not there at all cannot have been updated.
    doubt = not gone and doubt_remains(call, fault, view.traits)
    return Settled(outcome=outcome, operation="in_doubt" if doubt else "settled")


def doubt_remains(call: Call, fault: RecordFault, traits: WriterTraits) -> bool:
    """Whether the call, or one before it under the same key, may have taken effect.

    A refusal says nothing of an earlier call, unless the writer declares that it does.
    """
    if fault.in_doubt or call.verb == "lookup":
        return True
    settles = traits.refusal_settles and isinstance(fault, (Rejected, Gone))
    return call.resumed and not settles


def next_attempt(view: View, fault: RecordFault, attempts: int, now: datetime) -> datetime:
    """When the record is tried again: by its schedule, or as late as the target asks for."""
    wait: timedelta = view.rule.retry.wait(view.rule.name, view.source_id, attempts)
    if isinstance(fault, Throttled):
        wait = max(wait, wait_asked_for(fault.retry_after, now) or wait)
    return now + wait


def _unclassifiable(view: View, call: Call, fault: Unclassified, now: datetime) -> Settled:
    outcome = Outcome(
        status="exhausted",
        remote_id=view.remote_id,
        signal=call.signal,
        attempts=view.attempts + 1,
        generation=view.generation,
        error_kind=Unclassified.kind,
        last_error=scrubbed(fault),
        parked_at=now,
    )
    return Settled(outcome=outcome, operation="in_doubt")
