"""The statements of a batch on PostgreSQL: each treats many rows, which come as one array a column.

Where rows are locked, they come sorted: two batches then never wait for each other in a circle. The
rows of a statement that only appends come in the order in which they are to be numbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    DateTime,
    Integer,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
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

from statifier_router.dialect import Prepared
from statifier_router.merged_statements import EXECUTION_COLUMNS
from statifier_router.schema import Instant, JsonText, Schema

PLACE = ("scope", "document", "key")
CLAIM = ("binding_id", "scope", "message_id")

_TEXT, _INSTANT, _NUMBER = Text(), DateTime(timezone=True), BigInteger()


# --- Arrays ---------------------------------------------------------------------------------------


def arrays(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, str]:
    """The parameters of a statement over these rows: one array for each of their columns."""
    return {name: array([row[name] for row in rows]) for name in names}


def keyed(keys: Sequence[tuple[str, ...]], names: Sequence[str]) -> dict[str, str]:
    """The same for rows that are nothing but their key."""
    return {name: array([key[at] for key in keys]) for at, name in enumerate(names)}


def array(values: Sequence[Any]) -> str:
    r"""An array as PostgreSQL reads it: much quicker made here than by the driver, value by value.

    >>> print(array(["a", "", 'say "b"']), array([None, "a", 7]))
    {"a","","say \"b\""} {NULL,"a","7"}
    """
    try:
        # No text holds a NUL: it parts them while all are escaped at once.
        joined = "\0".join(values)
    except TypeError:
        return _mixed(values)
    return '{"' + _escaped(joined).replace("\0", '","') + '"}' if values else "{}"


def _mixed(values: Sequence[Any]) -> str:
    if values.count(values[0]) == len(values):
        # Mostly one instant, or nothing at all.
        return "{" + ",".join([_element(values[0])] * len(values)) + "}"
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return f'"{value.isoformat()}"'
    return f'"{_escaped(str(value))}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _given(columns: Mapping[str, Any]) -> Any:
    """The arrays of these columns, side by side, as rows; `nth` counts them from 1."""
    held = [bindparam(name, type_=ARRAY(type)) for name, type in columns.items()]
    named = [column(name, type) for name, type in columns.items()]
    return func.unnest(*held).table_valued(*named, with_ordinality="nth", name="given").render_derived()


def _types(table: Table, names: Iterable[str]) -> dict[str, Any]:
    return {name: _type(table.c[name].type) for name in names}


def _type(type: Any) -> Any:
    if isinstance(type, Instant):
        return _INSTANT
    if isinstance(type, Integer):
        return _NUMBER
    return _TEXT


def _value(table: Table, given: Any, name: str) -> Any:
    """A given column as the table's own type: JSON travels as text."""
    type = table.c[name].type
    return cast(given.c[name], type) if isinstance(type, JsonText) else given.c[name]


def _same(table: Table, given: Any, names: Iterable[str]) -> Any:
    return and_(*(table.c[name] == given.c[name] for name in names))


def _inserting(table: Table, names: Sequence[str]) -> Any:
    given = _given(_types(table, names))
    rows = select(*(_value(table, given, name) for name in names)).order_by(given.c.nth)
    return upsert(table).from_select(list(names), rows)


# --- Claims ---------------------------------------------------------------------------------------


@lru_cache
def claimed(schema: Schema, *, bounded: bool) -> Prepared:
    """Take the claims that are free, or expired before `earliest`; answers their keys.

    With each: whether its row is new. Every row is locked, those of other claims too. With `bounded`
    it also sets the lock timeout, for its own waits and every later one.
    """
    table = schema.claims
    names = list(table.c.keys())
    given = _given(_types(table, names))
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
    given = _given(_types(table, CLAIM))
    columns = [table.c[name] for name in (*CLAIM, "digest", "expires_at")]
    return Prepared(
        select(*columns).select_from(given.join(table, _same(table, given, CLAIM))), instants=("expires_at",)
    )


@lru_cache
def unclaim(schema: Schema) -> Prepared:
    """Delete claims by their keys."""
    table = schema.claims
    given = _given(_types(table, CLAIM))
    return Prepared(delete(table).where(_same(table, given, CLAIM)))


# --- Addresses ------------------------------------------------------------------------------------


@lru_cache
def found(schema: Schema) -> Prepared:
    """For each place its number (from 1), its execution if any, and how strict the transaction is."""
    table = schema.addresses
    given = _given(_types(table, PLACE))
    isolation = literal_column("current_setting('transaction_isolation')", Text())
    return Prepared(
        select(given.c.nth, table.c.execution_id, isolation.label("isolation")).select_from(
            given.outerjoin(table, _same(table, given, PLACE))
        )
    )


