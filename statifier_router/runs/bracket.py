"""Transactions of the outbound half: always its own, never one of a host's, and short.

Nothing is tried again here. A fault of the database ends the job that met it, and the next chain
resumes from what was committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from statifier_router import dialect, migrations
from statifier_router.config import Config
from statifier_router.dialect import trouble_of
from statifier_router.errors import DatabaseFault, SchemaError
from statifier_router.schema import Schema, schema_of
from statifier_router.tables import Tables

# The option of a connection that says under which names the tables stand: a source is handed no
# configuration.
_TABLES = "statifier_router_tables"


@contextmanager
def writing(config: Config, *, bounded: bool = True) -> Iterator[Connection]:
    """A connection in a transaction of its own, committed where the block ends well.

    Every wait for a lock in it is bounded by `Config.lock_timeout`; without `bounded` the block's first
    statement sees to that. Raises `SchemaError` where the
    tables are absent or outdated; other faults of the database as SQLAlchemy raises them.
    """
    dialect.check_bridged(config.writer)
    with _told(config), config.opener.connect() as connection:
        dialect.set_busy_timeout(connection, config.lock_timeout)
        try:
            dialect.begin(connection)
            with connection.begin():
                if bounded:
                    dialect.bound_waits(connection, config.lock_timeout)
                yield _with_tables(connection, config)
                if not dialect.still_open(connection):
                    # SQLite ends a transaction by itself on some faults; what host code did with them
                    # does not matter.
                    raise DatabaseFault(None)
        finally:
            if not connection.invalidated:
                dialect.restore_busy_timeout(connection)


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
