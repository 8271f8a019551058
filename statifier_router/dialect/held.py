"""A pooled connection in a transaction of ours, without SQLAlchemy's `Connection` until somebody asks for it.

To make that, to begin on it and to give it back costs as much as two statements do, and most deliveries
need nothing of it. Whatever it does beside the driver's own work is for listeners: where a host has one,
or an `echo`, it is made at once. The pool's own events, its limits and its resets are untouched.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, ResourceClosedError

from statifier_router.dialect import pooling
from statifier_router.dialect.common import BEGIN, BEGUN, COMMIT, driver
from statifier_router.dialect.engines import begins_here, take_over
from statifier_router.dialect.prepared import wrapped

if TYPE_CHECKING:
    from sqlalchemy import Engine, PoolProxiedConnection
    from sqlalchemy.engine import RootTransaction

# libpq's numbers: psycopg cannot be imported where there is no libpq, and SQLite needs none.
_IDLE, _IN_TRANSACTION = 0, 2


class Held:
    """One connection of the engine's pool: `take`, `begin`, `commit` or `rollback`; `close` gives it back.

    `driver` is the driver's own connection, `info` what is kept with it in the pool; statements of ours go
    over these. `connection` is the pooled one as SQLAlchemy hands it out.
    """

    __slots__ = (
        "_entry", "_given_back", "_made", "_pool", "_pooled", "_transaction", "dialect", "driver", "engine",
        "info", "is_sqlite", "ours",
    )  # fmt: skip

    # None until it is taken.
    driver: Any
    info: Any

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect: Any = engine.dialect
        self.is_sqlite: bool = self.dialect.name == "sqlite"
        self.driver = None
        # Whether its transaction is begun and ended here, and not by SQLAlchemy's connection.
        self.ours = False
        # Of the pool, as long as no proxy was made of it.
        self._entry: Any = None
        self._pooled: PoolProxiedConnection | None = None
        self._made: Connection | None = None
        self._transaction: RootTransaction | None = None
        self._given_back = False

    def take(self) -> None:
        """Take it from the pool. Waits and raises as the engine's `connect` does."""
        engine = self.engine
        if not begins_here(engine):
            self._made = made = engine.connect()
            self._keep(made.connection)
            return
        self.ours = True
        try:
            # The engine may be given another one while this is held.
            self._pool = engine.pool
            self._entry = entry = pooling.take(self._pool)
            if entry is None:
                self._pooled = entry = engine.raw_connection()
        except self.dialect.loaded_dbapi.Error as error:
            raise _unconnected(engine, error) from error
        self._keep(entry)

    def _keep(self, pooled: Any) -> None:
        self.driver = pooled.dbapi_connection
        self.info = pooled.info

    @property
    def connection(self) -> PoolProxiedConnection:
        """The pooled connection."""
        if self._made is not None:
            return self._made.connection
        if self._given_back:
            raise ResourceClosedError("This connection is closed")
        if self._pooled is None:
            self._pooled = pooling.proxied(self._pool, self._entry)
            self._entry = None
        return self._pooled

    @property
    def closed(self) -> bool:
        """As of SQLAlchemy's."""
        return self._given_back or (self._made is not None and self._made.closed)

    @property
    def invalidated(self) -> bool:
        """As of SQLAlchemy's: it was lost, or given up, and serves nobody any more."""
        return self._made is not None and self._made.invalidated

    @property
    def told_of_begin(self) -> bool:
        """Whether somebody is to hear of the begin before anything is sent."""
        return self._made is not None and bool(self._made.dispatch.begin)

    def begin(self, *, sent: bool = False) -> None:
        """Begin, at READ COMMITTED or IMMEDIATE; `sent` where it travels with the first statement."""
        made = self._made
        if made is not None:
            if not sent:
                begin(made)
            self._transaction = made.begin()
        elif not sent:
            self.begin_now()

    def begin_now(self) -> None:
        """Send what begins the transaction, where it has not travelled with a statement."""
        if self._made is not None:
            begin(self._made)
            return
        try:
            if self.is_sqlite:
                # SQLAlchemy hands the implicit begin back to the driver whenever it sets a level.
                take_over(self.driver)
                self.driver.execute("BEGIN IMMEDIATE")
            else:
                _wire().command(self.driver, BEGIN)
        except self.dialect.loaded_dbapi.Error as error:
            raise wrapped(self, "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN", error) from error

    def is_open(self) -> bool:
        """Whether the server still holds this transaction and takes statements; it sends none."""
        if self._made is not None:
            return still_open(self._made)
        if self._given_back:
            return False
        if self.is_sqlite:
            return bool(self.driver.in_transaction)
        return bool(self.driver.pgconn.transaction_status == _IN_TRANSACTION)

    def is_over(self) -> bool:
        """Whether this transaction is over although nobody here ended it; it sends none."""
        if self._made is not None:
            return has_ended(self._made)
        if self._given_back:
            return True
        if self.is_sqlite:
            return not self.driver.in_transaction
        return bool(self.driver.pgconn.transaction_status == _IDLE)

    def commit(self) -> None:
        """Commit; where COMMIT has travelled with the last statement, it is no trip."""
        if self._transaction is not None:
            self._transaction.commit()
            return
        try:
            if self.is_sqlite:
                self.driver.commit()
            elif self.driver.pgconn.transaction_status != _IDLE:
                _wire().command(self.driver, COMMIT)
        except self.dialect.loaded_dbapi.Error as error:
            raise wrapped(self, "COMMIT", error) from error
        except BaseException as error:
            # Interrupted: nobody knows what is still on its way.
            self.invalidate(error)
            raise

    def rollback(self) -> None:
        """Roll back."""
        self.in_full()
        if self._transaction is not None:
            self._transaction.rollback()

    def invalidate(self, error: BaseException | None = None) -> None:
        """Give the connection up, as SQLAlchemy's does."""
        self.in_full().invalidate(error)

    def is_made(self, connection: Connection) -> bool:
        """Whether SQLAlchemy's connection over it was made, and is this one."""
        return self._made is connection

    def in_full(self) -> Connection:
        """SQLAlchemy's connection, in this very transaction; made when it is first asked for."""
        made = self._made
        if made is None:
            if self._given_back:
                # For whoever kept this past its end: it serves nobody any more.
                made = Connection(self.engine, pooling.spent(self._pool))
                made.close()
                return made
            made = Connection(self.engine, self.connection)
            # Our own listener begins SQLite's transactions; this one is begun.
            self.info[BEGUN] = True
            try:
                self._transaction = made.begin()
            finally:
                del self.info[BEGUN]
            self._made = made
        return made

    def close(self) -> None:
        """Give it back to the pool, which undoes what is still open; nothing where none was taken.

        Whoever kept this has nothing in hand any more: the connection is somebody else's from here on.
        """
        if self._made is not None:
            self.driver, self.info = None, {}
            self._made.close()
            return
        entry, pooled = self._entry, self._pooled
        if entry is None and pooled is None:
            return
        # Without a driver it was interrupted as it was taken.
        is_over = self.driver is not None and self.is_over()
        self._given_back, self._entry, self._pooled = True, None, None
        self.driver, self.info = None, {}
        if entry is not None:
            if is_over:
                # As SQLAlchemy's does after a commit of its own: there is nothing to undo.
                pooling.give_back(self._pool, entry)
                return
            pooled = pooling.proxied(self._pool, entry)
        assert pooled is not None
        give_back: Any = getattr(pooled, "_close_special", None)
        if give_back is not None and is_over:
            give_back(transaction_reset=True)
        else:
            pooled.close()


