"""Doors on a caller's transaction: all of a delivery or none of it, and nothing else of theirs is touched."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from datetime import timedelta

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, insert, select, text
from sqlalchemy import event as sa_event
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, declarative_base, scoped_session, sessionmaker
from sqlalchemy.pool import QueuePool

from statifier_router import (
    ConfigError,
    DeliveryError,
    ExecutionBusy,
    IsolationConflict,
    Plan,
    StepFailed,
    UnresolvedDocument,
    addresses,
    claims,
    deliver,
    deliver_event,
    executions,
    ledger,
    prepare_engine,
    route,
)
from tests.support import locks
from tests.support.charts import Calling, delivery, envelope, message, obedient, registry, scans
from tests.support.rows import everything, written

PLAN = Plan("jobs", "parcel")

only_postgresql = pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)

_metadata = MetaData()
_notes = Table("host_notes", _metadata, Column("id", Integer, primary_key=True), Column("note", Text))
_Base = declarative_base()


class Order(_Base):
    __tablename__ = "host_orders"
    id = Column(Integer, primary_key=True)
    name = Column(Text, nullable=False)


@pytest.fixture
def calling():
    """The chart of the document `calling`."""
    return Calling()


@pytest.fixture
def configure(database, make_config, calling):
    """`configure(**kw)`: a configuration on each database, beside two tables of the host's."""

    def make(engine=None, **kw):
        engine = engine or database.engine()
        with engine.begin() as connection:
            _metadata.create_all(connection)
            _Base.metadata.create_all(connection)
        kw.setdefault("charts", registry(parcel=obedient(), calling=calling))
        kw.setdefault("bindings", [scans()])
        return make_config(database, engine=engine, **kw)

    return make


@pytest.fixture
def config(configure):
    """The plain one."""
    return configure()


def note(connection, text_="mine"):
    connection.execute(insert(_notes).values(note=text_))


def notes(config):
    with config.engine.connect() as connection:
        return list(connection.scalars(select(_notes.c.note)))


DOORS = {
    "route": lambda config, connection, **kw: route(config, message(), connection=connection),
    "deliver": lambda config, connection, **kw: deliver(
        config, scans(**kw), "P7", delivery(), connection=connection
    ),
    "deliver_event": lambda config, connection, document="parcel", event="scanned": deliver_event(
        config, Plan("jobs", document), "P7", envelope(event), connection=connection
    ),
}


# --- the caller commits -----------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_the_caller_commits(config, door):
    """A door on a caller's connection leaves the commit to the caller: before it nobody else sees
    anything, after a rollback nothing is there.
    """
    with config.engine.connect() as connection:
        with connection.begin() as transaction:
            DOORS[door](config, connection)
            assert everything(config, connection).counts()["executions"] == 1
            assert everything(config).empty
            transaction.rollback()
        assert everything(config).empty
        with connection.begin():
            DOORS[door](config, connection)
        assert not connection.closed
    assert everything(config).counts()["executions"] == 1


@pytest.mark.parametrize("door", DOORS)
def test_a_connection_without_a_transaction(config, door):
    """Where none is begun, SQLAlchemy begins it, and the caller commits."""
    with config.engine.connect() as connection:
        DOORS[door](config, connection)
        assert connection.in_transaction()
        connection.rollback()
        assert everything(config).empty
        DOORS[door](config, connection)
        connection.commit()
    assert everything(config).counts()["executions"] == 1


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["session", "scoped"])
def test_a_session(config, door, kind):
    """A `Session` and a `scoped_session` are connections too."""
    factory = sessionmaker(config.engine)
    session = factory() if kind == "session" else scoped_session(factory)
    try:
        session.add(Order(name="mine"))
        session.flush()
        DOORS[door](config, session)
        assert everything(config).empty
        session.commit()
    finally:
        session.close()
    assert everything(config).counts()["executions"] == 1
    with config.engine.connect() as connection:
        assert connection.execute(select(Order.name)).scalars().all() == ["mine"]


def test_a_session_without_an_engine(config):
    """A session that only knows engines by class gets the configuration's for this."""
    with Session(binds={Order: config.engine}) as session:
        session.add(Order(name="mine"))
        deliver_event(config, PLAN, "P7", envelope(), connection=session)
        session.commit()
    assert everything(config).counts()["executions"] == 1


