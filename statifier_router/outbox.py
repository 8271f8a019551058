"""The outbox: what executions handed off, for a delivery run or the host to carry out after commit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, bindparam

from statifier_router import dialect
from statifier_router.dialect import Prepared
from statifier_router.jsontext import encode
from statifier_router.messages import Event, event_as_json
from statifier_router.schema import Schema

# What `add` inserts.
ADDED = ("queue", "key", "execution_id", "scope", "event", "context", "created_at")


def row_of(
    *,
    queue: str,
    key: str,
    execution_id: str,
    scope: str,
    event: Event,
    context: Mapping[str, str],
    now: datetime,
) -> dict[str, Any]:
    """One row, as it is stored."""
    return {
        "queue": queue,
        "key": key,
        "execution_id": execution_id,
        "scope": scope,
        "event": encode(event_as_json(event)),
        "context": encode(dict(context)) if context else None,
        "created_at": now,
    }


def add(connection: Connection, schema: Schema, row: Mapping[str, Any]) -> None:
    """Insert one row, or nothing where this key is there: the same step was driven before."""
    _add(schema, dialect.kind(connection)).count(connection, row)


@lru_cache
def _add(schema: Schema, kind: str) -> Prepared:
    table = schema.outbox
    return Prepared(
        dialect.insert_into(kind, table)
        .values({name: bindparam(name) for name in ADDED})
        .on_conflict_do_nothing(index_elements=[table.c.key])
        .inline()
    )
