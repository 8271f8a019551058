"""Delivery runs: one job a rule at a time, by a lease that every write proves."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import update

from statifier_router.jsontext import decode
from statifier_router.runs import BUSY, ENDED, MORE, ChainEnd, Outbound
from statifier_router.testing import Clock
from statifier_router.testing.targets import hangs, times_out
from tests.support.outbound import make_runs


@pytest.fixture
def runs(database, make_config):
    """`runs(**kw)`: one rule from a listed source to a scripted target."""

    def make(**kw):
        clock = Clock()
        return make_runs(make_config(database, clock=clock), clock, **kw)

    return make


class Frozen:
    """A chain in another thread, held in its first call."""

    def __init__(self, runs, *reactions, run=None):
        self.runs = runs
        self.answer = self.error = None
        runs.target.coming(hangs(*reactions))
        chain_id = runs.begin()
        work = run or runs.outbound.run_chain
        self.thread = threading.Thread(target=lambda: self._work(work, chain_id))
        self.thread.start()
        runs.target.await_held()

    def _work(self, work, chain_id):
        try:
            self.answer = work(chain_id)
        except BaseException as error:
            self.error = error

    def thaw(self):
        self.runs.target.release()
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.answer


def test_a_rule_that_is_taken_is_busy(runs):
    """No attempt is counted, nothing is written; the lease is given back when the job ends."""
    one = runs()
    one.source.fill(2)
    frozen = Frozen(one)
    before = one.dump(), one.chain()
    assert one.outbound.run_job(one.chain()["id"]) is BUSY
    other = one.again()
    assert other.run_job(one.chain()["id"]) is BUSY
    assert other.run_chain(one.chain()["id"]) is ChainEnd.BUSY
    assert (one.dump(), one.chain()) == before
    lease = one.rule_row
    assert lease["lease_owner"] == one.outbound.owner
    assert lease["lease_until"] == one.clock() + one.outbound.lease
    assert frozen.thaw() is ChainEnd.COMPLETED
    assert (one.rule_row["lease_owner"], one.rule_row["lease_until"]) == (None, None)
    assert one.sent() == ["p01", "p02"]


def test_a_job_frozen_past_its_lease(runs):
    """Trap 7: another chain runs to its end meanwhile; thawed, it changes nothing but the audit table."""
    one = runs(keyed=True)
    one.source.fill(3)
    frozen = Frozen(one)
    assert one.later(minutes=4) is ChainEnd.COMPLETED
    before = one.dump()
    chains = one.chains()
    assert frozen.thaw() is ChainEnd.CANCELLED
    after = one.dump()
    (late,) = after.pop("audit")
    before.pop("audit")
    assert (after, one.chains()) == (before, chains)
    assert (late["actor"], late["action"], late["count"]) == (one.outbound.owner, "late answer", 1)
    told = decode(late["selection"])
    assert (told["rule"], told["source_ids"], told["answer"]) == ("parcels", ["p01"], "landed")
    assert len(one.target.copies("p01")) == 1


def test_a_lease_that_ran_out_and_that_nobody_took(runs):
    """The job is still the rule's, and goes on."""
    one = runs()
    one.source.fill(2)
    frozen = Frozen(one)
    one.clock.advance(timedelta(seconds=100))
    assert frozen.thaw() is ChainEnd.COMPLETED
    assert one.statuses() == {"p01": "delivered", "p02": "delivered"}


def test_another_job_of_the_same_chain(runs):
    """Past the lease, before the chain is dead: it takes over, and settles what was left open."""
    one = runs(keyed=True)
    one.source.fill(3)
    one.target.coming()
    chain_id = one.begin()
    assert one.outbound.run_job(chain_id) is MORE
    one.target.coming(hangs())
    thread_answers = []
    thread = threading.Thread(target=lambda: thread_answers.append(one.outbound.run_job(chain_id, seq=2)))
    thread.start()
    one.target.await_held()
    one.clock.advance(timedelta(seconds=91))
    assert one.again().run_job(chain_id, seq=2) is ENDED
    before = one.dump()
    one.target.release()
    thread.join(60)
    assert thread_answers == [ENDED]
    after = one.dump()
    assert len(after.pop("audit")) == 1
    before.pop("audit")
    assert after == before
    assert set(one.statuses().values()) == {"delivered"}
    assert [len(one.target.copies(each)) for each in ("p01", "p02", "p03")] == [1, 1, 1]


