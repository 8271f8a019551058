"""A process that is told to end during a run: after the record in hand, with nothing left behind."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from statifier_router.runs import ENDED, MORE, ChainEnd
from statifier_router.testing import Clock
from statifier_router.testing.targets import rejects
from tests.support.outbound import make_runs


@pytest.fixture
def runs(database, make_config):
    """`runs(**kw)`: one rule from a listed source to a scripted target."""

    def make(**kw):
        clock = Clock()
        return make_runs(make_config(database, clock=clock), clock, **kw)

    return make


def stop_at(one, source_id):
    """An event that is set during the call for this record, as by a signal."""
    stop = threading.Event()
    create = one.writer.create

    def stopping(payload, context):
        if context.source_id == source_id:
            stop.set()
        return create(payload, context)

    one.writer.create = stopping
    return stop


def test_the_record_in_hand_is_finished(runs):
    """Its outcome is written, nothing further is called, the chain yields and the lease is given back; the
    next chain begins at once, behind what was concluded, and calls nothing twice.
    """
    one = runs(batch_size=5)
    one.source.fill(12)
    stop = stop_at(one, "p07")
    assert one.outbound.run_chain(one.begin(), stopping=stop.is_set) is ChainEnd.YIELDED
    assert sorted(one.statuses()) == [f"p{number:02d}" for number in range(1, 8)]
    assert one.operations() == {}
    assert one.rule_row["lease_until"] is None
    assert one.rule_row["cursor"] == "7"
    one.source.scans.clear()
    assert one.go() is ChainEnd.COMPLETED
    assert one.source.scans[0] == (7, 6)
    assert one.sent() == [f"p{number:02d}" for number in range(1, 13)]


def test_in_a_drain(runs):
    """What was due and not called for stays due."""
    one = runs()
    for source_id in one.source.fill(4):
        one.target.on(source_id, rejects())
    one.go()
    stop = threading.Event()
    asked = []

    def stopping():
        asked.append(1)
        if len(asked) == 3:
            stop.set()
        return stop.is_set()

    one.clock.advance(timedelta(minutes=10))
    assert one.outbound.run_chain(one.begin(), stopping=stopping) is ChainEnd.YIELDED
    assert sorted(one.statuses().values()) == ["delivered", "delivered", "failed", "failed"]
    assert one.go() is ChainEnd.COMPLETED
    assert set(one.statuses().values()) == {"delivered"}
    assert [row["attempts"] for row in one.rows("records")] == [0] * 4


def test_a_page_without_a_call_goes_to_its_end(runs):
    """Nothing waits in it; where the chain would go on behind it, it yields."""
    one = runs(batch_size=2)
    one.source.fill(4)
    one.go()
    one.source.fill(4)
    assert one.outbound.run_chain(one.begin(), stopping=lambda: True) is ChainEnd.YIELDED
    assert one.go() is ChainEnd.COMPLETED
    assert len(one.sent()) == 4


def test_a_job_that_hands_over(runs):
    """With a successor the chain goes on: another process takes the rest of the page."""
    one = runs(batch_size=5)
    one.source.fill(4)
    stop = stop_at(one, "p02")
    chain_id = one.begin()
    handed = []

    def successor(connection, chain, seq):
        handed.append((chain, seq))

    assert one.outbound.run_job(chain_id, successor=successor) is MORE
    assert one.outbound.run_job(chain_id, successor=successor, seq=2, stopping=stop.is_set) is MORE
    assert handed == [(chain_id, 2), (chain_id, 3)]
    assert one.sent() == ["p01", "p02"]
    assert one.chain()["state"] == "running"
    assert one.rule_row["lease_until"] is None
    assert one.again().run_job(chain_id, successor=successor, seq=3) is ENDED
    assert one.sent() == ["p01", "p02", "p03", "p04"]
    assert one.chain()["end"] == "COMPLETED"


def test_the_loop_ends(runs):
    """`work` begins no further rule and does not wait out its interval."""
    one = runs()
    one.source.fill(3)
    stop = stop_at(one, "p02")
    pauses = []
    assert one.outbound.work(every=300, stop=stop, pause=pauses.append) is False
    assert pauses == []
    assert one.sent() == ["p01", "p02"]
    assert (one.chain()["state"], one.chain()["end"]) == ("finished", "YIELDED")
