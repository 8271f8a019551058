"""Why a record is not at its target: each answer with what to do next. Nothing here asks the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from attrs import frozen

from statifier_router.jsontext import Json
from statifier_router.runs.deciding import ABSENT, CREATE_ONLY, DELETED, UPDATE_ONLY
from statifier_router.runs.records import Record
from statifier_router.runs.rules import Policy
from statifier_router.runs.standing import PARKED_BY_HAND, RecordRow
from statifier_router.runs.states import (
    Seen,
    advice_on_breaker,
    advice_on_fault,
    advice_on_running,
    command,
    shown,
)


@frozen(kw_only=True)
class Why:
    """The one reason why a record is, or is not, at its target now.

    `reason` is one of:

    - "delivered": it is there, in its current version.
    - "deleted", "suppressed": its source deleted it; the rule's policy keeps it from being sent.
    - "failed", "in_doubt": its last attempt failed, or nobody knows whether it took effect; tried again.
    - "exhausted", "remote_gone", "parked": it waits for an operator.
    - "in_flight": its call is under way at this moment.
    - "due", "newer_version", "not_scanned", "held_back": a run has still to send it; the last one is
      not handed over by the source yet, because an older transaction is open.
    - "paused", "route_closed", "breaker_open", "rule_failing", "not_defined_here", "defined_differently":
      it would be sent, and its rule is not running.
    - "unknown": neither the rule nor its source knows it. "source_failed": the source could not be asked.

    `text` says the same in words, `advice` what to do next; it is empty where nothing is to be done.
    """

    rule: str
    source_id: str
    reason: str
    text: str
    advice: str
    facts: Mapping[str, Json]


@frozen(kw_only=True)
class Case:
    """Everything that was read about one record. `newest` is what its source has now, where that is known."""

    rule: str
    source_id: str
    seen: Seen
    row: RecordRow | None
    operation: Mapping[Any, Any] | None
    calling: bool
    asked: bool
    newest: Record | None
    problem: str | None
    held_back: str | None
    behind_cursor: bool | None

    @property
    def now(self) -> datetime:
        """The instant at which it was read."""
        return self.seen.now

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier call may have taken effect."""
        return self.operation is not None and bool(self.operation["in_doubt"])

    @property
    def left_open(self) -> bool:
        """Whether a run that is over left a call without an outcome: the next one resumes it."""
        return self.operation is not None and not self.in_doubt

    @property
    def gone(self) -> bool:
        """Whether the source has deleted it or has it no more."""
        return self.asked and (self.newest is None or self.newest.deleted)

    @property
    def current(self) -> bool:
        """Whether the version that was handled last is the one that the source has."""
        if self.row is None or not self.asked:
            return False
        deleted = self.row.status == "suppressed" and self.row.error_kind == DELETED
        signal = ABSENT if self.newest is None else self.newest.signal
        return self.row.signal == signal and deleted == self.gone


Answer = tuple[str, str, str]


def reason_of(case: Case) -> Answer:
    """The reason, its text, and what to do next."""
    for judge in (_in_hand, _parked, _waiting, _settled, _rule, _pending):
        answer = judge(case)
        if answer is not None:
            return answer
    raise AssertionError(case)


# --- What the row alone decides -------------------------------------------------------------------


def _in_hand(case: Case) -> Answer | None:
    if not case.calling or case.operation is None:
        return None
    verb, since = case.operation["verb"], case.operation["started_at"]
    running = case.seen.running
    advice = "" if running is None else advice_on_running(case.rule, case.seen, running)
    return (
        "in_flight",
        f"a run called {verb} at the target at {shown(since)} and waits for the answer",
        advice,
    )


