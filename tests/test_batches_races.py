"""Batches beside other transactions, on PostgreSQL; and what a batch costs on the wire."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from statifier_router import (
    Config,
    CreatedAndDelivered,
    DatabaseFault,
    Dedupe,
    Delivered,
    Duplicate,
    ExecutionBusy,
    StepFailed,
    Tables,
    addresses,
    batch_set,
    batch_statements,
    create_engine,
    deliver,
    deliver_many,
    executions,
    ledger,
)
from statifier_router.schema import schema_of
from tests.support.charts import NOW, delivery, obedient, registry, scans
from tests.support.proxy import Proxy
from tests.support.racing import MOMENT, TIMEOUT, blocked, configuring, open_transaction, seen, threads
from tests.support.rows import everything

SCANS = scans()


@pytest.fixture
def configure(postgresql, make_config):
    """Configurations on PostgreSQL, each with an engine of its own."""
    return configuring(postgresql, make_config)


@pytest.fixture
def beside():
    """Runs a function in a thread of its own, beside the test."""
    with threads() as beside:
        yield beside


def item(key="P7", message_id="m-1", do="moved", now=NOW):
    return SCANS, key, delivery(message_id, now=now, data={"do": do})


# --- waiting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_claim_that_another_holds(postgresql, configure, beside, ending):
    """The batch waits for it; then that item is a duplicate, or is delivered where the other rolled back."""
    one, two = configure(), configure()
    with open_transaction(one) as (connection, pid):
        deliver(one, *item("P7", "m-2"), connection=connection)
        batch = beside(deliver_many, two, [item("P8", "m-1"), item("P7", "m-2"), item("P8", "m-3")])
        blocked(postgresql, pid, batch)
        getattr(connection, ending)()
        answers = batch.result(TIMEOUT)
    second = Duplicate if ending == "commit" else CreatedAndDelivered
    assert [type(each) for each in answers] == [CreatedAndDelivered, second, Delivered]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_an_address_that_another_creates(postgresql, configure, beside, ending):
    """The batch waits; the loser of the address steps the winner's execution, and creates none."""
    one, two = configure(), configure()
    with open_transaction(one) as (connection, pid):
        first = deliver(one, *item("P7", "m-0"), connection=connection)
        batch = beside(deliver_many, two, [item("P7", "m-1"), item("P8", "m-2"), item("P7", "m-3")])
        blocked(postgresql, pid, batch)
        getattr(connection, ending)()
        answers = batch.result(TIMEOUT)
    if ending == "commit":
        assert answers[0] == answers[2] == Delivered("scans", first.execution_id)
        assert len(seen(one, first.execution_id)) == 3
    else:
        assert [type(each) for each in answers] == [CreatedAndDelivered, CreatedAndDelivered, Delivered]
    assert len(everything(one).executions) == len(everything(one).addresses) == 2
    assert postgresql.logged_errors() == []


def test_an_execution_that_another_steps(postgresql, configure, beside):
    """The batch waits for its lock, and steps what the other has made of it."""
    one, two = configure(), configure()
    created = deliver(one, *item("P7", "m-0"))
    with open_transaction(one) as (connection, pid):
        deliver(one, *item("P7", "m-1"), connection=connection)
        batch = beside(deliver_many, two, [item("P7", "m-2"), item("P8", "m-3"), item("P7", "m-4")])
        blocked(postgresql, pid, batch)
        connection.commit()
        assert [type(each) for each in batch.result(TIMEOUT)] == [Delivered, CreatedAndDelivered, Delivered]
    assert [(row.seq, row.message_id) for row in executions.inputs(one, created.execution_id)] == [
        (0, "m-0"),
        (1, "m-0"),
        (2, "m-1"),
        (3, "m-2"),
        (4, "m-4"),
    ]


def test_an_address_that_is_given_anew_while_the_batch_waits(postgresql, configure, beside):
    """No message is dropped for an ended execution whose address has a new one by now."""
    one, two = configure(bindings=[scans(dedupe=Dedupe(timedelta(0)))]), configure()
    old = deliver(one, *item("P7", "m-0"))
    with open_transaction(one) as (connection, pid):
        deliver(one, *item("P7", "m-1", "finished"), connection=connection)
        batch = beside(deliver_many, two, [item("P7", "m-2"), item("P8", "m-3"), item("P7", "m-4")])
        blocked(postgresql, pid, batch)
        # As the reaper would, and the next message after it.
        connection.execute(one.schema.addresses.delete())
        new = deliver(one, *item("P7", "m-5"), connection=connection)
        connection.commit()
        answers = batch.result(TIMEOUT)
    assert old.execution_id != new.execution_id
    assert answers[0] == answers[2] == Delivered("scans", new.execution_id)


