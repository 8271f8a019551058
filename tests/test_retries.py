"""What a transient fault becomes: another try of the whole delivery, or an error worth another call."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs
import psycopg
import pytest
from sqlalchemy import Engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool

from statifier_router import (
    Config,
    CreatedAndDelivered,
    DatabaseFault,
    Delivered,
    Duplicate,
    ExecutionBusy,
    IsolationConflict,
    addresses,
    claims,
    create_engine,
    deliver,
    executions,
    ledger,
    route,
)
from tests.support import workers
from tests.support.charts import NOW, Calling, delivery, message, obedient, registry, scans
from tests.support.crashes import dump
from tests.support.databases import Database
from tests.support.locks import backend_pid
from tests.support.proxy import Proxy, Verdict
from tests.support.racing import (
    MOMENT,
    PLANS,
    TIMEOUT,
    Configure,
    WritingPlainly,
    configuring,
    disposing,
    open_transaction,
    seen,
)
from tests.support.rows import written

SCANS = scans()


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> str:
    """Each plan of statements."""
    return str(request.param)


@pytest.fixture
def configure(postgresql: Database, make_config: Any, plan: str) -> Configure:
    """Configurations on PostgreSQL, under each plan."""
    return configuring(postgresql, make_config, plan)


def _executor(plan: str) -> Any:
    return WritingPlainly() if plan == "plain" else None


@attrs.define
class Wire:
    """What the proxy calls: cuts the connection once, at one statement of those that are counted."""

    at: int | str | None = None
    verdict: Verdict = "cut"
    counted: list[str] = attrs.field(factory=list)
    counting: bool = False
    cuts: int = 0

    def __call__(self, n: int, sql: str) -> Verdict:
        if not self.counting:
            return "forward"
        self.counted.append(sql)
        if self.cuts == 0 and self.at in (len(self.counted), sql):
            self.cuts += 1
            return self.verdict
        return "forward"

    @property
    def begun(self) -> int:
        """How many transactions were begun."""
        return sum(sql.startswith("BEGIN") for sql in self.counted)


@contextmanager
def wired(database: Database, wire: Wire, plan: str = "merged", **kw: Any) -> Iterator[Config]:
    """A configuration behind a proxy, connected; what it sends from now on is counted."""
    kw.setdefault("charts", registry(parcel=obedient(), relay=workers.RELAY))
    with Proxy(database.url, wire) as proxy, disposing(create_engine(proxy.url)) as engine:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
        wire.counting = True
        yield Config(engine, executor=_executor(plan), **kw)


# --- the connection is lost ---------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["create", "existing", "deliver_event", "nested"])
def test_a_connection_that_is_cut_at_any_statement(postgresql: Database, plan: str, scenario: str) -> None:
    """The whole is tried again: the caller sees the outcome, the tables one clean delivery.

    Trap 24: where the COMMIT was done and nobody heard, the second try finds the first, as a duplicate.
    """
    acts = workers.SCENARIOS[scenario]
    direct = workers.config_of(postgresql.url, plan, engine={"poolclass": NullPool})

    def prepare() -> None:
        with direct.engine.begin() as connection:
            for table in direct.schema.metadata.sorted_tables:
                if table is not direct.schema.schema_version:
                    connection.execute(table.delete())
        acts.before(direct)

    prepare()
    wire = Wire()
    with wired(postgresql, wire, plan) as config:
        outcome = acts.act(config)
    clean, points = dump(direct), len(wire.counted)
    told = []
    for number in range(1, points + 1):
        for verdict in ("cut", "cut_after"):
            prepare()
            wire = Wire(number, verdict)
            with wired(postgresql, wire, plan) as config:
                answer = acts.act(config)
            state = dump(direct)
            assert (wire.cuts, wire.begun) == (1, 2)
            if wire.counted[number - 1] == "COMMIT" and verdict == "cut_after":
                assert isinstance(answer, Duplicate)
                _drop_the_duplicates_row(state, clean)
            else:
                assert answer.recorded == outcome.recorded
            assert state == clean, f"cut at {number} ({verdict}): {wire.counted[number - 1]}"
            told.append(answer.recorded)
    print(f"{plan} plan, {scenario}: {points} statements, {len(told)} cuts")


def _drop_the_duplicates_row(state: dict[str, Any], clean: dict[str, Any]) -> None:
    ledger_rows = state["statifier_router_ledger"]
    assert ledger_rows.pop()["outcome"] == "duplicate"
    assert len(ledger_rows) == len(clean["statifier_router_ledger"])


@pytest.mark.parametrize("verdict", ["cut", "cut_after"])
def test_a_commit_of_unknown_outcome_without_a_retry(
    postgresql: Database, configure: Configure, plan: str, verdict: Verdict
) -> None:
    """Trap 24. No try left: `DatabaseFault`; handed over again the message makes one step in all."""
    wire = Wire("COMMIT", verdict)
    with wired(postgresql, wire, plan, retries=0) as config, pytest.raises(DatabaseFault) as caught:
        deliver(config, SCANS, "P7", delivery())
    assert (caught.value.sqlstate, caught.value.retryable, caught.value.binding_id) == (None, True, "scans")
    direct = configure()
    answer = deliver(direct, SCANS, "P7", delivery())
    assert isinstance(answer, CreatedAndDelivered if verdict == "cut" else Duplicate)
    address = addresses.find(direct, "acme", "parcel", "P7")
    assert address is not None
    assert [one.door for one in executions.inputs(direct, address.execution_id)] == ["create", "deliver"]


def test_every_pooled_connection_is_dead(postgresql: Database, configure: Configure) -> None:
    """A server that was restarted costs one retry, however many connections the pool still holds."""
    config = configure(engine=postgresql.engine(pool_size=5), retries=1)
    held = [config.engine.connect() for _ in range(5)]
    pids = [backend_pid(one) for one in held]
    for one in held:
        one.close()
    _terminate(postgresql, pids)
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-1")), CreatedAndDelivered)


def _terminate(database: Database, pids: list[int]) -> None:
    with database.bare_engine(poolclass=NullPool).connect() as connection:
        ending = text("SELECT bool_and(pg_terminate_backend(pid, 10000)) FROM unnest(:pids) pid")
        assert connection.execute(ending, {"pids": pids}).scalar_one()


@pytest.mark.parametrize("when", ["in a create", "in a step"])
def test_a_backend_that_is_ended_in_a_delivery(postgresql: Database, configure: Configure, when: str) -> None:
    """The server ends the connection under a chart's feet: the delivery is tried again, once."""
    chart = Calling()
    config = configure(charts=registry(parcel=chart))
    if when == "in a step":
        deliver(config, SCANS, "P7", delivery("m-0"))
    tries: list[Any] = []

    def end(*_: Any) -> None:
        tries.append(when)
        if len(tries) == 1:
            _terminate(postgresql, _in_transaction(postgresql))

    calling = chart.creating(end) if when == "in a create" else chart.calling(end)
    with calling:
        outcome = deliver(config, SCANS, "P7", delivery("m-1"))
    assert len(tries) == 2
    assert isinstance(outcome, CreatedAndDelivered if when == "in a create" else Delivered)


