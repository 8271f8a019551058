"""Pruning: changes that nobody needs, messages that are done with and what is known of them, old chains."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
)

from statifier_router.clock import as_utc
from statifier_router.errors import ConfigError
from statifier_router.paging import checked_limit, chunks
from statifier_router.runs import rule_rows
from statifier_router.runs.asking import rule_name
from statifier_router.runs.bracket import writing
from statifier_router.runs.own_sources import Place, Reader, readers

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.config import Config
    from statifier_router.runs.outbound import Outbound
    from statifier_router.schema import Schema


# The newest chains of a rule that have ended stay, however old: how the rule stands is judged by them.
KEPT: Final = 20


@frozen(kw_only=True)
class Pruned:
    """What one page did: rows deleted, and where the next page begins; None where this was the last one."""

    deleted: int
    next: int | None


def prune_changes(config: Config, *, before: datetime, limit: int = 1000, after: int | None = None) -> Pruned:
    """Look at `limit` rows of `changes` behind the number `after`, and delete those that nobody needs.

    A row goes that was written before `before`, that a newer row of the same record supersedes, and that
    every rule of its entity has passed, paused ones included. The newest row of each record stays for
    ever: it is what is sent when a record is tried again. One transaction; call it with the answer's
    `next` until that is None.

    >>> from datetime import UTC, datetime
    >>> from statifier_router.doctest_support import config
    >>> prune_changes(config(), before=datetime(2026, 1, 1, tzinfo=UTC))
    Pruned(deleted=0, next=None)
    """
    instant, size, start = _checked(before, limit, after)
    with writing(config) as connection:
        schema = config.schema
        passed = _passed(readers(connection, schema))
        rows = connection.execute(_page(schema), {"after": start, "limit": size}).all()
        doomed = [
            row.seq
            for row in rows
            if row.superseded
            and row.created_at < instant
            and all(place is not None and (row.xid, row.seq) <= place for place in passed.get(row.entity, ()))
        ]
        for some in chunks(doomed):
            connection.execute(_delete(schema), {"numbers": some})
    # Behind a row that is not old enough there are hardly any that are.
    return Pruned(deleted=len(doomed), next=_next([(row.seq, row.created_at) for row in rows], size, instant))


def prune_records(
    outbound: Outbound, rule: object, *, before: datetime, limit: int = 1000, after: int | None = None
) -> Pruned:
    """See `Outbound.prune_records`."""
    instant, size, start = _checked(before, limit, after)
    name = rule_name(outbound, rule)
    with writing(outbound.config) as connection:
        schema = outbound.config.schema
        queue, beside = _of_queue(connection, schema, name)
        for each in beside:
            connection.execute(rule_rows.locked(schema), {"of_rule": each.rule})
        values = {"of_queue": queue, "after": start, "limit": size}
        rows = connection.execute(_messages(schema), values).all()
        doomed = _concluded(connection, schema, rows, beside, instant)
        for some in chunks(doomed):
            keys = {"keys": some, "rules": [each.rule for each in beside]}
            connection.execute(_delete_records(schema), keys)
            connection.execute(_delete_messages(schema), {"of_queue": queue} | keys)
    return Pruned(deleted=len(doomed), next=_next([(row.id, row.created_at) for row in rows], size, instant))


def prune_chains(config: Config, *, before: datetime, limit: int = 1000) -> int:
    """Delete at most `limit` chains that ended before `before`; answers how many. Call it until that is 0.

    The newest 20 of each rule that have ended stay: how a rule stands, and whether its faults are equal, is
    judged by them. One transaction, which waits for no run.

    >>> from datetime import UTC, datetime
    >>> from statifier_router.doctest_support import config
    >>> prune_chains(config(), before=datetime(2026, 1, 1, tzinfo=UTC))
    0
    """
    instant, size, _ = _checked(before, limit, None)
    deleted, schema = 0, config.schema
    with writing(config) as connection:
        names = select(schema.rules.c.name).order_by(schema.rules.c.name)
        for rule in connection.execute(names).scalars().all():
            values = {"of_rule": rule, "before": instant, "limit": size - deleted}
            doomed = connection.execute(_old_chains(schema), values).scalars().all()
            for some in chunks(doomed):
                deleted += connection.execute(_delete_chains(schema), {"ids": some}).rowcount
            if deleted >= size:
                break
    return deleted


def _checked(before: object, limit: object, after: object) -> tuple[datetime, int, int]:
    if after is not None and (isinstance(after, bool) or not isinstance(after, int)):
        raise ConfigError(f"after must be None or the `next` of the page before, not {after!r}")
    return as_utc(before, "before", ConfigError), checked_limit(limit), 0 if after is None else after


def _next(rows: Sequence[tuple[int, datetime]], size: int, before: datetime) -> int | None:
    """Behind the last row; None where there are no more, or where that one is too young itself."""
    if len(rows) < size or rows[-1][1] >= before:
        return None
    return rows[-1][0]


# --- changes ------------------------------------------------------------------------------------------


def _passed(found: Sequence[Reader]) -> dict[str, list[Place | None]]:
    """By entity, how far each of its rules came."""
    passed: dict[str, list[Place | None]] = {}
    for reader in found:
        if reader.table == "changes":
            passed.setdefault(reader.name, []).append(reader.cursor)
    return passed


@lru_cache
def _page(schema: Schema) -> Select[Any]:
    table, same = schema.changes, schema.changes.alias("same")
    newest = (
        select(func.max(same.c.seq))
        .where(same.c.entity == table.c.entity, same.c.source_id == table.c.source_id)
        .scalar_subquery()
    )
    return (
        select(
            table.c.seq,
            table.c.xid,
            table.c.entity,
            table.c.created_at,
            (table.c.seq < newest).label("superseded"),
        )
        .where(table.c.seq > bindparam("after"))
        .order_by(table.c.seq)
        .limit(bindparam("limit"))
    )


@lru_cache
def _delete(schema: Schema) -> Executable:
    table = schema.changes
    return delete(table).where(table.c.seq.in_(bindparam("numbers", expanding=True)))


# --- chains -------------------------------------------------------------------------------------------


@lru_cache
def _old_chains(schema: Schema) -> Select[Any]:
    """Chains of `of_rule` that ended before `before`, the oldest first, but for the newest of all."""
    table, newest = schema.chains, schema.chains.alias("newest")
    running: ColumnElement[str] = literal_column("'running'")
    first_kept = (
        select(newest.c.id)
        .where(newest.c.rule == bindparam("of_rule"), newest.c.state != running)
        .order_by(newest.c.id.desc())
        .limit(literal_column("1"))
        .offset(literal_column(str(KEPT - 1)))
        .scalar_subquery()
    )
    return (
        select(table.c.id)
        .where(
            table.c.rule == bindparam("of_rule"),
            table.c.id < first_kept,
            table.c.state != running,
            # The last sign of one that is over is its end.
            table.c.heartbeat_at < bindparam("before", type_=table.c.heartbeat_at.type),
        )
        .order_by(table.c.id)
        .limit(bindparam("limit"))
    )


@lru_cache
def _delete_chains(schema: Schema) -> Executable:
    table = schema.chains
    return delete(table).where(table.c.id.in_(bindparam("ids", expanding=True)))


# --- messages -----------------------------------------------------------------------------------------


def _of_queue(connection: Connection, schema: Schema, rule: str) -> tuple[str, list[Reader]]:
    """The queue that this message rule reads, and all rules that do."""
    found = readers(connection, schema)
    own = next((reader for reader in found if reader.rule == rule and reader.table == "outbox"), None)
    if own is None:
        raise ConfigError(
            f"rule {rule!r} reads no queue of the outbox, and its records must stay: they tell what was sent"
        )
    beside = [reader for reader in found if reader.table == "outbox" and reader.name == own.name]
    for reader in (own, *beside):
        if reader.kind == "state":
            raise ConfigError(
                f"rule {reader.rule!r} is a state rule, whose records must stay: they say at which address "
                "of its target each record is"
            )
    return own.name, beside


def _concluded(
    connection: Connection, schema: Schema, rows: Sequence[Any], beside: Sequence[Reader], before: datetime
) -> list[str]:
    """The keys of the messages that every rule that reads them has done with, before `before`."""
    done: set[tuple[str, str]] = set()
    for some in chunks([row.key for row in rows]):
        values = {"keys": some, "rules": [each.rule for each in beside], "before": before}
        done.update((row.rule, row.source_id) for row in connection.execute(_done(schema), values))
    return [
        row.key
        for row in rows
        if all(
            (each.rule, row.key) in done for each in beside if each.scope is None or each.scope == row.scope
        )
        and any(each.scope is None or each.scope == row.scope for each in beside)
    ]


@lru_cache
def _messages(schema: Schema) -> Select[Any]:
    table = schema.outbox
    return (
        select(table.c.id, table.c.key, table.c.scope, table.c.created_at)
        .where(table.c.queue == bindparam("of_queue"), table.c.id > bindparam("after"))
        .order_by(table.c.id)
        .limit(bindparam("limit"))
    )


@lru_cache
def _done(schema: Schema) -> Select[Any]:
    """Records that nobody comes back to: delivered, suppressed or dismissed, and not in doubt."""
    table, operations = schema.records, schema.operations
    open_ = exists().where(operations.c.rule == table.c.rule, operations.c.source_id == table.c.source_id)
    return select(table.c.rule, table.c.source_id).where(
        table.c.rule.in_(bindparam("rules", expanding=True)),
        table.c.source_id.in_(bindparam("keys", expanding=True)),
        or_(table.c.status.in_(["delivered", "suppressed"]), table.c.acknowledged_at.is_not(None)),
        table.c.updated_at < bindparam("before", type_=table.c.updated_at.type),
        ~open_,
    )


@lru_cache
def _delete_records(schema: Schema) -> Executable:
    table = schema.records
    return delete(table).where(
        table.c.rule.in_(bindparam("rules", expanding=True)),
        table.c.source_id.in_(bindparam("keys", expanding=True)),
    )


@lru_cache
def _delete_messages(schema: Schema) -> Executable:
    table = schema.outbox
    return delete(table).where(
        table.c.queue == bindparam("of_queue"), table.c.key.in_(bindparam("keys", expanding=True))
    )
