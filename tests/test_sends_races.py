"""Sends, timers and early events against each other, on PostgreSQL, over both plans of statements.

The numbers here are small; `bench/contests.py` runs the same contests in the numbers that matter.
"""

from __future__ import annotations

import pytest

from statifier_router import deferrals, deliver, deliver_event, timers
from tests.support import contests
from tests.support.charts import NOW, delivery, envelope
from tests.support.contests import CREATES, DUE, EARLY, PLAN
from tests.support.processes import release_together
from tests.support.racing import PLANS, TIMEOUT, blocked, open_transaction, threads
from tests.support.told import at, later, timer_states, to_execution

pytestmark = [pytest.mark.postgresql, pytest.mark.parametrize("plan", PLANS)]


@pytest.fixture
def make(postgresql, make_config):
    """Makes a configuration with an engine of its own."""

    def make_one(plan, **kw):
        return make_config.watch(contests.config_on(postgresql.engine(), plan, **kw))

    return make_one


# --- a timer against its cancel -----------------------------------------------------------------------


def test_a_timer_against_its_cancel(postgresql, make, plan, record_property):
    """40-sends trap 5. Races that overlap, the loser seen blocked: exactly one wins, and no deadlock."""
    before = postgresql.counters()
    won = contests.timer_races(make, postgresql.bare_engine(), 60, plan)
    print(f"{plan} plan, timer against cancel: {dict(won)}")
    record_property("race", f"{plan} plan, timer against cancel: {dict(won)}")
    assert min(won["timer"], won["cancel"]) >= 5
    assert (postgresql.counters() - before).deadlocks == 0
    assert postgresql.logged_errors() == []


def test_two_workers_and_one_timer(postgresql, make, plan):
    """The second worker waits for the first one's transaction, and finds the timer fired."""
    one, two = make(plan), make(plan)
    deliver_event(one, PLAN, "K1", envelope("go", "e-1", data={"effects": [later(60)]}))
    with open_transaction(one) as (connection, pid), threads() as beside:
        assert timers.fire_due(one, now=DUE, connection=connection).fired == 1
        second = beside(timers.fire_due, two, now=DUE)
        blocked(postgresql, pid, second)
        connection.commit()
        assert second.result(TIMEOUT) == timers.Fired(fired=0, discarded=0, failed=0)
    assert at(one, "K1", "a")["seen"] == ["go", "tick"]


def test_two_workers_and_a_firing_that_rolls_back(postgresql, make, plan):
    """The second worker fires what the first one gave up."""
    one, two = make(plan), make(plan)
    deliver_event(one, PLAN, "K1", envelope("go", "e-1", data={"effects": [later(60)]}))
    with open_transaction(one) as (connection, pid), threads() as beside:
        assert timers.fire_due(one, now=DUE, connection=connection).fired == 1
        second = beside(timers.fire_due, two, now=DUE)
        blocked(postgresql, pid, second)
        connection.rollback()
        assert second.result(TIMEOUT).fired == 1
    assert at(one, "K1", "a")["seen"] == ["go", "tick"]
    assert timer_states(one) == ["fired"]


# --- an early event against the creation it waits for -----------------------------------------------------


