"""The statements of a batch on PostgreSQL: each treats many rows, which come as one array a column.

Where rows are locked, they come sorted: two batches then never wait for each other in a circle. The
rows of a statement that only appends come in the order in which they are to be numbered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Text,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert

from statifier_router import change_table, outbox
from statifier_router.arrays import (
    column_types,
    given_rows,
    given_value,
    inserting_rows,
    same_key,
)
from statifier_router.dialect import Prepared
from statifier_router.merged_statements import EXECUTION_COLUMNS
from statifier_router.schema import Schema

PLACE = ("scope", "document", "key")
CLAIM = ("binding_id", "scope", "message_id")

_NUMBER = BigInteger()


# --- Claims ---------------------------------------------------------------------------------------


@lru_cache
def claimed(schema: Schema, *, bounded: bool) -> Prepared:
    """Take the claims that are free, or expired before `earliest`; answers their keys.

    With each: whether its row is new. Every row is locked, those of other claims too. With `bounded`
    it also sets the lock timeout, for its own waits and every later one.
    """
    table = schema.claims
    names = list(table.c.keys())
    given = given_rows(column_types(table, names))
    rows = select(*(given.c[name] for name in names)).order_by(given.c.nth)
    if bounded:
        made = func.set_config(literal_column("'lock_timeout'"), bindparam("lock_timeout"), true())
        setting = select(made.label("made")).cte("setting")
        rows = rows.where(setting.c.made.is_not(None))
    inserting = upsert(table).from_select(names, rows)
    return Prepared(
        inserting.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_={name: inserting.excluded[name] for name in ("digest", "expires_at")},
            where=table.c.expires_at < bindparam("earliest", type_=table.c.expires_at.type),
        ).returning(
            *(table.c[name] for name in CLAIM),
            # A row that was replaced bears the mark of the lock that was taken on it.
            literal_column("xmax = 0", Boolean()).label("is_new"),
        )
    )


@lru_cache
def standing(schema: Schema) -> Prepared:
    """Claims by their keys: what they carried, and until when they count."""
    table = schema.claims
    given = given_rows(column_types(table, CLAIM))
    columns = [table.c[name] for name in (*CLAIM, "digest", "expires_at")]
    return Prepared(
        select(*columns).select_from(given.join(table, same_key(table, given, CLAIM))),
        instants=("expires_at",),
    )


@lru_cache
def unclaim(schema: Schema) -> Prepared:
    """Delete claims by their keys."""
    table = schema.claims
    given = given_rows(column_types(table, CLAIM))
    return Prepared(delete(table).where(same_key(table, given, CLAIM)))


# --- Addresses ------------------------------------------------------------------------------------


@lru_cache
def found(schema: Schema) -> Prepared:
    """For each place its number (from 1), its execution if any, and how strict the transaction is."""
    table = schema.addresses
    given = given_rows(column_types(table, PLACE))
    isolation = literal_column("current_setting('transaction_isolation')", Text())
    return Prepared(
        select(given.c.nth, table.c.execution_id, isolation.label("isolation")).select_from(
            given.outerjoin(table, same_key(table, given, PLACE))
        )
    )


@lru_cache
def added(schema: Schema) -> Prepared:
    """Insert addresses, or nothing where there is one; answers the executions of those inserted."""
    table = schema.addresses
    inserting = inserting_rows(table, (*PLACE, "execution_id", "inserted_at"))
    return Prepared(
        inserting.on_conflict_do_nothing(index_elements=[table.c[name] for name in PLACE]).returning(
            table.c.execution_id
        )
    )


@lru_cache
def removed(schema: Schema) -> Prepared:
    """Delete addresses that still name these executions."""
    table = schema.addresses
    names = (*PLACE, "execution_id")
    given = given_rows(column_types(table, names))
    return Prepared(delete(table).where(same_key(table, given, names)))


@lru_cache
def stamped(schema: Schema) -> Prepared:
    """Note on addresses that still name these executions when those were first seen ended."""
    table = schema.addresses
    names = (*PLACE, "execution_id")
    given = given_rows(column_types(table, (*names, "terminal_seen_at")))
    return Prepared(
        update(table)
        .where(same_key(table, given, names), table.c.terminal_seen_at.is_(None))
        .values(terminal_seen_at=given.c.terminal_seen_at)
    )


@lru_cache
def places_locked() -> Prepared:
    """Take the locks of addresses that are being created, by the numbers of `keeping.lock_place`."""
    given = given_rows({"number": _NUMBER})
    return Prepared(select(func.pg_advisory_xact_lock(given.c.number)).order_by(given.c.nth))


@lru_cache
def kept(schema: Schema) -> Prepared:
    """A row where an event is kept by one of these addresses."""
    table = schema.deferred
    given = given_rows(column_types(table, PLACE))
    here = exists().where(same_key(table, given, PLACE), table.c.execution_id.is_(None))
    return Prepared(select(given.c.nth).where(here).limit(literal_column("1")))


# --- Executions -----------------------------------------------------------------------------------


@lru_cache
def locked(schema: Schema) -> Prepared:
    """Lock and read executions, in the order of their ids."""
    table = schema.executions
    return Prepared(
        select(*(table.c[name] for name in EXECUTION_COLUMNS))
        .where(table.c.id == func.any(bindparam("ids", type_=ARRAY(Text()))))
        .order_by(table.c.id)
        .with_for_update(key_share=True),
        instants=("created_at", "ended_at"),
    )


@lru_cache
def created(schema: Schema) -> Prepared:
    """Insert executions, but for those whose id is taken."""
    table = schema.executions
    inserting = inserting_rows(table, table.c.keys())
    return Prepared(inserting.on_conflict_do_nothing(index_elements=[table.c.id]).inline())


CHANGES = ("id", "from_revision", "revision", "status", "failure", "ended_at", "position", "active")


@lru_cache
def moved(schema: Schema) -> Prepared:
    """Write what steps made of executions, where those are still at `from_revision`.

    Without a position, that and the active states stay as they are.
    """
    table = schema.executions
    given = given_rows(
        {"from_revision": _NUMBER} | column_types(table, [n for n in CHANGES if n != "from_revision"])
    )
    values: dict[str, Any] = {
        name: given.c[name] for name in ("revision", "status", "failure", "ended_at")
    } | {
        name: func.coalesce(given_value(table, given, name), table.c[name]) for name in ("position", "active")
    }
    return Prepared(
        update(table)
        .where(table.c.id == given.c.id, table.c.revision == given.c.from_revision)
        .values(values)
    )


@lru_cache
def logged(schema: Schema) -> Prepared:
    """Append input rows; `seq` is how many of this batch's come before it on the same execution."""
    table = schema.inputs
    mine = table.alias()
    names = list(table.c.keys())
    given = given_rows(column_types(table, names))
    last = (
        select(func.max(mine.c.seq).label("seq")).where(mine.c.execution_id == given.c.execution_id)
    ).lateral("last")
    following = func.coalesce(last.c.seq, literal_column("-1")) + literal_column("1") + given.c.seq
    values = {name: given_value(table, given, name) for name in names} | {"seq": following}
    rows = select(*values.values()).select_from(given.join(last, true()))
    return Prepared(upsert(table).from_select(names, rows))


