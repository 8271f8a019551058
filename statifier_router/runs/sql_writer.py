"""A writer to a table of another database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Executable,
    Table,
    UniqueConstraint,
    delete,
    literal,
    select,
    update,
)

from statifier_router import dialect
from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json
from statifier_router.runs.faults import Gone, Rejected
from statifier_router.runs.sql_calls import transact
from statifier_router.runs.writers import Created, WriteContext, WriterTraits

T = TypeVar("T")
Row = Mapping[str, Any]

# What the text of an address or a key can be read as.
_SPELT = (str, int, uuid.UUID)


class SqlWriter:
    """Inserts and updates rows of a table, by a unique column that holds the record's id at the source.

    Args:
        engine: the target's own, to PostgreSQL or SQLite; its pool is the host's.
        table: as declared or reflected.
        key: the name of the unique column that holds the record's `source_id`.
        row: the columns of a payload, by name; by default the payload itself, which has to be an object.
            Columns that it does not name keep what they have.
        address: the name of the column by which updates find the row; by default the primary key.
        delete: whether rows of deleted records are deleted.

    A create is an upsert: it inserts, or brings the row that has this key up to date, and a call that
    comes again makes no second row. Every call is one transaction, and ends within `context.timeout`.
    A value or a constraint that refuses the row is `Rejected`; a table or a privilege that is missing
    is a fault of the rule. Raises `ConfigError`, naming the argument.

    >>> from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine
    >>> parcels = Table(
    ...     "parcels", MetaData(), Column("number", Integer, primary_key=True),
    ...     Column("tracking", Text, unique=True), Column("weight", Integer))
    >>> engine = create_engine("sqlite:///target.db")
    >>> parcels.metadata.create_all(engine)
    >>> writer = SqlWriter(engine, parcels, key="tracking")
    >>> context = WriteContext(rule="parcels", source_id="P7", key="k1", signal="1", attempt=1,
    ...                        in_doubt=False, timeout=timedelta(seconds=5))
    >>> writer.create({"weight": 3}, context)
    Created(remote_id='1')
    >>> engine.dispose()
    """

    traits: ClassVar[WriterTraits] = WriterTraits(honours_keys=True)

    def __init__(
        self,
        engine: Engine,
        table: Table,
        *,
        key: str,
        row: Callable[[Json, WriteContext], Row] | None = None,
        address: str | None = None,
        delete: bool = False,
    ) -> None:
        self._engine = _checked(engine, Engine, "engine")
        self._kind = dialect.kind(engine)
        if engine.dialect.is_async:
            raise ConfigError("engine must be a synchronous one")
        self._table = _checked(table, Table, "table")
        if not (row is None or callable(row)):
            raise ConfigError(f"row must be a function, not {type(row).__name__}")
        self._key = _column(table, key, "key")
        if not _is_unique(table, self._key):
            raise ConfigError(f"key must name a column that is unique by itself; {table.name}.{key} is not")
        self._address = _primary(table) if address is None else _column(table, address, "address")
        self._row = row
        if not delete:
            # A verb that is None is not there.
            setattr(self, "delete", None)  # noqa: B010 - a method is hidden on purpose

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._table.name!r})"

    # --- verbs --------------------------------------------------------------------------------------

    def create(self, payload: Json, context: WriteContext) -> Created:
        """Insert the row, or update the one that has this key; its address is read back."""
        values = {**self._values(payload, context), self._key.name: self._key_of(context)}
        statement = upsert(self._kind, self._table, self._key, self._address, values)
        address = self._done(context, lambda connection: connection.execute(statement).scalar_one())
        return Created(None if address is None else str(address))

    def update(self, remote_id: str, payload: Json, context: WriteContext) -> None:
        """Update the row at this address. `Gone` where there is none."""
        fixed = (self._key.name, self._address.name)
        row = {name: value for name, value in self._values(payload, context).items() if name not in fixed}
        self._changed(context, change(self._table, self._address, self._address_of(remote_id), row))

    def delete(self, remote_id: str, context: WriteContext) -> None:
        """Delete the row at this address. `Gone` where there is none."""
        self._changed(context, removal(self._table, self._address, self._address_of(remote_id)))

    def lookup(self, context: WriteContext) -> Created | None:
        """The row that has this record's key."""
        statement = found(self._address, self._key, self._key_of(context))
        rows = self._done(context, lambda connection: connection.execute(statement).scalars().all())
        return Created(str(rows[0])) if rows else None

    def ping(self, timeout: timedelta) -> None:
        """Ask the database for nothing."""
        transact(self._engine, lambda connection: connection.execute(nothing()).all(), timeout)

    # --- how ----------------------------------------------------------------------------------------

    def _done(self, context: WriteContext, work: Callable[[Connection], Any]) -> Any:
        return transact(self._engine, work, context.timeout)

    def _changed(self, context: WriteContext, statement: Executable) -> None:
        def work(connection: Connection) -> int:
            changed: Any = connection.execute(statement)
            return int(changed.rowcount)

        if self._done(context, work) == 0:
            raise Gone(f"no row of {self._table.name} has this address")

    def _values(self, payload: Json, context: WriteContext) -> dict[str, Any]:
        """The columns of a payload."""
        row = payload if self._row is None else self._row(payload, context)
        if not isinstance(row, Mapping):
            raise Rejected(f"a row is a mapping from column to value, not {type(row).__name__}")
        for name in row:
            if name not in self._table.c:
                raise Rejected(f"{self._table.name} has no column {name!r}")
        return dict(row)

    def _key_of(self, context: WriteContext) -> Any:
        try:
            return typed(self._key, context.source_id)
        except ValueError:
            raise Rejected(f"the record's id is none for the column {self._key.name}") from None

    def _address_of(self, remote_id: str) -> Any:
        try:
            return typed(self._address, remote_id)
        except ValueError:
            raise Gone(f"this is no address of the table {self._table.name}") from None


