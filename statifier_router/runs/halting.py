"""Why a chain makes no further call. Asked anew before every single one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from statifier_router.runs import breaker, health
from statifier_router.runs.breaker import Breaker
from statifier_router.runs.ends import ChainEnd

if TYPE_CHECKING:
    from statifier_router.runs.job import Job
    from statifier_router.runs.leases import Facts


def halted(job: Job, facts: Facts, target: Breaker, now: datetime) -> ChainEnd | None:
    """How the chain ends here; None where it may go on."""
    if is_superseded(job, facts):
        return ChainEnd.SUPERSEDED
    if facts.paused:
        return ChainEnd.PAUSED
    if is_closed(job):
        return ChainEnd.ROUTE_CLOSED
    if is_broken(target, now):
        return ChainEnd.BREAKER_OPEN
    if job.counters.is_suspect(job.rule.uniform_refusals):
        return ChainEnd.SUSPECT_RULE
    return None


def is_superseded(job: Job, facts: Facts) -> bool:
    """Whether the rule was edited since the chain began."""
    begun_with: str = job.taken.chain.digest
    return facts.digest != begun_with


def is_closed(job: Job) -> bool:
    """Whether the host says that the rule's connections must not be used."""
    return health.closed(job.outbound.health, job.rule) is not None


def is_broken(target: Breaker, now: datetime) -> bool:
    """Whether the target's breaker lets no call through."""
    return breaker.admits(target, now) == "none"


def is_late(job: Job, now: datetime) -> bool:
    """Whether the page ends before its next call: the job, or the whole chain, has had its time."""
    rule, taken = job.rule, job.taken
    if now >= taken.at + rule.job_deadline - rule.call_timeout:
        return True
    over = chain_over(job)
    # A job that began behind the chain's time does one page all the same.
    return taken.at < over <= now


def chain_over(job: Job) -> datetime:
    """When the chain has to leave its rule to the next one, whose drain would starve else."""
    begun: datetime = job.taken.chain.due_before
    return begun + job.outbound.tick_interval
