"""The two databases told apart: engines, borrowed connections, waits, and faults made for real."""

from __future__ import annotations

import sqlite3
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool

from statifier_router import dialect
from statifier_router.dialect import Trouble, trouble_of
from statifier_router.errors import ConfigError
from tests.support.locks import backend_pid, wait_until_blocked
from tests.support.processes import pause, release_together

IN_MEMORY = [
    "sqlite://",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite+pysqlite:///:memory:",
    "sqlite:///file::memory:?uri=true",
    "sqlite:///file::memory:?cache=shared&uri=true",
    "sqlite:///file:parcels?mode=memory&uri=true",
    "sqlite:///file:parcels?mode=memory&cache=shared&uri=true",
    "sqlite:///file:/parcels?vfs=memdb&uri=true",
]
CLAIM = (
    "INSERT INTO statifier_router_claims (binding_id, scope, message_id, digest, expires_at) "
    "VALUES ('b', '', :id, '', '2024-01-01T00:00:00.000000Z')"
)
COUNT = "SELECT count(*) FROM statifier_router_claims"
SOON = timedelta(milliseconds=20)


@contextmanager
def sent(engine):
    """The statements that SQLAlchemy sends through this engine."""
    statements = []

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


def counted(engine):
    with dialect.reader_options(engine).connect() as connection:
        return connection.execute(text(COUNT)).scalar_one()


def driver_of(connection):
    return connection.connection.driver_connection


def fails(call, *args, error=DBAPIError, **kw):
    with pytest.raises(error) as caught:
        call(*args, **kw)
    return caught.value


# --- engines ----------------------------------------------------------------------------------------


def test_an_engine_is_prepared_by_the_library_or_by_hand(database):
    """`create_engine` prepares, a host's own engine is prepared in place, and twice is once."""
    made = database.engine()
    assert dialect.is_prepared(made)
    hosts = database.bare_engine()
    assert not dialect.is_prepared(hosts)
    assert dialect.prepare_engine(hosts) is hosts
    assert dialect.is_prepared(hosts)
    assert dialect.prepare_engine(dialect.prepare_engine(hosts)) is hosts
    with sent(hosts) as statements, hosts.begin() as connection:
        connection.execute(text("SELECT 1"))
    assert [each for each in statements if each.startswith("BEGIN")] == ["BEGIN IMMEDIATE"] * (
        database.kind == "sqlite"
    )


def test_the_mark_follows_the_pool(database):
    """Options and disposal keep an engine prepared, and so its connections."""
    engine = database.engine()
    engine.dispose()
    optioned = engine.execution_options(stream_results=False).execution_options(logging_token="t")
    for each in (engine, optioned):
        assert dialect.is_prepared(each)
        with each.connect() as connection:
            dialect.check_borrowed(connection)
        each.dispose()
    assert dialect.is_prepared(engine)


def test_preparing_an_optioned_engine_prepares_the_one_below(sqlite):
    """Both share a pool, so both must begin as prepared engines do."""
    below = sqlite.bare_engine()
    optioned = below.execution_options(logging_token="t")
    assert dialect.prepare_engine(optioned) is optioned
    for each in (below, optioned):
        assert dialect.is_prepared(each)
        with sent(below) as statements, each.begin() as connection:
            connection.execute(text("SELECT 1"))
        assert statements[0] == "BEGIN IMMEDIATE"


def test_connections_that_the_pool_had_already_are_made_ready(sqlite):
    """An engine that was used before it was prepared keeps no connection that was not."""
    engine = sqlite.bare_engine()
    with engine.connect() as connection:
        first = driver_of(connection)
        connection.execute(text(COUNT))
    with engine.connect() as held:
        dialect.prepare_engine(engine)
        # This one is in use as the stock driver made it.
        with pytest.raises(ConfigError, match="prepare_engine"):
            dialect.check_borrowed(held)
    with engine.begin() as connection:
        assert driver_of(connection) is first
        dialect.check_borrowed(connection)
        assert driver_of(connection).in_transaction
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


