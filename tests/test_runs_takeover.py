"""Two processes at one rule: one owns it, and whoever lost it changes nothing."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import attrs
import pytest
from sqlalchemy import select, text

from statifier_router.runs import ChainEnd, record_change
from statifier_router.testing.targets import ScriptedTarget, hangs, lands
from tests.support import crashes, runs_workers
from tests.support.depot import Depot
from tests.support.locks import backend_pid, wait_until_one_is_blocked
from tests.support.processes import ChildFailed, release_together
from tests.support.racing import blocked, threads
from tests.support.runs_workers import ENTITY, LEASE, RULE, config_of, outbound_of, rule_of
from tests.support.runs_world import START

MOMENT = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
TABLES = ("changes", "rules", "records", "operations", "chains", "breakers", "audit")


class Stage:
    """This process, a keyed target that every process calls, and the children."""

    def __init__(self, database, children):
        self.database = database
        self.children = children
        self.config = config_of(database.url, START.isoformat())
        self.clock = self.config.clock
        self.target = ScriptedTarget(keyed=True)
        self.depot = Depot(self.target)
        self.outbound = outbound_of(self.config, self.target)
        self.outbound.rules()

    def put(self, *source_ids, value=1, entity=ENTITY):
        for source_id in source_ids:
            record_change(self.config, entity, source_id, {"value": value})

    def tick(self):
        (chain_id,) = self.outbound.tick()
        return chain_id

    def go(self):
        return self.outbound.run_chain(self.tick())

    def start(self, function, *args):
        return self.children.start(f"{runs_workers.__name__}:{function}", *args)

    def about_to_run(self, chain_id, url=None):
        """Another process, which is about to run the chain."""
        arguments = (url or self.database.url, self.depot.port, self.now, chain_id)
        child = self.start("run_chain", *arguments)
        child.wait_for("ready")
        return child

    def run(self, chain_id, url=None):
        """Another process runs the chain."""
        child = self.about_to_run(chain_id, url)
        child.release()
        return child

    @property
    def now(self):
        return self.clock().isoformat()

    def rows(self, name):
        table = getattr(self.config.schema, name)
        with self.config.engine.connect() as connection:
            found = connection.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            return [dict(row) for row in found]

    def row(self, source_id):
        return next(row for row in self.rows("records") if row["source_id"] == source_id)

    def dump(self):
        """Every row of every table."""
        return {name: self.rows(name) for name in TABLES}

    def sent(self):
        return [(request.verb, request.source_id) for request in self.target.requests]


@pytest.fixture
def stage(database, children):
    made = Stage(database, children)
    with made.depot:
        yield made
        children.close()
    made.config.engine.dispose()


@pytest.fixture
def on_postgresql(postgresql, children):
    made = Stage(postgresql, children)
    with made.depot:
        yield made
        children.close()
    made.config.engine.dispose()


def without_audit(dump):
    return {name: rows for name, rows in dump.items() if name != "audit"}


# --- ticks --------------------------------------------------------------------------------------------


def test_processes_that_tick_at_once_begin_one_chain(stage):
    """Trap 15; where the chain before is dead, they cancel it once."""
    rounds = [(START + number * timedelta(hours=1)).isoformat() for number in range(6)]
    ticking = [stage.start("tick_in_rounds", stage.database.url, rounds) for _ in range(2)]
    for number in range(len(rounds)):
        release_together(ticking, f"round {number}")
    first, second = (child.result() for child in ticking)
    assert [len(a) + len(b) for a, b in zip(first, second, strict=True)] == [1] * len(rounds)
    states = [row["state"] for row in stage.rows("chains")]
    assert states == ["cancelled"] * (len(rounds) - 1) + ["running"]
    assert stage.rows("rules")[0]["lease_token"] == len(rounds) - 1


def test_a_tick_waits_for_another_one(on_postgresql):
    """Both wait for the row of the rule, and the second finds the chain of the first."""
    stage = on_postgresql
    rules = stage.config.schema.rules
    ticking = [stage.start("tick_in_rounds", stage.database.url, [stage.now]) for _ in range(2)]
    for child in ticking:
        child.wait_for("round 0")
    with stage.config.engine.begin() as connection:
        connection.execute(select(rules.c.name).with_for_update())
        for child in ticking:
            child.release()
        engine = stage.database.bare_engine()
        (first,) = wait_until_one_is_blocked(engine, by=backend_pid(connection))
        wait_until_one_is_blocked(engine, by=first)
    assert sorted(len(child.result()[0]) for child in ticking) == [0, 1]
    assert len(stage.rows("chains")) == 1


def test_a_tick_leaves_a_job_in_its_call_alone(stage):
    """Up to two leases after its last sign nothing at all is written."""
    stage.put("p1")
    stage.target.on("p1", hangs())
    child = stage.run(stage.tick())
    stage.target.await_held()
    before = stage.dump()
    for later in (timedelta(0), LEASE, 2 * LEASE):
        stage.clock.set(START + later)
        assert stage.outbound.tick() == []
    assert stage.dump() == before
    stage.target.release()
    assert child.result() == "COMPLETED"
    assert stage.row("p1")["status"] == "delivered"


# --- one chain, two processes ---------------------------------------------------------------------------


def test_a_chain_that_another_process_runs_is_busy(stage):
    """Neither a call nor a row comes of it."""
    stage.put("p1")
    stage.target.on("p1", hangs())
    chain_id = stage.tick()
    first = stage.run(chain_id)
    stage.target.await_held()
    before = stage.dump()
    assert stage.run(chain_id).result() == "BUSY"
    assert stage.dump() == before
    stage.target.release()
    assert first.result() == "COMPLETED"
    assert stage.sent() == [("create", "p1")]


def test_whoever_waits_for_the_lease_is_busy_then(on_postgresql):
    """Both wait for the row of the rule; the first gets the lease, and the second its answer."""
    stage = on_postgresql
    stage.put("p1")
    stage.target.on("p1", hangs())
    chain_id = stage.tick()
    rules = stage.config.schema.rules
    engine = stage.database.bare_engine()
    first, second = (stage.about_to_run(chain_id) for _ in range(2))
    with stage.config.engine.begin() as connection:
        connection.execute(select(rules.c.name).with_for_update())
        first.release()
        (pid,) = wait_until_one_is_blocked(engine, by=backend_pid(connection))
        second.release()
        wait_until_one_is_blocked(engine, by=pid)
    assert second.result() == "BUSY"
    stage.target.await_held()
    stage.target.release()
    assert first.result() == "COMPLETED"
    assert stage.sent() == [("create", "p1")]


# --- frozen and thawed ----------------------------------------------------------------------------------


@attrs.frozen
class Frozen:
    """How a job comes to be frozen: in which call, whether the target has taken it, and what stands still."""

    verb: str
    taken: bool
    process: bool = False


@pytest.mark.parametrize(
    ("frozen", "way"),
    [
        (Frozen("create", taken=False), "tick"),
        (Frozen("create", taken=True), "again"),
        (Frozen("update", taken=False), "again"),
        (Frozen("delete", taken=True), "tick"),
        (Frozen("create", taken=True, process=True), "again"),
        (Frozen("create", taken=True, process=True), "tick"),
    ],
    ids=str,
)
def test_a_job_that_thaws_after_a_takeover_changes_nothing(stage, frozen, way):
    """Trap 7: frozen past its lease, another process runs a chain to its end: then only audit differs."""
    stage.put("p1", "p2", "p3")
    if frozen.verb != "create":
        assert stage.go() is ChainEnd.COMPLETED
        stage.put("p1", "p2", "p3", value=2)
        if frozen.verb == "delete":
            record_change(stage.config, ENTITY, "p2", None, deleted=True)
    stage.target.on("p2", hangs(lands(), taken_first=frozen.taken))
    chain_id = stage.tick()
    child = stage.run(chain_id)
    stage.target.await_held()
    if frozen.process:
        # Its answer lies on the wire, and it does not read it.
        os.kill(child.pid, signal.SIGSTOP)
        stage.target.release()
    beside = ScriptedTarget(keyed=True)
    stage.clock.set(START + (LEASE if way == "again" else 2 * LEASE) + MOMENT)
    other = stage.outbound if frozen.process else outbound_of(stage.config, beside)
    end = other.run_chain(chain_id if way == "again" else other.tick()[0])
    if not frozen.process and frozen.verb != "create":
        # The target beside knows no address.
        assert stage.row("p2")["status"] in ("remote_gone", "suppressed")
    assert end is ChainEnd.COMPLETED
    before = stage.dump()
    if frozen.process:
        os.kill(child.pid, signal.SIGCONT)
    else:
        stage.target.release()
    assert child.result() == ("COMPLETED" if way == "again" else "CANCELLED")
    after = stage.dump()
    assert without_audit(after) == without_audit(before)
    (late,) = [row for row in after["audit"] if row not in before["audit"]]
    assert (late["action"], '"p2"' in late["selection"]) == ("late answer", True)
    if frozen.process:
        assert len(stage.target.copies("p2")) == 1
    assert stage.rows("operations") == []


# --- killed ---------------------------------------------------------------------------------------------


def test_a_process_killed_with_lease_and_probe(stage):
    """Trap 13: both are free again when their time is over, and never both at once before."""
    letters = rule_of(name="letters", entity="letter", source=runs_workers.Watched("letter"))
    stage.outbound.save_rule(letters)
    stage.put("p1", "p2", "p3", "p4", "p5", "p6")
    stage.target.down()
    assert chain_of(stage, RULE) is ChainEnd.BREAKER_OPEN
    assert "p6" not in [row["source_id"] for row in stage.rows("records")]
    stage.target.up()
    stage.target.on("p6", hangs())
    stage.clock.advance(MINUTE + MOMENT)
    tried_at = stage.clock()
    chain_id = begun_of(stage, RULE)
    child = stage.run(chain_id)
    stage.target.await_held()
    child.kill()
    stage.put("l1", entity="letter")
    stage.target.release()
    stage.depot.settle()
    asked = len(stage.target.requests)

    stage.clock.set(tried_at + MINUTE / 2)
    assert chain_of(stage, "letters") is ChainEnd.BREAKER_OPEN
    assert stage.outbound.run_chain(chain_id) is ChainEnd.BUSY
    assert len(stage.target.requests) == asked

    stage.clock.set(tried_at + MINUTE)
    assert chain_of(stage, "letters") is ChainEnd.COMPLETED
    assert stage.rows("breakers")[0]["state"] == "closed"
    assert stage.outbound.run_chain(chain_id) is ChainEnd.BUSY

    stage.clock.set(tried_at + 2 * LEASE + MOMENT)
    assert chain_of(stage, RULE) is ChainEnd.COMPLETED
    calls = stage.target.calls("p6")
    assert len({call.key for call in calls}) == 1
    assert len(stage.target.copies("p6")) == 1
    assert [row["fault_source_id"] for row in stage.rows("chains") if row["end"] == "CANCELLED"] == ["p6"]


def begun_of(stage, rule):
    begun = stage.outbound.tick()
    rules = {row["id"]: row["rule"] for row in stage.rows("chains") if row["state"] == "running"}
    for chain_id in begun:
        if rules[chain_id] != rule:
            stage.outbound.run_chain(chain_id)
    return next(chain_id for chain_id in begun if rules[chain_id] == rule)


def chain_of(stage, rule):
    return stage.outbound.run_chain(begun_of(stage, rule))


# --- operators ------------------------------------------------------------------------------------------


def parked(stage, source_id):
    stage.put(source_id)
    stage.target.on(source_id, lands(""))
    assert stage.go() is ChainEnd.COMPLETED
    assert stage.row(source_id)["status"] == "exhausted"


def in_a_transaction(stage):
    """A job of another process that has just written p1, and is about to open the call for p2."""
    stage.put("p1", "p2", "p3")
    chain_id = stage.tick()
    child = stage.start("run_watched", stage.database.url, stage.depot.port, stage.now, chain_id, "p2")
    return child, child.wait_for("load")


def test_a_release_waits_for_the_transaction_of_a_job(on_postgresql):
    """And is done then; the job goes on."""
    stage = on_postgresql
    parked(stage, "p0")
    child, backend = in_a_transaction(stage)
    with threads() as beside:
        release = beside(stage.outbound.release, RULE, mode="retry", actor="kim")
        blocked(stage.database, backend, release)
        child.release()
        assert release.result().count == 1
    assert child.result() == "COMPLETED"
    assert stage.row("p0")["status"] == "failed"
    assert stage.sent()[1:] == [("create", "p1"), ("create", "p2"), ("create", "p3")]


def test_a_record_in_its_call_is_not_parked(on_postgresql):
    """The act waits for the job's transaction, finds the call in flight, and passes the record over."""
    stage = on_postgresql
    stage.target.on("p2", hangs())
    child, backend = in_a_transaction(stage)
    with threads() as beside:
        park = beside(stage.outbound.park, RULE, ["p2", "p3"], reason="no", actor="kim")
        blocked(stage.database, backend, park)
        child.release()
        done = park.result()
    assert (done.count, done.busy) == (1, 1)
    stage.target.await_held()
    stage.target.release()
    assert child.result() == "COMPLETED"
    assert {row["source_id"]: row["status"] for row in stage.rows("records")} == {
        "p1": "delivered",
        "p2": "delivered",
        "p3": "exhausted",
    }