def _in_transaction(database: Database) -> list[int]:
    with database.bare_engine(poolclass=NullPool).connect() as connection:
        waiting = text(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction'"
            " AND pid <> pg_backend_pid()"
        )
        pids = list(connection.scalars(waiting))
    assert len(pids) == 1
    return pids


def test_a_server_that_cannot_be_reached(postgresql: Database, make_config: Any) -> None:
    """No server answers: `DatabaseFault`, to try again; every function that reads or writes says so."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # Bound, and nobody listens.
        url = make_url(postgresql.url).set(host="127.0.0.1", port=taken.getsockname()[1], query={})
        with disposing(create_engine(url)) as engine:
            config = Config(engine, charts=registry(parcel=obedient()), bindings=[SCANS], retries=1)
            calls: list[Callable[[], object]] = [
                lambda: deliver(config, SCANS, "P7", delivery()),
                lambda: route(config, message(), now=NOW),
                lambda: route(config, message(parcel=7), now=NOW),
                lambda: ledger.rows(config),
                lambda: claims.reap(config, now=NOW),
                lambda: executions.cancel(config, "ex_1"),
            ]
            for call in calls:
                with pytest.raises(DatabaseFault) as caught:
                    call()
                assert (caught.value.sqlstate, caught.value.retryable) == (None, True)
                assert caught.value.fault == "transient"


# --- the server refuses -------------------------------------------------------------------------------

_RAISE = """
CREATE FUNCTION host_refuses() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END $$
"""
_AT_ONCE = "CREATE TRIGGER host_refuses BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION host_refuses()"
_AT_COMMIT = (
    "CREATE CONSTRAINT TRIGGER host_refuses AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION host_refuses()"
)


def _refuse(database: Database, state: str, trigger: str) -> None:
    with database.bare_engine(poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql(_RAISE.format(state=state))
        connection.exec_driver_sql(trigger.format(table="statifier_router_ledger"))


@pytest.mark.parametrize("state", ["40001", "40P01"])
@pytest.mark.parametrize("trigger", [_AT_ONCE, _AT_COMMIT], ids=["at once", "at commit"])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_fault_that_stays(postgresql: Database, plan: str, state: str, trigger: str, retries: int) -> None:
    """It is tried `retries` further times, whole; then it is `DatabaseFault` with its SQLSTATE.

    Every try creates under the id that the first one minted.
    """
    chart = Calling()
    ids: list[str] = []
    wire = Wire()
    _refuse(postgresql, state, trigger)
    with (
        wired(postgresql, wire, plan, charts=registry(parcel=chart), retries=retries) as config,
        written(config) as rows,
        chart.creating(lambda data, now: ids.append(data["execution"]["id"])),
        pytest.raises(DatabaseFault) as caught,
    ):
        deliver(config, SCANS, "P7", delivery())
    assert (caught.value.sqlstate, caught.value.retryable) == (state, True)
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert (len(ids), len(set(ids))) == (retries + 1, 1)
    assert rows.nothing


@pytest.mark.parametrize("state", ["40001", "57P01"])
def test_a_fault_that_passes(postgresql: Database, plan: str, make_config: Any, state: str) -> None:
    """The caller never hears of it."""
    chart = Calling()
    config = configuring(postgresql, make_config, plan)(charts=registry(parcel=chart), retries=1)
    _refuse(postgresql, state, _AT_ONCE)
    tries: list[Any] = []

    def mend(data: Any, now: Any) -> None:
        tries.append(data)
        if len(tries) == 2:
            with postgresql.bare_engine(poolclass=NullPool).begin() as connection:
                connection.exec_driver_sql("DROP FUNCTION host_refuses CASCADE")

    with chart.creating(mend):
        outcome = deliver(config, SCANS, "P7", delivery())
    assert outcome == CreatedAndDelivered("scans", tries[0]["execution"]["id"])
    assert tries[0] == tries[1]


@pytest.mark.parametrize("trigger", [_AT_ONCE, _AT_COMMIT], ids=["at once", "at commit"])
def test_a_fault_that_no_retry_mends(
    postgresql: Database, configure: Configure, plan: str, trigger: str
) -> None:
    """A broken constraint comes out as SQLAlchemy raised it, after one try, and nothing is written."""
    wire = Wire()
    _refuse(postgresql, "23514", trigger)
    with (
        wired(postgresql, wire, plan) as config,
        written(configure()) as rows,
        pytest.raises(IntegrityError),
    ):
        deliver(config, SCANS, "P7", delivery())
    assert wire.begun == 1
    assert rows.nothing


def test_pauses_grow_and_are_jittered(postgresql: Database, configure: Configure) -> None:
    """Between tries the pause doubles up to its longest, half to one and a half of it."""
    from statifier_router import transactions

    def pauses(jitter: float) -> list[float]:
        retries = transactions.Retries(8, jitter=lambda: jitter)
        fault = DBAPIError("", None, psycopg.errors.DeadlockDetected())
        found = [retries.pause_after(fault) for _ in range(9)]
        assert found.pop() is None
        return [pause for pause in found if pause is not None]

    assert pauses(0.5) == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert pauses(0.0) == [pause / 2 for pause in pauses(0.5)]


# --- a wait runs out ----------------------------------------------------------------------------------

Held = Literal["claim", "claim of an existing execution", "address", "execution"]


@pytest.mark.parametrize("held", ["claim", "claim of an existing execution", "address", "execution"])
@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
def test_a_wait_that_runs_out(
    postgresql: Database, configure: Configure, plan: str, held: Held, borrowed: bool
) -> None:
    """`ExecutionBusy` names the execution whose lock was waited for, None for a claim or an address.

    It is not retried. In a borrowed transaction the caller's own bound counts, and stays what it was.
    """
    holder = configure()
    created = deliver(holder, SCANS, "P7", delivery("m-0"))
    with open_transaction(holder) as (connection, _):
        key, message_id = {
            "claim": ("P8", "m-1"),
            "claim of an existing execution": ("P7", "m-1"),
            "address": ("P8", "m-2"),
            "execution": ("P7", "m-2"),
        }[held]
        deliver(holder, SCANS, key, delivery("m-1"), connection=connection)
        wire = Wire()
        patience = TIMEOUT * MOMENT if borrowed else MOMENT
        with (
            wired(postgresql, wire, plan, lock_timeout=patience) as config,
            written(holder) as rows,
            pytest.raises(ExecutionBusy) as caught,
        ):
            if borrowed:
                _deliver_borrowed(config, key, message_id)
            else:
                deliver(config, SCANS, key, delivery(message_id))
        connection.commit()
    assert rows.nothing
    assert caught.value.execution_id == (created.execution_id if held == "execution" else None)
    assert (caught.value.binding_id, caught.value.retryable) == ("scans", True)
    assert wire.counted[0].startswith("BEGIN")
    # What is asked to name the execution is undone, and no try.
    tries = [sql for sql in wire.counted if "INSERT INTO statifier_router_claims" in sql]
    assert len(tries) == 1 + (plan == "merged") + borrowed


def _deliver_borrowed(config: Config, key: str, message_id: str) -> None:
    with config.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        try:
            deliver(config, SCANS, key, delivery(message_id), connection=connection)
        finally:
            # The caller's transaction is usable, and its setting is its own.
            assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "50ms"
            assert isinstance(
                deliver(config, SCANS, "other", delivery("m-9"), connection=connection), CreatedAndDelivered
            )


def test_naming_an_execution_takes_no_lock(postgresql: Database, configure: Configure) -> None:
    """A borrowed transaction in which a wait ran out holds nothing of what was waited for."""
    holder, other = configure(), configure(lock_timeout=MOMENT)
    deliver(holder, SCANS, "P7", delivery("m-0"))
    with open_transaction(holder) as (held, _), open_transaction(configure()) as (connection, _):
        # The wait is for the claim of m-1; the execution at P7 is free.
        deliver(holder, SCANS, "elsewhere", delivery("m-1"), connection=held)
        connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(ExecutionBusy):
            deliver(holder, SCANS, "P7", delivery("m-1"), connection=connection)
        assert isinstance(deliver(other, SCANS, "P7", delivery("m-2")), Delivered)
        connection.rollback()


# --- a snapshot too old -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("lost", ["claim", "address", "execution"])
def test_a_lost_race_in_a_stricter_transaction(
    postgresql: Database, configure: Configure, plan: str, level: str, lost: str
) -> None:
    """A borrowed transaction that raced with what it cannot see is to be begun again; nothing is doubled."""
    winner = configure()
    if lost == "execution":
        deliver(winner, SCANS, "P7", delivery("m-0"))
    wire = Wire()
    with wired(postgresql, wire, plan) as config:
        strict = config.engine.execution_options(isolation_level=level)
        with strict.connect() as connection:
            # The snapshot is taken here.
            connection.exec_driver_sql("SELECT count(*) FROM statifier_router_claims")
            deliver(winner, SCANS, "P7", delivery("m-1"))
            again = delivery("m-1" if lost == "claim" else "m-2")
            with written(winner) as rows, pytest.raises(IsolationConflict) as caught:
                deliver(config, SCANS, "P7", again, connection=connection)
            assert rows.nothing
            assert (caught.value.retryable, caught.value.binding_id) == (True, "scans")
            connection.rollback()
            assert wire.begun == 1
            answer = deliver(config, SCANS, "P7", again, connection=connection)
            connection.commit()
    assert isinstance(answer, Duplicate if lost == "claim" else Delivered)
    with winner.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT count(*) FROM statifier_router_executions")
        assert found.scalar_one() == 1


def test_never_in_a_stricter_transaction(configure: Configure) -> None:
    """`create="never"` is refused there: an old snapshot would answer that there is no execution."""
    config = configure()
    never = scans(create="never")
    strict = config.engine.execution_options(isolation_level="REPEATABLE READ")
    with strict.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM statifier_router_claims")
        deliver(config, SCANS, "P7", delivery("m-0"))
        for key in ("P7", "P8"):
            with pytest.raises(IsolationConflict) as caught:
                deliver(config, never, key, delivery("m-1"), connection=connection)
            assert not caught.value.retryable
        connection.commit()
    assert isinstance(deliver(config, never, "P7", delivery("m-1")), Delivered)


# --- SQLite -------------------------------------------------------------------------------------------


def test_a_writer_of_sqlite_waits_as_long_as_it_is_told(sqlite: Database, make_config: Any) -> None:
    """`lock_timeout` is the driver's own wait; when it runs out it is `ExecutionBusy`, after one try."""
    configure = configuring(sqlite, make_config)
    holder = configure()
    engine = sqlite.engine(pool_size=1)
    hasty = configure(engine=engine, lock_timeout=MOMENT)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
    assert driver is not None
    ran: list[str] = []
    driver.set_trace_callback(ran.append)
    with open_transaction(holder) as (connection, _):
        deliver(holder, SCANS, "P7", delivery("m-1"), connection=connection)
        with pytest.raises(ExecutionBusy) as caught:
            deliver(hasty, SCANS, "P8", delivery("m-2"))
        connection.commit()
    driver.set_trace_callback(None)
    assert ran == ["PRAGMA busy_timeout = 50", "BEGIN IMMEDIATE", "PRAGMA busy_timeout = 5000"]
    assert (caught.value.execution_id, caught.value.retryable) == (None, True)
    assert isinstance(deliver(hasty, SCANS, "P8", delivery("m-2")), CreatedAndDelivered)


