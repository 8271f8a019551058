"""`rebase`: after a dump and restore the transaction ids of the old server say nothing any more.

New rows would bear ids that are smaller than those that were read already, and never be read. So all rows
that are there are given the id 0: among themselves they are in the order of their numbers, and before
every new one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import frozen
from sqlalchemy import Executable, Select, bindparam, func, literal, null, select, update

from statifier_router import dialect
from statifier_router.columns import XID
from statifier_router.committed import after
from statifier_router.errors import ConfigError
from statifier_router.runs import asking_statements, auditing, chain_rows, positions, rule_rows
from statifier_router.runs.bracket import writing
from statifier_router.runs.chains import is_dead
from statifier_router.runs.own_sources import Place, Reader, readers

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.runs.outbound import Outbound
    from statifier_router.schema import Schema


@frozen(kw_only=True)
class Rebased:
    """How many rows of each table were given a new place, and the rules whose cursors were moved."""

    changes: int
    outbox: int
    rules: tuple[str, ...]


def rebase(outbound: Outbound, *, actor: str, reason: str | None = None) -> Rebased:
    """See `Outbound.rebase`."""
    config = outbound.config
    schema, now = config.schema, config.now()
    done = auditing.entry(actor, "rebase", {}, reason=reason)
    with writing(config) as connection:
        if dialect.kind(connection) == "sqlite":
            return Rebased(changes=0, outbox=0, rules=())
        # Nobody takes a rule meanwhile.
        for name in connection.execute(asking_statements.rule_names(schema)).scalars().all():
            connection.execute(rule_rows.locked(schema), {"of_rule": name})
        _refuse_running(connection, outbound)
        moved = [reader.rule for reader in readers(connection, schema) if _move(connection, schema, reader)]
        changes, messages = (
            connection.execute(_forget(schema, name)).rowcount for name in ("changes", "outbox")
        )
        if moved or changes or messages:
            selection = {"rules": moved, "changes": changes, "outbox": messages}
            entry = auditing.Entry(
                actor=done.actor, action=done.action, selection=selection, reason=done.reason
            )
            auditing.write(connection, schema, entry, count=changes + messages, at=now)
    return Rebased(changes=changes, outbox=messages, rules=tuple(moved))


def _refuse_running(connection: Connection, outbound: Outbound) -> None:
    """Raise where a run may still move a cursor; take the rule from one that is dead."""
    schema, now = outbound.config.schema, outbound.config.now()
    for row in connection.execute(asking_statements.rules(schema)).all():
        of_rule = {"of_rule": row.name}
        chain = connection.execute(chain_rows.running(schema), of_rule).one_or_none()
        held = row.lease_until is not None and row.lease_until >= now
        if held or (chain is not None and not is_dead(chain.heartbeat_at, now, outbound.lease)):
            raise ConfigError(
                f"a run of rule {row.name!r} is under way, or was when the database was dumped: stop "
                f"whatever runs rules, and try again once {2 * outbound.lease} have passed without a sign "
                "of it"
            )
        if chain is not None:
            connection.execute(rule_rows.revoke(schema), of_rule)
            # Whoever goes on with it begins at the cursor.
            connection.execute(_begin_anew(schema), of_rule)


def _move(connection: Connection, schema: Schema, reader: Reader) -> bool:
    """Put the rule's cursor where nothing behind it was passed unread; answers whether it was another one.

    What was read already and stands behind it is read again, and known by its signal.
    """
    if reader.cursor is None:
        return False
    place = safe_place(connection, schema, reader, reader.cursor)
    if place == reader.cursor:
        return False
    values = {"of_rule": reader.rule, "to_cursor": positions.stored(place)}
    connection.execute(_set_cursor(schema), values)
    return True


def safe_place(connection: Connection, schema: Schema, reader: Reader, cursor: Place) -> Place:
    """The place, once every row has the id 0, before which everything was read.

    Rows with greater numbers than the cursor's may all be new, whatever their ids: they count as unread.
    Among the others those behind the cursor are.
    """
    xid, number = cursor
    values = {"of_name": reader.name, "after_xid": xid, "after_number": number}
    unread = connection.execute(_first_unread(schema, reader.table), values).scalar_one()
    return (0, number if unread is None else min(number, unread - 1))


@lru_cache
def _first_unread(schema: Schema, table_name: str) -> Select[Any]:
    table, name, number = _columns(schema, table_name)
    # Not a number alone, for which the whole table would be walked in its order.
    return select(func.min(number + 0)).where(
        name == bindparam("of_name"), after(table.c.xid, number), number <= bindparam("after_number")
    )


def _columns(schema: Schema, table_name: str) -> tuple[Any, Any, Any]:
    if table_name == "changes":
        return schema.changes, schema.changes.c.entity, schema.changes.c.seq
    return schema.outbox, schema.outbox.c.queue, schema.outbox.c.id


@lru_cache
def _forget(schema: Schema, table_name: str) -> Executable:
    table, _, _ = _columns(schema, table_name)
    nothing = literal(0, type_=XID)
    return update(table).where(table.c.xid > nothing).values(xid=nothing)


@lru_cache
def _set_cursor(schema: Schema) -> Executable:
    table = schema.rules
    return update(table).where(table.c.name == bindparam("of_rule")).values(cursor=bindparam("to_cursor"))


@lru_cache
def _begin_anew(schema: Schema) -> Executable:
    table = schema.chains
    return (
        update(table)
        .where(table.c.rule == bindparam("of_rule"), table.c.state == "running")
        .values(position=null())
    )