def test_an_early_event_against_the_creation(postgresql, make, plan, record_property):
    """30-executions trap 9. Whoever is first: the early event lands, and none waits for ever."""
    before = postgresql.counters()
    went = contests.keeping_races(make, 100, plan)
    print(f"{plan} plan, early event against creation: {dict(went)}")
    record_property("race", f"{plan} plan, early event against creation: {dict(went)}")
    assert set(went) <= {"deferred", "delivered"}
    assert (postgresql.counters() - before).deadlocks == 0
    assert postgresql.logged_errors() == []


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_an_early_event_waits_for_a_creation(postgresql, make, plan, ending):
    """One that comes while the creation is open waits for it: it steps the new execution, or is kept."""
    one, two = make(plan), make(plan)
    with open_transaction(one) as (connection, pid), threads() as beside:
        deliver(one, CREATES, "K1", delivery("m-1"), connection=connection)
        early = beside(deliver, two, EARLY, "K1", delivery("m-2"))
        blocked(postgresql, pid, early)
        getattr(connection, ending)()
        outcome = early.result(TIMEOUT)
    if ending == "commit":
        assert outcome.recorded == "delivered"
        assert at(one, "K1", "a")["seen"] == ["A", "B"]
    else:
        assert outcome.recorded == "deferred"
        assert len(deferrals.pending(one)) == 1


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_creation_waits_for_an_early_event(postgresql, make, plan, ending):
    """A creation that comes while the keeping is open waits for it, and offers what was kept."""
    one, two = make(plan), make(plan)
    with open_transaction(one) as (connection, pid), threads() as beside:
        kept = deliver(one, EARLY, "K1", delivery("m-1"), connection=connection)
        assert kept.recorded == "deferred"
        creating = beside(deliver, two, CREATES, "K1", delivery("m-2"))
        blocked(postgresql, pid, creating)
        getattr(connection, ending)()
        assert creating.result(TIMEOUT).recorded == "created_and_delivered"
    assert at(one, "K1", "a")["seen"] == (["A", "B"] if ending == "commit" else ["A"])
    assert deferrals.pending(one) == []


def test_two_sweeps(postgresql, make, plan):
    """They wait for each other's locks in one order: no deadlock, and each kept event is dropped once."""
    one, two = make(plan), make(plan)
    for number in range(20):
        deliver(one, EARLY, f"K{number}", delivery(f"m-{number}"))
        if number % 2:
            continue
        created = envelope("A", f"e-{number}", data={"effects": []})
        deliver_event(one, PLAN, f"L{number}", created)
        deliver(one, EARLY, f"L{number}", delivery(f"n-{number}", data={"after": "never"}))
    before = postgresql.counters()
    later_ = NOW + contests.charts.HOUR * 2
    with threads() as beside:
        sweeping = [beside(deferrals.sweep, config, now=later_) for config in (one, two)]
        swept = [each.result(TIMEOUT) for each in sweeping]
    assert sum(each.expired for each in swept) == 30
    assert deferrals.pending(one) == []
    assert (postgresql.counters() - before).deadlocks == 0


# --- two executions that send to each other ---------------------------------------------------------------


def test_two_that_send_to_each_other(postgresql, make, children, plan, record_property):
    """20-delivery trap 21. Two processes, until the server has counted three deadlocks: every message is
    delivered once, every send arrives once, and no caller sees an error.
    """
    config = make(plan)
    for key in ("K1", "K2"):
        deliver_event(config, PLAN, key, envelope("first", f"first-{key}"))
    until = contests.deadlocks(postgresql.bare_engine()) + 3
    arguments = (plan, until, 2000)
    both = [
        children.start("tests.support.contests:send_across", postgresql.url, mine, other, *arguments)
        for mine, other in (("K1", "K2"), ("K2", "K1"))
    ]
    release_together(both, "ready")
    told = [child.result() for child in both]
    seen = contests.deadlocks(postgresql.bare_engine())
    print(f"{plan} plan: {told}, {seen} deadlocks")
    record_property("race", f"{plan} plan: {told}, {seen} deadlocks")
    assert seen >= until
    contests.check_crossings(config, told, ("K1", "K2"))


def test_a_send_waits_for_a_creation(postgresql, make, plan):
    """30-executions trap 3. A send to an address whose creation is open waits for it, then steps."""
    one, two = make(plan), make(plan)
    with open_transaction(one) as (connection, pid), threads() as beside:
        deliver(one, CREATES, "K1", delivery("m-1"), connection=connection)
        effects = [to_execution("K1", "hello", document="a")]
        sending = beside(deliver_event, two, PLAN, "K2", envelope("go", "e-2", data={"effects": effects}))
        blocked(postgresql, pid, sending)
        connection.commit()
        assert sending.result(TIMEOUT).recorded == "created_and_delivered"
    assert at(one, "K1", "a")["seen"] == ["A", "hello"]
