"""Few connections: a pool of one suffices for a delivery, and waiting for one execution starves no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from statifier_router import (
    ChartStore,
    Config,
    CreatedAndDelivered,
    Delivered,
    ExecutionBusy,
    KeyRefused,
    Plan,
    addresses,
    claims,
    create_engine,
    deliver,
    deliver_event,
    executions,
    ledger,
    route,
)
from tests.support.charts import NOW, Calling, delivery, envelope, message, obedient, registry, scans
from tests.support.databases import Database
from tests.support.proxy import Proxy
from tests.support.racing import (
    MOMENT,
    PLANS,
    TIMEOUT,
    Beside,
    WritingPlainly,
    blocked,
    configuring,
    disposing,
    open_transaction,
    seen,
    threads,
)

SCANS = scans()
# Importable by this name, as a chart made in Python must be to be stored.
PARCEL = obedient("stored")


@pytest.fixture
def beside() -> Iterator[Beside]:
    """Runs a function in a thread of its own, beside the test."""
    with threads() as beside:
        yield beside


# --- a pool of one ----------------------------------------------------------------------------------


@pytest.fixture
def one_connection(database: Database, make_config: Any) -> Iterator[Callable[..., Any]]:
    """Configurations with a pool of a single connection; whoever asks for a second one is refused at once."""
    opened: list[Any] = []

    def configure(**kw: Any) -> Any:
        engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=0.01)
        event.listen(engine, "connect", lambda connection, record: opened.append(connection))
        kw.setdefault("charts", registry(parcel=obedient()))
        return make_config(database, engine=engine, **kw)

    yield configure
    assert len(opened) == 1


def test_a_refused_key_needs_one_connection(one_connection):
    """Trap 17. The refusal is written on the one connection, in a transaction of its own or the caller's."""
    config = one_connection(bindings=[SCANS])
    (outcome,) = route(config, message(parcel=7), now=NOW)
    assert isinstance(outcome, KeyRefused)
    with config.engine.begin() as connection:
        route(config, message("m-2", parcel=8), now=NOW, connection=connection)
    assert [row.outcome for row in ledger.rows(config)] == ["key_refused"] * 2


def test_deliveries_from_inside_a_step_need_one_connection(one_connection):
    """Trap 17. Every door, reader and operator's act joins the transaction of the step it is called in."""
    relay = Calling()
    config = one_connection(charts=registry(parcel=obedient(), relay=relay), bindings=[SCANS])
    other = deliver(config, SCANS, "P8", delivery("m-0")).execution_id
    found: list[Any] = []

    def hook(position: Any, event: Any, now: Any) -> None:
        found.append(deliver_event(config, Plan("jobs", "parcel"), "P9", envelope("arrived", "e-1")))
        found.append(route(config, message("m-2", "P8"), now=NOW))
        found.append(route(config, message("m-3", 9), now=NOW))
        found.append(executions.fetch(config, other))
        found.append(addresses.find(config, "acme", "parcel", "P9"))
        found.append(executions.suspend(config, other))
        found.append(claims.reap(config, now=NOW + timedelta(days=9)))

    with relay.calling(hook):
        deliver(config, scans(document="relay"), "R1", delivery("m-1"))
    assert isinstance(found[0], CreatedAndDelivered)
    assert found[1] == [Delivered("scans", other)]
    assert found[4].execution_id == found[0].execution_id
    assert executions.fetch(config, other).status == "suspended"


def test_resolvers_need_one_connection(one_connection):
    """Bindings are resolved before anything is open, charts on the transaction in force: both may read."""
    charts = registry(parcel=obedient())
    made: list[Any] = []
    asked: list[str] = []

    def bindings_resolver(scope: str) -> list[Any]:
        asked.append("bindings")
        ledger.rows(made[0])
        return [SCANS]

    def resolver(scope: str, document: str) -> Any:
        asked.append("chart")
        assert addresses.find(made[0], scope, document, "P7") is not None
        return charts.resolve(scope, document)

    def chart_resolver(content_hash: str) -> Any:
        asked.append("hash")
        # The fold at the end of the test asks too, when the pool has gone.
        for config in made:
            ledger.rows(config)
        return charts.by_hash(content_hash)

    config = one_connection(
        charts=None, resolver=resolver, chart_resolver=chart_resolver, bindings_resolver=bindings_resolver
    )
    made.append(config)
    for message_id in ("m-1", "m-2"):
        route(config, message(message_id), now=NOW)
    assert asked == ["bindings", "chart", "bindings", "hash"]
    made.clear()


def test_a_chart_store_needs_one_connection(one_connection, database):
    """Charts in the database are read on the transaction of the delivery that asks for them."""
    ChartStore(database.engine(poolclass=NullPool)).save(PARCEL, document="parcel")
    plain = one_connection()
    config = Config(plain.engine, charts=ChartStore(plain.engine))
    created = deliver(config, SCANS, "P7", delivery("m-1"))
    # A store that has compiled nothing yet, as in another process.
    other = Config(plain.engine, charts=ChartStore(plain.engine))
    assert deliver(other, SCANS, "P7", delivery("m-2")) == Delivered("scans", created.execution_id)
    # The fold at the end asks the registry.
    plain.charts.publish("stored", PARCEL)


@pytest.mark.parametrize("plan", PLANS)
def test_naming_what_was_waited_for_needs_one_connection(postgresql, make_config, plan):
    """A wait that ran out gives its connection back before anybody looks who held what."""
    configure = configuring(postgresql, make_config, plan)
    holder = configure()
    waiting = configure(
        engine=postgresql.engine(pool_size=1, max_overflow=0, pool_timeout=0.01), lock_timeout=MOMENT
    )
    created = deliver(holder, SCANS, "P7", delivery("m-1"))
    with open_transaction(holder) as (connection, _):
        deliver(holder, SCANS, "P7", delivery("m-2"), connection=connection)
        with pytest.raises(ExecutionBusy) as caught:
            deliver(waiting, SCANS, "P7", delivery("m-3"))
    assert caught.value.execution_id == created.execution_id