def test_a_wait_that_runs_out_is_its_item_s_own(postgresql, configure):
    """The item whose execution is held is busy, and says which; the others are done."""
    one, hasty = configure(), configure(lock_timeout=MOMENT)
    created = deliver(one, *item("P7", "m-0"))
    batch = [item("P8", "m-1"), item("P7", "m-2"), item("P9", "m-3"), item("P7", "m-4")]
    with open_transaction(one) as (connection, _):
        deliver(one, *item("P7", "m-5"), connection=connection)
        answers = deliver_many(hasty, batch)
        connection.rollback()
    kinds = [CreatedAndDelivered, ExecutionBusy, CreatedAndDelivered, ExecutionBusy]
    assert [type(each) for each in answers] == kinds
    busy = answers[1]
    assert (busy.execution_id, busy.binding_id, busy.retryable) == (created.execution_id, "scans", True)
    again = deliver_many(hasty, batch)
    assert [type(each) for each in again] == [Duplicate, Delivered, Duplicate, Delivered]


def test_a_claim_whose_wait_runs_out_is_its_item_s_own(configure):
    """It names no execution: the wait was for less."""
    one, hasty = configure(), configure(lock_timeout=MOMENT)
    with open_transaction(one) as (connection, _):
        deliver(one, *item("P7", "m-2"), connection=connection)
        answers = deliver_many(hasty, [item("P8", "m-1"), item("P8", "m-2"), item("P8", "m-3")])
        connection.rollback()
    assert [type(each) for each in answers] == [CreatedAndDelivered, ExecutionBusy, Delivered]
    assert answers[1].execution_id is None


# --- two batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [False, True])
def test_batches_in_opposite_order_never_deadlock(postgresql, configure, beside, failing):
    """Whatever the order of their items, and whether some of them fail: no circle, nothing retried."""
    configs = [configure(retries=0) for _ in range(2)]
    before = postgresql.counters()
    rounds, each = 6, 40
    barrier = threading.Barrier(2, timeout=TIMEOUT)

    def work(config, name, order):
        told = Counter()
        for turn in range(rounds):
            batch = [
                # Half of the messages are the other's too; the keys are new in every second round.
                item(
                    f"P{n}-{turn // 2}",
                    f"{'shared' if n % 2 else name} {turn} {n}",
                    "failed" if failing and n % 10 == 0 else "moved",
                )
                for n in range(each)
            ]
            barrier.wait()
            told.update(type(answer).__name__ for answer in deliver_many(config, batch[::order]))
        return told

    tasks = [beside(work, configs[0], "one", 1), beside(work, configs[1], "other", -1)]
    total = sum((task.result(TIMEOUT) for task in tasks), Counter())
    failed = 2 * rounds * each // 10 if failing else 0
    assert total["StepFailed"] == failed
    assert total["Duplicate"] == rounds * each // 2
    assert (
        total["Delivered"] + total["CreatedAndDelivered"] == 2 * rounds * each - failed - rounds * each // 2
    )
    assert (postgresql.counters() - before).deadlocks == 0
    assert postgresql.logged_errors() == []
    logged = everything(configs[0])
    assert len(logged.claims) == total["Delivered"] + total["CreatedAndDelivered"]
    assert len(logged.addresses) == len(logged.executions)


def test_a_batch_beside_single_deliveries(postgresql, configure, beside):
    """They meet on the same keys, in any order, and every message is stepped once."""
    config, single = configure(retries=0), configure(retries=0)
    keys = [f"P{n}" for n in range(10)]
    barrier = threading.Barrier(2, timeout=TIMEOUT)

    def alone():
        for turn in range(5):
            barrier.wait()
            for key in reversed(keys):
                deliver(single, *item(key, f"single {turn} {key}"))

    def together():
        for turn in range(5):
            barrier.wait()
            deliver_many(config, [item(key, f"many {turn} {key}") for key in keys])

    for task in [beside(alone), beside(together)]:
        task.result(TIMEOUT)
    assert {row.outcome for row in ledger.rows(config, limit=1000)} == {"created_and_delivered", "delivered"}
    for key in keys:
        assert len(seen(config, addresses.find(config, "acme", "parcel", key).execution_id)) == 10