def test_a_reader_of_sqlite_waits_for_no_writer(sqlite: Database, make_config: Any) -> None:
    """While a delivery is open every reader answers what was committed before it."""
    configure = configuring(sqlite, make_config)
    holder, reader = configure(), configure()
    created = deliver(holder, SCANS, "P7", delivery("m-1")).execution_id
    with open_transaction(holder) as (connection, _):
        deliver(holder, SCANS, "P7", delivery("m-2"), connection=connection)
        assert len(seen(reader, created)) == 1
        assert len(executions.inputs(reader, created)) == 2
        assert executions.replay(reader, created).agrees
        assert len(ledger.rows(reader)) == 1
        assert addresses.find(reader, "acme", "parcel", "P7") is not None
        assert addresses.by_execution(reader, created) is not None
        connection.commit()
    assert len(seen(reader, created)) == 2


# --- behind a pooler ----------------------------------------------------------------------------------


def test_behind_a_transaction_pooler(postgresql: Database, configure: Configure, plan: str) -> None:
    """With prepared statements off, nothing of a delivery outlives its transaction on the server.

    Each transaction begins on a session that knows nothing, as behind a pooler, and leaves nothing on it.
    """
    left: list[Any] = []

    def end(opened: Any, record: Any) -> None:
        opened.autocommit = True
        with opened.cursor() as cursor:
            cursor.execute(
                "SELECT name FROM pg_prepared_statements"
                " UNION ALL SELECT name FROM pg_settings WHERE source = 'session'"
                " UNION ALL SELECT name FROM pg_cursors WHERE is_holdable"
                " UNION ALL SELECT locktype FROM pg_locks WHERE pid = pg_backend_pid()"
                "   AND locktype NOT IN ('virtualxid', 'relation')"
            )
            left.extend(row[0] for row in cursor.fetchall())
            cursor.execute("DISCARD ALL")
        opened.autocommit = False

    engine = postgresql.engine(connect_args={"prepare_threshold": None}, pool_size=1, max_overflow=0)
    config = configure(engine=engine, bindings=[SCANS])
    with _at_checkin(engine, end):
        for number in range(12):
            route(config, message(f"m-{number // 2}", f"P{number // 3}"), now=NOW)
    assert left == []
    assert len(ledger.rows(config)) == 12


@contextmanager
def _at_checkin(engine: Engine, act: Callable[[Any, Any], None]) -> Iterator[None]:
    event.listen(engine, "checkin", act)
    try:
        yield
    finally:
        event.remove(engine, "checkin", act)


def test_prepared_statements_are_the_drivers_own_affair(postgresql: Database, configure: Configure) -> None:
    """Without that setting the driver prepares what it sends often: the one thing a pooler would lose."""
    config = configure(engine=postgresql.engine(pool_size=1, max_overflow=0))
    for number in range(8):
        deliver(config, SCANS, "P7", delivery(f"m-{number}"))
    with config.engine.connect() as connection:
        prepared = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()
    assert prepared > 0
