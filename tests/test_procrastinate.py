"""Runs and upkeep by Procrastinate: what is particular to its queue."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import timedelta

import procrastinate
import psycopg
import pytest
from procrastinate.exceptions import AlreadyEnqueued
from sqlalchemy import make_url

from statifier_router import (
    ChartRegistry,
    Config,
    ConfigError,
    MissingExtra,
    ledger,
    route,
    timers,
)
from statifier_router.contrib.procrastinate import register_runs, register_upkeep
from statifier_router.contrib.procrastinate.deferring import defer
from statifier_router.runs import MORE, ChainEnd
from statifier_router.runs.bracket import writing
from statifier_router.testing import Clock
from statifier_router.testing.targets import breaks
from tests.support import charts
from tests.support.conforming import EACH_SECOND, NEVER, Queued, app_of, outbound_of
from tests.support.outbound import make_runs
from tests.support.rows import everything
from tests.support.told import later, told

pytestmark = pytest.mark.postgresql


@pytest.fixture
def one(postgresql, make_config):
    """A rule with four records, on a database with Procrastinate's tables."""
    clock = Clock()
    found = make_runs(make_config(postgresql, clock=clock), clock, batch_size=2)
    found.source.fill(4)
    return found


@pytest.fixture
def queue(one, postgresql):
    """Procrastinate on it: its tasks, its jobs, and a worker that goes home when nothing is left to do."""
    return Queue(postgresql.url, one.outbound)


class Queue:
    def __init__(self, url, outbound, **kw):
        self.url = url
        self.app, self.tasks = app_of(url, outbound, sweep=NEVER, **kw)
        with self.app.open():
            self.app.schema_manager.apply_schema()

    def defer(self, task, **arguments):
        with self.app.open():
            return task.defer(**arguments)

    def work(self):
        self.app.run_worker(wait=False, install_signal_handlers=False, listen_notify=False)

    def rows(self, sql="SELECT task_name, status, lock, args FROM procrastinate_jobs ORDER BY id"):
        conninfo = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            answer = connection.execute(sql)
            return answer.fetchall() if answer.description else []


# --- the queue is in our transaction --------------------------------------------------------------------


def test_the_job_that_follows_is_in_the_transaction_of_the_page(one, queue):
    """What is rolled back leaves no job; what is committed leaves one, under the rule's lock."""
    chain_id = one.begin()

    def failing(connection, chain_id, seq):
        successor(connection, chain_id, seq)
        raise KeyboardInterrupt

    def successor(connection, chain_id, seq):
        arguments = {"rule": "parcels", "chain_id": chain_id, "seq": seq}
        defer(connection, queue.tasks.job, lock="outbound:parcels", queueing_lock="once", **arguments)

    with pytest.raises(KeyboardInterrupt):
        one.outbound.run_job(chain_id, successor=failing)
    assert queue.rows() == []
    chain_id = one.begin()
    assert one.outbound.run_job(chain_id, successor=successor) is MORE
    arguments = {"rule": "parcels", "chain_id": chain_id, "seq": 2}
    assert queue.rows() == [("statifier_router:job", "todo", "outbound:parcels", arguments)]
    with pytest.raises(AlreadyEnqueued), writing(one.config) as connection:
        successor(connection, chain_id, 2)
    queue.work()
    assert set(one.statuses().values()) == {"delivered"}
    assert one.chain()["end"] == "COMPLETED"


def test_a_chain_is_one_job_a_page(one, queue):
    """Tick, drain, two pages; nothing is tried again, nothing is left."""
    queue.defer(queue.tasks.tick, timestamp=0)
    queue.work()
    assert [row[:2] for row in queue.rows()] == [
        ("statifier_router:tick", "succeeded"),
        *[("statifier_router:job", "succeeded")] * 3,
    ]
    assert [row[3]["seq"] for row in queue.rows()[1:]] == [1, 2, 3]
    assert one.sent() == ["p01", "p02", "p03", "p04"]