def _parked(case: Case) -> Answer | None:
    row = case.row
    if row is None or not row.is_terminal:
        return None
    dismissed = "" if row.acknowledged_at is None else ", and was dismissed"
    when = "" if row.parked_at is None else f" since {shown(row.parked_at)}"
    release = ("release", case.rule, case.source_id, "--mode")
    if row.status == "remote_gone":
        return (
            "remote_gone",
            f"the target says that its record {row.remote_id!r} is gone{when}{dismissed}: {row.last_error}",
            (
                f"create it again: {command(*release, 'recreate')}; or take it off the list: "
                f"{command(*release, 'dismiss')}"
            ),
        )
    if row.error_kind == PARKED_BY_HAND:
        return (
            "parked",
            f"an operator parked it{when}{dismissed}: {row.last_error}",
            f"once its cause is mended: {command(*release, 'retry')}",
        )
    if case.in_doubt:
        assert case.operation is not None
        return (
            "exhausted",
            (
                f"it is given up{when}{dismissed}, and nobody knows whether its last "
                f"{case.operation['verb']} took effect: {row.last_error}"
            ),
            (
                f"look it up at the target. It is there: {command(*release, 'adopt ID')}; it is not: "
                f"{command(*release, 'recreate')}; send the same call again: {command(*release, 'retry')}"
            ),
        )
    again = f"once its cause is mended: {command(*release, 'retry')}"
    if row.error_kind == "unaddressable":
        again = (
            f"look it up at the target, which took it: {command(*release, 'adopt ID')}; "
            f"it is not there: {command(*release, 'recreate')}"
        )
    tries = f"after {row.attempts} attempts" if row.attempts != 1 else "after one attempt"
    return (
        "exhausted",
        f"it is given up {tries}{when}{dismissed} ({row.error_kind}): {row.last_error}",
        again,
    )


def _waiting(case: Case) -> Answer | None:
    """A failed record whose next attempt is not due."""
    row = case.row
    if row is None or row.next_attempt_at is None or row.next_attempt_at <= case.now:
        return None
    _, block, first = next(_blocks(case), ("", "", ""))
    also = f"; and {block}" if block else ""
    sooner = f"sooner: {command('release', case.rule, case.source_id, '--mode', 'retry')}"
    if first:
        # Whatever is released while the block stands is sent by nobody.
        sooner = f"{first}; then, to have it sent {sooner}"
    if row.attempts == 0:
        return "due", f"it was released, to be sent at {shown(row.next_attempt_at)}{also}", sooner
    tried = f"attempt {row.attempts} of {_most(case)} failed ({row.error_kind}): {row.last_error}"
    when = f"the next one is at {shown(row.next_attempt_at)}"
    if case.in_doubt:
        return "in_doubt", f"{tried}; whether it took effect nobody knows; {when}{also}", sooner
    return "failed", f"{tried}; {when}{also}", sooner


def _most(case: Case) -> Json:
    retry = case.seen.definition["retry"]
    assert isinstance(retry, Mapping)
    return retry["max_attempts"]


# --- What the source decides ----------------------------------------------------------------------


def _settled(case: Case) -> Answer | None:
    """A record at which nothing is left to do; or none at all."""
    row = case.row
    if row is not None and row.status == "failed":
        return None
    if case.problem is not None:
        return "source_failed", f"its source could not be asked: {case.problem}", "mend the rule's source"
    if not case.asked or case.left_open:
        return None
    if row is None:
        if case.newest is None:
            text = "neither the rule nor its source knows a record of this id"
            return "unknown", text, "check the id, and that the change was recorded"
        return None
    if row.status == "delivered":
        message = case.seen.definition["kind"] == "message"
        if case.current or (message and not case.gone):
            return "delivered", f"it is at the target{_address(row)} in its current version", ""
        if case.newest is None:
            # Nothing that a scan could hand over.
            text = f"it is at the target{_address(row)} as it last was; its source has it no more"
            return ("delivered" if message else "deleted"), text, ""
        return None
    if case.newest is not None and not case.current:
        return None
    return _suppressed(case, row)


def _suppressed(case: Case, row: RecordRow) -> Answer:
    if row.error_kind == DELETED or case.gone:
        if case.in_doubt:
            text = "its source has deleted it, and nobody knows whether a call before that took effect"
            return "deleted", text, "look it up at the target"
        return "deleted", "its source has deleted it", ""
    why = {
        CREATE_ONLY: "the rule creates only, and the target has it already",
        UPDATE_ONLY: "the rule updates only, and has no address of it at the target",
    }.get(str(row.error_kind), row.last_error or "the rule's policy keeps it from being sent")
    if row.error_kind == UPDATE_ONLY:
        adopt = command("release", case.rule, case.source_id, "--mode", "adopt ID")
        return "suppressed", why, f"give it its address at the target: {adopt}"
    return "suppressed", why, ""


