"""Which rules read the library's own tables, and how far each of them came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from statifier_router.jsontext import decode
from statifier_router.runs import asking_statements, positions
from statifier_router.runs.sources import names_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.schema import Schema

Place = tuple[int, int]


@frozen(kw_only=True)
class Reader:
    """A saved rule whose source is `Changes` or `Outbox`, paused or not, known to this process or not.

    `name` is the entity or the queue. `cursor` is None before its first concluded page.
    """

    rule: str
    kind: Literal["state", "message"]
    table: Literal["changes", "outbox"]
    name: str
    scope: str | None
    cursor: Place | None


def readers(connection: Connection, schema: Schema) -> list[Reader]:
    """All of them, in the order of their names."""
    found = (_reader(row) for row in connection.execute(asking_statements.rules(schema)))
    return [reader for reader in found if reader is not None]


def _reader(row: Any) -> Reader | None:
    definition: Any = decode(row.definition)
    for table in ("changes", "outbox"):
        names = names_of(definition["source"], table)
        if names is not None:
            cursor: Any = positions.read(row.cursor)
            return Reader(
                rule=row.name,
                kind=definition["kind"],
                table=table,
                name=names[0],
                scope=names[1] if len(names) > 1 else None,
                cursor=cursor,
            )
    return None