def test_a_session_is_never_flushed(config):
    """Trap 15. A bad pending row of the caller's is not blamed on the event, and not swallowed: the
    delivery succeeds, and the caller's own flush fails.
    """
    with Session(config.engine) as session:
        bad = Order(name=None)
        session.add(bad)
        outcome = deliver_event(config, PLAN, "P7", envelope(), connection=session)
        assert outcome.recorded == "created_and_delivered"
        assert bad in session.new
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
    assert everything(config).empty


def test_an_error_does_not_flush_either(config):
    """Nor is it flushed where the delivery fails; the good pending row is committed later."""
    with Session(config.engine) as session:
        session.add(Order(name="mine"))
        with pytest.raises(UnresolvedDocument):
            deliver_event(config, Plan("jobs", "letter"), "P7", envelope(), connection=session)
        assert len(session.new) == 1
        session.commit()
    with config.engine.connect() as connection:
        assert connection.execute(select(Order.name)).scalars().all() == ["mine"]
    assert everything(config).empty


def test_no_door_commits_or_closes(config):
    """A door on a borrowed transaction never commits, rolls back or closes it, whatever happens."""
    told = []
    for name in ("commit", "rollback"):
        sa_event.listen(config.engine, name, lambda *_, name=name: told.append(name))
    with config.engine.connect() as connection:
        for door in DOORS.values():
            door(config, connection)
        with pytest.raises(DeliveryError):
            deliver_event(
                config, Plan("jobs", "letter"), "P8", envelope(message_id="x"), connection=connection
            )
        with pytest.raises(StepFailed):
            deliver_event(config, PLAN, "P8", envelope("failed", "x"), connection=connection)
        addresses.reap(config, connection=connection)
        claims.reap(config, connection=connection)
        assert told == []
        assert connection.in_transaction()
        assert not connection.closed
        connection.rollback()


def test_inside_the_callers_own_savepoint(config):
    """A caller may have savepoints of its own open; undoing one undoes the delivery inside it."""
    with config.engine.begin() as connection:
        deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        with connection.begin_nested() as nested:
            deliver_event(config, PLAN, "P8", envelope(message_id="e-2"), connection=connection)
            nested.rollback()
        with connection.begin_nested():
            deliver_event(config, PLAN, "P9", envelope(message_id="e-3"), connection=connection)
    assert [row["key"] for row in everything(config).addresses] == ["P7", "P9"]


def test_many_deliveries_in_one_transaction(config):
    """Several doors may join one transaction, and see what the earlier ones did."""
    with config.engine.begin() as connection:
        told = [
            deliver_event(config, PLAN, "P7", envelope(message_id=id), connection=connection).recorded
            for id in ("e-1", "e-2", "e-1")
        ]
        assert executions.fetch(
            config, everything(config, connection).executions[0]["id"], connection=connection
        )
        assert len(ledger.rows(config, connection=connection)) == 3
        assert ledger.rows(config) == []
    assert told == ["created_and_delivered", "delivered", "duplicate"]


# --- all or nothing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_an_unresolved_document(configure, door):
    """Trap 10. A host wrote a row, then a door fails, and the host commits: its row is there, nothing of
    the delivery is.
    """
    config = configure(bindings=[scans(document="letter")])
    with config.engine.begin() as connection:
        note(connection)
        with pytest.raises(UnresolvedDocument):
            DOORS[door](config, connection, document="letter")
        note(connection, "more")
    assert notes(config) == ["mine", "more"]
    assert everything(config).empty


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("door", DOORS)
def test_any_other_exception(configure, door, error):
    """Trap 12. Any other exception is rolled back to the savepoint as well, and comes out as it was: a
    caller who catches it can never commit half a delivery.
    """

    def resolver(scope, document):
        raise error("from the host")

    config = configure(charts=None, resolver=resolver, chart_resolver=lambda _: None)
    with config.engine.begin() as connection:
        note(connection)
        with pytest.raises(error, match="from the host"):
            DOORS[door](config, connection)
        note(connection, "more")
    assert notes(config) == ["mine", "more"]
    assert everything(config).empty


def test_a_database_error_of_ours(database, config):
    """A fault that no retry mends comes out as SQLAlchemy raised it, and the caller's transaction stays
    usable.
    """
    with config.engine.begin() as connection:
        if database.kind == "sqlite":
            connection.execute(
                text(
                    "CREATE TRIGGER no_rows BEFORE INSERT ON statifier_router_ledger"
                    " BEGIN SELECT RAISE(ABORT, 'not now'); END"
                )
            )
        else:
            connection.execute(
                text("ALTER TABLE statifier_router_ledger ADD CONSTRAINT no_rows CHECK (false)")
            )
    with config.engine.begin() as connection:
        note(connection)
        with pytest.raises(IntegrityError):
            deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        note(connection, "more")
    assert notes(config) == ["mine", "more"]
    assert everything(config).empty


