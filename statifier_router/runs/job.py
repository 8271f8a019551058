"""One job: a page of a chain.

One commit writes an outcome and opens the next call; no transaction is open during a call. Every
transaction begins with the fence, which proves that the job still owns its rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from attrs import define, field
from sqlalchemy import Connection

from statifier_router.dialect import Link, in_full
from statifier_router.runs import (
    breaker,
    chain_rows,
    concluding,
    deciding,
    failing,
    halting,
    leases,
    pages,
    recording,
    settling,
    visits,
)
from statifier_router.runs.bracket import Owned, owning, reading
from statifier_router.runs.breaker import Breaker
from statifier_router.runs.calls import make
from statifier_router.runs.deciding import Call, Leave, View
from statifier_router.runs.ends import ChainEnd, ChainId, JobEnd
from statifier_router.runs.failing import InHand
from statifier_router.runs.faults import JobTimedOut, NoWriter, RuleFault, UnsupportedVerb
from statifier_router.runs.heard import Answered, Asked, Heard, Pinging
from statifier_router.runs.leases import Facts, LeaseLost, Taken
from statifier_router.runs.pages import Page
from statifier_router.runs.progress import Counters
from statifier_router.runs.visits import Opened, Standing
from statifier_router.runs.writers import has_verb

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound
    from statifier_router.runs.rules import Rule

log = logging.getLogger("statifier_router")

# Called in the transaction that concludes a page, with the number of the job that follows.
Successor = Callable[[Connection, ChainId, int], object]


# Whether the process is to end: asked before every call.
Stopping = Callable[[], bool]


def run(
    outbound: Outbound,
    chain_id: ChainId,
    *,
    successor: Successor | None,
    seq: int | None,
    stopping: Stopping | None,
) -> JobEnd:
    """Do one job of the chain. Whatever it raises has failed the chain, and is raised again."""
    taken = leases.take(outbound, chain_id, seq)
    if isinstance(taken, JobEnd):
        return taken
    counters = Counters.read(taken.chain.counters)
    job = Job(
        outbound=outbound, taken=taken, successor=successor, counters=counters, stopping=stopping or _going_on
    )
    try:
        return job.run()
    except LeaseLost:
        log.warning("lease lost", extra={"statifier_router.rule": job.rule.name})
        return JobEnd.ENDED
    except BaseException as error:
        failing.fail(outbound, taken, error, job.in_hand)
        raise


def _going_on() -> bool:
    return False


@define(kw_only=True)
class Job:
    """A job that has its rule."""

    outbound: Outbound
    taken: Taken
    successor: Successor | None
    counters: Counters
    stopping: Stopping
    in_hand: InHand = field(factory=InHand, init=False)
    # Within a transaction: what was asked of the next record, with the outcome of the one before it.
    ahead: Standing | None = field(default=None, init=False)
    # Whether an outcome is written with nothing beside it.
    alone: bool = field(default=False, init=False)
    _beaten_at: datetime = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._beaten_at = self.taken.at

    @property
    def rule(self) -> Rule:
        """The rule of the chain."""
        return self.taken.rule

    @property
    def writer(self) -> Any:
        """The writer of its driver, None where this process has none."""
        return self.outbound.writers.get(self.rule.driver)

    def run(self) -> JobEnd:
        """Do the page."""
        facts = self.taken.facts
        end = halting.halted(self, facts, facts.breaker, self.taken.at)
        if end is not None:
            with self.owned(None) as (connection, _, now):
                return concluding.over(self, connection, end, now)
        if self.writer is None:
            raise NoWriter(rule=self.rule.name, driver=self.rule.driver)
        page = self.page()
        heard: Heard | None = None
        while True:
            step = self.step(page, heard)
            if isinstance(step, JobEnd):
                return step
            heard = make(self, step)

    def page(self) -> Page:
        """The candidates of this job, read without a lock."""
        chain, schema = self.taken.chain, self.outbound.config.schema
        with reading(self.outbound.config) as connection:
            if chain.phase == "drain":
                return pages.drain(
                    connection, schema, self.rule, token=self.taken.token, due_before=chain.due_before
                )
            cursor = self.taken.facts.cursor
            return pages.scan(connection, schema, self.rule, cursor=cursor, position=chain.position)

    # --- one transaction ------------------------------------------------------------------------------

    def step(self, page: Page, heard: Heard | None) -> Asked | JobEnd:
        """Write what was heard and go on to the next call, in one commit.

        A fault of the rule on that way is raised behind the commit of what was heard.
        """
        counters, recorded = self.counters, False
        try:
            with self.owned(heard) as (connection, facts, now):
                target = facts.breaker
                if heard is not None:
                    target = recording.record(self, connection, page, heard, target, now)
                    recorded = True
                step = self._next(connection, page, heard, facts, target, now)
                recording.settle_spent(self, connection)
        except LeaseLost:
            raise
        except Exception as error:
            if heard is not None and (recorded or not isinstance(error, RuleFault)):
                # The way to the next call, of which a part travels with the outcome, spoiled the
                # transaction and undid the outcome too; or the connection was lost, which is no reason to
                # call again.
                self.counters, at_fault = counters, self.in_hand.source_id
                self._record_alone(page, heard)
                self.in_hand.source_id = at_fault
            raise
        if isinstance(step, RuleFault):
            raise step
        return step

    def _next(
        self,
        connection: Link,
        page: Page,
        heard: Heard | None,
        facts: Facts,
        target: Breaker,
        now: datetime,
    ) -> Asked | JobEnd | RuleFault:
        if heard is not None and now > self.taken.at + self.rule.job_deadline:
            source_id = heard.opened.view.source_id if isinstance(heard, Answered) else None
            return JobTimedOut(rule=self.rule.name, source_id=source_id, deadline=self.rule.job_deadline)
        try:
            return self.go_on(connection, page, facts, target, now)
        except RuleFault as fault:
            return fault

    @contextmanager
    def owned(self, heard: Heard | None) -> Iterator[tuple[Owned, Facts, datetime]]:
        """A transaction of a job that owns its rule still, proved by its first statement.

        Where it does not, a late answer goes to the audit table, and `LeaseLost` is raised.
        """
        config, self.ahead = self.outbound.config, None
        with owning(config) as connection:
            now = config.now()
            facts = leases.fenced(connection, self.outbound, self.taken, now)
            if facts is not None:
                self._beat(connection, now)
                yield connection, facts, now
            elif isinstance(heard, Answered):
                recording.record_late(self, connection, heard, now)
        if facts is None:
            raise LeaseLost

    def _beat(self, connection: Link, now: datetime) -> None:
        if now - self._beaten_at >= self.outbound.lease / 2:
            values = {"of_chain": self.taken.chain.id, "now": now}
            in_full(connection).execute(chain_rows.beat(self.outbound.config.schema), values)
            self._beaten_at = now

    def _record_alone(self, page: Page, heard: Heard) -> None:
        self.alone = True
        with self.owned(heard) as (connection, facts, now):
            if not self._is_written(connection, heard):
                recording.record(self, connection, page, heard, facts.breaker, now)
                recording.settle_spent(self, connection)

    def _is_written(self, connection: Link, heard: Heard) -> bool:
        """Whether the commit was done whose answer was lost: the call is not in flight any more then."""
        if not isinstance(heard, Answered):
            return False
        view, call = heard.opened.view, heard.opened.call
        schema = self.outbound.config.schema
        _, operation = visits.standing(connection, schema, self.rule, view.source_id)
        return operation is None or operation.in_doubt or operation.key != call.key

    # --- on to the next call --------------------------------------------------------------------------

    def go_on(
        self, connection: Link, page: Page, facts: Facts, target: Breaker, now: datetime
    ) -> Asked | JobEnd:
        """Walk through the candidates up to one that needs a call, or to the end of the page."""
        if facts.chain_state != "running":
            # Cancelled: what was in hand is written, and that is all.
            leases.give_back(connection, self.outbound.config, self.taken, now)
            return JobEnd.ENDED
        schema = self.outbound.config.schema
        end = halting.halted(self, facts, target, now)
        while end is None and (candidate := page.current) is not None:
            self.in_hand.source_id = candidate.source_id
            view = visits.look(connection, schema, self.rule, self.writer, page, candidate, self.ahead)
            self.ahead = None
            decision = deciding.decide(view)
            if isinstance(decision, Call):
                if halting.is_late(self, now) or self.stopping():
                    break
                asked = self._admitted(connection, view, decision, target, now)
                if asked is not None:
                    return asked
                end = ChainEnd.BREAKER_OPEN
                break
            if isinstance(decision, Leave):
                settled = settling.left(view)
            else:
                settled = settling.at_rest(view, decision, now)
            visits.write(connection, schema, view, settled, now, landed=False)
            self.counters = self.counters.after(settled)
            page.advance()
        self.in_hand.source_id = None
        return concluding.conclude(self, connection, page, facts, end, now)

    def _admitted(
        self, connection: Link, view: View, call: Call, target: Breaker, now: datetime
    ) -> Asked | None:
        """The call, opened; or a ping before it. None where another job tries the target meanwhile."""
        rule, writer = self.rule, self.writer
        if not has_verb(writer, call.verb):
            raise UnsupportedVerb(
                rule=rule.name, driver=rule.driver, verb=call.verb, source_id=view.source_id
            )
        if breaker.admits(target, now) != "call":
            if not self._take_probe(connection, now):
                return None
            if has_verb(writer, "ping"):
                return Pinging(view.source_id)
        schema, spent = self.outbound.config.schema, self.in_hand.spent
        if visits.open_call(connection, schema, self.taken, view, call, now, spent=spent):
            self.in_hand.spent = None
        self.in_hand.opened = Opened(view=view, call=call)
        return self.in_hand.opened

    def _take_probe(self, connection: Link, now: datetime) -> bool:
        """Whether this job is the one that may try the target."""
        until = now + 2 * self.rule.call_timeout
        before: list[Breaker] = []

        def take(known: Breaker) -> Breaker:
            before.append(known)
            return breaker.probing(known, until) if breaker.admits(known, now) == "probe" else known

        breaker.changed(connection, self.outbound.config.schema, self.rule.target, take)
        admitted = breaker.admits(before[0], now)
        self.in_hand.probe = until if admitted == "probe" else None
        return admitted != "none"
