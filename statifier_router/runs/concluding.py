"""The end of a page: the cursor moves, and the chain goes on to the next job or is over."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from statifier_router.dialect import Link, in_full
from statifier_router.runs import chain_rows, chains, halting, leases
from statifier_router.runs.ends import ChainEnd, JobEnd
from statifier_router.runs.positions import is_after, read, stored

if TYPE_CHECKING:
    from statifier_router.runs.job import Job
    from statifier_router.runs.leases import Facts
    from statifier_router.runs.pages import Page
    from statifier_router.runs.records import Position


def conclude(
    job: Job, connection: Link, page: Page, facts: Facts, end: ChainEnd | None, now: datetime
) -> JobEnd:
    """Conclude the page in the commit of its last outcome.

    `end` is what halted the chain, None where nothing did. A page that was halted in its middle is not
    concluded, and the next chain reads it again.
    """
    done = page.current is None
    position = page.position if done or end is None else None
    job.counters = job.counters.passed_over(page.passed_over)
    if end is None:
        end = _end_of(job, page, done=done, now=now)
    if end is not None:
        return over(job, connection, end, now, position=position, cursor=cursor_after(job, facts, position))
    return _hand_over(job, connection, page, facts, position, now, done=done)


def _end_of(job: Job, page: Page, *, done: bool, now: datetime) -> ChainEnd | None:
    if page.phase == "scan" and done and not page.more:
        return ChainEnd.COMPLETED
    # A job that hands over to a queue leaves the rest to another process's; else nobody would go on.
    stopped = job.successor is None and job.stopping()
    return ChainEnd.YIELDED if stopped or now >= halting.chain_over(job) else None


def cursor_after(job: Job, facts: Facts, position: Position) -> str | None:
    """Where the rule's cursor goes; None where it stays. It never goes backwards.

    Where an operator has moved it during the job, it stays where they put it.
    """
    if position is None or facts.cursor != job.taken.facts.cursor:
        return None
    return stored(position) if is_after(position, read(facts.cursor)) else None


def over(
    job: Job,
    connection: Link,
    end: ChainEnd,
    now: datetime,
    *,
    position: Position = None,
    cursor: str | None = None,
) -> JobEnd:
    """The chain is over."""
    taken, config = job.taken, job.outbound.config
    reached = taken.chain.position if position is None else stored(position)
    progress = (reached, job.counters.text)
    chains.end(connection, config, taken.chain.id, "finished", end, now, progress=progress)
    leases.give_back(connection, config, taken, now, cursor=cursor, closed=_closed(end))
    return JobEnd.ENDED


def _closed(end: ChainEnd) -> bool | None:
    """What the end says of the rule's connections; None where nobody asked for them."""
    if end in (ChainEnd.SUPERSEDED, ChainEnd.PAUSED):
        return None
    return end is ChainEnd.ROUTE_CLOSED


def _hand_over(
    job: Job,
    connection: Link,
    page: Page,
    facts: Facts,
    position: Position,
    now: datetime,
    *,
    done: bool,
) -> JobEnd:
    """Exactly one job follows."""
    taken, config = job.taken, job.outbound.config
    drained = page.phase == "drain" and done and not page.more
    seq = taken.chain.job_seq + 1
    values = {
        "of_chain": taken.chain.id,
        "to_seq": seq,
        "to_phase": "scan" if drained else page.phase,
        "to_position": taken.chain.position if position is None else stored(position),
        "to_counters": job.counters.text,
        "now": now,
    }
    in_full(connection).execute(chain_rows.go_on(config.schema), values)
    cursor = cursor_after(job, facts, position)
    leases.give_back(connection, config, taken, now, cursor=cursor, closed=False)
    if job.successor is not None:
        job.successor(in_full(connection), taken.chain.id, seq)
    return JobEnd.MORE
