"""The only file that asks which database this is: engines, borrowed connections, waits, faults.

Every transaction of a prepared SQLite engine begins IMMEDIATE, so that one which reads first and writes
later never fails on the upgrade; the driver's own implicit begin, which breaks savepoints, is off.
"""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

import psycopg
import sqlalchemy
from attrs import frozen
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Connection, Engine, Table, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

Kind = Literal["postgresql", "sqlite"]

BEGIN_OPTION = "statifier_router_begin"
_PREPARED = "statifier_router_prepared"
_BUSY_TIMEOUT = "statifier_router_busy_timeout"

_SQLITE_LEAST = (3, 35)
_SQLITE_BUSY_TIMEOUT = 5_000
# The psycopg_async driver is the same one behind SQLAlchemy's bridge.
_DRIVERS = {"postgresql": ("psycopg", "psycopg_async"), "sqlite": ("pysqlite",)}

_MEND_ENGINE = "make it with statifier_router.create_engine(url), or pass it through prepare_engine(engine)"


def kind(bind: Engine | Connection) -> Kind:
    """Which of the two databases this is; `ConfigError` for a third."""
    name = bind.dialect.name
    if name not in _DRIVERS:
        raise ConfigError(f"the database must be PostgreSQL or SQLite, not {name}")
    return cast("Kind", name)


# --- Engines --------------------------------------------------------------------------------------


def create_engine(url: str | URL, **kw: Any) -> Engine:
    """An engine ready for the library; `kw` goes to SQLAlchemy's `create_engine`. It never connects.

    `postgresql://` becomes `postgresql+psycopg://`. Raises `ConfigError` for another database or
    driver, and for SQLite in memory.

    >>> create_engine("sqlite:///parcels.db")
    Engine(sqlite:///parcels.db)
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError, TypeError):
        # The text may hold a password.
        raise ConfigError("url is not a database URL such as postgresql://user@host/name") from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    database, _, driver = parsed.drivername.partition("+")
    _check_driver("url", database, driver or "pysqlite")
    _check_stored("url", parsed)
    return prepare_engine(sqlalchemy.create_engine(parsed, **kw))


def prepare_engine(engine: Engine) -> Engine:
    """Make a host's own engine ready for the library, in place, and answer it; idempotent.

    On PostgreSQL this only marks it. On SQLite every later connection gets WAL, a busy timeout and
    foreign keys, and every transaction begins IMMEDIATE. Raises `ConfigError` as `create_engine` does.

    >>> engine = sqlalchemy.create_engine("sqlite:///parcels.db")
    >>> prepare_engine(engine) is engine
    True
    """
    if not isinstance(engine, Engine):
        raise ConfigError(f"engine must be a sqlalchemy.Engine, not {type(engine).__name__}")
    _check_driver("engine", engine.dialect.name, engine.dialect.driver)
    _check_stored("engine", engine.url)
    if is_prepared(engine):
        return engine
    if kind(engine) == "sqlite":
        _check_version(engine)
        # It takes the driver's isolation level, which is ours now, for autocommit: nothing would roll back.
        engine.dialect.skip_autocommit_rollback = False
        event.listen(_base(engine), "begin", _sqlite_on_begin)
        event.listen(engine.pool, "connect", _sqlite_on_connect)
        event.listen(engine.pool, "checkout", _sqlite_on_checkout)
    else:
        event.listen(engine.pool, "connect", _postgresql_on_connect)
    return engine


def is_prepared(engine: Engine) -> bool:
    """Whether `prepare_engine` has seen this engine, or one that shares its pool."""
    # The pool that replaces a disposed one takes over its listeners, so they are the mark.
    ours = (_sqlite_on_connect, _postgresql_on_connect)
    return any(listener in ours for listener in engine.pool.dispatch.connect)


def owned_options(engine: Engine) -> Engine:
    """The engine for transactions that the library opens: READ COMMITTED, never autocommit."""
    if kind(engine) == "postgresql":
        return engine.execution_options(isolation_level="READ COMMITTED")
    if _is_autocommit(engine, engine.get_execution_options().get("isolation_level")):
        return engine.execution_options(isolation_level="SERIALIZABLE")
    return engine


def reader_options(engine: Engine) -> Engine:
    """The engine for the library's own reads: on SQLite they wait for no writer."""
    owned = owned_options(engine)
    if kind(engine) == "sqlite":
        return owned.execution_options(**{BEGIN_OPTION: "deferred"})
    return owned


def _check_driver(field: str, database: str, driver: str) -> None:
    if database not in _DRIVERS:
        raise ConfigError(f"{field} must be one to PostgreSQL or SQLite, not {database}")
    if driver not in _DRIVERS[database]:
        wanted = f"{database}+{_DRIVERS[database][0]}"
        raise ConfigError(f"{field} must use the driver {wanted}, not {database}+{driver}")