@pytest.mark.parametrize("url", IN_MEMORY)
def test_sqlite_in_memory_is_refused(url):
    """Every spelling of it, by both doors, without connecting."""
    hosts = sqlalchemy.create_engine(url, poolclass=NullPool)
    for call, argument in ((dialect.create_engine, url), (dialect.prepare_engine, hosts)):
        with pytest.raises(ConfigError, match="in memory"):
            call(argument)


def test_sqlite_in_memory_is_refused_where_the_url_does_not_tell():
    """A creator may hide it; the first connection finds out, and is closed."""
    opened = []

    def creator():
        opened.append(sqlite3.connect(":memory:"))
        return opened[-1]

    engine = dialect.create_engine("sqlite:///somewhere.db", creator=creator)
    with pytest.raises(ConfigError, match="in memory"):
        engine.connect()
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError):
            connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql+pymysql://host/name", "mysql"),
        ("postgres://host/name", "postgres"),
        ("postgresql+psycopg2://host/name", "psycopg2"),
        ("postgresql+asyncpg://host/name", "asyncpg"),
        ("sqlite+aiosqlite:///parcels.db", "aiosqlite"),
        ("sqlite+pysqlcipher:///parcels.db", "pysqlcipher"),
    ],
)
def test_another_database_or_driver_is_refused(url, told):
    """One line that names the field and what was given, whether the driver is installed or not."""
    with pytest.raises(ConfigError) as caught:
        dialect.create_engine(url)
    assert str(caught.value).startswith("url must")
    assert told in str(caught.value)


@pytest.mark.parametrize("url", ["", "no url", "postgresql://u:secret@host:port/name", None, 5])
def test_what_is_no_url_is_refused_without_repeating_it(url):
    """The text may hold a password."""
    with pytest.raises(ConfigError) as caught:
        dialect.create_engine(url)
    assert "secret" not in str(caught.value)


def test_what_is_no_engine_is_refused(database):
    """A URL or a connection in the place of an engine is named."""
    with database.engine().connect() as connection:
        for value in ("sqlite:///parcels.db", None, connection):
            with pytest.raises(ConfigError, match=r"^engine must be"):
                dialect.prepare_engine(value)


def test_another_driver_is_refused_by_prepare_engine(database):
    """A host's engine on a driver that we do not know is refused as its URL would be."""
    engine = database.bare_engine()
    engine.dialect.driver = "other"
    with pytest.raises(ConfigError, match=r"^engine must use the driver"):
        dialect.prepare_engine(engine)


def test_postgresql_without_a_driver_is_psycopg():
    """The plain URL works, and its password and options stay."""
    engine = dialect.create_engine("postgresql://u:secret@host/name?application_name=parcels")
    assert engine.dialect.driver == "psycopg"
    assert engine.url.password == "secret"
    assert engine.url.query == {"application_name": "parcels"}


def test_an_old_sqlite_is_refused(sqlite, monkeypatch):
    """RETURNING came with 3.35."""
    engine = sqlite.bare_engine()
    monkeypatch.setattr(engine.dialect.dbapi, "sqlite_version_info", (3, 34, 9))
    with pytest.raises(ConfigError, match=r"3\.34\.9"):
        dialect.prepare_engine(engine)


@pytest.mark.parametrize(
    "connect_args",
    [
        {},
        {"isolation_level": "EXCLUSIVE"},
        {"isolation_level": None},
        # The driver's newer switch takes over transactions altogether.
        *([{"autocommit": False}, {"autocommit": True}] if sys.version_info >= (3, 12) else []),
    ],
)
def test_a_sqlite_connection_is_set_up(sqlite, connect_args):
    """WAL, a busy timeout, foreign keys; and transactions that are ours whatever the driver was told."""
    engine = sqlite.engine(connect_args=connect_args)
    with engine.begin() as connection:
        for pragma, value in [
            ("journal_mode", "wal"),
            ("synchronous", 1),
            ("busy_timeout", 5_000),
            ("foreign_keys", 1),
        ]:
            assert connection.execute(text(f"PRAGMA {pragma}")).scalar_one() == value
        connection.execute(text(CLAIM), {"id": "kept"})
        with pytest.raises(ZeroDivisionError), connection.begin_nested():
            connection.execute(text(CLAIM), {"id": "undone"})
            raise ZeroDivisionError
    assert counted(engine) == 1
    with engine.connect() as connection:
        connection.execute(text(CLAIM), {"id": "undone too"})
    assert counted(engine) == 1


