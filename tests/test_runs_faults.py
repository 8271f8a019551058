"""Faults of a rule that come in the middle of a page, and rules that meet one at every tick."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import insert

from statifier_router.runs import (
    ChainEnd,
    ImpossibleCandidate,
    NoWriter,
    Rejected,
    Rule,
    Unclassified,
    UnsupportedVerb,
)
from statifier_router.testing import Clock
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter, breaks, rejects
from tests.support.outbound import Listed, make_runs

PLACES = {"first": 0, "middle": 2, "last": 4}
LATER = timedelta(minutes=10)


@pytest.fixture
def runs(database, make_config):
    """`runs(**kw)`: one rule from a listed source to a scripted target."""

    def make(**kw):
        clock = Clock()
        return make_runs(make_config(database, clock=clock), clock, **kw)

    return make


class Health:
    """The host's word on the rule's connections."""

    why = None

    def closed(self, rule):
        return self.why


def open_breaker(one):
    """As another process does that met five faults of the target."""
    row = {"target": "depot", "state": "open", "failures": 5, "trips": 1}
    with one.config.engine.begin() as connection:
        connection.execute(
            insert(one.config.schema.breakers), row | {"open_until": one.clock() + timedelta(minutes=1)}
        )


def a_page(one, phase):
    """Five records that are one page of this phase; answers their ids in the order of the page."""
    ids = one.source.fill(5)
    if phase == "scan":
        return ids
    for source_id in ids:
        one.target.on(source_id, rejects())
    one.go()
    one.clock.advance(LATER)
    due = sorted(one.rows("records"), key=lambda row: (row["next_attempt_at"], row["source_id"]))
    return [row["source_id"] for row in due]


def before_the_call_for(one, order, place, act):
    """Have `act` happen after the call before the one at this place, or at once where there is none."""
    if place == 0:
        act()
        return
    create = one.writer.create

    def watched(payload, context):
        answer = create(payload, context)
        if context.source_id == order[place - 1]:
            act()
        return answer

    one.writer.create = watched


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("phase", ["drain", "scan"])
@pytest.mark.parametrize("fault", [ChainEnd.ROUTE_CLOSED, ChainEnd.BREAKER_OPEN])
def test_a_fault_that_is_returned(runs, fault, phase, place):
    """Faults 1 and 2: outcomes before it are kept, nothing else is written or called; then it resumes."""
    health = Health()
    one = runs(health=health)
    order = a_page(one, phase)
    index = PLACES[place]
    before, asked = one.dump(), len(one.target.requests)

    def meet():
        if fault is ChainEnd.ROUTE_CLOSED:
            health.why = "disabled by hand"
        else:
            open_breaker(one)
            before["breakers"] = one.rows("breakers")

    before_the_call_for(one, order, index, meet)
    assert one.go() is fault
    after = one.dump()
    assert one.sent()[asked:] == order[:index]
    changed = {row["source_id"] for row in after["records"] if row not in before["records"]}
    assert changed == set(order[:index])
    closed = [row.pop("closed_since") is not None for row in after["rules"]]
    assert closed == [fault is ChainEnd.ROUTE_CLOSED]
    for row in before["rules"]:
        del row["closed_since"]
    assert {name: rows for name, rows in after.items() if name != "records"} == {
        name: rows for name, rows in before.items() if name != "records"
    }
    chain = one.chain()
    assert (chain["state"], chain["end"], chain["fault_kind"]) == ("finished", fault.name, None)

    health.why = None
    assert one.later(minutes=10) is ChainEnd.COMPLETED
    assert set(one.statuses().values()) == {"delivered"}
    assert sorted(one.sent()[asked:]) == sorted(order)


@pytest.mark.parametrize("phase", ["drain", "scan"])
def test_no_writer_writes_nothing(runs, phase):
    """Fault 3: the dump of every table but the chain's is unchanged, in drain and in scan."""
    one = runs()
    a_page(one, phase)
    lame = one.again(writers={})
    before = one.dump()
    (chain_id,) = lame.tick()
    with pytest.raises(NoWriter):
        lame.run_chain(chain_id)
    assert one.dump() == before
    assert (one.chain()["state"], one.chain()["fault_kind"]) == ("failed", "no_writer")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("phase", ["drain", "scan"])
def test_a_verb_that_is_not_there(runs, phase, place):
    """Fault 4 before any call: where nothing stands before the record, not a row of any table differs."""
    one = runs()
    order = a_page(one, phase)
    index = PLACES[place]
    before = one.dump()
    before_the_call_for(one, order, index, lambda: setattr(one.writer, "create", None))
    with pytest.raises(UnsupportedVerb) as raised:
        one.go()
    assert raised.value.source_id == order[index]
    after = one.dump()
    changed = {row["source_id"] for row in after["records"] if row not in before["records"]}
    assert changed == set(order[:index])
    assert {name: rows for name, rows in after.items() if name != "records"} == {
        name: rows for name, rows in before.items() if name != "records"
    }


