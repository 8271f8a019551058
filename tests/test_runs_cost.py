"""Delivery runs: what a record costs on the wire, and by which indexes its page is found."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from statifier_router import ChartRegistry, Config, create_engine
from statifier_router.runs import ChainEnd, Changes, chain_rows, record_change, record_rows
from statifier_router.schema import schema_of
from statifier_router.tables import Tables
from statifier_router.testing import Clock
from tests.support.outbound import make_runs
from tests.support.proxy import Proxy

SCHEMA = schema_of(Tables())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def proxied(database, **rule):
    """A rule whose database is reached through a proxy that counts."""
    clock = Clock()
    with Proxy(database.url) as proxy:
        # What the driver prepares, and when, is no matter of ours.
        kw = {"connect_args": {"prepare_threshold": None}}
        engine = create_engine(proxy.url, pool_size=1, max_overflow=0, **kw)
        try:
            yield make_runs(Config(engine, charts=ChartRegistry(), clock=clock), clock, **rule), proxy
        finally:
            engine.dispose()


def test_what_a_record_costs(postgresql, record_property):
    """Begin with the fence, the outcome with what stands of the next record, its operation with the commit.

    Three waits. A host's own source loads on top of them; ours is asked with the rest. A record that is
    nothing to do costs none.
    """

    def waits(one, proxy):
        proxy.reset()
        assert one.go() is ChainEnd.COMPLETED
        return proxy.turns

    with proxied(postgresql) as (one, proxy):
        one.source.fill(20)
        one.go()
        told = {}
        for name, value in (("passed over", 0), ("updated", 1)):
            one.source.fill(2, value=value)
            few = waits(one, proxy)
            one.source.fill(12, value=value, first=3)
            told[name] = (waits(one, proxy) - few) / 10
        one.source.fill(12, first=50)
        told["created"] = (waits(one, proxy) - few) / 10
    record_property("statements", f"waits for a record of a run: {told}")
    assert told == {"passed over": 0, "updated": 3, "created": 3}


def test_what_a_changed_record_costs(postgresql):
    """The newest version in our own table is read in the same three waits."""
    with proxied(postgresql, source=Changes("parcel")) as (one, proxy):

        def waits(count, value):
            for number in range(count):
                record_change(one.config, "parcel", f"p{number}", value)
            proxy.reset()
            assert one.go() is ChainEnd.COMPLETED
            return proxy.turns

        waits(20, 0)
        assert (waits(12, 1) - waits(2, 2)) / 10 == 3


def test_a_look_ahead_that_fails_leaves_the_outcome(database, make_config):
    """What is asked of the next record travels with the outcome of the one before, and does not undo it."""
    config = make_config(database, clock=Clock())
    one = make_runs(config, config.clock, source=Changes("parcel"))
    for source_id in ("p1", "p2"):
        record_change(config, "parcel", source_id, 1)
    create, table = one.writer.create, config.schema.changes.name

    def create_and_spoil(payload, context):
        with config.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {table} RENAME COLUMN signal TO sign")
        return create(payload, context)

    one.writer.create = create_and_spoil
    with pytest.raises(Exception, match="sign"):
        one.go()
    assert (one.statuses(), one.operations(), one.sent()) == ({"p1": "delivered"}, {}, ["p1"])


FILL = [
    """INSERT INTO statifier_router_records (rule, source_id, status, remote_id, signal, attempts,
         next_attempt_at, generation, row_version, updated_at)
       SELECT 'rule ' || n % 3, 'p' || n, CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'delivered' END, 'r' || n,
         's', 1, CASE WHEN n % 10 = 0 THEN CAST(:now AS timestamptz) + n * interval '1 second' END, 1, 1, :now
       FROM generate_series(1, 30000) n""",
    """INSERT INTO statifier_router_operations (rule, source_id, verb, key, signal, in_doubt, lease_token,
         chain_id, started_at)
       SELECT 'rule ' || n, 'p' || n, 'create', 'k' || n, 's', n % 2 = 0, 7, 'ch_1', :now
       FROM generate_series(1, 3000) n""",
    """INSERT INTO statifier_router_chains (id, rule, state, phase, due_before, digest, job_seq, heartbeat_at,
         counters)
       SELECT 'ch_' || n, 'rule ' || n % 3, CASE WHEN n > 5997 THEN 'running' ELSE 'failed' END, 'scan', :now,
         'd', 1, :now, '{}'
       FROM generate_series(1, 6000) n""",
]


@pytest.fixture
def explained(postgresql):
    """`explained(statement, **values)`: the indexes that it takes on a database with thousands of rows."""
    with postgresql.engine().begin() as connection:
        for statement in FILL:
            connection.execute(text(statement), {"now": NOW})
    with postgresql.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("ANALYZE")
    engine = postgresql.engine()

    def explain(statement, **values):
        compiled = statement.compile(dialect=engine.dialect)
        with engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled}", values).scalar_one()
        plan = json.loads(plan) if isinstance(plan, str) else plan
        nodes = list(_nodes(plan[0]["Plan"]))
        assert not [node for node in nodes if node["Node Type"] in ("Seq Scan", "Sort")], nodes
        return {
            node["Index Name"].removeprefix("statifier_router_") for node in nodes if "Index Name" in node
        }

    return explain


def _nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def test_the_due_page(explained):
    """Trap 11: by its partial index, in its order, nothing sorted."""
    late = NOW + timedelta(hours=1)
    assert explained(record_rows.due(SCHEMA), of_rule="rule 1", due_before=late, limit=10) == {"records_due"}


def test_the_other_pages(explained):
    """Each by an index: what dead jobs left, how a page's records stand, and chains."""
    assert explained(record_rows.left_open(SCHEMA), of_rule="rule 1", of_token=9, limit=100) == {
        "operations_pk"
    }
    one = record_rows.with_operation(SCHEMA).statement
    assert explained(one, of_rule="rule 1", of_source_id="p1") == {"records_pk", "operations_pk"}
    assert explained(chain_rows.running(SCHEMA), of_rule="rule 1") == {"chains_running"}
    assert explained(chain_rows.last_ended(SCHEMA), of_rule="rule 1", limit=2) == {"chains_rule_id"}