def migrated(url):
    engine = dialect.create_engine(url, poolclass=NullPool)
    pause("ready")
    with engine.connect() as connection:
        return connection.execute(text("PRAGMA journal_mode")).scalar_one()


def test_processes_that_open_a_new_file_at_once(unmigrated_sqlite, children):
    """The first of them switches the file to WAL, the others wait for it; none fails."""
    started = [children.start("tests.test_dialect:migrated", unmigrated_sqlite.url) for _ in range(4)]
    release_together(started, "ready")
    assert [child.result() for child in started] == ["wal"] * 4


# --- transactions -----------------------------------------------------------------------------------


def test_a_transaction_of_sqlite_has_the_write_lock_from_its_begin(sqlite):
    """Who only read so far can still write; a second one waits at its begin, a reader does not."""
    engine = sqlite.engine()
    with engine.begin() as writer:
        writer.execute(text(COUNT))
        with engine.connect() as second:
            dialect.set_busy_timeout(second, SOON)
            assert trouble_of(fails(second.begin)) == Trouble("busy")
            # The connection is as good as before.
            assert not second.in_transaction()
            dialect.restore_busy_timeout(second)
        assert counted(engine) == 0
        writer.execute(text(CLAIM), {"id": "m"})
        assert counted(engine) == 0
    assert counted(engine) == 1


def test_autocommit_used_once_does_not_bring_the_implicit_begin_back(sqlite):
    """SQLAlchemy resets the driver after it; the next transaction is ours all the same."""
    engine = sqlite.engine(pool_size=1, max_overflow=0)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(CLAIM), {"id": "at once"})
    with sent(engine) as statements, engine.connect() as connection:
        connection.execute(text("CREATE TABLE host (id int)"))
        with pytest.raises(ZeroDivisionError), connection.begin_nested():
            connection.execute(text(CLAIM), {"id": "undone"})
            raise ZeroDivisionError
        connection.execute(text(CLAIM), {"id": "undone too"})
        assert statements[0] == "BEGIN IMMEDIATE"
    assert counted(engine) == 1
    with engine.connect() as connection:
        assert not sqlalchemy.inspect(connection).has_table("host")


