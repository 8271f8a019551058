"""Addresses: the row (scope, document, key) that names the one execution, and its reaper."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from attrs import field, frozen
from sqlalchemy import (
    Connection,
    Executable,
    bindparam,
    delete,
    literal_column,
    select,
    update,
)

from statifier_router import dialect
from statifier_router.ambient import Frame
from statifier_router.bindings import Binding
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.dialect import Link, Prepared
from statifier_router.errors import ConfigError
from statifier_router.executions import SQLExecutor
from statifier_router.executions import rows as execution_rows
from statifier_router.executor import TERMINAL
from statifier_router.paging import checked_execution_id, checked_limit, chunks
from statifier_router.schema import Schema
from statifier_router.text import KEY_LIMIT, NAME_LIMIT, checked
from statifier_router.transactions import reading, run
from statifier_router.values import made_often

__all__ = ["Address", "Reaped", "by_execution", "find", "reap"]


@frozen
class Address:
    """Which execution a key of a document is at, since when, and when it was first seen ended."""

    scope: str
    document: str
    key: str = field(repr=False)
    execution_id: str
    inserted_at: datetime
    terminal_seen_at: datetime | None


@frozen
class Reaped:
    """What one page of `reap` did: rows stamped, rows deleted, and where the next page begins.

    `next` is None when the page was the last one.
    """

    stamped: int
    deleted: int
    next: int | None


def find(config: Config, scope: str, document: str, key: str, *, connection: Any = None) -> Address | None:
    """The address, or None. Takes no lock."""
    scope = checked(scope, "scope", ConfigError, limit=NAME_LIMIT, empty=True)
    document = checked(document, "document", ConfigError, limit=NAME_LIMIT)
    key = checked(key, "key", ConfigError, limit=KEY_LIMIT)
    with reading(config, connection) as own:
        row = own.execute(
            _read(config.schema), {"scope": scope, "document": document, "key": key}
        ).one_or_none()
        return None if row is None else Address(**row._mapping)


def by_execution(config: Config, execution_id: str, *, connection: Any = None) -> Address | None:
    """The address that names this execution, or None (made by `always_new`, or reaped)."""
    execution_id = checked_execution_id(execution_id)
    with reading(config, connection) as own:
        row = own.execute(_by_execution(config.schema), {"execution_id": execution_id}).one_or_none()
        return None if row is None else Address(**row._mapping)


def _columns(schema: Schema) -> list[Any]:
    table = schema.addresses
    return [
        table.c.scope,
        table.c.document,
        table.c.key,
        table.c.execution_id,
        table.c.inserted_at,
        table.c.terminal_seen_at,
    ]


def _here(schema: Schema) -> list[Any]:
    table = schema.addresses
    return [table.c[name] == bindparam(name) for name in ("scope", "document", "key")]


@lru_cache
def _read(schema: Schema) -> Executable:
    return select(*_columns(schema)).where(*_here(schema))


@lru_cache
def _by_execution(schema: Schema) -> Executable:
    table = schema.addresses
    return (
        select(*_columns(schema))
        .where(table.c.execution_id == bindparam("execution_id"))
        .order_by(table.c.id)
        .limit(1)
    )


# --- In a delivery --------------------------------------------------------------------------------


# What a statement of these levels reads is what was committed when it began.
FRESH_LEVELS = frozenset({"read committed", "read uncommitted"})


@made_often
class Found:
    """What a delivery reads: the execution at the address if any, and how fresh the reading is.

    `snapshot_is_fresh` is False in a borrowed transaction stricter than READ COMMITTED.
    """

    execution_id: str | None
    snapshot_is_fresh: bool


def look_up(link: Link, schema: Schema, scope: str, document: str, key: str) -> Found:
    """The execution at this address, in one statement that also asks how strict the transaction is."""
    ((execution_id, isolation),) = _look_up(schema, dialect.kind(link)).rows(
        link, {"scope": scope, "document": document, "key": key}
    )
    return Found(execution_id, isolation in FRESH_LEVELS)


@lru_cache
def _look_up(schema: Schema, kind: str) -> Prepared:
    found = (select(schema.addresses.c.execution_id).where(*_here(schema)).scalar_subquery()).label(
        "execution_id"
    )
    # SQLite's one writer always reads the newest state.
    isolation = "current_setting('transaction_isolation')" if kind == "postgresql" else "'read committed'"
    return Prepared(select(found, literal_column(isolation).label("isolation")))


def insert(
    link: Link,
    schema: Schema,
    scope: str,
    document: str,
    key: str,
    execution_id: str,
    now: datetime,
) -> bool:
    """Insert the address; False where it exists.

    Waits for another transaction's uncommitted insert of it: this row is the lock of a creation.
    """
    values = {
        "scope": scope,
        "document": document,
        "key": key,
        "execution_id": execution_id,
        "inserted_at": now,
    }
    return _insert(schema, dialect.kind(link)).first(link, values) is not None


@lru_cache
def _insert(schema: Schema, kind: str) -> Prepared:
    table = schema.addresses
    names = ("scope", "document", "key", "execution_id", "inserted_at")
    inserting = (
        dialect.insert_into(kind, table)
        .values({name: bindparam(name) for name in names})
        .on_conflict_do_nothing(index_elements=[table.c.scope, table.c.document, table.c.key])
        .returning(table.c.id)
    )
    return Prepared(inserting)


def stamp(
    link: Link,
    schema: Schema,
    scope: str,
    document: str,
    key: str,
    execution_id: str,
    now: datetime,
) -> None:
    """Note when the execution was first seen ended, on the row that still names it."""
    _stamp(schema).count(
        link,
        {
            "at_scope": scope,
            "at_document": document,
            "at_key": key,
            "at_execution_id": execution_id,
            "seen_at": now,
        },
    )


@lru_cache
def _stamp(schema: Schema) -> Prepared:
    table = schema.addresses
    return Prepared(
        update(table)
        .where(
            table.c.scope == bindparam("at_scope"),
            table.c.document == bindparam("at_document"),
            table.c.key == bindparam("at_key"),
            table.c.execution_id == bindparam("at_execution_id"),
            table.c.terminal_seen_at.is_(None),
        )
        .values(terminal_seen_at=bindparam("seen_at"))
    )


# --- Reaping --------------------------------------------------------------------------------------


def reap(
    config: Config,
    bindings: Sequence[Binding] | None = None,
    *,
    now: datetime | None = None,
    limit: int = 1000,
    after: int | None = None,
    connection: Any = None,
) -> Reaped:
    """One page of addresses, by id: stamp those newly seen ended, delete those past their horizon.

    A row's horizon is the longest among the enabled `bindings` that name its document, zero when
    none does; it is deleted once that has passed since its stamp, or at once when its execution is
    gone. `bindings=None` takes the configured ones; with a bindings resolver give those of every
    scope. Everything is read before anything is written; no execution is ever touched. One
    transaction a page: pass `next` as `after` until it is None.
    """
    if bindings is None:
        if config.bindings_resolver is not None:
            raise ConfigError(
                "bindings is missing: this configuration resolves them per scope; "
                "give the bindings of every scope"
            )
        bindings = config.bindings
    horizons = _horizons(_of_every_scope(bindings))
    instant = config.now() if now is None else as_utc(now, "now", ConfigError)
    limit = checked_limit(limit)
    if after is not None and (isinstance(after, bool) or not isinstance(after, int)):
        raise ConfigError(f"after must be the `next` of a page, not {type(after).__name__}")

    def work(frame: Frame) -> Reaped:
        own = frame.connection
        page = own.execute(_page(config.schema), {"after": after or 0, "limit": limit}).all()
        ended = _ended(own, config, [row for row in page if row.terminal_seen_at is None])
        stamps: list[int] = []
        deletions: list[int] = []
        for row in page:
            horizon = horizons.get(row.document, timedelta(0))
            if row.execution_id in frame.stepping:
                # Its row may still be to be written, at the end of the delivery that calls this.
                continue
            if row.terminal_seen_at is None:
                state = ended[row.execution_id]
                if state == "gone" or (state == "ended" and horizon == timedelta(0)):
                    deletions.append(row.id)
                elif state == "ended":
                    stamps.append(row.id)
            elif row.terminal_seen_at + horizon <= instant:
                deletions.append(row.id)
        return Reaped(
            stamped=_write_in_chunks(own, _stamp_seen(config.schema), stamps, {"seen_at": instant}),
            deleted=_write_in_chunks(own, _delete(config.schema), deletions, {}),
            next=page[-1].id if len(page) == limit else None,
        )

    return run(config, work, connection=connection)


def _of_every_scope(bindings: object) -> Sequence[Binding]:
    """The bindings, which may share ids: each scope has its own."""
    if isinstance(bindings, (str, bytes)) or not isinstance(bindings, Sequence):
        raise ConfigError(f"bindings must be a sequence of Binding, not {type(bindings).__name__}")
    for binding in bindings:
        if not isinstance(binding, Binding):
            raise ConfigError(f"bindings holds a {type(binding).__name__}, which is not a Binding")
    return bindings


def _horizons(bindings: Sequence[Binding]) -> dict[str, timedelta]:
    longest: dict[str, timedelta] = {}
    for binding in bindings:
        if binding.enabled:
            known = longest.get(binding.document, timedelta(0))
            longest[binding.document] = max(known, binding.dedupe.horizon)
    return longest


def _ended(connection: Connection, config: Config, page: Sequence[Any]) -> dict[str, str]:
    """For each execution of the page: "live", "ended" or "gone"."""
    ids = sorted({row.execution_id for row in page})
    statuses: dict[str, str]
    executor = config.executor
    if executor is None or type(executor).fetch is SQLExecutor.fetch:
        statuses = execution_rows.statuses(connection, config.schema, ids)
    else:
        found = (executor.fetch(connection, config, id, lock=False) for id in ids)
        statuses = {execution.id: execution.status for execution in found if execution is not None}
    return {
        id: "gone" if id not in statuses else "ended" if statuses[id] in TERMINAL else "live" for id in ids
    }


def _write_in_chunks(
    connection: Connection, statement: Executable, ids: list[int], values: dict[str, Any]
) -> int:
    return sum(connection.execute(statement, values | {"ids": some}).rowcount for some in chunks(ids))


@lru_cache
def _page(schema: Schema) -> Executable:
    table = schema.addresses
    return (
        select(table.c.id, table.c.document, table.c.execution_id, table.c.terminal_seen_at)
        .where(table.c.id > bindparam("after"))
        .order_by(table.c.id)
        .limit(bindparam("limit"))
    )


def _unlocked(schema: Schema) -> Any:
    # Two reapers of one page, or a delivery that stamps, are passed over rather than waited for.
    table = schema.addresses
    return (
        select(table.c.id)
        .where(table.c.id.in_(bindparam("ids", expanding=True)))
        .order_by(table.c.id)
        .with_for_update(skip_locked=True)
    )


@lru_cache
def _stamp_seen(schema: Schema) -> Executable:
    table = schema.addresses
    return (
        update(table)
        .where(table.c.id.in_(_unlocked(schema)), table.c.terminal_seen_at.is_(None))
        .values(terminal_seen_at=bindparam("seen_at"))
    )


@lru_cache
def _delete(schema: Schema) -> Executable:
    table = schema.addresses
    return delete(table).where(table.c.id.in_(_unlocked(schema)))
