"""Statements on the hot path: built with Core, compiled once, run by the driver.

It stays inside SQLAlchemy's transaction and keeps its errors, and leaves out what a delivery does
not need: the cache key of each execution, the result object, the events; with psycopg the cursor too.
Values are encoded here: JSON comes as text already, instants are turned as the column's type would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from sqlalchemy import Executable
from sqlalchemy.exc import DBAPIError

from statifier_router.dialect.common import driver

if TYPE_CHECKING:
    from statifier_router.dialect.held import Link
    from statifier_router.dialect.wire import Sendable

Row = tuple[Any, ...]

# What SQLite's driver takes, and is nothing else to us.
_AS_THEY_ARE = frozenset({str, int, type(None)})


@frozen(eq=False)
class Prepared:
    """One statement, compiled once for each driver that it meets.

    Every parameter is a named `bindparam`; a value that is a datetime must be aware.
    """

    statement: Executable
    # The names of result columns that hold instants.
    instants: tuple[str, ...] = ()
    # The names of text parameters that are null more often than not.
    nullable: tuple[str, ...] = ()
    _texts: dict[tuple[str, bool], _Text] = field(factory=dict, init=False, repr=False)

    def rows(self, connection: Link, values: Mapping[str, Any]) -> list[Row]:
        """Run it and answer all its rows."""
        dialect = connection.dialect
        text = self._texts.get((dialect.driver, dialect.is_async)) or self._text(dialect)
        if text.wire is not None:
            try:
                sent = text.wire.fetched(*_carrier(connection), text.sendable, values)
            except dialect.loaded_dbapi.Error as error:
                raise wrapped(connection, text.sql, error) from error
            if sent is not None:
                return sent  # type: ignore[no-any-return]  # a module that is not always there made them
        cursor = _executed(connection, text, values)
        try:
            # A statement that answers no rows has none to fetch.
            found = [] if cursor.description is None else cursor.fetchall()
        finally:
            cursor.close()
        return text.told(found)

    def first(self, connection: Link, values: Mapping[str, Any]) -> Row | None:
        """Run it and answer its first row, None where it has none."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def count(self, connection: Link, values: Mapping[str, Any]) -> int:
        """Run it and answer how many rows it touched."""
        dialect = connection.dialect
        text = self._texts.get((dialect.driver, dialect.is_async)) or self._text(dialect)
        if text.wire is not None:
            try:
                sent = text.wire.touched(_carrier(connection)[0], text.sendable, values)
            except dialect.loaded_dbapi.Error as error:
                raise wrapped(connection, text.sql, error) from error
            if sent is not None:
                return int(sent)
        cursor = _executed(connection, text, values)
        touched: int = cursor.rowcount
        cursor.close()
        return touched

    def rows_between(
        self,
        connection: Link,
        values: Mapping[str, Any],
        *,
        before: bytes | None = None,
        after: bytes | None = None,
    ) -> list[Row]:
        """Run it between two commands that travel with it, in one wait; psycopg only.

        Each goes by itself where the connection's cursor is to see the statement.
        """
        dialect = connection.dialect
        text = self._texts.get((dialect.driver, dialect.is_async)) or self._text(dialect)
        wire = text.wire
        try:
            sent = wire.fetched_between(
                *_carrier(connection), text.sendable, values, before=before, after=after
            )
            if sent is not None:
                return sent  # type: ignore[no-any-return]  # as above
            if before is not None:
                wire.command(driver(connection), before)
            found = self.rows(connection, values)
            if after is not None:
                wire.command(driver(connection), after)
        except dialect.loaded_dbapi.Error as error:
            raise wrapped(connection, text.sql, error) from error
        return found

    def _text(self, dialect: Any) -> _Text:
        # The asynchronous psycopg bears the same name.
        kind = (dialect.driver, dialect.is_async)
        text = self._texts.get(kind)
        if text is None:
            text = self._texts[kind] = _compile(self, dialect)
        return text


def _carrier(connection: Link) -> tuple[Any, Any]:
    """The driver's connection, and what is kept with it in the pool."""
    driver = getattr(connection, "driver", None)
    if driver is not None:
        return driver, connection.info
    pooled = connection.connection
    return pooled.dbapi_connection, pooled.info


