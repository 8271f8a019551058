"""`TableSource`: changed rows of a host's own table, found by the column that says when they were updated.

Such a column orders rows by when they were written, not by when they were committed. So every chain begins
its scan again an `overlap` before the place that was reached; what was handled already is told by its
signal and dropped. A row that is committed later than `overlap` after its instant is missed: transactions
that come near to that are warned of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from attrs import field, frozen
from sqlalchemy import BigInteger, FromClause, Select, bindparam, select, tuple_

from statifier_router import dialect
from statifier_router.change_table import signal_of
from statifier_router.errors import ConfigError
from statifier_router.jsontext import canonical
from statifier_router.paging import chunks
from statifier_router.runs.open_transactions import warn_of_old_ones
from statifier_router.runs.own_columns import Payload, as_json, column_of, payload_of, type_of
from statifier_router.runs.records import Position, Record
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

# Bytewise, as positions are compared, whatever the column's own order is.
_BYTEWISE = {"postgresql": "C", "sqlite": "BINARY"}
# What stands before the payload in a row.
_FACTS = ("id", "updated_at", "scope_column", "deleted", "signal")


@frozen(eq=False)
class TableSource:
    """The records of a host's own table.

    Columns are given by their names or as columns of `table`, which is anything that can be selected from
    on the configuration's engine. Raises `ConfigError`, naming the argument.

    Attributes:
        table: where the records stand, one row each.
        id: the record's id: text, an integer or a UUID.
        updated_at: the instant of the row's last change. Every change must set it, and never to one that
            lies ahead: what is written until then would be passed. An index on it carries every page.
        payload: what the writer is handed: several columns (an object of these), one column (its value),
            or a callable that is handed the whole row as a mapping and answers JSON.
        overlap: how long after its instant a change may be committed and is still found.
        scope: the one scope that the source hands over: that of every row, or of those whose
            `scope_column` says so. A `scope_column` without it hands over all rows, each with its own.
        deleted: the column that says that the record is gone, by anything but NULL, False and 0.
        signal: the column that tells versions apart; by default the digest of the payload.

    >>> from sqlalchemy import Column, DateTime, MetaData, Table, Text
    >>> names = Column("id", Text), Column("at", DateTime), Column("state", Text)
    >>> parcels = Table("parcels", MetaData(), *names)
    >>> TableSource(parcels, "id", "at", ["id", "state"], timedelta(minutes=5)).identity
    'table["parcels","id","at"]'
    """

    table: FromClause = field()
    id: Any = field()
    updated_at: Any = field()
    payload: Any = field()
    overlap: timedelta = field()
    scope: str | None = field(default=None, kw_only=True)
    scope_column: Any = field(default=None, kw_only=True)
    deleted: Any = field(default=None, kw_only=True)
    signal: Any = field(default=None, kw_only=True)
    _columns: dict[str, ColumnElement[Any]] = field(init=False, repr=False)
    _payload: Payload = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        _check_table(self.table)
        _check_overlap(self.overlap)
        if self.scope is not None:
            checked(self.scope, "scope", ConfigError, limit=NAME_LIMIT, empty=True)
        given = {name: getattr(self, name) for name in _FACTS}
        columns = {
            name: column_of(self.table, each, name)
            for name, each in given.items()
            if each is not None or name in ("id", "updated_at")
        }
        _check_type(columns["id"], "id", "text, integers or UUIDs", str, int, UUID)
        _check_type(columns["updated_at"], "updated_at", "instants", datetime)
        object.__setattr__(self, "_columns", columns)
        object.__setattr__(self, "_payload", payload_of(self.table, self.payload))

    @property
    def identity(self) -> str:
        """What the source is, where rules are compared."""
        names = [_name_of(self.table), str(self._id.key), str(self._at.key)]
        return f"table{canonical([*names, *(() if self.scope is None else (self.scope,))])}"

    def rewound(self, after: Position) -> Position:
        """Where a chain's scan begins: before every row of the instant an `overlap` ago."""
        if after is None:
            return None
        try:
            return (_spelled(_instant(_place(after)[0]) - self.overlap),)
        except OverflowError:
            return None

    def scan(self, connection: Connection, after: Position, limit: int) -> Sequence[Record]:
        """Rows after a position, by instant and id.

        Where a chain begins, transactions that are open for more than half the overlap are warned of.
        """
        place = () if after is None else _place(after)
        if len(place) < 2:
            warn_of_old_ones(connection, self.overlap, table=_name_of(self.table))
        id = self._id
        if type_of(id) is str:
            id = id.collate(_BYTEWISE[dialect.kind(connection)])
        statement = self._selected().where(self._at.is_not(None), id.is_not(None))
        values: dict[str, Any] = {"limit": limit}
        if place:
            values["after_at"] = _instant(place[0])
            after_at = bindparam("after_at", type_=self._at.type)
            if len(place) == 1:
                statement = statement.where(self._at >= after_at)
            else:
                values["after_id"] = self._own_id(str(place[1]))
                after_id = bindparam("after_id", type_=self._id_type)
                statement = statement.where(tuple_(self._at, id) > tuple_(after_at, after_id))
        statement = statement.order_by(self._at, id).limit(bindparam("limit"))
        return [self._record(row) for row in connection.execute(statement, values)]

    def load(self, connection: Connection, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        """The rows with these ids, as they are now."""
        loaded: dict[str, Record | None] = dict.fromkeys(source_ids)
        wanted = bindparam("ids", expanding=True, type_=self._id_type)
        statement = self._selected().where(self._id.in_(wanted))
        ids = [own for own in map(self._own_id, loaded) if own is not None]
        for some in chunks(ids):
            for row in connection.execute(statement, {"ids": some}):
                record = self._record(row)
                if record.source_id in loaded:
                    loaded[record.source_id] = record
        return loaded

    @property
    def _id(self) -> ColumnElement[Any]:
        return self._columns["id"]

    @property
    def _at(self) -> ColumnElement[Any]:
        return self._columns["updated_at"]

    @property
    def _id_type(self) -> Any:
        # Of any size: an id that is asked for need not fit into the column.
        return BigInteger() if type_of(self._id) is int else self._id.type

    def _selected(self) -> Select[Any]:
        """Each column under a name of its own, as a payload may name one that is selected already."""
        facts = [column.label(f"fact_{name}") for name, column in self._columns.items()]
        values = [column.label(f"value_{at}") for at, column in enumerate(self._payload.columns)]
        statement = select(*facts, *values).select_from(self.table)
        if self.scope is not None and "scope_column" in self._columns:
            statement = statement.where(self._columns["scope_column"] == self.scope)
        return statement

    def _record(self, row: Any) -> Record:
        facts = dict(zip(self._columns, row, strict=False))
        own_id, at = facts["id"], facts["updated_at"]
        source_id = str(own_id)
        try:
            payload = self._payload.make(row[len(self._columns) :])
        except ConfigError as fault:
            raise ConfigError(f"record {source_id!r}: {fault}") from fault
        deleted = facts.get("deleted") not in (None, False, 0)
        if "signal" in facts:
            signal = _signal_text(facts["signal"], deleted=deleted)
        else:
            signal = signal_of(payload, deleted=deleted)
        return Record(
            source_id=source_id,
            signal=signal,
            position=None if at is None else (_spelled(at), own_id if isinstance(own_id, int) else source_id),
            payload=payload,
            scope=facts.get("scope_column", self.scope),
            deleted=deleted,
        )

    def _own_id(self, source_id: str) -> Any:
        """The id as its column has it; None where that column can have no such id."""
        kind = type_of(self._id)
        if kind is not int and kind is not UUID:
            return source_id
        try:
            own = kind(source_id)
        except ValueError:
            return None
        if str(own) != source_id or (isinstance(own, int) and not -(2**63) <= own < 2**63):
            return None
        return own


def _check_table(table: object) -> None:
    if not isinstance(table, FromClause):
        raise ConfigError(f"table must be a SQLAlchemy table, not {type(table).__name__}")


def _check_overlap(overlap: object) -> None:
    if not isinstance(overlap, timedelta) or overlap <= timedelta(0):
        raise ConfigError(f"overlap must be a positive timedelta, not {overlap!r}")


def _check_type(column: ColumnElement[Any], name: str, told: str, *kinds: type) -> None:
    kind = type_of(column)
    if kind is not None and not issubclass(kind, kinds):
        raise ConfigError(f"{name} must be a column of {told}, not of {kind.__name__}")


def _name_of(table: FromClause) -> str:
    return str(getattr(table, "fullname", None) or getattr(table, "name", None) or "selection")


def _signal_text(value: Any, *, deleted: bool) -> str:
    """Text that differs where the value does; none where it is NULL, which the run refuses."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else canonical(as_json(value))
    # A deletion need not touch the column.
    return f"{text} deleted" if deleted else text


def _place(after: Position) -> tuple[Position, ...]:
    """An instant, and for a place behind a row the row's id."""
    if isinstance(after, tuple) and 1 <= len(after) <= 2 and isinstance(after[0], str):
        return after
    raise ConfigError(f"after must be None or the position of a row, not {after!r}")


def _spelled(at: Any) -> str:
    """An instant as text whose order is that of time: in UTC, or without a zone where the column has none."""
    if not isinstance(at, datetime):
        raise ConfigError(f"updated_at must hold instants, not {type(at).__name__}")
    if at.tzinfo is None:
        return at.isoformat(timespec="microseconds")
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _instant(text: Position) -> datetime:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        raise ConfigError(
            f"after must be None or the position of a row, which begins with no {text!r}"
        ) from None