# What a statement of ours goes over.
Link = Connection | Held


def in_full(link: Link) -> Connection:
    """SQLAlchemy's connection of it."""
    return link.in_full() if isinstance(link, Held) else link


def begin(connection: Link) -> None:
    """Begin, before anything else does. Nothing on SQLite, and under asyncio, where the engine knows how.

    The driver begins by itself with the first statement where no transaction is open. To tell it the
    level of that, and to take it back, costs more than the command does.
    """
    if isinstance(connection, Held):
        connection.begin_now()
        return
    if connection.dialect.name == "sqlite" or connection.dialect.is_async:
        return
    opened: Any = connection.connection.dbapi_connection
    try:
        _wire().command(opened, BEGIN)
    except connection.dialect.loaded_dbapi.Error as error:
        raise wrapped(connection, "BEGIN", error) from error


def pipes(connection: Link) -> bool:
    """Whether commands may travel with statements over it: PostgreSQL, the library's own, unlistened to."""
    return isinstance(connection, Held) and connection.ours and not connection.is_sqlite


def command(connection: Link, text: bytes) -> None:
    """Run a command without parameters; psycopg only."""
    try:
        _wire().command(driver(connection), text)
    except connection.dialect.loaded_dbapi.Error as error:
        raise wrapped(connection, text.decode(), error) from error


def still_open(connection: Link) -> bool:
    """Whether the server still holds this transaction and takes statements; it sends none.

    SQLite may roll back by itself (a full disk, a failed write); PostgreSQL aborts on any error.
    """
    if isinstance(connection, Held):
        return connection.is_open()
    if connection.closed or connection.invalidated:
        return False
    held = driver(connection)
    if connection.dialect.name == "sqlite":
        return bool(held.in_transaction)
    return bool(held.pgconn.transaction_status == _IN_TRANSACTION)


def has_ended(connection: Link) -> bool:
    """Whether this transaction is over although nobody here ended it; it sends none.

    The next statement would then commit alone. One that PostgreSQL has aborted, or that broke with
    its connection, is not over: it refuses the next statement by itself.
    """
    if isinstance(connection, Held):
        return connection.is_over()
    if connection.closed or connection.invalidated:
        return True
    held = driver(connection)
    if connection.dialect.name == "sqlite":
        return not held.in_transaction
    return bool(held.pgconn.transaction_status == _IDLE)


@cache
def _wire() -> Any:
    # Not where there is no libpq.
    from statifier_router.dialect import wire

    return wire


def _unconnected(engine: Engine, error: Any) -> BaseException:
    """The error of a connection that could not be made, as SQLAlchemy raises it."""
    found: Any = engine.dialect
    wrapped: BaseException = DBAPIError.instance(
        None,
        None,
        error,
        found.loaded_dbapi.Error,
        hide_parameters=engine.hide_parameters,
        connection_invalidated=found.is_disconnect(error, None, None),
        dialect=found,
    )
    return wrapped