# --- What is handed off, and the ledger -----------------------------------------------------------


@lru_cache
def sent(schema: Schema) -> Prepared:
    """Insert rows of the outbox, but for keys that are there."""
    table = schema.outbox
    inserting = inserting_rows(table, outbox.ADDED)
    return Prepared(inserting.on_conflict_do_nothing(index_elements=[table.c.key]).inline())


@lru_cache
def changed(schema: Schema) -> Prepared:
    """Append versions of records."""
    return Prepared(inserting_rows(schema.changes, change_table.ADDED).inline())


ARMED = ("key", "execution_id", "send_id", "target", "event", "context", "due_at", "state", "next_try_at")


@lru_cache
def armed(schema: Schema) -> Prepared:
    """Insert timers, but for keys that are there."""
    table = schema.timers
    given = given_rows(column_types(table, ARMED))
    rows = select(*(given_value(table, given, name) for name in ARMED), literal_column("0")).order_by(
        given.c.nth
    )
    inserting = upsert(table).from_select([*ARMED, "tries"], rows)
    return Prepared(inserting.on_conflict_do_nothing(index_elements=[table.c.key]).inline())


@lru_cache
def cancelled(schema: Schema) -> Prepared:
    """Cancel pending timers by their execution and send id."""
    table = schema.timers
    names = ("execution_id", "send_id")
    given = given_rows(column_types(table, names))
    pending = table.c.state == literal_column("'pending'")
    return Prepared(
        update(table)
        .where(same_key(table, given, names), pending)
        .values(state=literal_column("'cancelled'"))
    )


@lru_cache
def recorded(schema: Schema) -> Prepared:
    """Append ledger rows, numbered in the order in which they are given."""
    table = schema.ledger
    return Prepared(inserting_rows(table, [name for name in table.c.keys() if name != "id"]).inline())