def test_a_route_that_fails_halfway(configure):
    """On a borrowed connection the earlier bindings stand in the caller's transaction and on the error;
    the one that failed is undone.
    """
    config = configure(bindings=[scans(id="a"), scans(id="b", document="letter"), scans(id="c")])
    with config.engine.begin() as connection:
        with pytest.raises(UnresolvedDocument) as raised:
            route(config, message(), connection=connection)
        note(connection)
    assert [each.binding_id for each in raised.value.outcomes] == ["a"]
    assert [row.binding_id for row in ledger.rows(config)] == ["a"]
    assert notes(config) == ["mine"]


def test_refusals_join_too(configure):
    """The row of a refused key, and of an unrouted message, are the caller's to commit."""
    config = configure(bindings=[scans(key="depot"), scans(id="mute", source="mute", match={"a": 1})])
    with config.engine.connect() as connection:
        route(config, message(), connection=connection)
        route(config, type(message())("mute", "m-1", "acme", {}), connection=connection)
        assert [row.outcome for row in ledger.rows(config, connection=connection)] == [
            "key_refused",
            "unrouted",
        ]
        connection.rollback()
    assert ledger.rows(config) == []


def test_a_resolver_that_swallows_its_database_error(database, configure):
    """Trap 27. A resolver swallows its own database error on the caller's connection. PostgreSQL has
    aborted the transaction: the door raises, and never answers an outcome over it. On SQLite a statement
    that failed undid itself alone, and the delivery stands.
    """
    lent = []

    def resolver(scope, document):
        with contextlib.suppress(DBAPIError):
            lent[0].execute(text("SELECT * FROM nowhere"))
        return chart

    chart = obedient()
    config = configure(charts=None, resolver=resolver, chart_resolver=lambda _: chart)
    with config.engine.begin() as connection:
        lent.append(connection)
        note(connection)
        if database.kind == "postgresql":
            with pytest.raises(DBAPIError):
                deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        else:
            deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        note(connection, "more")
    assert notes(config) == ["mine", "more"]
    assert everything(config).counts()["executions"] == (0 if database.kind == "postgresql" else 1)


@pytest.mark.parametrize("where", ["resolver", "step"])
def test_host_code_that_ends_the_transaction(database, configure, calling, where):
    """Host code on the caller's connection meets a fault on which SQLite rolls the whole transaction back
    by itself, and swallows it. The door raises, and not one row of the delivery is left behind.
    """
    lent = []

    def end_it(*_):
        connection = lent[0]
        with pytest.raises(DBAPIError):
            if database.kind == "sqlite":
                connection.execute(text("INSERT OR ROLLBACK INTO host_notes (id) VALUES (77)"))
            else:
                connection.execute(text("INSERT INTO host_notes (id) VALUES (77)"))

    def resolver(scope, document):
        if where == "resolver":
            end_it()
        return calling

    config = configure(charts=None, resolver=resolver, chart_resolver=lambda _: calling)
    with config.engine.begin() as connection:
        connection.execute(insert(_notes).values(id=77))
    with config.engine.connect() as connection:
        lent.append(connection)
        note(connection)
        with (
            pytest.raises((DBAPIError, DeliveryError)),
            calling.calling(end_it if where == "step" else lambda *_: None),
        ):
            deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        if not connection.invalidated:
            connection.rollback()
    assert everything(config).empty


def test_a_rollback_that_fails(database, config, calling):
    """An error whose rollback fails is not masked by that, and the connection is given up, so that the
    caller can never commit half a delivery.
    """

    def cut(position, event, now):
        connection.connection.driver_connection.close()
        raise RuntimeError("the real reason")

    with config.engine.connect() as connection:
        with pytest.raises(StepFailed, match="the real reason"), calling.calling(cut):
            deliver_event(config, Plan("jobs", "calling"), "P7", envelope(), connection=connection)
        assert connection.invalidated
        with pytest.raises(SQLAlchemyError):
            note(connection)
        connection.rollback()
    assert everything(config).empty


# --- settings ---------------------------------------------------------------------------------------


