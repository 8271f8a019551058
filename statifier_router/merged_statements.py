"""The two merged statements of a delivery on PostgreSQL: *open* and *close*.

Open takes the claim, finds or adds the address, and locks and reads the execution, each part fed by
the one before: a duplicate runs none of the rest. Close writes the execution, its input rows and
the ledger row. Between them the chart is stepped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import (
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert

from statifier_router.arrays import column_types, given_rows, given_value
from statifier_router.claims import taking
from statifier_router.columns import NAME, Instant
from statifier_router.dialect import Prepared
from statifier_router.schema import Schema

# Columns of `opened`, before those of the execution.
FOUND, ADDED, ISOLATION = 0, 1, 2
EXECUTION = 3

EXECUTION_COLUMNS = (
    "id",
    "document",
    "scope",
    "key",
    "content_hash",
    "interpreter",
    "status",
    "position",
    "active",
    "revision",
    "failure",
    "created_at",
    "ended_at",
    "deferred",
)

# What a delivery writes of an input row beside its number and instant: of the create, and of an event.
_CREATED = ("door", "message_id", "errors", "context", "details")
_HEARD = ("door", "event", "message_id", "errors", "context")

# Of which tables of sends there are rows to write, and what of each row.
Sends = tuple[Literal["outbox", "changes", "timers"], ...]
OUTBOX = ("queue", "key", "event", "context")
CHANGES = ("entity", "source_id", "signal", "data")
TIMERS = ("key", "send_id", "target", "event", "context", "due_at", "next_try_at", "state")

STATUS = EXECUTION + EXECUTION_COLUMNS.index("status")


@lru_cache
def opened(schema: Schema, *, bounded: bool, adds: bool) -> Prepared:
    """Claim, address, execution. No row: a duplicate.

    With `adds` an absent address is inserted with `minted_id`, or nothing where another delivery was
    first. A row with neither `found` nor `added`, or with an address whose execution it did not see,
    is undecided: what was committed while it waited is not in its snapshot.
    """
    addresses, executions = schema.addresses, schema.executions
    claim = taking(schema, "postgresql", bounded=bounded).cte("claim")
    found = (
        select(addresses.c.execution_id)
        .select_from(addresses.join(claim, true()))
        .where(*(addresses.c[name] == bindparam(f"at_{name}") for name in ("scope", "document", "key")))
        .cte("found")
    )
    names = ("scope", "document", "key", "execution_id", "inserted_at")
    sources = ("at_scope", "at_document", "at_key", "minted_id", "now")
    row = (
        select(
            *(
                bindparam(source, type_=addresses.c[name].type)
                for name, source in zip(names, sources, strict=True)
            )
        )
        .select_from(claim)
        .where(~exists(select(literal_column("1")).select_from(found)))
    )
    added: Any = (
        upsert(addresses)
        .from_select(names, row)
        .on_conflict_do_nothing(index_elements=[addresses.c[name] for name in names[:3]])
        .returning(addresses.c.execution_id)
        .cte("added")
    )
    locked = (
        select(*(executions.c[name] for name in EXECUTION_COLUMNS))
        .where(executions.c.id == found.c.execution_id)
        .with_for_update(key_share=True)
        .lateral("locked")
    )
    joined = claim.outerjoin(found, true())
    if adds:
        joined = joined.outerjoin(added, true())
    statement = select(
        found.c.execution_id.label("found"),
        (added.c.execution_id if adds else literal_column("NULL")).label("added"),
        literal_column("current_setting('transaction_isolation')").label("isolation"),
        *(locked.c[name] for name in EXECUTION_COLUMNS),
    ).select_from(joined.outerjoin(locked, true()))
    return Prepared(statement, instants=("created_at", "ended_at"))


@lru_cache
def held(schema: Schema) -> Prepared:
    """The execution at this address where another transaction holds its row; no row otherwise."""
    addresses, executions = schema.addresses, schema.executions
    free = (
        select(executions.c.id)
        .where(executions.c.id == addresses.c.execution_id)
        .correlate(addresses)
        .with_for_update(key_share=True, skip_locked=True)
        .lateral("free")
    )
    return Prepared(
        select(addresses.c.execution_id)
        .select_from(
            addresses.join(executions, executions.c.id == addresses.c.execution_id).outerjoin(free, true())
        )
        .where(
            *(addresses.c[name] == bindparam(name) for name in ("scope", "document", "key")),
            free.c.id.is_(None),
        )
    )


@lru_cache
def closed_creation(schema: Schema, inputs: int, *, guarded: bool = False, sends: Sends = ()) -> Prepared:
    """The new execution in its final form, its `inputs` first input rows, what it sent, and the ledger row.

    No row: the id is taken, and nothing was written. `guarded` makes that a division by zero.
    """
    table = schema.executions
    added: Any = (
        upsert(table)
        .values({column.name: bindparam(f"execution_{column.name}") for column in table.c})
        .on_conflict_do_nothing(index_elements=[table.c.id])
        .returning(table.c.id)
        .cte("added")
    )
    rows = [
        _input(schema, added, at, literal_column(str(at)), _CREATED if at == 0 else _HEARD)
        for at in range(inputs)
    ]
    return _closed(schema, added, [*rows, *_sent(schema, added, sends)], guarded)


@lru_cache
def closed_step(
    schema: Schema, inputs: int, *, moved: bool, guarded: bool = False, sends: Sends = ()
) -> Prepared:
    """The execution's changes at `from_revision`, its `inputs` next input rows, its sends, the ledger row.

    No row: the execution is no longer at that revision, and nothing was written.
    """
    table, log = schema.executions, schema.inputs
    changes = ["status", "failure", "ended_at", *(("position", "active") if moved else ())]
    stepped: Any = (
        update(table)
        .where(
            table.c.id == bindparam("execution_id"),
            table.c.revision == bindparam("from_revision"),
        )
        .values(
            revision=table.c.revision + literal_column("1"),
            **{name: bindparam(f"execution_{name}", type_=table.c[name].type) for name in changes},
        )
        .returning(table.c.id)
        .cte("stepped")
    )
    last = (
        select(func.max(log.c.seq).label("seq"))
        .where(log.c.execution_id == bindparam("execution_id"))
        .cte("last")
    )
    rows = []
    for at in range(inputs):
        following = func.coalesce(last.c.seq, literal_column("-1")) + literal_column(str(at + 1))
        rows.append(_input(schema, stepped, at, following, _HEARD, last))
    return _closed(schema, stepped, [*rows, *_sent(schema, stepped, sends)], guarded)


def _input(
    schema: Schema, written: Any, at: int, seq: Any, names: tuple[str, ...], beside: Any = None
) -> Any:
    """One input row, inserted exactly when the execution's row was written."""
    table = schema.inputs
    row = select(
        written.c.id,
        seq,
        bindparam("now", type_=table.c.at.type),
        *(bindparam(f"input_{at}_{name}", type_=table.c[name].type) for name in names),
    ).select_from(written if beside is None else written.join(beside, true()))
    return insert(table).from_select(["execution_id", "seq", "at", *names], row).cte(f"input_{at}")


