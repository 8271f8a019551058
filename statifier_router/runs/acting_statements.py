"""The statements with which operators change records. Each runs under the lock of the rule's row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Executable,
    Select,
    bindparam,
    delete,
    func,
    insert,
    null,
    select,
    update,
)

from statifier_router.arrays import column_types, given_rows, same_key
from statifier_router.dialect import Kind
from statifier_router.runs.among import among
from statifier_router.runs.asking_statements import conditions
from statifier_router.schema import Schema

# One row that becomes due: what is given of it beside the rule.
DUE = ("source_id", "next_attempt_at")
# Before the names of its parameters: those of the columns are the update's own.
GIVEN = "given_"


@lru_cache
def selected(schema: Schema, filters: frozenset[str], statuses: tuple[str, ...]) -> Select[Any]:
    """The ids of the rule's records in these statuses that fit the filters, in their order."""
    table = schema.records
    return (
        select(table.c.source_id)
        .where(*conditions(schema, filters), table.c.status.in_(statuses))
        .order_by(table.c.source_id)
    )


@lru_cache
def still_fitting(schema: Schema, filters: frozenset[str], statuses: tuple[str, ...]) -> Select[Any]:
    """Those of some ids whose records fit still."""
    table = schema.records
    # By an expression no index is found: the few ids lead, not the many records in their statuses.
    status = func.coalesce(table.c.status, "")
    return select(table.c.source_id).where(
        *conditions(schema, filters, status=status),
        status.in_(statuses),
        among(table.c.source_id, "source_ids"),
    )


@lru_cache
def rows_of(schema: Schema) -> Select[Any]:
    """The rows of some records."""
    table = schema.records
    return select(table).where(table.c.rule == bindparam("of_rule"), among(table.c.source_id, "source_ids"))


@lru_cache
def operations_of(schema: Schema) -> Select[Any]:
    """The open operations at some records."""
    table = schema.operations
    return select(table.c.source_id, table.c.signal, table.c.in_doubt, table.c.lease_token).where(
        table.c.rule == bindparam("of_rule"), among(table.c.source_id, "source_ids")
    )


@lru_cache
def make_due(schema: Schema, kind: Kind, *, anew: bool, forget: bool) -> Executable:
    """Offer records again: each is failed, without attempts, and due at its own instant.

    `anew`: under keys that were never used. `forget`: without their address at the target, too.
    PostgreSQL takes all rows at once, as arrays; SQLite one at a time.
    """
    table = schema.records
    values: dict[str, Any] = {
        "status": "failed",
        "attempts": 0,
        "parked_at": null(),
        "acknowledged_at": null(),
        "row_version": table.c.row_version + 1,
        "updated_at": _now(schema),
    }
    if anew:
        values["generation"] = table.c.generation + 1
    if forget:
        values["remote_id"] = null()
    this_rule = table.c.rule == bindparam("of_rule")
    if kind == "sqlite":
        values["next_attempt_at"] = bindparam("due_at", type_=table.c.next_attempt_at.type)
        return update(table).where(this_rule, table.c.source_id == bindparam("of_source_id")).values(values)
    given = given_rows(column_types(table, DUE), prefix=GIVEN)
    values["next_attempt_at"] = given.c.next_attempt_at
    # The ids once more, for a database that knows nothing yet of how many records there are.
    named = among(table.c.source_id, "source_ids")
    return update(table).where(this_rule, named, same_key(table, given, ("source_id",))).values(values)


@lru_cache
def settle(schema: Schema) -> Executable:
    """One record has this address at its target; `to_status`, `to_due` and `to_signal` say what follows."""
    table = schema.records
    return (
        update(table)
        .where(table.c.rule == bindparam("of_rule"), table.c.source_id == bindparam("of_source_id"))
        .values(
            remote_id=bindparam("to_remote_id"),
            status=bindparam("to_status"),
            signal=bindparam("to_signal"),
            next_attempt_at=bindparam("to_due", type_=table.c.next_attempt_at.type),
            attempts=0,
            error_kind=null(),
            last_error=null(),
            parked_at=null(),
            acknowledged_at=null(),
            generation=table.c.generation + 1,
            row_version=table.c.row_version + 1,
            updated_at=_now(schema),
        )
    )


@lru_cache
def acknowledge(schema: Schema) -> Executable:
    """Take some records off the list of those that wait for an operator."""
    table = schema.records
    now = _now(schema)
    return (
        update(table)
        .where(table.c.rule == bindparam("of_rule"), among(table.c.source_id, "source_ids"))
        .values(acknowledged_at=now, row_version=table.c.row_version + 1, updated_at=now)
    )


@lru_cache
def park(schema: Schema) -> Executable:
    """Have no run offer some records any more."""
    table = schema.records
    now = _now(schema)
    return (
        update(table)
        .where(table.c.rule == bindparam("of_rule"), among(table.c.source_id, "source_ids"))
        .values(
            status="exhausted",
            next_attempt_at=null(),
            error_kind=bindparam("to_error_kind"),
            last_error=bindparam("to_last_error"),
            parked_at=now,
            acknowledged_at=null(),
            row_version=table.c.row_version + 1,
            updated_at=now,
        )
    )


@lru_cache
def add_parked(schema: Schema) -> Executable:
    """A parked row of a record that has none."""
    table = schema.records
    now = _now(schema)
    return (
        insert(table)
        .values(
            rule=bindparam("of_rule"),
            source_id=bindparam("of_source_id"),
            status="exhausted",
            signal=bindparam("to_signal"),
            attempts=0,
            error_kind=bindparam("to_error_kind"),
            last_error=bindparam("to_last_error"),
            parked_at=now,
            generation=0,
            row_version=1,
            updated_at=now,
        )
        .inline()
    )


@lru_cache
def drop_operations(schema: Schema) -> Executable:
    """Settle the operations at some records: nothing of them is sent again."""
    table = schema.operations
    return delete(table).where(table.c.rule == bindparam("of_rule"), among(table.c.source_id, "source_ids"))


@lru_cache
def keep_operations(schema: Schema, *, doubt: bool) -> Executable:
    """Have the operations at some records belong to the rows as they are now; `doubt` puts them in doubt."""
    operations, records = schema.operations, schema.records
    version = (
        select(records.c.row_version)
        .where(records.c.rule == operations.c.rule, records.c.source_id == operations.c.source_id)
        .scalar_subquery()
    )
    values: dict[str, Any] = {"row_version": version}
    if doubt:
        values["in_doubt"] = True
    return (
        update(operations)
        .where(operations.c.rule == bindparam("of_rule"), among(operations.c.source_id, "source_ids"))
        .values(values)
    )


def _now(schema: Schema) -> BindParameter[Any]:
    return bindparam("now", type_=schema.records.c.updated_at.type)
