"""The same runs through the embedded loop and through workers of Procrastinate: the same tables and calls.

Every scenario is played with each, in real processes, by a clock that the scenario moves.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import update

from statifier_router.testing.targets import (
    gone,
    lands,
    rejects,
    throttles,
    times_out,
    unavailable,
)
from tests.support.conforming import HOSTS

pytestmark = pytest.mark.postgresql

MINUTE = timedelta(minutes=1)


@pytest.fixture
def play(postgresql, tmp_path):
    """`play(scenario, **rules)` plays it with every host, and compares what is left at the end."""

    def both(scenario, *, workers=1, **rules):
        found = {}
        for host_of in HOSTS:
            postgresql.clear()
            with host_of(postgresql, tmp_path, rules or {"parcels": {}}, workers) as host:
                scenario(host)
                found[host.kind] = host.final()
        embedded, queued = found.values()
        for name, left in embedded.items():
            assert left == queued[name], name
        return embedded

    return both


def ids(count):
    return [f"p{number:02d}" for number in range(1, count + 1)]


def test_faults_and_retries(play):
    """Every fault in a page; what is due is tried again as the hours pass, to delivery or parking."""

    def scenario(host):
        host.put("parcels", *ids(10))
        on = host.target.on
        on("p02", rejects())
        on("p03", *[rejects("too heavy")] * 5)
        on("p04", times_out(taken=True))
        on("p05", lands(None))
        on("p06", unavailable(), unavailable())
        on("p07", throttles(120))
        on("p08", gone())
        host.round()
        assert host.ends("parcels") == ["BREAKER_OPEN"]
        host.put("parcels", "p01", "p06", value=1)
        for _ in range(5):
            host.round(hours=6)
        assert host.ends("parcels") == ["BREAKER_OPEN"] + ["COMPLETED"] * 5

    left = play(scenario)
    parked = {row["source_id"]: row for row in left["records"] if row["status"] != "delivered"}
    assert {name: row["status"] for name, row in parked.items()} == {"p03": "exhausted", "p05": "exhausted"}
    assert parked["p03"]["attempts"] == 5
    assert left["operations"] == []
    # Nothing is there twice, whatever timed out.
    assert [name for name, _ in left["held"]] == ids(10)[:2] + ids(10)[3:]


def test_a_misconfigured_rule_beside_a_good_one(play):
    """A failed chain at every tick, and the other one served."""

    def scenario(host):
        for number in range(3):
            host.put("parcels", *ids(4), value=number)
            host.put("letters", *ids(2), value=number)
            host.round(minutes=5)
        assert host.ends("letters") == ["FAILED"] * 3
        assert host.ends("parcels") == ["COMPLETED"] * 3
        assert host.statuses("letters") == {}

    left = play(scenario, workers=2, letters={"driver": "nobody"}, parcels={})
    assert len(left["log"]["parcels"]) == 12


def test_a_rule_that_is_taken(play):
    """BUSY: the job is offered again in seconds, no attempt is counted; it runs once the lease is over."""

    def scenario(host):
        host.put("parcels", *ids(4))
        rules = host.config.schema.rules
        with host.config.engine.begin() as connection:
            connection.execute(
                update(rules).values(lease_owner="else", lease_until=host.clock() + MINUTE / 2)
            )
        host.begin()
        host.await_busy()
        assert host.target.requests == []
        host.clock.advance(MINUTE / 2 + timedelta(seconds=1))
        host.settle()
        assert host.ends("parcels") == ["COMPLETED"]

    left = play(scenario)
    assert {(row["status"], row["attempts"]) for row in left["records"]} == {("delivered", 0)}
    assert len(left["log"]["parcels"]) == 4


def test_a_chain_that_lasts_longer_than_a_tick(play):
    """YIELDED: it leaves off, and the next one goes on from there."""

    def scenario(host):
        host.put("parcels", *ids(8))

        def slow(call):
            if call.source_id == "p05":
                host.clock.advance(timedelta(minutes=3))

        host.on_call = slow
        host.round()
        assert sorted(host.statuses("parcels")) == ids(5)
        host.round()
        assert host.ends("parcels") == ["YIELDED", "COMPLETED"]

    assert len(play(scenario)["log"]["parcels"]) == 8


def test_a_paused_rule(play):
    """Paused in the middle of a page: nothing further, at no tick, until it is resumed. Others go on."""

    def scenario(host):
        def pausing(call):
            if call.source_id == "p05":
                host.outbound.pause("parcels", actor="tests")

        host.on_call = pausing
        host.put("parcels", *ids(7))
        host.round()
        host.on_call = lambda call: None
        host.put("letters", "l1")
        host.round(minutes=5)
        assert host.ends("parcels") == ["PAUSED"]
        assert host.statuses("letters") == {"l1": "delivered"}
        host.outbound.resume("parcels", actor="tests")
        host.round(minutes=5)
        assert host.ends("parcels") == ["PAUSED", "COMPLETED"]

    assert len(play(scenario, parcels={}, letters={})["log"]["parcels"]) == 7


@pytest.mark.parametrize("verdict", ["cut", "cut_after"])
def test_killed_workers(play, verdict):
    """SIGKILL in the middle of a call, which the target took or did not: another process finishes, and sends
    what was in hand again under the same key. The other rule loses nothing.
    """

    def scenario(host):
        died = threading.Event()

        def killing(call):
            if call.source_id == "p05" and not died.is_set():
                host.kill(call.pid)
                died.set()
                return verdict
            return None

        host.on_call = killing
        host.put("letters", *ids(4))
        host.round()
        host.put("parcels", *ids(8))
        host.begin()
        assert died.wait(60)
        host.recover()
        host.settle()
        assert host.ends("parcels")[-1] == "COMPLETED"
        host.round(minutes=5)
        assert {row["state"] for row in host.rows("chains")} <= {"finished", "cancelled"}

    left = play(scenario, workers=2, parcels={}, letters={})
    assert {row["status"] for row in left["records"]} == {"delivered"}
    assert {row["attempts"] for row in left["records"]} == {0}
    calls = [call for call in left["log"]["parcels"] if call[1] == "p05"]
    # A call that was not taken did not reach the target's log.
    assert [took_effect for *_, took_effect, _ in calls] == [True, False][: len(calls)]
    assert len({key for _, _, key, *_ in calls}) == 1
    assert len(calls) == (2 if verdict == "cut_after" else 1)
    assert len(left["held"]) == 12