def test_a_pause_waits_for_the_transaction_of_a_job(on_postgresql):
    """The call that is opened in it is the last one; its outcome is written."""
    stage = on_postgresql
    stage.target.on("p2", hangs())
    child, backend = in_a_transaction(stage)
    with threads() as beside:
        pause = beside(stage.outbound.pause, RULE, actor="kim")
        blocked(stage.database, backend, pause)
        child.release()
        pause.result()
    stage.target.await_held()
    stage.target.release()
    assert child.result() == "PAUSED"
    assert stage.sent() == [("create", "p1"), ("create", "p2")]
    assert [row["source_id"] for row in stage.rows("records")] == ["p1", "p2"]
    assert stage.rows("operations") == []


def test_a_job_waits_for_an_operator(on_postgresql):
    """An act that is under way holds the row of the rule: the answer of a call is written behind it."""
    stage = on_postgresql
    stage.put("p1")
    stage.target.on("p1", hangs())
    child = stage.run(stage.tick())
    stage.target.await_held()
    rules = stage.config.schema.rules
    with stage.config.engine.begin() as connection:
        connection.execute(select(rules.c.name).with_for_update())
        stage.target.release()
        wait_until_one_is_blocked(stage.database.bare_engine(), by=backend_pid(connection))
        assert stage.rows("records") == []
    assert child.result() == "COMPLETED"
    assert stage.row("p1")["status"] == "delivered"