def test_a_deadlock_retries_the_whole_batch(postgresql, configure, beside, monkeypatch):
    """Item by item the locks come in the order of the items: the loser of a circle begins again, unseen."""
    monkeypatch.setattr(batch_set, "FEWEST", 1_000)
    configs = [configure() for _ in range(2)]
    for key in ("P1", "P2"):
        deliver(configs[0], *item(key, f"m-{key}"))
    before = postgresql.counters()
    barrier = threading.Barrier(2, timeout=TIMEOUT)
    met = threading.Event()

    def work(config, first, second):
        binding = scans(id=f"first {first}")
        chart_of = config.charts

        class Meeting:
            """Both hold their first execution before either goes for its second."""

            def resolve(self, scope, document):
                return chart_of.resolve(scope, document)

            def by_hash(self, content_hash):
                if not met.is_set():
                    barrier.wait()
                    met.set()
                return chart_of.by_hash(content_hash)

        own = Config(config.engine, charts=Meeting(), lock_timeout=config.lock_timeout)
        batch = [(binding, key, delivery(f"{first} {key}", data={"do": "moved"})) for key in (first, second)]
        return deliver_many(own, batch)

    tasks = [beside(work, configs[0], "P1", "P2"), beside(work, configs[1], "P2", "P1")]
    for task in tasks:
        assert [type(answer) for answer in task.result(TIMEOUT)] == [Delivered, Delivered]
    assert (postgresql.counters() - before).deadlocks >= 1
    assert len(everything(configs[0]).claims) == 6


# --- the wire -----------------------------------------------------------------------------------------


@contextmanager
def _proxied(database, make_config, on_statement=None, **kw):
    with Proxy(database.url, on_statement) as proxy:
        engine = create_engine(proxy.url, pool_size=1, max_overflow=0)
        kw.setdefault("charts", registry(parcel=obedient()))
        yield Config(engine, **kw), proxy
        engine.dispose()


def _hundred(name, do="moved"):
    return [item(f"P{n % 50}", f"{name} {n}", do) for n in range(100)]


MOST = {"created": 11, "delivered": 10, "duplicates": 7, "a tenth fails": 11}


@pytest.mark.parametrize("case", MOST)
def test_the_statements_of_a_hundred(postgresql, make_config, case, record_property):
    """However many items, a statement for each table that is read or written, and the brackets."""
    with _proxied(postgresql, make_config) as (config, proxy):
        deliver(config, *item("warm", "warm"))
        if case != "created":
            deliver_many(config, _hundred("first"))
        batch = _hundred("first" if case == "duplicates" else "second")
        if case == "a tenth fails":
            batch[::10] = _hundred("second", "failed")[::10]
        proxy.reset()
        answers = deliver_many(config, batch)
        statements = [one.sql for one in proxy.statements]
    told = f"a hundred, {case}: {len(statements)} statements, {proxy.turns} trips"
    print(told, *statements, sep="\n")
    record_property("statements", told)
    assert sum(isinstance(each, StepFailed) for each in answers) == (10 if case == "a tenth fails" else 0)
    assert len(statements) <= MOST[case]
    # One UPDATE, or none, whatever number of messages an execution had.
    assert sum(sql.startswith("UPDATE") for sql in statements) == (case in ("delivered", "a tenth fails"))


def test_a_connection_that_is_lost_retries_the_whole_batch(postgresql, make_config):
    """Wherever it breaks, before or after the server heard: every message is stepped once, and every id
    minted once. Where only the answer to the commit was lost, the batch comes back as duplicates.
    """
    minted = []

    def mint(scope, document, key):
        minted.append(key)
        return f"run-{len(minted)}"

    kw = {"mint_execution_id": mint}
    with _proxied(postgresql, make_config, **kw) as (config, proxy):
        deliver_many(config, [item(f"warm{n}", f"warm {n}") for n in range(5)])
        proxy.reset()
        deliver_many(config, [item(f"counting{n}", f"counting {n}") for n in range(5)])
        statements = len(proxy.statements)
    for cut in range(1, statements + 1):
        for verdict in ("cut", "cut_after"):
            with _proxied(postgresql, make_config, **kw) as (config, proxy):
                with config.engine.connect() as connection:
                    connection.exec_driver_sql("SELECT 1")
                proxy.reset()
                cuts = []

                def on_statement(n, sql, verdict=verdict, cut=cut, cuts=cuts):
                    if n != cut or cuts:
                        return None
                    cuts.append(sql)
                    return verdict

                proxy.on_statement = on_statement
                answers = deliver_many(
                    config, [item(f"{cut} {verdict} {n}", f"{cut} {verdict} {n}") for n in range(5)]
                )
            told = {each.recorded for each in answers}
            assert told == (
                {"duplicate"} if cuts == ["COMMIT"] and verdict == "cut_after" else {"created_and_delivered"}
            )
    assert len(minted) == len(set(minted))
    rows = everything(configuring(postgresql, make_config)(**kw))
    assert [row["revision"] for row in rows.executions] == [1] * len(minted)
    assert len(rows.executions) == (statements * 2 + 2) * 5


