"""Pipelined mode: the same delivery in two waits, and the faults that only it can meet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from statifier_router import (
    WHOLE,
    Config,
    ConfigError,
    Defer,
    Delivered,
    Duplicate,
    Envelope,
    Event,
    ExecutionExists,
    OutboxRoute,
    Plan,
    StaleRevision,
    Step,
    StepFailed,
    addresses,
    ambient,
    create_engine,
    deferrals,
    deliver,
    deliver_event,
    deliver_many,
    emit,
    executions,
    ledger,
)
from statifier_router.interpreters import function
from tests.support.charts import NOW, delivery, obedient, registry, scans
from tests.support.proxy import Proxy
from tests.support.rows import everything, written


@pytest.fixture
def pipelined(postgresql, make_config):
    """`pipelined(**kw)`: a configuration in pipelined mode."""

    def make(**kw: Any) -> Config:
        kw.setdefault("charts", registry(parcel=obedient()))
        return make_config(postgresql, pipeline=True, **kw)

    return make


@pytest.mark.parametrize(("pipeline", "waits"), [(False, 4), (True, 2)])
def test_the_waits_of_one_delivery(postgresql, pipeline, waits):
    """Delivered to an existing execution: 4 waits, and 2 pipelined, counted on the wire."""
    with Proxy(postgresql.url) as proxy:
        engine = create_engine(proxy.url, pool_size=1, max_overflow=0)
        config = Config(engine, charts=registry(parcel=obedient()), pipeline=pipeline)
        # The driver prepares a statement once it has met it five times, at the cost of one turn.
        for n in range(8):
            deliver(config, scans(), "P7", delivery(f"m-{n}"))
        proxy.reset()
        outcome = deliver(config, scans(), "P7", delivery("m-last"))
        statements, turns = len(proxy.statements), proxy.turns
        engine.dispose()
    print(f"pipeline={pipeline}: {statements} statements, {turns} waits")
    assert isinstance(outcome, Delivered)
    assert (statements, turns) == (4, waits)


def test_the_waits_of_a_batch_that_goes_item_by_item(postgresql):
    """BEGIN, two waits an item, COMMIT: the savepoint travels with open, its release with close."""
    with Proxy(postgresql.url) as proxy:
        engine = create_engine(proxy.url, pool_size=1, max_overflow=0)

        def around(scope: str, door: str, work: Any) -> Any:
            return work()

        config = Config(engine, charts=registry(parcel=obedient()), around_delivery=around)
        for n in range(8):
            deliver_many(config, [(scans(), "P7", delivery(f"m-{n}"))])
        proxy.reset()
        outcomes = deliver_many(config, [(scans(), "P7", delivery(f"n-{n}")) for n in range(5)])
        statements, turns = len(proxy.statements), proxy.turns
        engine.dispose()
    assert [type(outcome) for outcome in outcomes] == [Delivered] * 5
    assert (statements, turns) == (2 + 4 * 5, 2 + 2 * 5)


def test_an_item_that_fails_in_its_close_is_undone_alone(postgresql, make_config):
    """What travels with the release is judged as if it went by itself; the batch goes on behind it."""

    def around(scope: str, door: str, work: Any) -> Any:
        return work()

    ids = iter(["ex_1", "ex_1", "ex_2"])
    config = make_config(
        postgresql,
        charts=registry(parcel=obedient()),
        around_delivery=around,
        mint_execution_id=lambda scope, document, key: next(ids),
    )
    items = [(scans(), key, delivery(f"m-{key}")) for key in ("P1", "P2", "P3")]
    outcomes = deliver_many(config, items)
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "CreatedAndDelivered",
        "ExecutionExists",
        "CreatedAndDelivered",
    ]
    assert addresses.find(config, "acme", "parcel", "P2") is None
    assert [row.key for row in ledger.rows(config)] == ["P1", "P3"]


def test_the_plans_write_the_same_rows(postgresql, make_config, pipelined):
    """Whichever way it travels, a delivery writes the same rows."""
    seen = []
    for mode in (False, True):
        config = make_config(postgresql, charts=registry(parcel=obedient()), pipeline=mode)
        binding = scans(id=f"scans-{mode}")
        for n, do in enumerate(["moved", "refused", "ignored", "finished", "moved"]):
            deliver(config, binding, f"P-{mode}", delivery(f"m-{n}", data={"do": do}))
        rows = ledger.rows(config, binding_id=binding.id)
        execution = executions.fetch(config, rows[0].execution_id)
        inputs = executions.inputs(config, execution.id)
        seen.append(
            (
                [(row.outcome, row.reason) for row in rows],
                {**execution.position, "who": None},
                execution.status,
                execution.revision,
                [(one.seq, one.door, one.event, one.message_id, one.errors) for one in inputs],
            )
        )
    assert seen[0] == seen[1]


def test_a_duplicate(pipelined):
    """A duplicate is told, and nothing is left open."""
    config = pipelined()
    deliver(config, scans(), "P7", delivery("m-1"))
    assert deliver(config, scans(), "P7", delivery("m-1")) == Duplicate("scans")
    assert config.engine.pool.checkedout() == 0


def test_a_row_that_moved_on(pipelined):
    """COMMIT is on its way behind the last statement, and commits nothing where that wrote nothing."""

    def meddle(position: Any, event: Any, now: Any) -> Step:
        frame = ambient.in_force(config.engine)
        if frame is not None and event.data.get("do") == "meddle":
            # Nothing else can move a locked row: this is the step's own transaction.
            frame.connection.exec_driver_sql("UPDATE statifier_router_executions SET revision = revision + 1")
        return Step(position)

    chart = function.chart("meddling", create=lambda data, now: Step(None), step=meddle)
    config = pipelined(charts=registry(parcel=chart))
    deliver(config, scans(), "P7", delivery("m-1", data={}))
    with written(config) as rows, pytest.raises(StaleRevision):
        deliver(config, scans(), "P7", delivery("m-2", data={"do": "meddle"}))
    assert rows.nothing
    assert deliver(config, scans(), "P7", delivery("m-2", data={})).recorded == "delivered"


def test_an_id_that_is_taken(pipelined):
    """`ExecutionExists` commits nothing, and the connection serves the next delivery."""
    ids = iter(["ex_1", "ex_1", "ex_2"])
    config = pipelined(mint_execution_id=lambda *_: next(ids))
    deliver(config, scans(), "P7", delivery("m-1"))
    with written(config) as rows, pytest.raises(ExecutionExists):
        deliver(config, scans(), "P8", delivery("m-2"))
    assert rows.nothing
    assert deliver(config, scans(), "P8", delivery("m-2")).execution_id == "ex_2"


def test_a_step_that_fails(pipelined):
    """A failing step leaves nothing behind and nothing open."""
    config = pipelined()
    deliver(config, scans(), "P7", delivery("m-1"))
    with written(config) as rows, pytest.raises(StepFailed):
        deliver(config, scans(), "P7", delivery("m-2", data={"do": "failed"}))
    assert rows.nothing
    assert deliver(config, scans(), "P7", delivery("m-2")).recorded == "delivered"


def test_more_statements_after_the_step(pipelined):
    """A kept event, a send and a nested delivery write in the same transaction, each where it belongs."""

    def step(position: Any, event: Any, now: Any) -> Step:
        if event.data.get("early") and position == 0:
            return Step(position, outcome="ignored")
        emit("notice", target="notices", data={"n": position})
        return Step(position + 1)

    chart = function.chart("counting", create=lambda data, now: Step(0), step=step)
    config = pipelined(charts=registry(parcel=chart), routes={"notices": OutboxRoute("notices")})
    binding = scans(unmatched=Defer(timedelta(hours=1)))
    early = deliver(config, binding, "P7", delivery("m-1", data={"early": True}))
    assert early.recorded == "deferred"
    assert len(deferrals.pending(config)) == 1
    assert deliver(config, binding, "P7", delivery("m-2", data={})).recorded == "delivered"
    assert deferrals.pending(config) == []
    assert executions.fetch(config, early.execution_id).position == 2
    assert [row.outcome for row in ledger.rows(config)] == ["deferred", "delivered", "delivered"]
    with config.engine.connect() as connection:
        count = connection.exec_driver_sql("SELECT count(*) FROM statifier_router_outbox").scalar_one()
    assert count == 2


def test_a_send_to_a_neighbour(pipelined):
    """A nested delivery is written before its sender is, and an answer to the sender after both."""

    def step(position: Any, event: Any, now: Any) -> Step:
        for key in event.data.get("to", []):
            emit(
                "told",
                target="execution",
                data={"document": "parcel", "key": key, "to": event.data.get("then", [])},
            )
        return Step([*position, event.name])

    chart = function.chart("telling", create=lambda data, now: Step([]), step=step)
    config = pipelined(charts=registry(parcel=chart))
    binding = scans(data=WHOLE)
    data = {"to": ["P8"], "then": ["P7"]}
    created = deliver(config, binding, "P7", delivery("m-1", data=data | {"then": []}))
    deliver(config, binding, "P7", delivery("m-2", data=data))
    assert executions.fetch(config, created.execution_id).position == ["scanned", "scanned", "told"]
    told = addresses.find(config, "acme", "parcel", "P8")
    assert executions.fetch(config, told.execution_id).position == ["told", "told"]
    assert config.engine.pool.checkedout() == 0


def test_joined_deliveries_are_not_pipelined(pipelined):
    """A borrowed transaction and a door with a savepoint go the ordinary way, on the same configuration."""
    config = pipelined()
    with config.engine.begin() as connection:
        deliver(config, scans(), "P7", delivery("m-1"), connection=connection)
    envelope = Envelope(Event("scanned", {"do": "moved"}), "e-1", "acme", NOW)
    deliver_event(config, Plan("audit", "parcel"), "P7", envelope)
    assert everything(config).counts()["executions"] == 1


def test_where_it_cannot_be(sqlite, make_config):
    """SQLite has no trips to save: the setting is refused, naming the field."""
    with pytest.raises(ConfigError, match="pipeline"):
        make_config(sqlite, pipeline=True)


def test_what_begins_and_ends_is_prepared_and_savepoints_are_not(postgresql, make_config):
    """BEGIN and COMMIT come with every transaction; the name of a savepoint comes once."""
    engine = postgresql.engine(pool_size=1, max_overflow=0)
    config = make_config(postgresql, engine=engine, charts=registry(parcel=obedient()), pipeline=True)
    for n in range(8):
        deliver(config, scans(), "P7", delivery(f"m-{n}"))
        # One that cannot be done as a set: each item has a savepoint.
        deliver_many(config, [(scans(), "P7", delivery(f"n-{n}-{at}", now=NOW)) for at in range(2)])
    with engine.connect() as connection:
        prepared = connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements").scalars().all()
    assert {"BEGIN ISOLATION LEVEL READ COMMITTED", "COMMIT"} <= set(prepared)
    assert not any("SAVEPOINT" in statement for statement in prepared)
    engine.dispose()