# --- a connection that is lost --------------------------------------------------------------------------


def terminate(stage, where, **values):
    statement = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {where}"
    with stage.config.engine.connect() as connection:
        assert connection.execute(text(statement), values).scalars().all()


def failed_chain(stage):
    chain = stage.rows("chains")[-1]
    (rule,) = stage.rows("rules")
    assert rule["lease_until"] is None
    assert (chain["state"], chain["end"], chain["fault_kind"]) == ("failed", "FAILED", "OperationalError")
    return chain


def test_a_connection_lost_in_a_transaction(on_postgresql):
    """The outcome before it is written on a fresh connection, and so is the failed chain."""
    stage = on_postgresql
    child, backend = in_a_transaction(stage)
    terminate(stage, "pid = :pid", pid=backend)
    child.release()
    with pytest.raises(ChildFailed, match="OperationalError"):
        child.result()
    assert failed_chain(stage)["fault_source_id"] == "p2"
    assert stage.row("p1")["status"] == "delivered"
    assert stage.rows("operations") == []
    assert stage.go() is ChainEnd.COMPLETED
    assert stage.sent() == [("create", "p1"), ("create", "p2"), ("create", "p3")]


def test_a_connection_lost_during_a_call(on_postgresql):
    """The outcome is written on a fresh connection, so that nothing is called again; the chain fails."""
    stage = on_postgresql
    stage.put("p1", "p2")
    stage.target.on("p1", hangs())
    child = stage.run(stage.tick(), crashes.named(stage.database.url))
    stage.target.await_held()
    terminate(stage, "application_name = 'to_be_killed'")
    stage.target.release()
    with pytest.raises(ChildFailed, match="OperationalError"):
        child.result()
    failed_chain(stage)
    assert stage.row("p1")["status"] == "delivered"
    assert stage.rows("operations") == []
    assert stage.go() is ChainEnd.COMPLETED
    assert stage.sent() == [("create", "p1"), ("create", "p2")]
