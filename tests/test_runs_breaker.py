"""Delivery runs: the breaker of a target, its probe, and targets that ask to be left alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete

from statifier_router.runs import (
    ChainEnd,
    Gone,
    RecordFault,
    Rejected,
    RetryPolicy,
    Rule,
    Throttled,
    TimedOut,
    Unavailable,
    Unclassified,
    breaker,
)
from statifier_router.runs.breaker import CLOSED, Breaker, admits, after_answer, after_ping
from statifier_router.testing import Clock
from statifier_router.testing.targets import breaks, lands, rejects, throttles, times_out, unavailable
from tests.support.outbound import make_runs

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def runs(database, make_config):
    """`runs(**kw)`: one rule from a listed source to a scripted target."""

    def make(**kw):
        clock = Clock()
        return make_runs(make_config(database, clock=clock), clock, **kw)

    return make


def tripped(runs, count=8):
    """Five timeouts in a row."""
    runs.source.fill(count)
    runs.target.always(times_out(), verbs=["create"])
    assert runs.go() is ChainEnd.BREAKER_OPEN


# --- opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 5, 100])
def test_the_record_that_trips_it(runs, size):
    """Trap 1: record k has its row, k+1 has nothing; the cursor stays before the page; no successor."""
    one = runs(batch_size=size)
    tripped(one)
    assert one.sent() == ["p01", "p02", "p03", "p04", "p05"]
    assert list(one.statuses()) == ["p01", "p02", "p03", "p04", "p05"]
    chain = one.chain()
    assert (chain["state"], chain["end"]) == ("finished", "BREAKER_OPEN")
    # Pages of three: the first one was concluded.
    assert one.rule_row["cursor"] == {3: "3", 5: "5", 100: None}[size]
    row = one.breaker()
    assert (row["state"], row["failures"], row["trips"]) == ("open", 5, 1)
    assert row["open_until"] == one.clock() + MINUTE


def test_while_it_is_open_nothing_is_called_or_scanned(runs):
    """Fault 2: the next tick resumes from the same cursor."""
    one = runs()
    tripped(one)
    one.source.scans.clear()
    assert one.later(seconds=59) is ChainEnd.BREAKER_OPEN
    assert (len(one.sent()), one.source.scans) == (5, [])
    one.target.up()
    assert one.later(seconds=1) is ChainEnd.COMPLETED
    assert one.sent()[5:] == ["p06", "p07", "p08"]
    assert (one.breaker()["state"], one.breaker()["failures"], one.breaker()["trips"]) == ("closed", 0, 0)


def test_it_is_looked_at_before_every_call(runs):
    """Another rule's faults open it in the middle of a page."""
    one = runs()
    one.source.fill(3)
    create = one.writer.create

    def tripping(payload, context):
        opened = Breaker(state="open", failures=5, open_until=one.clock() + MINUTE, trips=1)
        with one.config.engine.begin() as connection:
            breaker.changed(connection, one.config.schema, "depot", lambda known: opened)
        return create(payload, context)

    one.writer.create = tripping
    assert one.go() is ChainEnd.BREAKER_OPEN
    assert one.statuses() == {"p01": "delivered"}


@pytest.mark.parametrize("between", [lands(), rejects()])
def test_faults_count_only_in_a_row(runs, between):
    """A success or a rejection between them: the target is there."""
    one = runs()
    one.source.fill(9)
    faults = [unavailable(), times_out()] * 2
    one.target.coming(*faults, between, *faults)
    assert one.go() is ChainEnd.COMPLETED
    assert len(one.sent()) == 9


def test_one_breaker_serves_every_rule_of_a_target(runs):
    """Opened by one, it holds for the other."""
    one = runs()
    tripped(one)
    other = one.again(rules=[Rule("others", **fields(one), target="depot")])
    (chain_id,) = other.tick()
    assert other.run_chain(chain_id) is ChainEnd.BREAKER_OPEN
    elsewhere = one.again(rules=[Rule("elsewhere", **fields(one), target="another")])
    (chain_id,) = elsewhere.tick()
    one.target.up()
    assert elsewhere.run_chain(chain_id) is ChainEnd.COMPLETED


def fields(runs):
    rule = runs.rule
    return {"entity": rule.entity, "source": rule.source, "driver": rule.driver, "policy": rule.policy}