def test_a_chain_that_is_cancelled_during_a_call(runs):
    """The job may record the record in hand, while it still owns the rule; then it stops."""
    one = runs()
    one.source.fill(3)
    frozen = Frozen(one)
    chains = one.config.schema.chains
    with one.config.engine.begin() as connection:
        connection.execute(update(chains).values(state="cancelled", end="CANCELLED"))
    assert frozen.thaw() is ChainEnd.CANCELLED
    assert one.statuses() == {"p01": "delivered"}
    assert one.sent() == ["p01"]
    assert one.rule_row["cursor"] is None
    assert one.rule_row["lease_until"] is None
    assert one.go() is ChainEnd.COMPLETED


def test_a_failed_chain_of_a_job_that_lost_its_rule(runs):
    """What it raises is raised, and the chain that took over is left alone."""
    one = runs(keyed=True)
    one.source.fill(2)
    from statifier_router.testing.targets import breaks

    frozen = Frozen(one, breaks(KeyError("x")))
    one.later(minutes=4)
    before = one.dump()
    chains = one.chains()
    with pytest.raises(Exception, match="KeyError"):
        frozen.thaw()
    assert (one.dump(), one.chains()) == (before, chains)


def test_a_long_page_gives_signs_of_life(runs):
    """A chain that works is never dead, however long its page is."""
    one = runs(tick_interval=timedelta(hours=1), call_timeout=timedelta(seconds=40))
    one.source.fill(8)
    create = one.writer.create
    begun = []

    def slow(payload, context):
        one.clock.advance(timedelta(seconds=40))
        begun.extend(one.again().tick())
        return create(payload, context)

    one.writer.create = slow
    assert one.go() is ChainEnd.COMPLETED
    assert begun == []


def test_two_ticks_at_once_begin_one_chain(runs):
    """Trap 15: both wait for the rule's row, and the second finds the chain of the first."""
    one = runs()
    barrier = threading.Barrier(4)
    begun = []

    def tick():
        outbound = Outbound(one.config, writers={"scripted": one.writer}, rules=[one.rule])
        outbound.save_unsaved()
        barrier.wait(60)
        begun.extend(outbound.tick())

    for _ in range(5):
        threads = [threading.Thread(target=tick) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(begun) == 1
        assert len([chain for chain in one.chains() if chain["state"] == "running"]) == 1
        assert one.outbound.run_chain(begun.pop()) is ChainEnd.COMPLETED


def test_a_tick_waits_for_nobody_during_a_call(runs):
    """The rule's row is free while a call is made."""
    one = runs()
    one.source.fill(1)
    frozen = Frozen(one)
    assert one.outbound.tick() == []
    one.edit(batch_size=9)
    assert frozen.thaw() is ChainEnd.SUPERSEDED


def test_a_cursor_that_an_operator_moved_stays(runs):
    """During a page: the page's end does not go over it."""
    one = runs()
    one.source.fill(3)
    one.go()
    one.source.put("p9", 0)
    frozen = Frozen(one)
    rules = one.config.schema.rules
    with one.config.engine.begin() as connection:
        connection.execute(update(rules).values(cursor="1"))
    frozen.thaw()
    assert one.rule_row["cursor"] == "1"
    assert one.go() is ChainEnd.COMPLETED
    assert one.rule_row["cursor"] == "4"


def test_a_late_timeout_is_told_too(runs):
    """The audit row says what was answered."""
    one = runs(keyed=True)
    one.source.fill(1)
    frozen = Frozen(one, times_out())
    one.later(minutes=4)
    frozen.thaw()
    (late,) = one.rows("audit")
    assert decode(late["selection"])["answer"] == "timed_out"
    assert one.row("p01")["status"] == "delivered"
