"""The audit table: who did what to which records, one row for each act."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import frozen
from sqlalchemy import Executable, bindparam, insert, update

from statifier_router import ids
from statifier_router.dialect import Link, in_full
from statifier_router.errors import ConfigError
from statifier_router.jsontext import encode
from statifier_router.schema import Schema
from statifier_router.text import NAME_LIMIT, checked, error_text

if TYPE_CHECKING:
    from sqlalchemy import Connection

# Of the ids that an act names, so many are kept; `count` tells of all.
_IDS_KEPT = 100


@frozen(kw_only=True)
class Entry:
    """An act that is about to be written down. `selection` says what it was done to."""

    actor: str
    action: str
    selection: Mapping[str, Any]
    reason: str | None = None


def entry(actor: object, action: str, selection: Mapping[str, Any], *, reason: object = None) -> Entry:
    """An entry whose actor and reason were checked. Raises `ConfigError`, naming the field."""
    who = checked(actor, "actor", ConfigError, limit=NAME_LIMIT)
    return Entry(actor=who, action=action, selection=selection, reason=checked_reason(reason))


def checked_reason(reason: object) -> str | None:
    """A reason that was given, cut to 2,000 characters; `ConfigError` for what says nothing."""
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise ConfigError(f"reason must be text, not {type(reason).__name__}")
    if not reason.strip():
        raise ConfigError("reason must say why")
    return error_text(reason)


def named(source_ids: tuple[str, ...]) -> dict[str, Any]:
    """Ids as a selection spells them: the first hundred, and how many there are."""
    told: dict[str, Any] = {"source_ids": list(source_ids[:_IDS_KEPT])}
    if len(source_ids) > _IDS_KEPT:
        told["named"] = len(source_ids)
    return told


def write(connection: Link, schema: Schema, done: Entry, *, count: int, at: datetime) -> str:
    """Write the row of an act; answers its id, by which `add` counts on."""
    audit_id = ids.audit_id()
    values = {
        "of_id": audit_id,
        "to_actor": done.actor,
        "to_action": done.action,
        "to_selection": encode(dict(done.selection)),
        "to_count": count,
        "to_reason": done.reason,
        "to_at": at,
    }
    in_full(connection).execute(_write(schema), values)
    return audit_id


def add(connection: Connection, schema: Schema, audit_id: str, count: int) -> None:
    """Count more records on an act that is done in several transactions."""
    connection.execute(_add(schema), {"of_id": audit_id, "more": count})


@lru_cache
def _write(schema: Schema) -> Executable:
    table = schema.audit
    return insert(table).values(
        id=bindparam("of_id"),
        actor=bindparam("to_actor"),
        action=bindparam("to_action"),
        selection=bindparam("to_selection"),
        count=bindparam("to_count"),
        reason=bindparam("to_reason"),
        at=bindparam("to_at"),
    )


@lru_cache
def _add(schema: Schema) -> Executable:
    table = schema.audit
    return (
        update(table)
        .where(table.c.id == bindparam("of_id"))
        .values(count=table.c["count"] + bindparam("more", type_=table.c["count"].type))
    )
