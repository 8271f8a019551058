"""The ledger: the append-only table of what became of every message."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from attrs import field, frozen
from sqlalchemy import (
    Executable,
    Select,
    bindparam,
    case,
    delete,
    exists,
    insert,
    literal_column,
    null,
    select,
)

from statifier_router.ambient import Frame
from statifier_router.claims import Claim
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.dialect import Link, Prepared
from statifier_router.errors import ConfigError
from statifier_router.paging import checked_limit
from statifier_router.schema import Schema
from statifier_router.text import MESSAGE_ID_LIMIT, checked
from statifier_router.transactions import reading, run
from statifier_router.values import made_often

__all__ = ["LedgerRow", "prune", "rows"]

CONTENT_DIFFERS = "content differs"


@frozen
class LedgerRow:
    """One row of the ledger, as it was written. `id` orders the rows."""

    id: int
    binding_id: str | None
    message_id: str
    scope: str
    outcome: str
    key: str | None = field(repr=False)
    execution_id: str | None
    reason: str | None
    inserted_at: datetime


@made_often
class Entry:
    """What is about to be written."""

    binding_id: str | None
    message_id: str
    scope: str
    outcome: str
    inserted_at: datetime
    key: str | None = field(default=None, repr=False)
    execution_id: str | None = None
    reason: str | None = None


def write(link: Link, schema: Schema, entry: Entry) -> None:
    """Append one row."""
    _write(schema).count(link, as_values(entry))


def write_duplicate(link: Link, schema: Schema, entry: Entry, claim: Claim) -> bool:
    """Append a duplicate's row; True where the message that was taken carried other content.

    One statement: the stored digest is compared inside the insert, and a difference is its reason.
    """
    values = as_values(entry) | {
        "claim_binding_id": claim.binding_id,
        "claim_scope": claim.scope,
        "claim_message_id": claim.message_id,
        "claim_digest": claim.digest,
    }
    ((reason,),) = _write_duplicate(schema).rows(link, values)
    return reason is not None


def as_values(entry: Entry) -> dict[str, Any]:
    """The columns of a row that is about to be written."""
    return {
        "binding_id": entry.binding_id,
        "message_id": entry.message_id,
        "scope": entry.scope,
        "outcome": entry.outcome,
        "key": entry.key,
        "execution_id": entry.execution_id,
        "reason": entry.reason,
        "inserted_at": entry.inserted_at,
    }


@lru_cache
def _write(schema: Schema) -> Prepared:
    table = schema.ledger
    # Nothing is returned: SQLAlchemy would otherwise ask for the new id.
    return Prepared(
        insert(table).values({name: bindparam(name) for name in table.c.keys() if name != "id"}).inline()
    )


@lru_cache
def _write_duplicate(schema: Schema) -> Prepared:
    table, claims = schema.ledger, schema.claims
    differs = exists().where(
        claims.c.binding_id == bindparam("claim_binding_id"),
        claims.c.scope == bindparam("claim_scope"),
        claims.c.message_id == bindparam("claim_message_id"),
        claims.c.digest != bindparam("claim_digest"),
    )
    values: dict[str, Any] = {
        name: bindparam(name) for name in table.c.keys() if name not in ("id", "reason")
    }
    reason = case((differs, literal_column(f"'{CONTENT_DIFFERS}'")), else_=null())
    return Prepared(insert(table).values(reason=reason, **values).returning(table.c.reason))


def rows(
    config: Config,
    *,
    binding_id: str | None = None,
    message_id: str | None = None,
    scope: str | None = None,
    outcome: str | None = None,
    execution_id: str | None = None,
    limit: int = 100,
    after: int | None = None,
    connection: Any = None,
) -> list[LedgerRow]:
    """Ledger rows, oldest first, that fit every filter given; at most `limit`, after the id `after`.

    Reads on the transaction in force, else on its own; takes no lock.
    """
    wanted = {
        "binding_id": binding_id,
        "message_id": message_id,
        "scope": scope,
        "outcome": outcome,
        "execution_id": execution_id,
    }
    filters = {name: value for name, value in wanted.items() if value is not None}
    for name, value in filters.items():
        checked(value, name, ConfigError, limit=MESSAGE_ID_LIMIT, empty=True)
    if after is not None and (isinstance(after, bool) or not isinstance(after, int)):
        raise ConfigError(f"after must be the id of a ledger row, not {type(after).__name__}")
    statement = _rows(config.schema, tuple(filters), paged=after is not None)
    values = filters | {"limit": checked_limit(limit)} | ({} if after is None else {"after": after})
    with reading(config, connection) as own:
        return [LedgerRow(**row) for row in own.execute(statement, values).mappings()]


@lru_cache
def _rows(schema: Schema, filters: tuple[str, ...], *, paged: bool) -> Select[Any]:
    table = schema.ledger
    statement = select(table).order_by(table.c.id).limit(bindparam("limit"))
    for name in filters:
        statement = statement.where(table.c[name] == bindparam(name))
    return statement.where(table.c.id > bindparam("after")) if paged else statement


def prune(config: Config, *, before: datetime, limit: int = 1000, connection: Any = None) -> int:
    """Delete at most `limit` rows that were written before `before`, the oldest ids first.

    It walks by id and stops at the first row that is not old enough, so it never scans what stays.
    One transaction. Answers how many it deleted: call until 0.
    """
    instant = as_utc(before, "before", ConfigError)
    limit = checked_limit(limit)

    def work(frame: Frame) -> int:
        statement = _prune(config.schema)
        return frame.connection.execute(statement, {"before": instant, "limit": limit}).rowcount

    return run(config, work, connection=connection)


@lru_cache
def _prune(schema: Schema) -> Executable:
    table = schema.ledger
    oldest = select(table.c.id, table.c.inserted_at).order_by(table.c.id).limit(bindparam("limit")).subquery()
    old = select(oldest.c.id).where(
        oldest.c.inserted_at < bindparam("before", type_=table.c.inserted_at.type)
    )
    return delete(table).where(table.c.id.in_(old))