def _settings(connection, kind):
    if kind == "sqlite":
        return [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("busy_timeout", "journal_mode")
        ]
    return list(
        connection.exec_driver_sql(
            "SELECT current_setting(name) FROM unnest(ARRAY['lock_timeout', 'statement_timeout',"
            " 'transaction_isolation', 'search_path', 'application_name']) AS name"
        ).scalars()
    )


def test_no_setting_is_changed(database, configure):
    """Lock timeout and isolation in a borrowed transaction are the caller's own."""
    config = configure(lock_timeout=timedelta(seconds=1))
    with config.engine.connect() as connection:
        if database.kind == "postgresql":
            connection.exec_driver_sql("SET LOCAL lock_timeout = '4321ms'")
        else:
            connection.exec_driver_sql("PRAGMA busy_timeout = 4321")
        before = _settings(connection, database.kind)
        for door in DOORS.values():
            door(config, connection)
        with pytest.raises(StepFailed):
            deliver_event(config, PLAN, "P8", envelope("failed", "x"), connection=connection)
        executions.suspend(config, everything(config, connection).executions[0]["id"], connection=connection)
        assert _settings(connection, database.kind) == before
        connection.rollback()


def test_the_pooled_connection_is_as_it_was(database, configure):
    """After a transaction of the library's own, the connection that goes back to the pool waits as the
    host's own always did.
    """
    engine = database.engine(poolclass=QueuePool, pool_size=1, max_overflow=0)
    config = configure(engine, lock_timeout=timedelta(milliseconds=77))
    with engine.connect() as connection:
        before = _settings(connection, database.kind)
    deliver_event(config, PLAN, "P7", envelope())
    with pytest.raises(StepFailed):
        deliver_event(config, PLAN, "P8", envelope("failed", "x"))
    with engine.connect() as connection:
        assert _settings(connection, database.kind) == before


# --- isolation --------------------------------------------------------------------------------------

STRICT = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])


@only_postgresql
@STRICT
@pytest.mark.parametrize("lost", ["address", "claim"])
def test_a_lost_race_at_a_stricter_level(config, level, lost):
    """In a borrowed transaction at a stricter level a race that was lost to a row its snapshot does not
    see is `IsolationConflict`, which says to restart the whole transaction; never a second execution.
    """
    strict = config.engine.execution_options(isolation_level=level)
    with strict.connect() as connection:
        connection.execute(text("SELECT 1"))
        winner = deliver_event(config, PLAN, "P7", envelope())
        message_id = "e-1" if lost == "claim" else "e-2"
        with pytest.raises(IsolationConflict, match="restart the whole transaction") as raised:
            deliver_event(config, PLAN, "P7", envelope(message_id=message_id), connection=connection)
        assert (raised.value.retryable, raised.value.fault) == (True, "transient")
        assert raised.value.binding_id == "jobs"
        connection.rollback()
        again = deliver_event(config, PLAN, "P7", envelope(message_id=message_id), connection=connection)
        assert again.recorded == ("duplicate" if lost == "claim" else "delivered")
        connection.commit()
    assert [row["id"] for row in everything(config).executions] == [winner.execution_id]


@only_postgresql
@STRICT
@pytest.mark.parametrize("exists", [True, False])
def test_never_at_a_stricter_level(config, level, exists):
    """`create="never"` is refused there: it would answer from a snapshot that may be stale."""
    if exists:
        deliver_event(config, PLAN, "P7", envelope(message_id="e-0"))
    strict = config.engine.execution_options(isolation_level=level)
    with strict.connect() as connection:
        with (
            written(config, connection) as rows,
            pytest.raises((IsolationConflict, ConfigError), match="READ COMMITTED"),
        ):
            deliver_event(
                config, Plan("jobs", "parcel", create="never"), "P7", envelope(), connection=connection
            )
        assert rows.nothing
        connection.rollback()


@only_postgresql
@STRICT
def test_a_stricter_level_without_a_race(config, level):
    """Without a race a stricter level delivers as any other."""
    strict = config.engine.execution_options(isolation_level=level)
    with strict.begin() as connection:
        told = [
            deliver_event(config, PLAN, "P7", envelope(message_id=id), connection=connection).recorded
            for id in ("e-1", "e-2", "e-1")
        ]
    assert told == ["created_and_delivered", "delivered", "duplicate"]