def test_retries_that_run_out(postgresql, make_config):
    """The batch then fails as one, and nothing of it is there."""
    with _proxied(postgresql, make_config, retries=1) as (config, proxy):
        with config.engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
        proxy.on_statement = lambda n, sql: "cut" if "ledger" in sql else None
        with pytest.raises(DatabaseFault):
            deliver_many(config, _hundred("first"))
        proxy.on_statement = None
        assert everything(config).empty


# --- plans --------------------------------------------------------------------------------------------

FILL = [
    """INSERT INTO statifier_router_executions (id, document, scope, key, content_hash, interpreter, status,
         position, active, revision, created_at)
       SELECT 'ex_' || n, 'parcel', 'acme', 'key ' || n, 'hash', 'function', 'active', '{}', '[]', 1, now()
       FROM generate_series(1, 4000) n""",
    """INSERT INTO statifier_router_addresses (scope, document, key, execution_id, inserted_at)
       SELECT 'acme', 'parcel', 'key ' || n, 'ex_' || n, now() FROM generate_series(1, 4000) n""",
    """INSERT INTO statifier_router_inputs (execution_id, seq, door, at)
       SELECT 'ex_' || n, seq, 'deliver', now() FROM generate_series(1, 4000) n, generate_series(0, 3) seq""",
    """INSERT INTO statifier_router_claims (binding_id, scope, message_id, digest, expires_at)
       SELECT 'scans', '', 'old ' || n, 'digest', now() FROM generate_series(1, 4000) n""",
    """INSERT INTO statifier_router_deferred (scope, document, key, binding_id, message_id, event, until,
         created_at)
       SELECT 'acme', 'parcel', 'key ' || n, 'scans', 'm', '{}', now(), now()
       FROM generate_series(1, 4000) n""",
    """INSERT INTO statifier_router_timers (key, execution_id, send_id, event, due_at, state, tries,
         next_try_at)
       SELECT 'key ' || n, 'ex_' || n, 's', '{}', now(), 'pending', 0, now()
       FROM generate_series(1, 4000) n""",
]
STATEMENTS = ["standing", "unclaim", "found", "removed", "stamped", "kept", "locked", "moved", "logged"]


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
def test_each_statement_takes_its_index(postgresql, plan):
    """With the arrays known, and with a plan that was made for any: no table is read from end to end."""
    schema = schema_of(Tables())
    engine = postgresql.bare_engine(isolation_level="AUTOCOMMIT")
    wrong = []
    with engine.connect() as connection:
        for statement in FILL:
            connection.execute(text(statement))
        connection.exec_driver_sql("ANALYZE")
        connection.exec_driver_sql(f"SET plan_cache_mode = {plan}")
        for name in [*STATEMENTS, "cancelled"]:
            prepared = getattr(batch_statements, name)(schema)
            compiled = prepared.statement.compile(dialect=connection.dialect)
            types = [str(compiled.binds[each].type.compile(connection.dialect)) for each in compiled.binds]
            sql = str(compiled)
            for at, each in enumerate(compiled.binds, 1):
                sql = sql.replace(f"%({each})s", f"${at}")
            connection.exec_driver_sql(f"PREPARE {name} ({', '.join(types)}) AS {sql}")
            values = ", ".join(_some(type) for type in types)
            (found,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) EXECUTE {name} ({values})").one()
            explained = json.loads(found) if isinstance(found, str) else found
            scanned = [
                node["Relation Name"]
                for node in _nodes(explained[0]["Plan"])
                if node["Node Type"] == "Seq Scan"
            ]
            if scanned:
                wrong.append(f"{name} reads {scanned}")
    assert wrong == []


def _some(type):
    if "TIMESTAMP" in type:
        return "ARRAY[now(), now()]"
    return "ARRAY[1, 2]" if "BIGINT" in type else "ARRAY['key 7', 'key 8']"


def _nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