def _sent(schema: Schema, written: Any, sends: Sends) -> list[Any]:
    """What was handed off, in its order, exactly when the execution's row was written."""
    made = []
    for which in sends:
        table, names = getattr(schema, which), _SENT[which]
        facts = _facts(written, table)
        given = given_rows(column_types(table, names), prefix=f"{which}_")
        row = select(*facts.values(), *(given_value(table, given, name) for name in names)).select_from(
            written.join(given, true())
        )
        inserting = upsert(table).from_select([*facts, *names], row.order_by(given.c.nth))
        if "key" in names:
            inserting = inserting.on_conflict_do_nothing(index_elements=[table.c.key])
        made.append(inserting.cte(which))
    return made


_SENT = {"outbox": OUTBOX, "changes": CHANGES, "timers": TIMERS}


def _facts(written: Any, table: Any) -> dict[str, Any]:
    """What every row of one delivery has in common, by the columns that the table has of it."""
    facts = {
        "execution_id": written.c.id,
        "tries": literal_column("0"),
        "deleted": literal_column("false"),
        "scope": bindparam("ledger_scope", type_=NAME),
        "created_at": bindparam("now", type_=Instant()),
    }
    return {name: value for name, value in facts.items() if name in table.c}


def _closed(schema: Schema, written: Any, inputs: list[Any], guarded: bool) -> Prepared:  # noqa: FBT001 - its two callers are above
    table = schema.ledger
    names = ("binding_id", "message_id", "scope", "outcome", "key", "reason")
    row = select(
        written.c.id,
        bindparam("now", type_=table.c.inserted_at.type),
        *(bindparam(f"ledger_{name}", type_=table.c[name].type) for name in names),
    ).select_from(written)
    recorded: Any = (
        insert(table)
        .from_select(["execution_id", "inserted_at", *names], row)
        .returning(literal_column("1").label("written"))
    )
    nullable = ("execution_failure", "ledger_reason", *_rarely_given(len(inputs)))
    if not guarded:
        return Prepared(recorded.add_cte(*inputs), nullable=nullable)
    # COMMIT is already on its way behind it, so a step that wrote nothing has to fail by itself.
    closed = recorded.cte("closed")
    must = literal_column("1") / select(func.count()).select_from(closed).scalar_subquery()
    return Prepared(select(must.label("written")).add_cte(*inputs), nullable=nullable)


def _rarely_given(inputs: int) -> list[str]:
    return [f"input_{at}_{name}" for at in range(inputs) for name in ("errors", "context", "details")]