def _check_stored(field: str, url: URL) -> None:
    if url.get_backend_name() != "sqlite":
        return
    name = url.database or ":memory:"
    query = {key: str(value) for key, value in url.query.items()}
    is_uri = name.startswith("file:")
    if (
        name == ":memory:"
        or query.get("mode") == "memory"
        or query.get("vfs") == "memdb"
        or (is_uri and (":memory:" in name or "mode=memory" in name or "vfs=memdb" in name))
        or name == "file:"
    ):
        raise ConfigError(
            f"{field} is SQLite in memory, which is one database a connection; "
            "name a file: sqlite:///statifier_router.db"
        )


def _check_version(engine: Engine) -> None:
    found: tuple[int, ...] = engine.dialect.loaded_dbapi.sqlite_version_info
    if found < _SQLITE_LEAST:
        raise ConfigError(f"engine is on SQLite {'.'.join(map(str, found))}; the library needs 3.35 or later")


def _base(engine: Engine) -> Engine:
    # Events on an engine that execution_options() made would not reach the one it was made from,
    # although both share the pool.
    while (proxied := getattr(engine, "_proxied", None)) is not None:
        engine = proxied
    return engine


def _is_autocommit(bind: Engine | Connection, option: object) -> bool:
    level = option or getattr(bind.dialect, "_on_connect_isolation_level", None)
    return isinstance(level, str) and level.upper().replace("_", " ") == "AUTOCOMMIT"


def _postgresql_on_connect(_: object, entry: ConnectionPoolEntry) -> None:
    entry.info[_PREPARED] = True


def _sqlite_on_connect(driver: Any, entry: ConnectionPoolEntry) -> None:
    try:
        _take_over(driver)
        _set_up(driver)
    except BaseException:
        driver.close()
        raise
    entry.info[_PREPARED] = True
    entry.info[_BUSY_TIMEOUT] = _SQLITE_BUSY_TIMEOUT


