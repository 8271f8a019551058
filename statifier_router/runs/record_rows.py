"""The statements over `records` and `operations`: what became of a record, and the call that is under way."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Executable,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    false,
    insert,
    literal_column,
    null,
    select,
    true,
    update,
)

from statifier_router.columns import NAME
from statifier_router.dialect import Prepared
from statifier_router.runs.among import among
from statifier_router.schema import Schema

# What an outcome writes.
WRITTEN = (
    "status",
    "remote_id",
    "signal",
    "attempts",
    "next_attempt_at",
    "error_kind",
    "last_error",
    "parked_at",
    "generation",
)
# What is read of a record, and of the operation that is open for it.
OF_RECORD = (
    "status",
    "remote_id",
    "signal",
    "attempts",
    "next_attempt_at",
    "error_kind",
    "generation",
    "row_version",
)
OF_OPERATION = ("verb", "key", "signal", "payload", "in_doubt", "row_version")


@lru_cache
def due(schema: Schema) -> Select[Any]:
    """The failed records of `of_rule` that were due at `due_before`, in order; by their partial index."""
    table = schema.records
    return (
        select(table.c.source_id, table.c.row_version)
        .where(
            table.c.rule == bindparam("of_rule"),
            table.c.status == literal_column("'failed'"),
            table.c.next_attempt_at <= bindparam("due_before", type_=table.c.next_attempt_at.type),
        )
        .order_by(table.c.next_attempt_at, table.c.source_id)
        .limit(bindparam("limit"))
    )


@lru_cache
def left_open(schema: Schema) -> Select[Any]:
    """Operations of `of_rule` that another job than `of_token` opened, and never brought to an outcome."""
    table = schema.operations
    return (
        select(table.c.source_id)
        .where(
            table.c.rule == bindparam("of_rule"),
            table.c.in_doubt == false(),
            table.c.lease_token != bindparam("of_token"),
        )
        .order_by(table.c.source_id)
        .limit(bindparam("limit"))
    )


@lru_cache
def states(schema: Schema) -> Select[Any]:
    """How the records `source_ids` stand, without locking."""
    table = schema.records
    return select(
        table.c.source_id, table.c.status, table.c.signal, table.c.error_kind, table.c.row_version
    ).where(table.c.rule == bindparam("of_rule"), among(table.c.source_id, "source_ids"))


@lru_cache
def with_operation(schema: Schema) -> Prepared:
    """One row: the record `of_source_id` of `of_rule` and its open operation, each empty where it is not."""
    records, operations = schema.records, schema.operations
    rule: BindParameter[str] = bindparam("of_rule")
    wanted = select(bindparam("of_source_id", type_=NAME).label("source_id")).subquery("wanted")
    of_record = and_(records.c.rule == rule, records.c.source_id == wanted.c.source_id)
    of_operation = and_(operations.c.rule == rule, operations.c.source_id == wanted.c.source_id)
    statement = select(
        *(records.c[name].label(f"record_{name}") for name in OF_RECORD),
        *(operations.c[name].label(f"operation_{name}") for name in OF_OPERATION),
    ).select_from(wanted.outerjoin(records, of_record).outerjoin(operations, of_operation))
    return Prepared(statement, instants=("record_next_attempt_at",))


@lru_cache
def insert_record(schema: Schema) -> Prepared:
    """The first row of a record. Plainly: one that is there already is a fault, which must show."""
    values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in WRITTEN}
    values |= {
        "rule": bindparam("of_rule"),
        "source_id": bindparam("of_source_id"),
        "row_version": literal_column("1"),
        "updated_at": bindparam("now"),
    }
    return Prepared(insert(schema.records).values(values).inline())


@lru_cache
def update_record(schema: Schema) -> Prepared:
    """The next outcome of a record whose row is still the version `of_version`."""
    table = schema.records
    values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in WRITTEN}
    values |= {
        "row_version": table.c.row_version + literal_column("1"),
        "updated_at": bindparam("now"),
        "acknowledged_at": null(),
    }
    return Prepared(
        update(table).where(*_of_record(table), table.c.row_version == bindparam("of_version")).values(values)
    )


@lru_cache
def other_delivered(schema: Schema) -> Select[Any]:
    """Whether any record of `of_rule` but `of_source_id` was ever delivered."""
    table = schema.records
    return select(
        exists().where(
            table.c.rule == bindparam("of_rule"),
            table.c.source_id != bindparam("of_source_id"),
            table.c.generation > literal_column("0"),
        )
    )


# --- operations -------------------------------------------------------------------------------------

# What an operation holds of its call.
_FALSE = "false"
_OPENED = ("verb", "key", "signal", "payload", "lease_token", "chain_id", "row_version", "started_at")


@lru_cache
def open_operation(schema: Schema) -> Prepared:
    """The call that is made next, before it is made."""
    return Prepared(_opened(schema.operations))


def _opened(table: Table) -> Any:
    values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in _OPENED}
    values |= {
        "rule": bindparam("of_rule"),
        "source_id": bindparam("of_source_id"),
        "in_doubt": literal_column(_FALSE),
    }
    return insert(table).values(values).inline()


@lru_cache
def roll_on(schema: Schema, kind: str) -> Prepared:
    """The same in the place of `of_spent`, whose operation is settled: one statement in the place of two.

    On SQLite it takes that one's row, and touches none where that is gone.
    """
    table = schema.operations
    if kind == "postgresql":
        spent = delete(table).where(
            table.c.rule == bindparam("of_rule"), table.c.source_id == bindparam("of_spent")
        )
        return Prepared(_opened(table).add_cte(spent.cte("spent")))
    values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in _OPENED}
    values |= {"source_id": bindparam("of_source_id"), "in_doubt": literal_column(_FALSE)}
    of_spent = (table.c.rule == bindparam("of_rule"), table.c.source_id == bindparam("of_spent"))
    return Prepared(update(table).where(*of_spent).values(values))


@lru_cache
def reopen_operation(schema: Schema) -> Prepared:
    """The same where the record has an operation that was never settled."""
    table = schema.operations
    values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in _OPENED}
    values["in_doubt"] = literal_column(_FALSE)
    return Prepared(update(table).where(*_of_record(table)).values(values))


@lru_cache
def settle_operation(schema: Schema) -> Prepared:
    """It is known what became of the call."""
    table = schema.operations
    return Prepared(delete(table).where(*_of_record(table)))


@lru_cache
def keep_in_doubt(schema: Schema) -> Executable:
    """The call has an outcome, and may have taken effect all the same; `to_row_version` is the record's."""
    table = schema.operations
    values = {"in_doubt": true(), "row_version": bindparam("to_row_version")}
    return update(table).where(*_of_record(table)).values(values)


def _of_record(table: Table) -> tuple[Any, ...]:
    return (table.c.rule == bindparam("of_rule"), table.c.source_id == bindparam("of_source_id"))


@lru_cache
def called_last(schema: Schema) -> Select[Any]:
    """The record for which a job of the chain `of_chain` was calling when it ended without a word."""
    table = schema.operations
    return (
        select(table.c.source_id)
        .where(
            table.c.rule == bindparam("of_rule"),
            table.c.chain_id == bindparam("of_chain"),
            table.c.in_doubt == false(),
        )
        .order_by(table.c.started_at.desc())
        .limit(literal_column("1"))
    )