def test_a_tick_of_another_database(one, queue, unmigrated_postgresql):
    """Where the queue is elsewhere, the tick says so and begins nothing: its chains would wait for ever."""
    other = Queue(unmigrated_postgresql.url, one.outbound)
    other.defer(other.tasks.tick, timestamp=0)
    other.work()
    assert [row[:2] for row in other.rows()] == [("statifier_router:tick", "failed")]
    assert one.chains() == []


# --- the sweep ------------------------------------------------------------------------------------------


def test_a_chain_that_nobody_offered(one, queue):
    """A tick that was killed before it offered the first job: the sweep does, once."""
    one.begin()
    for _ in range(2):
        queue.defer(queue.tasks.sweep, timestamp=0)
        queue.work()
    assert one.chain()["end"] == "COMPLETED"
    assert len(one.sent()) == 4
    assert [row[0] for row in queue.rows()].count("statifier_router:job") == 3


def test_a_job_of_a_dead_worker(one, queue):
    """It counts as failed, so that its lock holds nobody up; and the page is offered anew."""
    chain_id = one.begin()
    arguments = {"rule": "parcels", "chain_id": chain_id, "seq": 1}
    with writing(one.config) as connection:
        defer(connection, queue.tasks.job, lock="outbound:parcels", queueing_lock="x", **arguments)
    # A worker that gave its last sign an hour ago.
    queue.rows(
        "WITH dead AS (INSERT INTO procrastinate_workers (last_heartbeat)"
        " VALUES (now() - interval '1 hour') RETURNING id)"
        " UPDATE procrastinate_jobs SET status = 'doing', worker_id = dead.id FROM dead"
    )
    queue.defer(queue.tasks.sweep, timestamp=0)
    queue.work()
    assert queue.rows()[0][1] == "failed"
    assert one.chain()["end"] == "COMPLETED"
    assert len(one.sent()) == 4


def test_a_job_that_comes_twice(one, queue):
    """One whose page is done has no effect."""
    chain_id = one.begin()
    assert one.outbound.run_chain(chain_id) is ChainEnd.COMPLETED
    before = one.dump()
    with writing(one.config) as connection:
        arguments = {"rule": "parcels", "chain_id": chain_id, "seq": 1}
        defer(connection, queue.tasks.job, lock="outbound:parcels", queueing_lock="x", **arguments)
    queue.work()
    assert queue.rows()[0][1] == "succeeded"
    assert one.dump() == before


def test_by_its_own_clock(postgresql, tmp_path):
    """A tick by cron, in a worker of its own; a worker that is terminated finishes the record in hand, and
    another one goes on behind it: no call twice.
    """
    with Queued(postgresql, tmp_path, {"parcels": {"batch_size": 5}}, 1) as host:
        told = threading.Event()

        def terminate(call):
            if call.source_id == "p07" and not told.is_set():
                told.set()
                os.kill(host.children[0].pid, signal.SIGTERM)
                # The worker waits for its job so long, and then asks it to end.
                threading.Event().wait(0.5)

        host.on_call = terminate
        host.put("parcels", *[f"p{number:02d}" for number in range(1, 13)])
        host.begin()
        host.children[0].result()
        assert len(host.target.requests) == 7
        assert host.rows("rules")[0]["lease_until"] is None
        assert host.ends("parcels") == [None]
        host.serve(tick=EACH_SECOND)
        host.settle()
        assert host.ends("parcels")[0] == "COMPLETED"
        host.put("parcels", "p01", value=1)
        host.wait_until("(SELECT count(*) FROM statifier_router_chains WHERE state = 'finished') > 2")
        calls = [(call.verb, call.source_id) for call in host.target.requests]
        assert len(calls) == len(set(calls)) == 13


def test_a_job_that_raises(one, queue):
    """It has failed its chain, is not tried again, and its lock holds nobody up: the next chain runs."""
    one.target.on("p03", breaks(RuntimeError("a bug of the writer")))
    queue.defer(queue.tasks.tick, timestamp=0)
    queue.work()
    assert (one.chain()["end"], one.chain()["fault_source_id"]) == ("FAILED", "p03")
    assert [row[1] for row in queue.rows()] == ["succeeded", "succeeded", "succeeded", "failed"]
    queue.defer(queue.tasks.tick, timestamp=1)
    queue.work()
    assert one.chain()["end"] == "COMPLETED"
    assert set(one.statuses().values()) == {"delivered"}