def test_the_cool_down_doubles(runs):
    """60 s, 2, 4, 8 min and then 15: at every end of it one call tries, and its record pays an attempt."""
    one = runs(retry=RetryPolicy(max_attempts=50, waits=[timedelta(days=1)]))
    tripped(one, 20)
    minutes = []
    for _ in range(6):
        wait = one.breaker()["open_until"] - one.clock()
        minutes.append(wait / MINUTE)
        one.clock.advance(wait - SECOND)
        assert one.go() is ChainEnd.BREAKER_OPEN
        one.clock.advance(SECOND)
        before = len(one.sent())
        assert one.go() is ChainEnd.BREAKER_OPEN
        assert len(one.sent()) == before + 1
    assert minutes == [1, 2, 4, 8, 15, 15]


# --- the probe ----------------------------------------------------------------------------------------


def test_one_probe_at_a_time(runs):
    """While one job tries the target, another is turned away; a probe whose holder died is free again."""
    one = runs()
    tripped(one)
    one.clock.advance(MINUTE)
    other = one.again(rules=[Rule("others", **fields(one), target="depot")])
    answers = []

    def create(payload, context):
        one.writer.create = original
        (chain_id,) = other.tick()
        answers.append(other.run_chain(chain_id))
        raise SystemExit

    original, one.writer.create = one.writer.create, create
    from statifier_router.runs import failing

    fail = failing.fail
    try:
        failing.fail = lambda *given: None
        with pytest.raises(SystemExit):
            one.go()
    finally:
        failing.fail = fail
    assert answers == [ChainEnd.BREAKER_OPEN]
    # Twice the call timeout: whoever held it is dead.
    probe_until = one.breaker()["probe_until"]
    assert probe_until == one.clock() + 2 * one.rule.call_timeout
    one.clock.set(probe_until - SECOND)
    (chain_id,) = other.tick()
    assert other.run_chain(chain_id) is ChainEnd.BREAKER_OPEN
    one.clock.set(probe_until)
    one.target.up()
    (chain_id,) = other.tick()
    assert other.run_chain(chain_id) is ChainEnd.COMPLETED


def test_a_probe_that_comes_to_nothing_is_free(runs):
    """Trap 13: an unclassified fault tells nothing of the target; the next call may try."""
    one = runs()
    tripped(one)
    one.target.up()
    one.target.coming(breaks(KeyError("x")))
    with pytest.raises(Unclassified):
        one.later(minutes=1)
    assert (one.breaker()["state"], one.breaker()["probe_until"]) == ("open", None)
    assert one.go() is ChainEnd.COMPLETED
    assert one.breaker()["state"] == "closed"


def test_a_record_that_needs_no_call_takes_no_probe(runs):
    """Trap 13: the record fails before the call, or needs none."""
    one = runs()
    tripped(one)
    one.target.up()
    load = one.source.load
    one.source.load = lambda connection, ids: dict.fromkeys(ids)
    assert one.later(minutes=1) is ChainEnd.COMPLETED
    assert one.breaker()["probe_until"] is None
    one.source.load = lambda connection, ids: dict.fromkeys(ids, 7)
    one.source.put("p9", 0)
    with pytest.raises(Exception, match="not a Record"):
        one.go()
    assert (one.breaker()["state"], one.breaker()["probe_until"]) == ("open", None)
    one.source.load = load
    assert one.go() is ChainEnd.COMPLETED


VERBS = ("create", "update", "ping")


def test_a_ping_costs_no_record_an_attempt(runs):
    """The target is asked first; only where it answers a record is sent."""
    one = runs(verbs=VERBS)
    tripped(one)
    one.target.down()
    before = one.rows("records"), one.rows("operations")
    assert one.later(minutes=1) is ChainEnd.BREAKER_OPEN
    assert [each.verb for each in one.target.requests[5:]] == ["ping"]
    assert (one.rows("records"), one.rows("operations")) == before
    assert one.breaker()["trips"] == 2
    one.target.up()
    assert one.later(minutes=2) is ChainEnd.COMPLETED
    assert [each.verb for each in one.target.requests[6:]] == ["ping", "create", "create", "create"]


@pytest.mark.parametrize("answer", [rejects(), throttles(), throttles(60)])
def test_any_fault_of_a_ping_says_no(runs, answer):
    """However it is dressed, the chain ends, and the breaker stays open for a while."""
    one = runs(verbs=VERBS)
    tripped(one)
    one.target.always(answer, verbs=["ping"])
    assert one.later(minutes=1) is ChainEnd.BREAKER_OPEN
    assert one.breaker()["open_until"] > one.clock()
    assert len(one.target.requests) == 6


# --- throttling ---------------------------------------------------------------------------------------


