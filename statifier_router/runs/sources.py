"""Sources over the library's own tables: changes of records, and what executions handed off.

Both are read in commit order (`committed`), below the horizon: what a scan has passed is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import Attribute, field, frozen

from statifier_router import change_table, dialect, outbox
from statifier_router.committed import START, held_back, horizon
from statifier_router.dialect import Prepared, Row
from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json, canonical, decode
from statifier_router.paging import chunks
from statifier_router.runs.bracket import schema_in_use
from statifier_router.runs.records import Position, Record
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.schema import Schema

# Rows that are read at once where versions of one record crowd a page.
_MOST = 5_000


def _checked_name(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    checked(value, attribute.name, ConfigError, limit=NAME_LIMIT)


def _optional_scope(instance: object, attribute: Attribute[Any], value: object) -> None:
    del instance
    if value is not None:
        checked(value, attribute.name, ConfigError, limit=NAME_LIMIT, empty=True)


@frozen
class Changes:
    """The records of one entity in the table `changes`, fed by `RecordRoute` and `record_change`.

    A scan offers each record once a page, however many versions of it stand there; the newest one is what
    is loaded. Rows carry no scope: a scope that is to be kept apart has an entity of its own.

    >>> Changes("parcel").identity
    'changes["parcel"]'
    """

    entity: str = field(validator=_checked_name)

    # A rule with a scope is refused: nothing here could tell whose a record is.
    scope: ClassVar[None] = None

    @property
    def identity(self) -> str:
        """What the source is, where rules are compared."""
        return _identity("changes", self.entity)

    def scan(self, connection: Connection, after: Position, limit: int) -> Sequence[Record]:
        """Changed records after a position, in commit order, each placed at its last row that was read."""
        statement = change_table.page(schema_in_use(connection))
        values = {"of_entity": self.entity} | _place(after) | {"horizon": horizon(connection)}
        # In the order of their last rows: of each record that row, and the newest one. They may differ: of
        # two transactions the one that began first may have written last.
        held: dict[str, tuple[Any, Any]] = {}
        size = limit
        while True:
            rows = connection.execute(statement, values | {"limit": size}).all()
            for row in rows:
                known = held.pop(row.source_id, None)
                if known is None and len(held) == limit:
                    return _records(held)
                newest = row if known is None or known[1].seq < row.seq else known[1]
                held[row.source_id] = row, newest
            if len(rows) < size:
                return _records(held)
            values |= {"after_xid": rows[-1].xid, "after_number": rows[-1].seq}
            size = min(2 * size, _MOST)

    def load(self, connection: Connection, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        """The newest version of each, in the order in which they were appended, whatever is still open."""
        schema = schema_in_use(connection)
        loaded: dict[str, Record | None] = dict.fromkeys(source_ids)
        of_entity = {"of_entity": self.entity}
        if dialect.kind(connection) == "postgresql":
            values = of_entity | {"source_id": list(loaded)}
            rows = connection.execute(change_table.newest_of_many(schema), values).all()
        else:
            newest = change_table.newest(schema)
            found = (
                connection.execute(newest, of_entity | {"of_source_id": each}).one_or_none()
                for each in loaded
            )
            rows = [row for row in found if row is not None]
        return loaded | {row.source_id: _record(row, row) for row in rows}

    def held_back(self, connection: Connection, record: Record) -> str | None:
        """Why a scan does not hand over this version yet; None where it does."""
        return _held_back(connection, record)


def asked_of(source: object, schema: Schema, source_id: str) -> tuple[Prepared, dict[str, Any]] | None:
    """The statement by which this source loads one record, to be sent with others; None for a host's own.

    A class that is made from one of ours may load otherwise.
    """
    if type(source) is not Changes:
        return None
    return change_table.newest_one(schema), {"of_entity": source.entity, "of_source_id": source_id}


def answered(source_id: str, rows: Sequence[Row]) -> dict[str, Record | None]:
    """What that statement answered, as `load` answers."""
    if not rows:
        return {source_id: None}
    _, signal, data, deleted, xid, seq = rows[0]
    record = Record(
        source_id=source_id,
        signal=signal,
        position=(xid, seq),
        payload=None if data is None else decode(data),
        deleted=bool(deleted),
    )
    return {source_id: record}


def _records(held: Mapping[str, tuple[Any, Any]]) -> list[Record]:
    return [_record(last, newest) for last, newest in held.values()]


def _record(last: Any, newest: Any) -> Record:
    return Record(
        source_id=newest.source_id,
        signal=newest.signal,
        position=(last.xid, last.seq),
        payload=None if newest.data is None else decode(newest.data),
        deleted=newest.deleted,
    )


@frozen
class Outbox:
    """What executions handed off to one queue of the outbox (`OutboxRoute`), or a scope's part of it.

    Made for message rules: a row is a record of its own that never changes. Its id and its signal are the
    idempotency key of the send.

    >>> Outbox("notices").identity
    'outbox["notices"]'
    """

    queue: str = field(validator=_checked_name)
    scope: str | None = field(default=None, kw_only=True, validator=_optional_scope)

    @property
    def identity(self) -> str:
        """What the source is, where rules are compared."""
        return _identity("outbox", self.queue, *(() if self.scope is None else (self.scope,)))

    def scan(self, connection: Connection, after: Position, limit: int) -> Sequence[Record]:
        """Rows after a position, in commit order."""
        statement = outbox.page(schema_in_use(connection), scoped=self.scope is not None)
        values = self._where() | _place(after) | {"horizon": horizon(connection), "limit": limit}
        return [_message(row) for row in connection.execute(statement, values)]

    def load(self, connection: Connection, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        """The rows with these keys."""
        loaded: dict[str, Record | None] = dict.fromkeys(source_ids)
        statement = outbox.by_key(schema_in_use(connection), scoped=self.scope is not None)
        for some in chunks(list(loaded)):
            for row in connection.execute(statement, self._where() | {"keys": some}):
                loaded[row.key] = _message(row)
        return loaded

    def held_back(self, connection: Connection, record: Record) -> str | None:
        """Why a scan does not hand over this version yet; None where it does."""
        return _held_back(connection, record)

    def _where(self) -> dict[str, Any]:
        return {"of_queue": self.queue} | ({} if self.scope is None else {"of_scope": self.scope})


def _message(row: Any) -> Record:
    event: Any = decode(row.event)
    payload: dict[str, Json] = {**event, "scope": row.scope, "at": row.created_at.isoformat()}
    if row.context is not None:
        payload["context"] = decode(row.context)
    return Record(
        source_id=row.key,
        signal=row.key,
        position=(row.xid, row.id),
        payload=payload,
        scope=row.scope,
    )


def _held_back(connection: Connection, record: Record) -> str | None:
    place = record.position
    assert isinstance(place, tuple)
    assert isinstance(place[0], int)
    return held_back(connection, place[0])


def _place(after: Position) -> dict[str, int]:
    """Where a page begins, as its statement takes it."""
    if after is None:
        xid, number = START
    elif (
        isinstance(after, tuple)
        and len(after) == len(START)
        and isinstance(after[0], int)
        and isinstance(after[1], int)
    ):
        xid, number = after[0], after[1]
    else:
        raise ConfigError(f"after must be None or the position of a row, not {after!r}")
    return {"after_xid": xid, "after_number": number}


def _identity(kind: str, *names: str) -> str:
    return kind + canonical(list(names))


def names_of(identity: object, kind: str) -> list[str] | None:
    """What a source with this `identity` reads: its entity, or its queue and perhaps a scope.

    None for a source of another kind than "changes" or "outbox".

    >>> names_of(Outbox("notices", scope="acme").identity, "outbox")
    ['notices', 'acme']
    """
    if not isinstance(identity, str) or not identity.startswith(f"{kind}["):
        return None
    names: Any = decode(identity[len(kind) :])
    return list(names)
