"""Engines made ready.

Every transaction of a prepared SQLite engine begins IMMEDIATE, so that one which reads first and writes
later never fails on the upgrade; the driver's own implicit begin, which breaks savepoints, is off.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine import AdaptedConnection, make_url
from sqlalchemy.exc import ArgumentError

from statifier_router.dialect.bridging import sync_engine
from statifier_router.dialect.common import (
    ASYNC_DRIVERS,
    BEGUN,
    BUSY_TIMEOUT,
    DRIVERS,
    PREPARED,
    SQLITE_BUSY_TIMEOUT,
    check_driver,
    is_autocommit,
    kind,
)
from statifier_router.dialect.faults import Trouble, trouble_of
from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

BEGIN_OPTION = "statifier_router_begin"
_SQLITE_LEAST = (3, 35)


def create_engine(url: str | URL, **kw: Any) -> Engine:
    """An engine ready for the library; `kw` goes to SQLAlchemy's `create_engine`. It never connects.

    `postgresql://` becomes `postgresql+psycopg://`. Raises `ConfigError` for another database or
    driver, and for SQLite in memory.

    >>> create_engine("sqlite:///parcels.db")
    Engine(sqlite:///parcels.db)
    """
    return prepare_engine(sqlalchemy.create_engine(checked_url(url), **kw))


def checked_url(url: str | URL, *, asynchronous: bool = False) -> URL:
    """The URL with a driver of ours; `ConfigError` for another database or driver, and in memory."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError, TypeError):
        # The text may hold a password.
        raise ConfigError("url is not a database URL such as postgresql://user@host/name") from None
    database, _, named = parsed.drivername.partition("+")
    ours = ASYNC_DRIVERS if asynchronous else DRIVERS
    if not named and database in ours:
        named = ours[database][0]
    check_driver("url", database, named, asynchronous=asynchronous)
    _check_stored("url", parsed)
    # SQLAlchemy's own choice for SQLite is ours, and not written into the URL.
    return parsed if named == "pysqlite" else parsed.set(drivername=f"{database}+{named}")


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
    return prepare(engine, asynchronous=False)


def prepare(engine: Engine, *, asynchronous: bool) -> Engine:
    """Make ready an engine, or the one behind an `AsyncEngine`."""
    if engine.dialect.is_async and not asynchronous:
        raise ConfigError("engine is the one behind an AsyncEngine: statifier_router.aio prepares that")
    check_driver("engine", engine.dialect.name, engine.dialect.driver, asynchronous=asynchronous)
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


def check_prepared(engine: object) -> Engine:
    """The engine, or the one behind an `AsyncEngine`.

    Raises `ConfigError` unless it was made ready, saying how to make it so.
    """
    found = sync_engine(engine)
    if not isinstance(found, Engine):
        raise ConfigError(
            f"engine must be a SQLAlchemy Engine, not {type(engine).__name__}: "
            "make one with statifier_router.create_engine(url)"
        )
    asynchronous = found.dialect.is_async
    if asynchronous and found is engine:
        raise ConfigError("engine is the one behind an AsyncEngine: hand over the AsyncEngine itself")
    if not is_prepared(found):
        module = "statifier_router.aio" if asynchronous else "statifier_router"
        raise ConfigError(
            f"engine was not prepared: make it with {module}.create_engine(url), or call "
            f"{module}.prepare_engine(engine) once before its first use"
        )
    return found


def owned_options(engine: Engine) -> Engine:
    """The engine for transactions that the library opens: READ COMMITTED, never autocommit."""
    given = engine.get_execution_options().get("isolation_level")
    if kind(engine) == "sqlite":
        if is_autocommit(engine, given):
            return engine.execution_options(isolation_level="SERIALIZABLE")
        return engine
    owned = engine.execution_options(isolation_level="READ COMMITTED")
    if given is not None:
        # SQLAlchemy sets the level of the engine we were given after, and so over, ours.
        event.listen(owned, "begin", _postgresql_on_begin)
    return owned


def check_pipeline(engine: object) -> None:
    """Raise `ConfigError` unless deliveries can be pipelined on this engine: PostgreSQL, not asyncio."""
    if not isinstance(engine, Engine) or kind(engine) != "postgresql":
        raise ConfigError("pipeline needs an engine of PostgreSQL that is not asynchronous: leave it False")


def opening_options(engine: Engine) -> Engine:
    """The engine for transactions that `begin` begins: its own level does not matter to those."""
    given = engine.get_execution_options().get("isolation_level")
    if kind(engine) == "sqlite" or engine.dialect.is_async or is_autocommit(engine, given):
        return owned_options(engine)
    return engine


def begins_here(engine: Engine) -> bool:
    """Whether we may begin and end its transactions past SQLAlchemy: nobody is to hear of them there.

    Not under asyncio, whose engine knows how; nor where it logs, nor where a host listens to connections
    and transactions, be it on this engine, on every engine or on every connection.
    """
    found: Any = engine.dialect
    if found.is_async or engine._should_log_info():  # noqa: SLF001 - what `echo` and the logger's level say
        return False
    # What SQLAlchemy asks itself before it tells anybody of anything.
    flag = "_has_events"
    if getattr(Connection, flag, True) or (getattr(found, flag, True) and found.dispatch.handle_error):
        return False
    if not getattr(engine, flag, True):
        return True
    heard: Any = engine.dispatch
    if heard.engine_connect or heard.commit or heard.rollback:
        return False
    return list(heard.begin) in ([], [_sqlite_on_begin])


def reader_options(engine: Engine) -> Engine:
    """The engine for the library's own reads: on SQLite they wait for no writer."""
    owned = owned_options(engine)
    if kind(engine) == "sqlite":
        return owned.execution_options(**{BEGIN_OPTION: "deferred"})
    return owned


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


def _postgresql_on_connect(_: object, entry: ConnectionPoolEntry) -> None:
    entry.info[PREPARED] = True


def _postgresql_on_begin(connection: Connection) -> None:
    # Nothing is sent: the driver says it with the BEGIN that it sends before the first statement.
    pooled: Any = connection.connection
    connection.dialect.set_isolation_level(pooled.dbapi_connection, "READ COMMITTED")


def _sqlite_on_connect(opened: Any, entry: ConnectionPoolEntry) -> None:
    try:
        take_over(opened)
        if isinstance(opened, AdaptedConnection):
            _check_taken_over(opened)
        _set_up(opened)
    except BaseException:
        opened.close()
        raise
    entry.info[PREPARED] = True
    entry.info[BUSY_TIMEOUT] = SQLITE_BUSY_TIMEOUT


def _sqlite_on_checkout(opened: Any, entry: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
    # A connection that the pool had already made when the engine was prepared.
    if PREPARED not in entry.info:
        _sqlite_on_connect(opened, entry)


def take_over(opened: Any) -> None:
    """Leave the begin of transactions to us, whatever the driver was told at connect."""
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    if legacy is not None and getattr(opened, "autocommit", legacy) != legacy:
        opened.autocommit = legacy
        # Of the transaction that the driver keeps open where it was told autocommit=False.
        opened.rollback()
    if opened.isolation_level is not None:
        opened.isolation_level = None


def _check_taken_over(opened: Any) -> None:
    """Refuse an asynchronous connection that was told `autocommit`, which can only be told at connect."""
    driver = opened.driver_connection
    if not driver.in_transaction:
        opened.execute("BEGIN")
        opened.rollback()
    if driver.in_transaction:
        raise ConfigError(
            "engine opens its connections with autocommit=..., which breaks savepoints: leave it out"
        )


def _set_up(opened: Any) -> None:
    opened.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_TIMEOUT:d}")
    mode = _journal_mode(opened)
    if mode != "wal":
        raise ConfigError(
            f"engine is a SQLite database that cannot keep a write-ahead log (journal mode {mode}): "
            "it is in memory or read-only; name a file that can be written"
        )
    opened.execute("PRAGMA synchronous = NORMAL")
    opened.execute("PRAGMA foreign_keys = ON")


def _journal_mode(opened: Any) -> str:
    (mode,) = opened.execute("PRAGMA journal_mode").fetchone()
    left = 20
    while mode != "wal" and left:
        left -= 1
        try:
            (mode,) = opened.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if not left or trouble_of(error) != Trouble("busy"):
                raise
            # The switch itself never waits for another process that switches; a begin does.
            opened.execute("BEGIN IMMEDIATE")
            opened.execute("ROLLBACK")
        else:
            break
    return cast("str", mode)


def _sqlite_on_begin(connection: Connection) -> None:
    if BEGUN in connection.info:
        return
    options = connection.get_execution_options()
    if is_autocommit(connection, options.get("isolation_level")):
        return
    # SQLAlchemy hands the implicit begin back to the driver whenever it sets an isolation level.
    take_over(connection.connection.dbapi_connection)
    deferred = options.get(BEGIN_OPTION) == "deferred"
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")
