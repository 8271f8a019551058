"""The outbox: what executions handed off, for a delivery run or the host to carry out after commit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

from sqlalchemy import Connection, bindparam

from statifier_router import dialect
from statifier_router.dialect import Prepared
from statifier_router.jsontext import encode
from statifier_router.messages import Event, event_as_json
from statifier_router.schema import Schema


def add(
    connection: Connection,
    schema: Schema,
    *,
    queue: str,
    key: str,
    execution_id: str,
    scope: str,
    event: Event,
    context: Mapping[str, str],
    now: datetime,
) -> None:
    """Insert one row, or nothing where this key is there: the same step was driven before."""
    _add(schema, dialect.kind(connection)).count(
        connection,
        {
            "queue": queue,
            "key": key,
            "execution_id": execution_id,
            "scope": scope,
            "event": encode(event_as_json(event)),
            "context": encode(dict(context)) if context else None,
            "created_at": now,
        },
    )


@lru_cache
def _add(schema: Schema, kind: str) -> Prepared:
    table = schema.outbox
    names = [name for name in table.c.keys() if name != "id"]
    return Prepared(
        dialect.insert_into(kind, table)
        .values({name: bindparam(name) for name in names})
        .on_conflict_do_nothing(index_elements=[table.c.key])
        .inline()
    )