def test_an_exhausted_pool_is_busy(database, make_config):
    """No connection within the pool's own timeout: the retryable `ExecutionBusy`, and nothing written."""
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=0.01)
    config = make_config(database, engine=engine, charts=registry(parcel=obedient()), bindings=[SCANS])
    with engine.connect():
        with pytest.raises(ExecutionBusy) as caught:
            deliver(config, SCANS, "P7", delivery())
        with pytest.raises(ExecutionBusy):
            route(config, message(parcel=7), now=NOW)
        with pytest.raises(ExecutionBusy):
            ledger.rows(config)
    assert (caught.value.execution_id, caught.value.retryable) == (None, True)
    assert ledger.rows(config) == []
    assert isinstance(deliver(config, SCANS, "P7", delivery()), CreatedAndDelivered)


# --- one hot execution ------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_a_cold_key_is_served(postgresql, make_config, beside, plan):
    """Trap 30. With all but one connection waiting for one execution, another key's message goes on."""
    configure = configuring(postgresql, make_config, plan)
    holder = configure()
    config = configure(engine=postgresql.engine(pool_size=4, max_overflow=0, pool_timeout=TIMEOUT))
    hot = deliver(holder, SCANS, "hot", delivery("m-0")).execution_id
    with open_transaction(holder) as (connection, pid):
        deliver(holder, SCANS, "hot", delivery("m-1"), connection=connection)
        waiting = [beside(deliver, config, SCANS, "hot", delivery(f"m-{n}")) for n in (2, 3, 4)]
        # One waits for the holder, the others behind it: their backends are counted on the server.
        _all_wait(postgresql, waiting)
        blocked(postgresql, pid, waiting[0])
        cold = deliver(config, SCANS, "cold", delivery("m-5"))
        assert isinstance(cold, CreatedAndDelivered)
        assert isinstance(deliver(config, SCANS, "cold", delivery("m-6")), Delivered)
        assert not any(one.done() for one in waiting)
        connection.commit()
        assert [one.result(TIMEOUT) for one in waiting] == [Delivered("scans", hot)] * 3
    assert len(seen(config, hot)) == 5


def _all_wait(database: Database, waiting: list[Any]) -> None:
    """Return once as many backends of this database wait for locks."""
    counting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with database.bare_engine(isolation_level="AUTOCOMMIT").connect() as connection:
        for _ in range(1000):
            if connection.execute(counting).scalar_one() == len(waiting):
                return
            connection.execute(text("SELECT pg_sleep(0.01)"))
    raise AssertionError("they do not wait")


# --- very many in one transaction ---------------------------------------------------------------------

# The long form, of 5,000, is bench/races.py.
MANY = 600


@pytest.mark.parametrize("plan", PLANS)
def test_many_deliveries_in_one_transaction(postgresql, plan):
    """Trap 28. Each savepoint is released before the next one, and a delivery costs as much as the first did.

    Counted on the wire, and in the server's memory, where each open level would have a context.
    """
    executor = WritingPlainly() if plan == "plain" else None
    with Proxy(postgresql.url) as proxy:
        engine = create_engine(proxy.url, pool_size=1)
        config = Config(engine, charts=registry(parcel=obedient()), executor=executor)
        costs, levels = [], []
        with disposing(engine), engine.begin() as connection:
            connection.exec_driver_sql("SELECT 1")
            for number in range(MANY):
                proxy.reset()
                deliver(config, SCANS, f"P{number % 7}", delivery(f"m-{number}"), connection=connection)
                statements = [one.sql for one in proxy.statements]
                costs.append(len(statements))
                assert statements[-1] == statements[0].replace("SAVEPOINT", "RELEASE SAVEPOINT")
                if number in (10, MANY - 1):
                    levels.append(connection.execute(text(_LEVELS)).scalar_one())
                    _gone(connection, statements[0].split()[1])
    assert len(set(costs[7:])) == 1
    assert levels[0] == levels[1]


# Since PostgreSQL 14.
_LEVELS = "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'CurTransactionContext'"


def _gone(connection: Any, name: str) -> None:
    """The savepoint does not exist any more, and the transaction stands."""
    connection.exec_driver_sql("SAVEPOINT host")
    with pytest.raises(DBAPIError) as caught:
        connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")
    assert getattr(caught.value.orig, "sqlstate", "3B001") == "3B001"
    connection.exec_driver_sql("ROLLBACK TO SAVEPOINT host")
    connection.exec_driver_sql("RELEASE SAVEPOINT host")


def test_many_deliveries_in_one_transaction_on_sqlite(sqlite, make_config):
    """Trap 28. The same on SQLite: one savepoint at a time, and the same statements each time."""
    engine = sqlite.engine(pool_size=1)
    config = make_config(sqlite, engine=engine, charts=registry(parcel=obedient()))
    ran: list[str] = []
    costs = []
    with engine.begin() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.set_trace_callback(ran.append)
        for number in range(MANY):
            ran.clear()
            deliver(config, SCANS, f"P{number % 7}", delivery(f"m-{number}"), connection=connection)
            costs.append(len(ran))
            assert ran[-1] == ran[0].replace("SAVEPOINT", "RELEASE SAVEPOINT")
        with contextlib.suppress(DBAPIError):
            connection.exec_driver_sql(ran[-1])
            raise AssertionError("the savepoint is still there")
        driver.set_trace_callback(None)
    assert len(set(costs[7:])) == 1
    assert len(ledger.rows(config, limit=MANY + 1)) == MANY