@pytest.mark.parametrize("place", PLACES)
def test_an_impossible_record_in_a_scanned_page(runs, place):
    """Fault 6: a page is looked at as a whole before its first call."""
    one = runs()
    one.source.fill(5)
    scan = one.source.scan

    def broken(connection, after, limit):
        found = list(scan(connection, after, limit))
        found[PLACES[place]] = 7
        return found

    one.source.scan = broken
    before = one.dump()
    with pytest.raises(ImpossibleCandidate):
        one.go()
    assert one.dump() == before
    assert one.sent() == []


@pytest.mark.parametrize("deleted", ["no", None, 2])
def test_a_deletion_that_is_none_is_impossible(runs, deleted):
    """What a source says in the place of True or False never passes for a deletion."""
    one = runs()
    one.source.put("p1", 1, deleted=deleted)
    with pytest.raises(ImpossibleCandidate, match="deleted="):
        one.go()
    assert one.rows("records") == []


@pytest.mark.parametrize("answer", [True, False, 0, ["closed"]])
def test_a_health_that_answers_no_reason_is_not_taken_for_closed(runs, answer):
    """The host says why its connections are closed, or None: nothing else passes for either."""
    one = runs()
    one.source.put("p1", 1)
    one.outbound.health = type("Health", (), {"closed": lambda self, rule: answer})()
    with pytest.raises(TypeError, match=r"health answered .* or None"):
        one.go()
    assert one.sent() == []
    assert "health answered" in one.outbound.why(one.rule.name, "p1").text


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("said", ["lone \ud800", "nul \x00", Silent()])
def test_a_refusal_of_any_text_is_the_records_own(runs, said):
    """A fault of one record lands in its row, whatever the target said."""
    one = runs()
    one.source.fill(2)
    refusal = Rejected()
    refusal.args = (said,)
    one.target.on("p01", breaks(refusal))
    assert one.go() is ChainEnd.COMPLETED
    assert one.statuses() == {"p01": "failed", "p02": "delivered"}


# --- at every tick --------------------------------------------------------------------------------------


def lose_writer(writers, source):
    del writers["lame"]


def lose_verb(writers, source):
    writers["lame"].create = None


def hand_over_nonsense(writers, source):
    source.scan = lambda connection, after, limit: [7]


def load_nonsense(writers, source):
    source.load = lambda connection, ids: dict.fromkeys(ids, 7)


def raise_anything(writers, source):
    writers["lame"].target.always(breaks(KeyError("sum")))


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (lose_writer, NoWriter),
        (lose_verb, UnsupportedVerb),
        (hand_over_nonsense, ImpossibleCandidate),
        (load_nonsense, ImpossibleCandidate),
        (raise_anything, Unclassified),
    ],
)
def test_a_misconfigured_rule_fails_at_every_tick(runs, mistake, expected):
    """Trap 15: n ticks, n failed chains, nothing written of its records; the other rule is served."""
    one = runs()
    source, writer = Listed(identity="other"), ScriptedWriter(ScriptedTarget())
    source.fill(3)
    lame = Rule("lame", entity="letter", source=source, target="other", driver="lame", policy=one.rule.policy)
    writers = {"scripted": one.writer, "lame": writer}
    outbound = one.again(writers=writers, rules=[lame, one.rule])
    outbound.rules()
    mistake(writers, source)
    outbound.writers = writers
    ticks = 4
    for number in range(ticks):
        one.source.put(f"p{number}", 0)
        begun = outbound.tick()
        assert len(begun) == 2
        with pytest.raises(expected):
            outbound.run_chain(begun[0])
        assert outbound.run_chain(begun[1]) is ChainEnd.COMPLETED
        one.clock.advance(LATER)
    chains = [row for row in one.chains() if row["rule"] == "lame"]
    assert [(row["state"], row["fault_kind"]) for row in chains] == [("failed", expected.kind)] * ticks
    assert {row["rule"] for row in one.rows("records")} == {"parcels"}
    assert set(one.statuses().values()) == {"delivered"}
    assert len(one.statuses()) == ticks
    (cursor,) = [row["cursor"] for row in one.rows("rules") if row["name"] == "lame"]
    assert cursor is None
    # Of a call that may have taken effect the operation stays, under one key.
    called = writer.target.requests
    assert len(one.operations()) == (1 if called else 0)
    assert len({request.key for request in called}) <= 1


def test_a_misconfigured_rule_in_the_loop(runs, caplog):
    """`work` says that something failed, and serves the other rule at every interval."""
    one = runs()
    lame = Rule(
        "lame",
        entity="letter",
        source=Listed(identity="other"),
        target="other",
        driver="nobody",
        policy=one.rule.policy,
    )
    outbound = one.again(rules=[lame, one.rule])
    stop = Stop(3, lambda number: one.source.put(f"p{number}", 0))
    one.source.put("p0", 0)
    assert outbound.work(every=60, stop=stop, pause=stop.wait)
    assert sorted(one.sent()) == ["p0", "p1", "p2"]
    failed = [row for row in one.chains() if row["state"] == "failed"]
    assert [row["rule"] for row in failed] == ["lame"] * 3


class Stop:
    """Ends the loop at its third pause; `act` happens at the ones before."""

    def __init__(self, pauses, act):
        self.pauses = pauses
        self.act = act
        self.count = 0

    def is_set(self):
        return self.count >= self.pauses

    def wait(self, seconds):
        self.count += 1
        if not self.is_set():
            self.act(self.count)
