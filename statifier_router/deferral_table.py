"""The statements over `deferred`: events that are kept until their execution takes them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Executable,
    Select,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from statifier_router.executor import TERMINAL
from statifier_router.schema import Schema
from statifier_router.tables import Tables

PLACE = ("scope", "document", "key")
TERMINAL_STATUSES = tuple(sorted(TERMINAL))


@lru_cache
def add(schema: Schema) -> Executable:
    """Keep one event."""
    table = schema.deferred
    names = [name for name in table.c.keys() if name != "id"]
    return insert(table).values({name: bindparam(name) for name in names}).inline()


@lru_cache
def of_execution(schema: Schema) -> Select[Any]:
    """What is kept for `of_execution`, oldest first."""
    table = schema.deferred
    return select(table).where(table.c.execution_id == bindparam("of_execution")).order_by(table.c.id)


@lru_cache
def count_of_execution(schema: Schema) -> Select[Any]:
    """How many events are kept for `of_execution`."""
    table = schema.deferred
    return select(func.count()).select_from(table).where(table.c.execution_id == bindparam("of_execution"))


def _at_place(schema: Schema) -> list[Any]:
    table = schema.deferred
    here: list[Any] = [table.c[name] == bindparam(f"at_{name}") for name in PLACE]
    return [*here, table.c.execution_id.is_(None)]


@lru_cache
def of_place(schema: Schema) -> Select[Any]:
    """What is kept by its address alone, oldest first."""
    return select(schema.deferred).where(*_at_place(schema)).order_by(schema.deferred.c.id)


@lru_cache
def adopt(schema: Schema) -> Executable:
    """Give what is kept by its address to the execution that was created there."""
    return update(schema.deferred).where(*_at_place(schema)).values(execution_id=bindparam("to_execution"))


@lru_cache
def remove(schema: Schema) -> Executable:
    """Forget one kept event."""
    return delete(schema.deferred).where(schema.deferred.c.id == bindparam("of_id"))


@lru_cache
def set_count(schema: Schema) -> Executable:
    """Write how many events the execution has; whoever does so holds its lock."""
    table = schema.executions
    return update(table).where(table.c.id == bindparam("of_execution")).values(deferred=bindparam("to_count"))


@lru_cache
def pending(schema: Schema, *, of_one: bool) -> Select[Any]:
    """Everything that is kept, oldest first; of one execution, or of all."""
    table = schema.deferred
    statement = select(table).order_by(table.c.id)
    if of_one:
        statement = statement.where(table.c.execution_id == bindparam("of_execution"))
    return statement


@lru_cache
def addressed(schema: Schema) -> Select[Any]:
    """Addresses that exist by now and by which rows are kept, in the order of their oldest ones.

    Those whose oldest row is after `after`.
    """
    table, addresses = schema.deferred, schema.addresses
    found = exists().where(*(addresses.c[name] == table.c[name] for name in PLACE))
    oldest = func.min(table.c.id)
    return (
        select(*(table.c[name] for name in PLACE), oldest.label("oldest"))
        .where(table.c.execution_id.is_(None), found)
        .group_by(*(table.c[name] for name in PLACE))
        .having(oldest > bindparam("after"))
        .order_by(oldest)
        .limit(bindparam("limit"))
    )


@lru_cache
def expired(schema: Schema) -> Select[Any]:
    """Rows whose time is up, and rows of executions that have ended, the longest expired first."""
    table, executions = schema.deferred, schema.executions
    ended = exists().where(
        executions.c.id == table.c.execution_id, executions.c.status.in_(TERMINAL_STATUSES)
    )
    return (
        select(table.c.id, table.c.execution_id, *(table.c[name] for name in PLACE))
        .where(or_(table.c.until < bindparam("now", type_=table.c.until.type), ended))
        .order_by(table.c.until, table.c.id)
        .limit(bindparam("limit"))
    )


@lru_cache
def lock_place() -> Executable:
    """Wait for, and hold until the transaction ends, the lock of one address (PostgreSQL)."""
    return select(func.pg_advisory_xact_lock(bindparam("number", type_=BigInteger())))


def lock_number(tables: Tables, scope: str, document: str, key: str) -> int:
    """The number of an address's lock. Two addresses may share one: they then wait for each other."""
    named = "\x00".join(("kept", tables.schema or "", tables.prefix, scope, document, key))
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "big", signed=True)