def _address(row: RecordRow) -> str:
    return "" if row.remote_id is None else f", as {row.remote_id!r},"


# --- What the rule decides ------------------------------------------------------------------------


def _rule(case: Case) -> Answer | None:
    """Why the rule would not send it, although it is to be sent."""
    return next(_blocks(case), None)


def _blocks(case: Case) -> Iterator[Answer]:
    seen, name = case.seen, case.rule
    if seen.known is None:
        yield (
            "not_defined_here",
            f"rule {name!r} is not defined in this process, which can neither run it nor ask its source",
            "ask where its Outbound is defined (--outbound)",
        )
        return
    if seen.row.get("paused"):
        yield "paused", f"rule {name!r} is paused", command("resume", name)
    if seen.row["digest"] != seen.known.digest:
        yield (
            "defined_differently",
            f"another process has saved another definition of rule {name!r}, and this one passes it over",
            "bring both to the same code",
        )
    if seen.health is not None:
        yield (
            "route_closed",
            f"a connection of rule {name!r} is closed: {seen.health}",
            "the first tick after it is healthy again goes on where it stopped",
        )
    breaker = seen.breaker
    if breaker is not None and breaker.state == "open":
        until = "" if breaker.open_until is None else f" until {shown(breaker.open_until)}"
        yield (
            "breaker_open",
            f"the breaker of target {breaker.target!r} is open{until} ({breaker.failures} faults in a row)",
            advice_on_breaker(breaker, seen.now),
        )
    failed = seen.failed
    if failed is not None and seen.alive is None:
        here = " at this very record" if failed.fault_source_id == case.source_id else ""
        yield (
            "rule_failing",
            f"the last run of rule {name!r} failed{here} ({failed.fault_kind}): {failed.fault_text}",
            advice_on_fault(name, seen.ended),
        )
    elif not seen.has_writer:
        driver = seen.definition["driver"]
        yield (
            "rule_failing",
            f"rule {name!r} needs a writer for the driver {driver!r}, which this process does not have",
            f"Outbound(..., writers={{{driver!r}: ...}})",
        )


# --- What is left: a run has still to come ----------------------------------------------------------


def _pending(case: Case) -> Answer:
    row, running = case.row, case.seen.alive
    if running is not None:
        when = f"the run that began at {shown(running.started_at)} is under way"
        advice = advice_on_running(case.rule, case.seen, running)
    else:
        when, advice = "no run is under way", command("run", case.rule)
    if row is not None and row.status == "failed":
        assert row.next_attempt_at is not None
        since = f"it is due since {shown(row.next_attempt_at)}"
        doubt = "; whether its last call took effect nobody knows" if case.in_doubt else ""
        # What falls due while a run is under way is left to the next one.
        return ("in_doubt" if case.in_doubt else "due"), f"{since}{doubt}; {when}", advice
    if case.operation is not None:
        return (
            "in_doubt",
            f"a run left its {case.operation['verb']} open, and the next one resumes it",
            advice,
        )
    if case.held_back is not None:
        return "held_back", f"its newest version is not handed over yet: {case.held_back}", command("doctor")
    if row is not None and row.remote_id is not None and _never_updates(case) and not case.gone:
        return "suppressed", "it is at the target in an older version; the rule's policy never updates", ""
    if row is not None:
        what = "its deletion" if case.gone else "a newer version"
        reason, text = "newer_version", f"it is at the target in an older version; {what} waits for the scan"
    elif case.gone:
        reason, text = "deleted", "its source has deleted it before it was ever sent"
    else:
        never = not case.seen.chains
        reason, text = (
            "not_scanned",
            "no run of the rule ever began" if never else "no scan has reached it yet",
        )
    if case.behind_cursor and reason != "deleted":
        return (
            reason,
            f"{text}, and the cursor has passed it",
            (
                "touch it at its source; or, for one that has a row: "
                f"{command('replay', case.rule, case.source_id)}"
            ),
        )
    return reason, f"{text}; {when}", advice


def _never_updates(case: Case) -> bool:
    known = case.seen.known
    return known is not None and known.policy is Policy.CREATE_ONLY