# --- registering ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"tick": "often"}, "tick must be a line of cron"),
        ({"sweep": 60}, "sweep must be a line of cron"),
        ({"queue": ""}, "queue"),
        ({"busy_after": 5}, "busy_after must be a positive timedelta"),
        ({"stalled_after": timedelta(0)}, "stalled_after must be a positive timedelta"),
    ],
)
def test_arguments(one, kw, message):
    """Each is named."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    with pytest.raises(ConfigError, match=message):
        register_runs(app, one.outbound, **kw)


def test_neither_app_nor_outbound(one):
    """Nor a configuration of another database."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    with pytest.raises(ConfigError, match="app must be an App or a Blueprint"):
        register_runs(object(), one.outbound)
    with pytest.raises(ConfigError, match="outbound must be an Outbound"):
        register_runs(app, one.config)
    with pytest.raises(ConfigError, match="config must be a Config"):
        register_upkeep(app, one.outbound)


def test_without_the_extra(one, monkeypatch):
    """`MissingExtra` names it."""
    monkeypatch.setitem(sys.modules, "procrastinate", None)
    with pytest.raises(MissingExtra, match=r"statifier-router\[procrastinate\]"):
        register_runs(object(), one.outbound)


def test_on_a_blueprint(one, postgresql):
    """Under a namespace of the host's."""
    blueprint = procrastinate.Blueprint()
    tasks = register_runs(blueprint, one.outbound, tick=NEVER, sweep=NEVER)
    queue = Queue(postgresql.url, outbound_of(postgresql.url, "", 0, {}))
    queue.app.add_tasks_from(blueprint, namespace="shop")
    queue.defer(tasks.tick, timestamp=0)
    queue.work()
    assert {row[:2] for row in queue.rows()} == {
        ("shop:statifier_router:tick", "succeeded"),
        ("shop:statifier_router:job", "succeeded"),
    }
    assert len(one.sent()) == 4


# --- upkeep ---------------------------------------------------------------------------------------------


def test_upkeep(postgresql, make_config, tmp_path):
    """Timers fire, kept events are swept, claims and addresses reaped, the ledger pruned: each a task."""
    documents = charts.registry(parcel=told("parcel"))
    scans = charts.scans(data=("effects",))
    config = make_config(postgresql, charts=documents, bindings=[scans], clock=Clock())
    route(config, charts.message(effects=[later(60)]))
    config.clock.advance(timedelta(days=31))
    queue = Queue(postgresql.url, outbound_of(postgresql.url, str(tmp_path), 0, {}))
    register_upkeep(queue.app, config, prune="0 3 * * *", prune_after=timedelta(days=30))
    names = ["fire_timers", "sweep_deferrals", "reap", "prune"]
    with queue.app.open():
        for name in names:
            queue.app.configure_task(f"statifier_router:{name}").defer(timestamp=0)
    queue.work()
    found = {row[0]: row[1] for row in queue.rows() if row[0].split(":")[1] in names}
    assert found == {f"statifier_router:{name}": "succeeded" for name in names}
    assert timers.pending(config) == []
    # The message's row is pruned, that of the timer is young; the claim is gone.
    assert [row.outcome for row in ledger.rows(config)] == ["timer_fired"]
    assert everything(config).claims == []


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"prune": "0 3 * * *"}, "prune and prune_after go together"),
        ({"prune": "0 3 * * *", "prune_after": 30}, "prune_after must be a positive timedelta"),
        ({"fire_timers": "every second"}, "fire_timers must be a line of cron"),
    ],
)
def test_arguments_of_upkeep(one, kw, message):
    """Each is named."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    with pytest.raises(ConfigError, match=message):
        register_upkeep(app, one.config, **kw)


def test_bindings_per_scope(postgresql):
    """The reaper wants those of every scope."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    config = Config(
        postgresql.engine(), charts=ChartRegistry(), bindings_resolver=lambda scope: [charts.scans()]
    )
    with pytest.raises(ConfigError, match="bindings is missing"):
        register_upkeep(app, config)
    register_upkeep(app, config, bindings=lambda: [charts.scans()])
