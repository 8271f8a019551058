"""Statements on the hot path: built with Core, compiled once, run through the driver's own cursor.

It stays inside SQLAlchemy's transaction and keeps its errors, and leaves out what a delivery does
not need: the cache key of each execution, the result object, the events. Values are encoded here:
JSON comes as text already, instants are turned as the column's type would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from attrs import field, frozen
from sqlalchemy import Connection, Executable
from sqlalchemy.exc import DBAPIError

Row = tuple[Any, ...]


@frozen(eq=False)
class Prepared:
    """One statement, compiled once for each driver that it meets.

    Every parameter is a named `bindparam`; a value that is a datetime must be aware.
    """

    statement: Executable
    # The names of result columns that hold instants.
    instants: tuple[str, ...] = ()
    _texts: dict[str, _Text] = field(factory=dict, init=False, repr=False)

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[Row]:
        """Run it and answer all its rows."""
        text, cursor = self._run(connection, values)
        try:
            found: list[Row] = cursor.fetchall()
        finally:
            cursor.close()
        if text.instants and found:
            return [_with_instants(row, text.instants) for row in found]
        return found

    def first(self, connection: Connection, values: Mapping[str, Any]) -> Row | None:
        """Run it and answer its first row, None where it has none."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def count(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run it and answer how many rows it touched."""
        _, cursor = self._run(connection, values)
        touched: int = cursor.rowcount
        cursor.close()
        return touched

    def rows_between(
        self,
        connection: Connection,
        values: Mapping[str, Any],
        *,
        before: str | None = None,
        after: str | None = None,
    ) -> list[Row]:
        """Run it between two commands that travel with it, in one wait; psycopg only."""
        dialect = connection.dialect
        text = self._text(dialect)
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            # The answers are read when the pipeline ends: reading one before would be a wait more.
            with driver.pipeline():
                if before is not None:
                    driver.execute(before)
                cursor.execute(text.sql, text.bind(values))
                if after is not None:
                    driver.execute(after)
            found: list[Row] = cursor.fetchall()
        except dialect.loaded_dbapi.Error as error:
            raise _wrapped(connection, text.sql, error, cursor) from error
        finally:
            cursor.close()
        if text.instants and found:
            return [_with_instants(row, text.instants) for row in found]
        return found

    def _text(self, dialect: Any) -> _Text:
        text = self._texts.get(dialect.driver)
        if text is None:
            text = self._texts[dialect.driver] = _compile(self, dialect)
        return text

    def _run(self, connection: Connection, values: Mapping[str, Any]) -> tuple[_Text, Any]:
        dialect = connection.dialect
        text = self._text(dialect)
        cursor = connection.connection.cursor()
        try:
            cursor.execute(text.sql, text.bind(values))
        except dialect.loaded_dbapi.Error as error:
            raise _wrapped(connection, text.sql, error, cursor) from error
        except BaseException:
            # Cancelled. The driver runs it all the same, and while nobody has read or closed what it
            # answers it counts as one in progress, with which SQLite commits nothing later.
            with suppress(Exception):
                cursor.close()
            raise
        return text, cursor


@frozen
class _Text:
    sql: str
    bind: Callable[[Mapping[str, Any]], Any]
    # Which columns of a row hold instants.
    instants: tuple[int, ...]


def _compile(prepared: Prepared, dialect: Any) -> _Text:
    statement: Any = prepared.statement
    compiled = statement.compile(dialect=dialect)
    instants: tuple[int, ...] = ()
    if prepared.instants:
        names = list(statement.selected_columns.keys())
        instants = tuple(names.index(name) for name in prepared.instants)
    if dialect.name == "sqlite":
        order = tuple(compiled.positiontup or ())

        def positional(values: Mapping[str, Any]) -> tuple[Any, ...]:
            return tuple(_stored(values[name]) for name in order)

        return _Text(str(compiled), positional, instants)
    return _Text(str(compiled), lambda values: values, instants)


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value


def _with_instants(row: Row, places: tuple[int, ...]) -> Row:
    values = list(row)
    for place in places:
        value = values[place]
        if value is not None:
            values[place] = datetime.fromisoformat(value) if isinstance(value, str) else value.astimezone(UTC)
    return tuple(values)


def _wrapped(connection: Connection, sql: str, error: Any, cursor: Any) -> BaseException:
    """The error as SQLAlchemy raises it; a connection that is lost is given up, as it would be."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, cursor)
    wrapped: BaseException = DBAPIError.instance(
        sql,
        None,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=lost,
        dialect=dialect,
    )
    if lost and not connection.invalidated:
        # The others of the pool were lost with it, as after a restart of the server: each would cost a
        # try of its own.
        connection.engine.pool._invalidate(connection.connection, error)  # noqa: SLF001 - as SQLAlchemy does
        connection.invalidate(error)
    return wrapped