def together(
    connection: Link, asked: Sequence[tuple[Prepared, Mapping[str, Any]]]
) -> list[tuple[list[Row], int]]:
    """Run statements that differ, one behind the other; of each its rows, and how many it touched.

    With psycopg that is one wait, and the first that fails keeps those behind it from being run.
    """
    found = connection.dialect
    texts = [statement._text(found) for statement, _ in asked]  # noqa: SLF001 - a statement's own, in the module that defines it
    wire = texts[0].wire
    if wire is not None:
        sent = [(text.sendable, values) for text, (_, values) in zip(texts, asked, strict=True)]
        try:
            told = wire.told_together(*_carrier(connection), sent)
        except found.loaded_dbapi.Error as error:
            raise wrapped(connection, "; ".join(text.sql for text in texts), error) from error
        if told is not None:
            return told  # type: ignore[no-any-return]  # a module that is not always there made them
    return [_one(connection, text, values) for text, (_, values) in zip(texts, asked, strict=True)]


def _one(connection: Link, text: _Text, values: Mapping[str, Any]) -> tuple[list[Row], int]:
    cursor = _executed(connection, text, values)
    try:
        rows = [] if cursor.description is None else cursor.fetchall()
        return text.told(rows), cursor.rowcount
    finally:
        cursor.close()


@frozen
class _Text:
    sql: str
    bind: Callable[[Mapping[str, Any]], Any]
    # Which columns of a row hold instants.
    instants: tuple[int, ...]
    # The same past the cursor, with psycopg: its module, which is not imported for SQLite, and its text.
    wire: ModuleType | Any = None
    sendable: Sendable | Any = None
    # Whether the driver's connection executes by itself, with a cursor of its own making.
    direct: bool = False

    def told(self, rows: list[Row]) -> list[Row]:
        """The rows with their instants in UTC."""
        if self.instants and rows:
            return [_with_instants(self.instants, row) for row in rows]
        return rows


def _executed(connection: Link, text: _Text, values: Mapping[str, Any]) -> Any:
    dialect = connection.dialect
    if text.direct:
        opened = _carrier(connection)[0]
        try:
            return opened.execute(text.sql, text.bind(values))
        except dialect.loaded_dbapi.Error as error:
            raise wrapped(connection, text.sql, error) from error
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text.sql, text.bind(values))
    except dialect.loaded_dbapi.Error as error:
        raise wrapped(connection, text.sql, error, cursor) from error
    except BaseException:
        # Cancelled. The driver runs it all the same, and while nobody has read or closed what it
        # answers it counts as one in progress, with which SQLite commits nothing later.
        with suppress(Exception):
            cursor.close()
        raise
    return cursor


def _compile(prepared: Prepared, dialect: Any) -> _Text:
    statement: Any = prepared.statement
    compiled = statement.compile(dialect=dialect)
    instants: tuple[int, ...] = ()
    if prepared.instants:
        names = list(statement.selected_columns.keys())
        instants = tuple(names.index(name) for name in prepared.instants)
    if dialect.name == "sqlite":
        order = tuple(compiled.positiontup or ())

        def positional(values: Mapping[str, Any]) -> list[Any]:
            picked = [values[name] for name in order]
            return [value if type(value) in _AS_THEY_ARE else _stored(value) for value in picked]

        return _Text(str(compiled), positional, instants, direct=not dialect.is_async)
    sql = str(compiled)
    if dialect.is_async:
        return _Text(sql, lambda values: values, instants)
    from statifier_router.dialect import wire

    make_row = partial(_with_instants, instants) if instants else tuple
    sendable = wire.Sendable.of(sql, prepared.nullable, make_row)
    return _Text(sql, lambda values: values, instants, wire, sendable)


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        # Remembered by the instant alone, which in a zone with summer time is not all that tells two apart.
        return _utc_text(value if value.tzinfo is UTC else value.astimezone(UTC))
    return value


@lru_cache(maxsize=64)
def _utc_text(instant: datetime) -> str:
    return instant.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _with_instants(places: tuple[int, ...], row: Row) -> Row:
    values = list(row)
    for place in places:
        value = values[place]
        if value is not None:
            values[place] = datetime.fromisoformat(value) if isinstance(value, str) else value.astimezone(UTC)
    return tuple(values)


def wrapped(connection: Link, sql: str, error: Any, cursor: Any = None) -> BaseException:
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
