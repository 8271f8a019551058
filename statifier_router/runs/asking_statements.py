"""The statements behind what operators ask. None of them locks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from statifier_router.runs.standing import PARKED
from statifier_router.schema import Schema

# What a filter on records compares, by the name of its parameter.
FILTERS = frozenset({"rule", "status", "error_kind", "since", "acknowledged", "not_acknowledged"})


def is_parked(schema: Schema) -> ColumnElement[bool]:
    """Whether a record waits for an operator. Written out: a parameter takes no partial index."""
    return schema.records.c.status.in_([literal_column(f"'{status}'") for status in PARKED])


@lru_cache
def rules(schema: Schema) -> Select[Any]:
    """Every rule that was ever saved."""
    return select(schema.rules).order_by(schema.rules.c.name)


@lru_cache
def rule_names(schema: Schema) -> Select[Any]:
    """The names of all of them."""
    return select(schema.rules.c.name).order_by(schema.rules.c.name)


@lru_cache
def chains(schema: Schema) -> Select[Any]:
    """The chains of `of_rule`, the newest first."""
    table = schema.chains
    return (
        select(table)
        .where(table.c.rule == bindparam("of_rule"))
        .order_by(table.c.id.desc())
        .limit(bindparam("limit"))
    )


@lru_cache
def running_chain(schema: Schema) -> Select[Any]:
    """The chain of `of_rule` that has not ended."""
    table = schema.chains
    return select(table).where(table.c.rule == bindparam("of_rule"), table.c.state == "running")


@lru_cache
def counts(schema: Schema) -> Select[Any]:
    """The records by rule and status."""
    table = schema.records
    return select(table.c.rule, table.c.status, func.count().label("count")).group_by(
        table.c.rule, table.c.status
    )


@lru_cache
def dismissed(schema: Schema) -> Select[Any]:
    """Parked records that an operator has dismissed, by rule."""
    table = schema.records
    return (
        select(table.c.rule, func.count().label("count"))
        .where(is_parked(schema), table.c.acknowledged_at.is_not(None))
        .group_by(table.c.rule)
    )


@lru_cache
def due(schema: Schema) -> Select[Any]:
    """How many records are due at `now`, by rule, and since when."""
    table = schema.records
    return (
        select(
            table.c.rule,
            func.count().label("count"),
            func.min(table.c.next_attempt_at).label("oldest"),
        )
        .where(
            table.c.status == literal_column("'failed'"),
            table.c.next_attempt_at <= bindparam("now", type_=table.c.next_attempt_at.type),
        )
        .group_by(table.c.rule)
    )


@lru_cache
def in_doubt(schema: Schema) -> Select[Any]:
    """The operations in doubt by rule, and since when."""
    table = schema.operations
    return (
        select(table.c.rule, func.count().label("count"), func.min(table.c.started_at).label("oldest"))
        .where(table.c.in_doubt)
        .group_by(table.c.rule)
    )


@lru_cache
def stuck_in_doubt(schema: Schema) -> Select[Any]:
    """Operations in doubt that no run resumes: their records are parked, and nobody has dismissed them."""
    operations, records = schema.operations, schema.records
    same = and_(records.c.rule == operations.c.rule, records.c.source_id == operations.c.source_id)
    return (
        select(
            operations.c.rule,
            func.count().label("number"),
            func.min(operations.c.source_id).label("example"),
        )
        .select_from(operations.join(records, same))
        .where(
            operations.c.in_doubt,
            is_parked(schema),
            records.c.acknowledged_at.is_(None),
        )
        .group_by(operations.c.rule)
    )


@lru_cache
def breakers(schema: Schema) -> Select[Any]:
    """Every breaker."""
    return select(schema.breakers).order_by(schema.breakers.c.target)


@lru_cache
def breaker(schema: Schema) -> Select[Any]:
    """The breaker of `of_target`."""
    table = schema.breakers
    return select(table).where(table.c.target == bindparam("of_target"))


@lru_cache
def operation(schema: Schema) -> Select[Any]:
    """The open operation at a record."""
    table = schema.operations
    return select(table).where(
        table.c.rule == bindparam("of_rule"), table.c.source_id == bindparam("of_source_id")
    )


@lru_cache
def record(schema: Schema) -> Select[Any]:
    """One record's row."""
    table = schema.records
    return select(table).where(
        table.c.rule == bindparam("of_rule"), table.c.source_id == bindparam("of_source_id")
    )


@lru_cache
def records(schema: Schema, *, of_status: bool, paged: bool) -> Select[Any]:
    """The records of `of_rule` in the order of their ids."""
    table = schema.records
    statement = select(table).where(table.c.rule == bindparam("of_rule"))
    if of_status:
        statement = statement.where(table.c.status == bindparam("of_status"))
    if paged:
        statement = statement.where(table.c.source_id > bindparam("after"))
    return statement.order_by(table.c.source_id).limit(bindparam("limit"))


@lru_cache
def parked(schema: Schema, filters: frozenset[str], *, paged: bool) -> Select[Any]:
    """Parked records that fit these filters, those parked first on top."""
    table = schema.records
    statement = select(table).where(is_parked(schema), *conditions(schema, filters))
    if paged:
        # Spelled out, for what SQLite makes of a comparison of rows.
        at = bindparam("after_at", type_=table.c.parked_at.type)
        rule: BindParameter[str] = bindparam("after_rule")
        statement = statement.where(
            or_(
                table.c.parked_at > at,
                and_(table.c.parked_at == at, table.c.rule > rule),
                and_(
                    table.c.parked_at == at,
                    table.c.rule == rule,
                    table.c.source_id > bindparam("after_source_id"),
                ),
            )
        )
    return statement.order_by(table.c.parked_at, table.c.rule, table.c.source_id).limit(bindparam("limit"))


@lru_cache
def count_parked(schema: Schema, filters: frozenset[str]) -> Select[Any]:
    """How many parked records fit."""
    table = schema.records
    return select(func.count()).select_from(table).where(is_parked(schema), *conditions(schema, filters))


@lru_cache
def any_of_kind(schema: Schema, *, of_rule: bool) -> Select[Any]:
    """A record of this error kind, whatever its status. Reads all records of the rule where there is none."""
    table = schema.records
    statement = select(table.c.source_id).where(table.c.error_kind == bindparam("of_error_kind"))
    if of_rule:
        statement = statement.where(table.c.rule == bindparam("of_rule"))
    return statement.limit(1)


def conditions(schema: Schema, filters: frozenset[str], *, status: Any = None) -> list[Any]:
    """What these filters ask of a record; their values go by `of_` and their name.

    `status` takes the place of the column, where no index of it is to be used.
    """
    table = schema.records
    assert filters <= FILTERS, filters
    since = func.coalesce(table.c.parked_at, table.c.updated_at)
    by_name: dict[str, Any] = {
        "rule": table.c.rule == bindparam("of_rule"),
        "status": (table.c.status if status is None else status) == bindparam("of_status"),
        "error_kind": table.c.error_kind == bindparam("of_error_kind"),
        "since": since >= bindparam("of_since", type_=table.c.updated_at.type),
        "acknowledged": table.c.acknowledged_at.is_not(None),
        "not_acknowledged": table.c.acknowledged_at.is_(None),
    }
    return [by_name[name] for name in sorted(filters)]