@only_postgresql
@pytest.mark.parametrize("level", ["READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_an_own_transaction_is_read_committed(database, make_config, calling, level):
    """A door that opens its transaction sets READ COMMITTED, whatever the engine's own level is."""
    engine = database.engine(isolation_level=level)
    config = make_config(database, engine=engine, charts=registry(calling=calling))
    told = []
    plan = Plan("jobs", "calling", create="if_absent")

    def look(position, event, now):
        told.append(frame_connection().exec_driver_sql("SHOW transaction_isolation").scalar())

    def frame_connection():
        from statifier_router import ambient

        return ambient.in_force(engine).connection

    with calling.calling(look):
        deliver_event(config, plan, "P7", envelope())
    never = Plan("never", "calling", create="never")
    assert deliver_event(config, never, "P7", envelope()).recorded == "delivered"
    assert told == ["read committed"]


# --- waits ------------------------------------------------------------------------------------------


@only_postgresql
@pytest.mark.parametrize("what", ["claim", "address", "execution"])
def test_the_callers_own_lock_timeout(config, what):
    """A wait in a borrowed transaction is bounded by the caller's own setting; it is `ExecutionBusy`,
    naming the execution where that was waited for, and the transaction stays usable.
    """
    existing = deliver_event(config, PLAN, "P7", envelope(message_id="e-0"))
    with config.engine.connect() as holder, config.engine.connect() as connection:
        if what == "execution":
            executions.suspend(config, existing.execution_id, connection=holder)
        elif what == "claim":
            deliver_event(config, PLAN, "P9", envelope(), connection=holder)
        else:
            deliver_event(config, PLAN, "P8", envelope(message_id="other"), connection=holder)
        connection.exec_driver_sql("SET LOCAL lock_timeout = '30ms'")
        note(connection)
        key = "P8" if what == "address" else "P7"
        with pytest.raises(ExecutionBusy) as raised:
            deliver_event(config, PLAN, key, envelope(), connection=connection)
        assert raised.value.execution_id == (existing.execution_id if what == "execution" else None)
        assert (raised.value.retryable, raised.value.fault) == (True, "transient")
        note(connection, "more")
        connection.commit()
        holder.rollback()
    assert notes(config) == ["mine", "more"]
    assert everything(config).counts()["claims"] == 1


def test_an_own_wait_is_bounded(database, configure):
    """`lock_timeout` bounds a door's own wait: `ExecutionBusy`, after which the same call succeeds."""
    config = configure(lock_timeout=timedelta(milliseconds=30))
    existing = deliver_event(config, PLAN, "P7", envelope(message_id="e-0"))
    with config.engine.connect() as holder:
        executions.suspend(config, existing.execution_id, connection=holder)
        with pytest.raises(ExecutionBusy) as raised:
            deliver_event(config, PLAN, "P7", envelope())
        assert raised.value.binding_id == "jobs"
        if database.kind == "postgresql":
            assert raised.value.execution_id == existing.execution_id
            with pytest.raises(ExecutionBusy) as raised:
                executions.resume(config, existing.execution_id)
            assert raised.value.execution_id == existing.execution_id
        holder.rollback()
    assert deliver_event(config, PLAN, "P7", envelope()).recorded == "delivered"


@only_postgresql
@pytest.mark.parametrize("what", ["claim", "address"])
def test_an_own_wait_for_a_claim_or_an_address(configure, what):
    """So it does for a claim and an address; neither names an execution."""
    config = configure(lock_timeout=timedelta(milliseconds=30))
    with config.engine.connect() as holder:
        message_id = "e-1" if what == "claim" else "other"
        deliver_event(config, PLAN, "P7", envelope(message_id=message_id), connection=holder)
        with pytest.raises(ExecutionBusy) as raised:
            deliver_event(config, PLAN, "P7", envelope())
        assert (raised.value.execution_id, raised.value.binding_id) == (None, "jobs")
        holder.rollback()
    assert deliver_event(config, PLAN, "P7", envelope()).recorded == "created_and_delivered"


def test_readers_wait_for_no_writer(configure):
    """What only reads is answered while a delivery is open elsewhere, and sees what is committed."""
    config = configure(lock_timeout=timedelta(milliseconds=1))
    created = deliver_event(config, PLAN, "P7", envelope())
    with config.engine.connect() as holder:
        deliver_event(config, PLAN, "P7", envelope(message_id="e-2"), connection=holder)
        id = created.execution_id
        assert executions.fetch(config, id).revision == 1
        assert len(executions.inputs(config, id)) == 2
        assert executions.replay(config, id).agrees
        assert addresses.find(config, "acme", "parcel", "P7") == addresses.by_execution(config, id)
        assert len(ledger.rows(config)) == 1
        holder.rollback()


@only_postgresql
def test_a_create_in_an_open_transaction(database, config):
    """30-executions, trap 3. A second connection steps an address whose creation is uncommitted: it waits
    (seen blocked), and after the commit it steps that execution; no chart is resolved by it.
    """
    ended = []
    watcher = database.engine()
    with config.engine.connect() as connection:
        created = deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        pid = locks.backend_pid(connection)
        second = threading.Thread(
            target=lambda: ended.append(deliver_event(config, PLAN, "P7", envelope(message_id="e-2")))
        )
        second.start()
        locks.wait_until_one_is_blocked(watcher, by=pid)
        assert ended == []
        connection.commit()
        second.join(30)
    assert [each.recorded for each in ended] == ["delivered"]
    assert ended[0].execution_id == created.execution_id
    assert executions.fetch(config, created.execution_id).revision == 2
    assert everything(config).counts()["executions"] == 1


def test_a_create_in_an_open_transaction_that_rolls_back(database, configure):
    """The same, with a creation that is undone: the second connection creates. On SQLite, whose second
    writer waits at its BEGIN, it is busy until then.
    """
    config = configure(lock_timeout=timedelta(milliseconds=30 if database.kind == "sqlite" else 30_000))
    ended = []
    with config.engine.connect() as connection:
        first = deliver_event(config, PLAN, "P7", envelope(), connection=connection)
        if database.kind == "sqlite":
            with pytest.raises(ExecutionBusy):
                deliver_event(config, PLAN, "P7", envelope(message_id="e-2"))
            connection.rollback()
            ended.append(deliver_event(config, PLAN, "P7", envelope(message_id="e-2")))
        else:
            watcher = database.engine()
            pid = locks.backend_pid(connection)
            second = threading.Thread(
                target=lambda: ended.append(deliver_event(config, PLAN, "P7", envelope(message_id="e-2")))
            )
            second.start()
            locks.wait_until_one_is_blocked(watcher, by=pid)
            connection.rollback()
            second.join(30)
    assert [each.recorded for each in ended] == ["created_and_delivered"]
    assert ended[0].execution_id != first.execution_id
    assert everything(config).counts()["executions"] == 1


def test_a_borrowed_transaction_is_never_retried(database, config, calling):
    """A transient fault in a borrowed transaction is told after one try: only the caller can start again."""
    import psycopg

    tries = []

    def break_it(position, event, now):
        tries.append(1)
        if database.kind == "postgresql":
            raise psycopg.errors.DeadlockDetected("deadlock detected")
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    with config.engine.begin() as connection, calling.calling(break_it):
        with pytest.raises(DeliveryError) as raised:
            deliver_event(config, Plan("jobs", "calling"), "P7", envelope(), connection=connection)
        note(connection)
    assert (len(tries), raised.value.retryable) == (1, True)
    assert notes(config) == ["mine"]
    assert everything(config).empty


# --- connections that are refused -------------------------------------------------------------------


def _by_engine_argument(database, raw):
    return _prepared(database, create_engine(database.url, isolation_level="AUTOCOMMIT")).connect()


def _by_engine_option(database, raw):
    return (
        _prepared(database, create_engine(database.url))
        .execution_options(isolation_level="AUTOCOMMIT")
        .connect()
    )


def _by_connection_option(database, raw):
    return (
        _prepared(database, create_engine(database.url))
        .connect()
        .execution_options(isolation_level="AUTOCOMMIT")
    )


def _by_a_session(database, raw):
    engine = _prepared(database, create_engine(database.url, isolation_level="AUTOCOMMIT"))
    return Session(engine)


def _by_a_sessions_options(database, raw):
    session = Session(_prepared(database, create_engine(database.url)))
    session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
    return session


def _by_the_driver(database, raw):
    connection = _prepared(database, create_engine(database.url)).connect()
    connection.connection.driver_connection.autocommit = True
    return connection


def _by_connect_argument(database, raw):
    return create_engine(database.url, connect_args={"autocommit": True}).connect()


def _prepared(database, engine):
    return prepare_engine(engine) if database.kind == "sqlite" else engine


_SPELLINGS = {
    each.__name__.removeprefix("_by_"): each
    for each in (
        _by_engine_argument,
        _by_engine_option,
        _by_connection_option,
        _by_a_session,
        _by_a_sessions_options,
    )
}
_OF_THE_DRIVER = {each.__name__.removeprefix("_by_"): each for each in (_by_the_driver, _by_connect_argument)}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("spelling", _SPELLINGS)
def test_autocommit_is_refused(database, config, spelling, door):
    """A connection in autocommit, however that was said, is refused before any statement, in one line
    that names `connection`; nothing is written.
    """
    _refuse(database, config, _SPELLINGS[spelling](database, None), door)


@only_postgresql
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("spelling", _OF_THE_DRIVER)
def test_autocommit_of_the_driver_is_refused(database, config, spelling, door):
    """Also where it was set on the driver's own connection."""
    _refuse(database, config, _OF_THE_DRIVER[spelling](database, None), door)


def _refuse(database, config, connection, door):
    engine = connection.get_bind() if isinstance(connection, Session) else connection.engine
    statements = []
    sa_event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    try:
        with written(config) as rows, pytest.raises(ConfigError, match="autocommit") as raised:
            DOORS[door](config, connection)
        assert rows.nothing
        assert str(raised.value).startswith("connection ")
        assert "\n" not in str(raised.value)
        assert statements == []
    finally:
        connection.close()
        engine.dispose()


@pytest.mark.parametrize("door", DOORS)
def test_a_bare_connection(database, config, door):
    """A borrowed PostgreSQL connection may come from a host's own engine; a SQLite one must come from a
    prepared engine, else it is refused, unwritten, with the line that mends it.
    """
    engine = database.bare_engine()
    with engine.connect() as connection:
        if database.kind == "postgresql":
            DOORS[door](config, connection)
            connection.commit()
            assert everything(config).counts()["executions"] == 1
        else:
            with pytest.raises(ConfigError, match="prepare_engine") as raised:
                DOORS[door](config, connection)
            assert "\n" not in str(raised.value)
            connection.commit()
            assert everything(config).empty


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("what", ["engine", "text", "driver", "transaction"])
def test_what_is_no_connection(config, door, what):
    """Anything but a Connection or a Session is refused, naming its type."""
    with config.engine.connect() as connection, connection.begin() as transaction:
        wrong = {
            "engine": config.engine,
            "text": "connection",
            "driver": connection.connection.driver_connection,
            "transaction": transaction,
        }[what]
        with pytest.raises(ConfigError, match=type(wrong).__name__) as raised:
            DOORS[door](config, wrong)
        assert str(raised.value).startswith("connection must be")
    assert everything(config).empty


def test_a_connection_to_the_other_database(sqlite, postgresql, make_config):
    """A connection to the other kind of database is refused."""
    config = make_config(sqlite, charts=registry(parcel=obedient()), bindings=[scans()])
    with postgresql.engine().connect() as connection:
        for door in DOORS.values():
            with pytest.raises(ConfigError, match="postgresql"):
                door(config, connection)
        assert not connection.in_transaction()


def test_every_function_takes_a_connection(config):
    """The readers, reapers and operator acts join a caller's transaction, by a session as well."""
    with Session(config.engine) as session:
        created = deliver_event(config, PLAN, "P7", envelope(), connection=session)
        id = created.execution_id
        assert addresses.find(config, "acme", "parcel", "P7", connection=session).execution_id == id
        assert addresses.by_execution(config, id, connection=session).key == "P7"
        assert executions.suspend(config, id, connection=session).status == "suspended"
        assert executions.resume(config, id, connection=session).status == "active"
        assert executions.fetch(config, id, connection=session).revision == 3
        assert len(executions.inputs(config, id, connection=session)) == 4
        assert executions.replay(config, id, connection=session).agrees
        assert executions.cancel(config, id, connection=session).status == "cancelled"
        assert executions.fail(config, id, reason="late", connection=session) is False
        assert addresses.reap(config, connection=session).stamped == 1
        assert claims.reap(config, connection=session) == 1
        late = created_at(session, config)
        assert executions.prune(config, before=late, connection=session) == 1
        assert ledger.prune(config, before=late, connection=session) == 1
        session.rollback()
    assert everything(config).empty


def created_at(session, config):
    """An instant after everything in the tables."""
    rows = everything(config, session.connection())
    return max(row["ended_at"] for row in rows.executions) + timedelta(days=1)