def test_a_returned_connection_is_rolled_back_though_the_driver_looks_like_autocommit(sqlite):
    """An option of the engine takes the driver's isolation level for autocommit; it is not ours."""
    engine = sqlite.engine(skip_autocommit_rollback=True, pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        connection.execute(text(CLAIM), {"id": "undone"})
    with engine.begin() as connection:
        connection.execute(text(CLAIM), {"id": "kept"})
    assert counted(engine) == 1


@pytest.mark.parametrize(
    ("kw", "options"),
    [
        ({}, {}),
        ({"isolation_level": "AUTOCOMMIT"}, {}),
        ({"isolation_level": "SERIALIZABLE"}, {}),
        ({}, {"isolation_level": "AUTOCOMMIT"}),
        ({}, {"isolation_level": "SERIALIZABLE"}),
    ],
)
def test_our_own_transactions_are_as_we_need_them(database, kw, options):
    """READ COMMITTED and undoable, whatever the engine's own level is."""
    engine = database.engine(**kw).execution_options(**options)
    for owned in (dialect.owned_options(engine), dialect.reader_options(engine)):
        with owned.connect() as connection:
            if database.kind == "postgresql":
                level = connection.execute(text("SHOW transaction_isolation")).scalar_one()
                assert level == "read committed"
            connection.execute(text(CLAIM), {"id": "undone"})
            dialect.check_borrowed(connection)
            connection.rollback()
        assert counted(engine) == 0


def test_the_level_costs_no_statement(postgresql):
    """READ COMMITTED travels with BEGIN."""
    owned = dialect.owned_options(postgresql.engine())
    owned.connect().close()
    with sent(owned) as statements, owned.begin() as connection:
        connection.execute(text("SELECT 1"))
    assert statements == ["SELECT 1"]


# --- borrowed connections ---------------------------------------------------------------------------


def driver_autocommit(database):
    if database.kind == "postgresql":
        return database.engine(connect_args={"autocommit": True}).connect()
    return database.engine(isolation_level="AUTOCOMMIT").connect()


AUTOCOMMIT = {
    "engine": lambda database: database.engine(isolation_level="AUTOCOMMIT").connect(),
    "options of the engine": lambda database: (
        database.engine().execution_options(isolation_level="AUTOCOMMIT").connect()
    ),
    "options of the connection": lambda database: (
        database.engine().connect().execution_options(isolation_level="AUTOCOMMIT")
    ),
    "driver": driver_autocommit,
}


@pytest.mark.parametrize("how", AUTOCOMMIT)
def test_a_borrowed_connection_in_autocommit_is_refused(database, how):
    """However it was set, with the line that mends it, and before any statement."""
    with AUTOCOMMIT[how](database) as connection, sent(connection.engine) as statements:
        with pytest.raises(ConfigError, match=r"autocommit.*engine\.begin\(\)"):
            dialect.check_borrowed(connection)
        assert statements == []
        assert not connection.in_transaction()


def test_a_borrowed_connection_is_looked_at_without_a_statement(database):
    """A good one passes, in a transaction or before one, and nothing is sent."""
    engine = database.engine()
    with engine.connect() as connection, sent(engine) as statements:
        dialect.check_borrowed(connection)
        assert statements == []
        assert not connection.in_transaction()
        connection.execute(text("SELECT 1"))
        del statements[:]
        dialect.check_borrowed(connection)
        assert statements == []


def test_an_unprepared_sqlite_connection_is_refused(sqlite):
    """Its driver begins as it pleases; the message says how to prepare the engine."""
    with (
        sqlite.bare_engine().connect() as connection,
        pytest.raises(ConfigError, match=r"prepare_engine\(engine\)"),
    ):
        dialect.check_borrowed(connection)


def test_an_unprepared_postgresql_connection_is_welcome(postgresql):
    """A host lends what it has."""
    with postgresql.bare_engine().connect() as connection:
        dialect.check_borrowed(connection)


def test_a_borrowed_connection_on_another_driver_is_refused(database):
    """Its faults would not be understood."""
    with database.bare_engine().connect() as connection:
        connection.dialect.driver = "other"
        with pytest.raises(ConfigError, match=r"^connection must use the driver"):
            dialect.check_borrowed(connection)


def test_whether_a_transaction_still_stands(database):
    """True while statements are taken and can be undone; looking sends nothing."""
    engine = database.engine()
    with engine.connect() as connection, sent(engine) as statements:
        assert not dialect.still_open(connection)
        connection.execute(text("SELECT 1"))
        del statements[:]
        assert dialect.still_open(connection)
        assert statements == []
        connection.rollback()
        assert not dialect.still_open(connection)
    assert not dialect.still_open(connection)


def test_an_aborted_transaction_does_not_stand(postgresql):
    """PostgreSQL takes no more statements after an error, unless a savepoint undoes it."""
    with postgresql.engine().connect() as connection:
        savepoint = connection.begin_nested()
        fails(connection.execute, text("SELECT 1 / 0"))
        assert not dialect.still_open(connection)
        savepoint.rollback()
        assert dialect.still_open(connection)


def test_a_lost_connection_holds_no_transaction(postgresql):
    """Where the driver's connection is closed there is nothing to go on with."""
    with postgresql.engine().connect() as connection:
        connection.execute(text("SELECT 1"))
        driver_of(connection).close()
        assert not dialect.still_open(connection)
        connection.invalidate()
        assert not dialect.still_open(connection)


def test_a_transaction_that_sqlite_gave_up_does_not_stand(sqlite):
    """SQLite may roll back by itself, here because the statement says so, and is found out."""
    with sqlite.engine().connect() as connection:
        connection.execute(text(CLAIM), {"id": "m"})
        fails(connection.execute, text(CLAIM.replace("INSERT", "INSERT OR ROLLBACK")), {"id": "m"})
        assert not dialect.still_open(connection)


# --- waits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "setting"),
    [
        (timedelta(seconds=5), "5000ms"),
        (timedelta(milliseconds=1), "1ms"),
        # Nought would be no limit at all.
        (timedelta(0), "1ms"),
        (timedelta(microseconds=1), "1ms"),
        (timedelta(milliseconds=1, microseconds=1), "2ms"),
        (timedelta(days=365 * 100), "2147483647ms"),
    ],
)
def test_a_lock_timeout_as_the_server_takes_it(postgresql, timeout, setting):
    """Whole milliseconds, rounded up, within what PostgreSQL accepts."""
    assert dialect.lock_timeout_setting(timeout) == setting
    with postgresql.engine().connect() as connection:
        connection.execute(text("SELECT set_config('lock_timeout', :setting, true)"), {"setting": setting})


