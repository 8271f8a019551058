"""Transactions of the outbound half: always its own, never one of a host's, and short.

Nothing is tried again here. A fault of the database ends the job that met it, and the next chain
resumes from what was committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from statifier_router import dialect, migrations
from statifier_router.config import Config
from statifier_router.dialect import Held, Link, Pipe, Prepared, Row, trouble_of
from statifier_router.errors import DatabaseFault, SchemaError
from statifier_router.schema import Schema, schema_of
from statifier_router.tables import Tables

# The option of a connection that says under which names the tables stand: a source is handed no
# configuration.
_TABLES = "statifier_router_tables"


@contextmanager
def writing(config: Config) -> Iterator[Connection]:
    """A connection in a transaction of its own, committed where the block ends well.

    Every wait for a lock in it is bounded by `Config.lock_timeout`. Raises `SchemaError` where the
    tables are absent or outdated; other faults of the database as SQLAlchemy raises them.
    """
    dialect.check_bridged(config.writer)
    with _told(config), config.opener.connect() as connection:
        dialect.set_busy_timeout(connection, config.lock_timeout)
        try:
            dialect.begin(connection)
            with connection.begin():
                dialect.bound_waits(connection, config.lock_timeout)
                yield _with_tables(connection, config)
                if not dialect.still_open(connection):
                    # SQLite ends a transaction by itself on some faults; what host code did with them
                    # does not matter.
                    raise DatabaseFault(None)
        finally:
            if not connection.invalidated:
                dialect.restore_busy_timeout(connection)


class Owned(Held):
    """What a job writes over: its own transaction, in as few waits as the driver can do it.

    BEGIN travels with `first_row`, COMMIT with `run_last`.
    """

    __slots__ = ("_config", "_pipe")

    def __init__(self, config: Config) -> None:
        super().__init__(config.opener)
        self._config = config
        self._pipe: Pipe | None = None

    def open(self) -> None:
        """Begin, now or with the first statement."""
        pipelined = self.dialect.name == "postgresql" and not self.dialect.is_async
        self._pipe = Pipe(self) if pipelined and not self.told_of_begin else None
        self.begin(sent=self._pipe is not None)

    def in_full(self) -> Connection:
        """SQLAlchemy's connection of it, on which a source finds our tables."""
        connection = super().in_full()
        if _TABLES not in connection.get_execution_options():
            _with_tables(connection, self._config)
        return connection

    def first_row(self, statement: Prepared, values: Mapping[str, Any]) -> Row | None:
        """Run the first statement of the transaction."""
        if self._pipe is None:
            return statement.first(self, values)
        return self._pipe.first(statement, values)

    def run_last(self, statement: Prepared, values: Mapping[str, Any]) -> None:
        """Run a statement on which nothing that follows depends: with the commit, where that can be."""
        if self._pipe is None:
            statement.count(self, values)
        else:
            self._pipe.defer(statement, values, lambda: DatabaseFault(None))

    def conclude(self) -> None:
        """Send what was kept for the commit, unless the transaction is over already behind our back."""
        if not dialect.still_open(self):
            # SQLite ends a transaction by itself on some faults; what host code did with them does not
            # matter.
            raise DatabaseFault(None)
        if self._pipe is not None:
            self._pipe.close()

    def undo(self) -> None:
        """Roll back, without ever hiding the error in hand: a connection that cannot is given up."""
        if self.invalidated or self.closed:
            return
        try:
            self.rollback()
        except BaseException as failure:
            self.invalidate()
            if not isinstance(failure, Exception):
                raise


@contextmanager
def owning(config: Config) -> Iterator[Owned]:
    """The transaction of a job, committed where the block ends well; raises as `writing`.

    Its first statement (`Owned.first_row`) bounds the waits for locks.
    """
    dialect.check_bridged(config.writer)
    with _told(config):
        held = Owned(config)
        try:
            held.take()
            dialect.set_busy_timeout(held, config.lock_timeout)
            try:
                held.open()
                try:
                    yield held
                    held.conclude()
                except BaseException:
                    held.undo()
                    raise
                held.commit()
            finally:
                if not held.invalidated:
                    dialect.restore_busy_timeout(held)
        finally:
            held.close()


def first_row(link: Link, statement: Prepared, values: Mapping[str, Any]) -> Row | None:
    """Run what a transaction begins with."""
    return link.first_row(statement, values) if isinstance(link, Owned) else statement.first(link, values)


def run_last(link: Link, statement: Prepared, values: Mapping[str, Any]) -> None:
    """Run a statement on which nothing that follows depends."""
    if isinstance(link, Owned):
        link.run_last(statement, values)
    else:
        statement.count(link, values)


@contextmanager
def reading(config: Config) -> Iterator[Connection]:
    """A connection to read on, which takes no lock and on SQLite waits for no writer."""
    dialect.check_bridged(config.writer)
    with _told(config), config.reader.connect() as connection:
        yield _with_tables(connection, config)
        # A rollback would have psycopg forget every statement that it prepared.
        connection.commit()


def _with_tables(connection: Connection, config: Config) -> Connection:
    """The connection, on which a source finds under which names our tables stand."""
    return connection.execution_options(**{_TABLES: config.tables})


def schema_in_use(connection: Connection) -> Schema:
    """The tables of the configuration whose connection this is; on a stranger's under the default names."""
    return schema_of(connection.get_execution_options().get(_TABLES, Tables()))


@contextmanager
def _told(config: Config) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        trouble = trouble_of(error)
        if trouble is not None and trouble.kind == "schema":
            _probe_schema(config, error)
        raise


def _probe_schema(config: Config, error: Exception) -> None:
    # The statement that met it may have been a host's own source: only looking tells.
    try:
        with config.reader.connect() as connection:
            migrations.verify(connection, tables=config.tables)
    except SchemaError as fault:
        raise fault from error