@lru_cache
def added(schema: Schema) -> Prepared:
    """Insert addresses, or nothing where there is one; answers the executions of those inserted."""
    table = schema.addresses
    inserting = _inserting(table, (*PLACE, "execution_id", "inserted_at"))
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
    given = _given(_types(table, names))
    return Prepared(delete(table).where(_same(table, given, names)))


@lru_cache
def stamped(schema: Schema) -> Prepared:
    """Note on addresses that still name these executions when those were first seen ended."""
    table = schema.addresses
    names = (*PLACE, "execution_id")
    given = _given(_types(table, (*names, "terminal_seen_at")))
    return Prepared(
        update(table)
        .where(_same(table, given, names), table.c.terminal_seen_at.is_(None))
        .values(terminal_seen_at=given.c.terminal_seen_at)
    )


@lru_cache
def places_locked() -> Prepared:
    """Take the locks of addresses that are being created, by the numbers of `keeping.lock_place`."""
    given = _given({"number": _NUMBER})
    return Prepared(select(func.pg_advisory_xact_lock(given.c.number)).order_by(given.c.nth))


@lru_cache
def kept(schema: Schema) -> Prepared:
    """A row where an event is kept by one of these addresses."""
    table = schema.deferred
    given = _given(_types(table, PLACE))
    here = exists().where(_same(table, given, PLACE), table.c.execution_id.is_(None))
    return Prepared(select(given.c.nth).where(here).limit(literal_column("1")))


# --- Executions -----------------------------------------------------------------------------------


@lru_cache
def locked(schema: Schema) -> Prepared:
    """Lock and read executions, in the order of their ids."""
    table = schema.executions
    return Prepared(
        select(*(table.c[name] for name in EXECUTION_COLUMNS))
        .where(table.c.id == func.any(bindparam("ids", type_=ARRAY(_TEXT))))
        .order_by(table.c.id)
        .with_for_update(key_share=True),
        instants=("created_at", "ended_at"),
    )


@lru_cache
def created(schema: Schema) -> Prepared:
    """Insert executions, but for those whose id is taken."""
    table = schema.executions
    inserting = _inserting(table, table.c.keys())
    return Prepared(inserting.on_conflict_do_nothing(index_elements=[table.c.id]).inline())


CHANGES = ("id", "from_revision", "revision", "status", "failure", "ended_at", "position", "active")


@lru_cache
def moved(schema: Schema) -> Prepared:
    """Write what steps made of executions, where those are still at `from_revision`.

    Without a position, that and the active states stay as they are.
    """
    table = schema.executions
    given = _given({"from_revision": _NUMBER} | _types(table, [n for n in CHANGES if n != "from_revision"]))
    values: dict[str, Any] = {
        name: given.c[name] for name in ("revision", "status", "failure", "ended_at")
    } | {name: func.coalesce(_value(table, given, name), table.c[name]) for name in ("position", "active")}
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
    given = _given(_types(table, names))
    last = (
        select(func.max(mine.c.seq).label("seq")).where(mine.c.execution_id == given.c.execution_id)
    ).lateral("last")
    following = func.coalesce(last.c.seq, literal_column("-1")) + literal_column("1") + given.c.seq
    values = {name: _value(table, given, name) for name in names} | {"seq": following}
    rows = select(*values.values()).select_from(given.join(last, true()))
    return Prepared(upsert(table).from_select(names, rows))


# --- What is handed off, and the ledger -----------------------------------------------------------


@lru_cache
def sent(schema: Schema) -> Prepared:
    """Insert rows of the outbox, but for keys that are there."""
    table = schema.outbox
    inserting = _inserting(table, [name for name in table.c.keys() if name != "id"])
    return Prepared(inserting.on_conflict_do_nothing(index_elements=[table.c.key]).inline())


ARMED = ("key", "execution_id", "send_id", "target", "event", "context", "due_at", "state", "next_try_at")


@lru_cache
def armed(schema: Schema) -> Prepared:
    """Insert timers, but for keys that are there."""
    table = schema.timers
    given = _given(_types(table, ARMED))
    rows = select(*(_value(table, given, name) for name in ARMED), literal_column("0")).order_by(given.c.nth)
    inserting = upsert(table).from_select([*ARMED, "tries"], rows)
    return Prepared(inserting.on_conflict_do_nothing(index_elements=[table.c.key]).inline())


@lru_cache
def cancelled(schema: Schema) -> Prepared:
    """Cancel pending timers by their execution and send id."""
    table = schema.timers
    names = ("execution_id", "send_id")
    given = _given(_types(table, names))
    pending = table.c.state == literal_column("'pending'")
    return Prepared(
        update(table).where(_same(table, given, names), pending).values(state=literal_column("'cancelled'"))
    )


@lru_cache
def recorded(schema: Schema) -> Prepared:
    """Append ledger rows, numbered in the order in which they are given."""
    table = schema.ledger
    return Prepared(_inserting(table, [name for name in table.c.keys() if name != "id"]).inline())