def _sqlite_on_checkout(driver: Any, entry: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
    # A connection that the pool had already made when the engine was prepared.
    if _PREPARED not in entry.info:
        _sqlite_on_connect(driver, entry)


def _take_over(driver: Any) -> None:
    """Leave the begin of transactions to us, whatever the driver was told at connect."""
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    if legacy is not None and driver.autocommit != legacy:
        driver.rollback()
        driver.autocommit = legacy
    if driver.isolation_level is not None:
        driver.isolation_level = None


def _set_up(driver: Any) -> None:
    driver.execute(f"PRAGMA busy_timeout = {_SQLITE_BUSY_TIMEOUT:d}")
    (mode,) = driver.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        (mode,) = driver.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(
            f"engine is a SQLite database that cannot keep a write-ahead log (journal mode {mode}): "
            "it is in memory or read-only; name a file that can be written"
        )
    driver.execute("PRAGMA synchronous = NORMAL")
    driver.execute("PRAGMA foreign_keys = ON")


def _sqlite_on_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if _is_autocommit(connection, options.get("isolation_level")):
        return
    # SQLAlchemy hands the implicit begin back to the driver whenever it sets an isolation level.
    _take_over(_driver(connection))
    deferred = options.get(BEGIN_OPTION) == "deferred"
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")


# --- Connections ----------------------------------------------------------------------------------


def check_borrowed(connection: Connection) -> None:
    """Refuse a caller's connection on which a delivery could not be undone; it sends no statement.

    Raises `ConfigError` for another database or driver, for autocommit however it was set, and for a
    SQLite connection that is not from a prepared engine.
    """
    dialect = connection.dialect
    _check_driver("connection", dialect.name, dialect.driver)
    if kind(connection) == "sqlite":
        autocommit = _is_autocommit(connection, connection.get_execution_options().get("isolation_level"))
    else:
        # SQLAlchemy, the options of an engine and the host all set this one attribute.
        autocommit = bool(_driver(connection).autocommit)
    if autocommit:
        raise ConfigError(
            "connection is in autocommit, so nothing on it could be undone; "
            "hand over one in a transaction: with engine.begin() as connection"
        )
    if kind(connection) == "sqlite" and _PREPARED not in connection.info:
        raise ConfigError(f"connection is from a SQLite engine that was not prepared; {_MEND_ENGINE}")


def still_open(connection: Connection) -> bool:
    """Whether the server still holds this transaction and takes statements; it sends none.

    SQLite may roll back by itself (a full disk, a failed write); PostgreSQL aborts on any error.
    """
    if connection.closed or connection.invalidated:
        return False
    driver = _driver(connection)
    if kind(connection) == "sqlite":
        return bool(driver.in_transaction)
    return bool(driver.info.transaction_status == TransactionStatus.INTRANS)


def lock_timeout_setting(timeout: timedelta) -> str:
    """The timeout as PostgreSQL's `lock_timeout` takes it; never 0, which would be no limit.

    >>> lock_timeout_setting(timedelta(seconds=5))
    '5000ms'
    """
    return f"{_milliseconds(timeout)}ms"


def set_busy_timeout(connection: Connection, timeout: timedelta) -> None:
    """On SQLite, the longest wait for the write lock, set before BEGIN; nothing on PostgreSQL.

    It stays with the pooled connection until `restore_busy_timeout`.
    """
    if kind(connection) == "sqlite":
        _busy_timeout(connection, _milliseconds(timeout))


def restore_busy_timeout(connection: Connection) -> None:
    """Undo `set_busy_timeout`, so that a host's own use of the connection waits as it did."""
    if kind(connection) == "sqlite" and not (connection.closed or connection.invalidated):
        _busy_timeout(connection, _SQLITE_BUSY_TIMEOUT)


def _busy_timeout(connection: Connection, milliseconds: int) -> None:
    info = connection.info
    if info.get(_BUSY_TIMEOUT) != milliseconds:
        _driver(connection).execute(f"PRAGMA busy_timeout = {milliseconds:d}")
        info[_BUSY_TIMEOUT] = milliseconds


def _milliseconds(timeout: timedelta) -> int:
    # Both databases keep it in a signed 32-bit integer.
    return min(max(-(-timeout // timedelta(milliseconds=1)), 1), 2**31 - 1)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


# --- Statements ------------------------------------------------------------------------------------


def insert_into(kind: str, table: Table) -> Any:
    """An INSERT into `table` that has ON CONFLICT clauses, for this kind of database.

    Its type is `Any`: the two databases' classes share these clauses and no base that names them.
    """
    return (postgresql.insert if kind == "postgresql" else sqlite.insert)(table)


def bound_waits(connection: Connection, timeout: timedelta) -> None:
    """Bound every later wait for a lock in this transaction; one statement, on PostgreSQL only.

    SQLite's one wait is at BEGIN, and `set_busy_timeout` bounds it.
    """
    if kind(connection) == "postgresql":
        setting = func.set_config("lock_timeout", lock_timeout_setting(timeout), True)
        connection.execute(select(setting))


# --- Faults ---------------------------------------------------------------------------------------


@frozen
class Trouble:
    """What a database error means for a delivery.

    `"retry"`: the same work may succeed at once. `"busy"`: a bounded wait ran out. `"schema"`: a table
    may be missing. `sqlstate` is None where the server sent none.
    """

    kind: Literal["retry", "busy", "schema"]
    sqlstate: str | None = None


# Deadlock, serialization failure, shutdown (three), too many connections.
_RETRY = frozenset({"40P01", "40001", "57P01", "57P02", "57P03", "53300"})
_BUSY = frozenset({"55P03"})
# Undefined table, schema, column.
_SCHEMA = frozenset({"42P01", "3F000", "42703"})
_SQLITE_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE_UNIQUE = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
        sqlite3.SQLITE_CONSTRAINT_UNIQUE,
        sqlite3.SQLITE_CONSTRAINT_ROWID,
    }
)


def trouble_of(error: BaseException) -> Trouble | None:
    """What kind of database trouble this error is; None where it is none that we treat.

    Takes SQLAlchemy's wrappers and the drivers' own errors alike.
    """
    if isinstance(error, PoolTimeout):
        return Trouble("busy")
    origin = _origin(error)
    trouble: Trouble | None = None
    if isinstance(origin, psycopg.Error):
        trouble = _postgresql_trouble(origin)
    elif (code := _sqlite_code(origin)) is not None:
        trouble = _sqlite_trouble(code)
    if trouble is None and isinstance(error, DBAPIError) and error.connection_invalidated:
        return Trouble("retry", getattr(origin, "sqlstate", None))
    return trouble


def is_serialization(error: BaseException) -> bool:
    """Whether PostgreSQL refused because the transaction's snapshot is too old (40001)."""
    return getattr(_origin(error), "sqlstate", None) == "40001"


def is_unique_violation(error: BaseException, constraint: str) -> bool:
    """Whether this unique constraint or primary key was violated.

    SQLite names the columns, not the constraint: there any unique violation answers True.
    """
    origin = _origin(error)
    if isinstance(origin, psycopg.Error):
        return origin.sqlstate == "23505" and origin.diag.constraint_name == constraint
    return _sqlite_code(origin) in _SQLITE_UNIQUE


def _origin(error: BaseException) -> BaseException:
    # SQLAlchemy's async bridge wraps the driver's error once more.
    if isinstance(error, DBAPIError) and error.orig is not None:
        return getattr(error.orig, "driver_exception", error.orig)
    return error


def _postgresql_trouble(error: psycopg.Error) -> Trouble | None:
    state = error.sqlstate
    if state is None:
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return Trouble("retry") if lost else None
    if state in _RETRY or state.startswith("08"):
        return Trouble("retry", state)
    if state in _BUSY:
        return Trouble("busy", state)
    return Trouble("schema", state) if state in _SCHEMA else None


def _sqlite_code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(code, int) else None


def _sqlite_trouble(code: int) -> Trouble | None:
    if code & 0xFF in _SQLITE_BUSY:
        return Trouble("busy")
    # The generic code: a missing table or column, or a faulty statement. Who asks has to look.
    return Trouble("schema") if code == sqlite3.SQLITE_ERROR else None