# --- statements -------------------------------------------------------------------------------------


def upsert(kind: str, table: Table, key: Column[Any], address: Column[Any], values: Row) -> Executable:
    """Insert a row, or update the one with the same key, which keeps its address; answers that."""
    inserting = dialect.insert_into(kind, table).values(values)
    # The key is set too: where it is the only column, there must be something to set.
    kept = {name: inserting.excluded[name] for name in values if name != address.name or address is key}
    upserting: Executable = inserting.on_conflict_do_update(index_elements=[key], set_=kept).returning(
        address
    )
    return upserting


def change(table: Table, address: Column[Any], value: Any, row: Row) -> Executable:
    """Set columns of the row at an address; a row of no columns is looked for all the same."""
    return update(table).where(address == value).values(row or {address.name: value})


def removal(table: Table, address: Column[Any], value: Any) -> Executable:
    """Delete the row at an address."""
    return delete(table).where(address == value)


def found(address: Column[Any], key: Column[Any], value: Any) -> Executable:
    """The address of the row with a key."""
    return select(address).where(key == value)


def nothing() -> Executable:
    """Whether anybody answers."""
    return select(literal(1))


# --- columns ----------------------------------------------------------------------------------------


def typed(column: Column[Any], text: str) -> Any:
    """The value of a column that is spelt by this text and no other; `ValueError` where there is none."""
    value = _python_type(column)(text)
    if str(value) != text:
        raise ValueError(text)
    return value


def _checked(value: T, kind: type, field: str) -> T:
    if not isinstance(value, kind):
        raise ConfigError(f"{field} must be of the class {kind.__name__}, not {type(value).__name__}")
    return value


def _column(table: Table, name: object, field: str) -> Column[Any]:
    if not isinstance(name, str) or name not in table.c:
        raise ConfigError(f"{field} must name a column of {table.name}, not {name!r}")
    return _spelt(table.c[name], field)


def _primary(table: Table) -> Column[Any]:
    columns = list(table.primary_key.columns)
    if len(columns) != 1:
        raise ConfigError(f"address must name a column: {table.name} has no primary key of one column")
    return _spelt(columns[0], "address")


def _spelt(column: Column[Any], field: str) -> Column[Any]:
    if _python_type(column) not in _SPELT:
        raise ConfigError(f"{field}: the column {column.name} must hold text, integers or UUIDs")
    return column


def _python_type(column: Column[Any]) -> type:
    try:
        return column.type.python_type
    except NotImplementedError:
        return object


def _is_unique(table: Table, column: Column[Any]) -> bool:
    unique: list[Any] = [table.primary_key.columns]
    unique += [each.columns for each in table.constraints if isinstance(each, UniqueConstraint)]
    # An index of some rows only keeps no key.
    partial = [each for each in table.indexes if any(name.endswith("_where") for name in each.dialect_kwargs)]
    unique += [each.columns for each in table.indexes if each.unique and each not in partial]
    return any([each.name for each in columns] == [column.name] for columns in unique)