def test_throttled_with_a_time(runs):
    """One record pays: its next attempt is the later of schedule and Retry-After; all others wait."""
    one = runs()
    one.source.fill(3)
    one.target.coming(lands(), throttles(1_800))
    assert one.go() is ChainEnd.BREAKER_OPEN
    assert one.statuses() == {"p01": "delivered", "p02": "failed"}
    row = one.row("p02")
    assert (row["attempts"], row["next_attempt_at"]) == (1, one.clock() + timedelta(minutes=30))
    assert one.breaker()["open_until"] == one.clock() + timedelta(minutes=30)
    assert one.later(minutes=29) is ChainEnd.BREAKER_OPEN
    assert one.later(minutes=1) is ChainEnd.COMPLETED
    assert set(one.statuses().values()) == {"delivered"}
    assert one.breaker()["state"] == "closed"


def test_throttled_for_less_than_the_schedule(runs):
    """The record waits by its schedule, the others only as long as asked."""
    one = runs()
    one.source.fill(2)
    one.target.coming(throttles(5))
    one.go()
    wait = RetryPolicy().wait("parcels", "p01", 1)
    assert one.row("p01")["next_attempt_at"] == one.clock() + wait
    assert one.breaker()["open_until"] == one.clock() + 5 * SECOND
    assert one.later(seconds=5) is ChainEnd.COMPLETED
    assert one.statuses()["p02"] == "delivered"


HALF_AN_HOUR = timedelta(minutes=30)
ASKED = [
    ("Thu, 01 Jan 2026 00:30:00 GMT", HALF_AN_HOUR),
    (datetime(2026, 1, 1, 0, 30, tzinfo=UTC), HALF_AN_HOUR),
    (HALF_AN_HOUR, HALF_AN_HOUR),
    ("1800", HALF_AN_HOUR),
    (365 * 86_400, timedelta(hours=1)),
    ("Fri, 01 Jan 2027 00:00:00 GMT", timedelta(hours=1)),
    (-5, None),
    ("Wed, 31 Dec 2025 00:00:00 GMT", None),
    ("soon", None),
    (None, None),
]


def test_retry_after(runs):
    """Trap 10: a date, a year, something negative; without a usable time it is an ordinary fault."""
    retry = RetryPolicy(waits=[SECOND])
    one = runs(retry=retry)
    breakers = one.config.schema.breakers
    for asked, wait in ASKED:
        source_id = f"asked {asked}"
        one.source.put(source_id, 0)
        one.target.on(source_id, throttles(asked))
        end = one.go()
        due = one.row(source_id)["next_attempt_at"]
        if wait is None:
            assert (end, one.breaker()) == (ChainEnd.COMPLETED, None), asked
            assert due == NOW + retry.wait("parcels", source_id, 1)
        else:
            assert end is ChainEnd.BREAKER_OPEN, asked
            assert due == one.breaker()["open_until"] == NOW + wait, asked
        with one.config.engine.begin() as connection:
            connection.execute(delete(breakers))


def test_a_probe_that_is_throttled_without_a_time_is_free(runs):
    """The target is there, and nobody knows for how long it wants rest: the next call tries."""
    one = runs()
    tripped(one)
    one.target.up()
    one.target.coming(throttles())
    assert one.later(minutes=1) is ChainEnd.COMPLETED
    assert one.breaker()["state"] == "closed"


# --- its states, without a database --------------------------------------------------------------------

FAULTS = st.sampled_from(
    [None, Rejected(), Gone(), Unavailable(), TimedOut(), Throttled(), Throttled(90), RecordFault()]
)


@given(st.lists(st.tuples(FAULTS, st.integers(0, 1_200), st.booleans())))
def test_whatever_it_hears(heard):
    """Open with an end, or closed without one; for at most an hour; a probe ends with an answer."""
    now, known = NOW, CLOSED
    for fault, seconds, pings in heard:
        now += seconds * SECOND
        admitted = admits(known, now)
        if admitted == "none":
            continue
        if admitted == "probe":
            known = breaker.probing(known, now + MINUTE)
            assert admits(known, now) == "none"
        known = (after_ping if pings else after_answer)(known, fault, now)
        assert known.probe_until is None
        assert (known.state == "open") == (known.open_until is not None)
        if known.state == "closed":
            assert known.failures < 5
            assert known.trips == 0
        else:
            assert known.open_until <= now + timedelta(hours=1)
        if fault is None:
            assert known == CLOSED


def test_answers_to_calls_from_before_it_opened():
    """Stragglers neither close it nor prolong it."""
    opened = Breaker(state="open", failures=5, open_until=NOW + MINUTE, trips=1)
    assert after_answer(opened, None, NOW) == opened
    assert after_answer(opened, TimedOut(), NOW) == opened
    assert after_answer(opened, Throttled(300), NOW) == evolve(opened, open_until=NOW + 5 * MINUTE)