def test_the_busy_timeout_is_sent_only_where_it_changes(sqlite):
    """It is set on the driver, before any transaction, and put back; an equal one costs nothing."""
    traced = []
    with sqlite.engine().connect() as connection:
        driver_of(connection).set_trace_callback(traced.append)
        dialect.set_busy_timeout(connection, timedelta(seconds=5))
        assert traced == []
        dialect.set_busy_timeout(connection, SOON)
        dialect.set_busy_timeout(connection, SOON)
        dialect.restore_busy_timeout(connection)
        dialect.restore_busy_timeout(connection)
        assert traced == ["PRAGMA busy_timeout = 20", "PRAGMA busy_timeout = 5000"]
        assert not connection.in_transaction()
        driver_of(connection).set_trace_callback(None)


def test_the_busy_timeout_is_remembered_with_the_pooled_connection(sqlite):
    """What one delivery left is known to the next one that gets the connection."""
    engine = sqlite.engine(pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        dialect.set_busy_timeout(connection, SOON)
    with engine.connect() as connection:
        dialect.restore_busy_timeout(connection)
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 5_000


def test_there_is_no_busy_timeout_on_postgresql(postgresql):
    """Nothing is sent there."""
    engine = postgresql.engine()
    with engine.connect() as connection, sent(engine) as statements:
        dialect.set_busy_timeout(connection, SOON)
        dialect.restore_busy_timeout(connection)
        assert statements == []


def test_waits_are_bounded_by_one_statement(postgresql):
    """`bound_waits` holds for the transaction alone."""
    engine = postgresql.engine(pool_size=1, max_overflow=0)
    show = text("SHOW lock_timeout")
    with engine.connect() as connection, sent(engine) as statements:
        dialect.bound_waits(connection, timedelta(milliseconds=1234))
        assert len(statements) == 1
        assert connection.execute(show).scalar_one() == "1234ms"
        connection.commit()
        assert connection.execute(show).scalar_one() == "0"


# --- faults of PostgreSQL, made for real ------------------------------------------------------------


def test_a_lock_timeout_is_busy(postgresql):
    """55P03, in SQLAlchemy's wrapper and as the driver raised it."""
    engine = postgresql.engine()
    with engine.begin() as holder, engine.connect() as waiter:
        holder.execute(text("LOCK TABLE statifier_router_claims"))
        waiter.execute(text("SET LOCAL lock_timeout = '20ms'"))
        error = fails(waiter.execute, text("LOCK TABLE statifier_router_claims"))
    assert trouble_of(error) == trouble_of(error.orig) == Trouble("busy", "55P03")
    assert not dialect.is_serialization(error)


def test_a_deadlock_is_worth_another_try(postgresql):
    """40P01: the server ends one of two transactions that wait for each other."""
    engine = postgresql.engine()
    lock = text("SELECT pg_advisory_xact_lock(:id)")
    errors = []

    def cross(connection, wanted):
        try:
            connection.execute(lock, {"id": wanted})
        except DBAPIError as error:
            errors.append(error)
        connection.rollback()

    with engine.connect() as one, engine.connect() as other:
        for connection, held in ((one, 1), (other, 2)):
            connection.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
            connection.execute(lock, {"id": held})
        pid = backend_pid(other)
        thread = threading.Thread(target=cross, args=(other, 1))
        thread.start()
        wait_until_blocked(engine, pid)
        cross(one, 2)
        thread.join()
    assert [trouble_of(error) for error in errors] == [Trouble("retry", "40P01")]


def test_a_serialization_failure_is_worth_another_try(postgresql):
    """40001: a row was changed since this transaction's snapshot."""
    engine = postgresql.engine()
    with engine.begin() as connection:
        connection.execute(text(CLAIM), {"id": "m"})
    touch = text("UPDATE statifier_router_claims SET digest = 'x'")
    with engine.execution_options(isolation_level="REPEATABLE READ").connect() as late:
        late.execute(text(COUNT))
        with engine.begin() as early:
            early.execute(touch)
        error = fails(late.execute, touch)
    assert trouble_of(error) == Trouble("retry", "40001")
    assert dialect.is_serialization(error)
    assert dialect.is_serialization(error.orig)


def test_a_terminated_backend_is_worth_another_try(postgresql):
    """57P01 where the server still said so, no SQLSTATE where the connection was just gone."""
    engine = postgresql.engine()
    with engine.connect() as victim, engine.connect() as killer:
        pid = backend_pid(victim)
        killer.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
        told = fails(victim.execute, text("SELECT 1"))
        gone = fails(victim.execute, text("SELECT 1"), error=sqlalchemy.exc.SQLAlchemyError)
        victim.rollback()
    assert trouble_of(told) in (Trouble("retry", "57P01"), Trouble("retry"))
    # This one is SQLAlchemy's own word that the transaction is over, and no fault of the database.
    assert trouble_of(gone) is None


def test_a_closed_driver_connection_is_worth_another_try(postgresql):
    """The driver's own word for a lost connection carries no SQLSTATE."""
    with postgresql.engine().connect() as connection:
        connection.execute(text("SELECT 1"))
        driver = driver_of(connection)
        driver.close()
        raw = fails(driver.execute, "SELECT 1", error=psycopg.OperationalError)
        assert trouble_of(raw) == Trouble("retry")
        assert trouble_of(fails(connection.execute, text("SELECT 1"))) == Trouble("retry")


def test_a_refused_connection_is_worth_another_try():
    """Nobody listens at this port."""
    engine = dialect.create_engine("postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=2")
    assert trouble_of(fails(engine.connect)) == Trouble("retry")


@pytest.mark.parametrize(
    ("statement", "trouble"),
    [
        ("SELECT * FROM statifier_router_absent", Trouble("schema", "42P01")),
        ("SELECT absent FROM statifier_router_claims", Trouble("schema", "42703")),
        ("CREATE TABLE absent.host (id int)", Trouble("schema", "3F000")),
        ("SELECT 1 / 0", None),
        ("SELEC 1", None),
        ("INSERT INTO statifier_router_claims VALUES (NULL)", None),
        ("DO $$ BEGIN RAISE SQLSTATE '08006'; END $$", Trouble("retry", "08006")),
        ("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", Trouble("retry", "53300")),
        ("DO $$ BEGIN RAISE SQLSTATE '57P03'; END $$", Trouble("retry", "57P03")),
        ("DO $$ BEGIN RAISE SQLSTATE '53100'; END $$", None),
    ],
)
def test_what_other_errors_of_postgresql_mean(postgresql, statement, trouble):
    """By SQLSTATE alone; what is not known to be mended by a retry is left as it is."""
    with postgresql.engine().connect() as connection:
        error = fails(connection.execute, text(statement))
        assert trouble_of(error) == trouble
        # The error that follows in an aborted transaction is none that we treat either.
        assert trouble_of(fails(connection.execute, text("SELECT 1"))) is None or error.connection_invalidated


def test_a_cancelled_statement_is_no_trouble_of_ours(postgresql):
    """57014: a host that sets a statement timeout is told so as it is."""
    with postgresql.engine().connect() as connection:
        connection.execute(text("SET LOCAL statement_timeout = '10ms'"))
        assert trouble_of(fails(connection.execute, text("SELECT pg_sleep(60)"))) is None


def test_an_exhausted_pool_is_busy(database):
    """The wait for a connection is a bounded wait like any other."""
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect():
        assert trouble_of(fails(engine.connect, error=PoolTimeout)) == Trouble("busy")


# --- faults of SQLite, made for real ----------------------------------------------------------------


def test_a_locked_database_is_busy(sqlite):
    """SQLITE_BUSY, at a begin, in the wrapper and raw."""
    engine = sqlite.engine()
    with engine.begin(), engine.connect() as second:
        dialect.set_busy_timeout(second, SOON)
        error = fails(second.begin, error=OperationalError)
        dialect.restore_busy_timeout(second)
    assert error.orig.sqlite_errorcode == sqlite3.SQLITE_BUSY
    assert trouble_of(error) == trouble_of(error.orig) == Trouble("busy")


def test_an_upgrade_from_a_stale_snapshot_is_busy(sqlite):
    """SQLITE_BUSY_SNAPSHOT: a deferred reader that writes after another did; extended codes count too."""
    engine = sqlite.engine()
    with dialect.reader_options(engine).connect() as reader:
        reader.execute(text(COUNT))
        with engine.begin() as writer:
            writer.execute(text(CLAIM), {"id": "m"})
        error = fails(reader.execute, text(CLAIM), {"id": "other"})
    assert error.orig.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT
    assert trouble_of(error) == Trouble("busy")


@pytest.mark.parametrize(
    ("statement", "trouble"),
    [
        ("SELECT * FROM statifier_router_absent", Trouble("schema")),
        ("SELECT absent FROM statifier_router_claims", Trouble("schema")),
        ("INSERT INTO statifier_router_claims (binding_id) VALUES ('b')", None),
    ],
)
def test_what_other_errors_of_sqlite_mean(sqlite, statement, trouble):
    """The generic code may be a missing table, which the asker then looks for; others are left alone."""
    with sqlite.engine().connect() as connection:
        assert trouble_of(fails(connection.execute, text(statement))) == trouble


def test_a_file_that_cannot_be_written_is_no_trouble_that_mends_itself(tmp_path):
    """A directory in the place of the file: no retry helps."""
    engine = dialect.create_engine(f"sqlite:///{tmp_path}")
    assert trouble_of(fails(engine.connect)) is None


# --- both -------------------------------------------------------------------------------------------


def test_a_unique_violation_is_told_by_its_constraint(database):
    """Primary keys and unique constraints; on PostgreSQL another constraint's name is another matter."""
    address = text(
        "INSERT INTO statifier_router_addresses (scope, document, key, execution_id, inserted_at)"
        " VALUES ('', 'd', 'k', 'ex_1', '2024-01-01T00:00:00.000000Z')"
    )
    for statement, constraint in (
        (text(CLAIM).bindparams(id="m"), "statifier_router_claims_pk"),
        (address, "statifier_router_addresses_scope_document_key"),
    ):
        with database.engine().connect() as connection:
            connection.execute(statement)
            error = fails(connection.execute, statement)
        for each in (error, error.orig):
            assert dialect.is_unique_violation(each, constraint)
            assert trouble_of(each) is None
        if database.kind == "postgresql":
            assert not dialect.is_unique_violation(error, "statifier_router_ledger_pk")


def test_another_broken_constraint_is_no_unique_violation(database):
    """A missing value and a forbidden one are faults of the program."""
    with database.engine().connect() as connection:
        error = fails(
            connection.execute, text("INSERT INTO statifier_router_claims (binding_id) VALUES ('b')")
        )
    assert not dialect.is_unique_violation(error, "statifier_router_claims_pk")
    assert trouble_of(error) is None


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), ConfigError("no"), TimeoutError()])
def test_what_is_no_database_error_is_no_trouble(error):
    """Only what a driver or the pool raised is judged."""
    assert trouble_of(error) is None
    assert not dialect.is_serialization(error)
    assert not dialect.is_unique_violation(error, "any")


def test_which_database(database):
    """By the dialect of an engine or a connection; a third one is refused."""
    engine = database.engine()
    assert dialect.kind(engine) == database.kind
    with engine.connect() as connection:
        assert dialect.kind(connection) == database.kind
    engine.dialect.name = "oracle"
    with pytest.raises(ConfigError, match="oracle"):
        dialect.kind(engine)
