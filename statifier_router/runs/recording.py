"""What a job heard is written: the record's outcome, and what it says of the target."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from statifier_router.dialect import Link
from statifier_router.runs import auditing, breaker, settling, visits
from statifier_router.runs.breaker import Breaker
from statifier_router.runs.calling import Landed
from statifier_router.runs.heard import Answered, Heard
from statifier_router.runs.settling import Unclassifiable

if TYPE_CHECKING:
    from statifier_router.runs.job import Job
    from statifier_router.runs.pages import Page

LATE_ANSWER: Final = "late answer"

# The least that two instants differ by in a table.
_A_MOMENT: Final = timedelta(microseconds=1)


def record(job: Job, connection: Link, page: Page, heard: Heard, target: Breaker, now: datetime) -> Breaker:
    """Write it, in the transaction in hand; answers the target's breaker as it is then."""
    if isinstance(heard, Answered):
        settle(job, connection, page, heard, now)
        if isinstance(heard.answer, Unclassifiable):
            # It tells nothing of the target.
            return free_probe(job, connection, target)
        change = breaker.after_answer
    else:
        change = breaker.after_ping
    fault = heard.fault
    job.in_hand.probe = None
    if target == change(target, fault, now) == breaker.CLOSED:
        # Nearly always: nothing to write, and no lock.
        return target
    return breaker.changed(
        connection, job.outbound.config.schema, job.rule.target, lambda known: change(known, fault, now)
    )


def settle(job: Job, connection: Link, page: Page, heard: Answered, now: datetime) -> None:
    """Write the outcome of the record that was called for."""
    opened, answer = heard.opened, heard.answer
    not_before = job.taken.chain.due_before + _A_MOMENT
    settled = settling.after(opened.view, opened.call, answer, now=now, not_before=not_before)
    landed = isinstance(answer, Landed)
    follower = None if settled.goes_on or job.alone else page.follower
    job.ahead = visits.write(
        connection,
        job.outbound.config.schema,
        opened.view,
        settled,
        now,
        landed=landed,
        follower=None if follower is None else follower.source_id,
    )
    job.counters = job.counters.after(settled)
    if opened.call.verb != "lookup" and not isinstance(answer, Unclassifiable):
        job.counters = job.counters.heard(heard.fault)
    job.in_hand.opened = job.in_hand.source_id = None
    if settled.operation == "settled":
        job.in_hand.spent = opened.view.source_id
    if settled.goes_on:
        settle_spent(job, connection)
        page.begun = True
        page.looked_up = page.looked_up or opened.call.verb == "lookup"
    else:
        page.advance()


def settle_spent(job: Job, connection: Link) -> None:
    """Take away the row of an operation that is settled, where no other operation serves itself of it."""
    spent, job.in_hand.spent = job.in_hand.spent, None
    if spent is not None:
        visits.settle(connection, job.outbound.config.schema, job.rule, spent)


def free_probe(job: Job, connection: Link, target: Breaker) -> Breaker:
    """Leave the probe of the breaker to another job, where this one has it."""
    probe = job.in_hand.probe
    if probe is None:
        return target
    job.in_hand.probe = None
    return breaker.changed(
        connection, job.outbound.config.schema, job.rule.target, lambda known: breaker.freed(known, probe)
    )


def record_late(job: Job, connection: Link, heard: Answered, now: datetime) -> None:
    """Write down the answer of a job that lost its rule: it changes nothing else."""
    opened = heard.opened
    answer = type(heard.answer).__name__ if heard.fault is None else heard.fault.kind
    selection = {
        "rule": job.rule.name,
        "source_ids": [opened.view.source_id],
        "chain": job.taken.chain.id,
        "verb": opened.call.verb,
        "answer": answer.lower(),
    }
    entry = auditing.Entry(actor=job.outbound.owner, action=LATE_ANSWER, selection=selection)
    auditing.write(connection, job.outbound.config.schema, entry, count=1, at=now)
