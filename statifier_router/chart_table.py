"""The statements over `charts` and `publications`: keeping, publishing, finding and retiring charts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, Select, bindparam, func, literal_column, select, text, update

from statifier_router import dialect
from statifier_router.schema import NOT_TERMINAL, Schema


@lru_cache
def keep(schema: Schema, kind: str) -> Executable:
    """Insert a chart, or take the one that is there out of retirement and know it by its newest source."""
    table = schema.charts
    names = ("content_hash", "interpreter", "document", "version", "source", "created_at")
    inserting = dialect.insert_into(kind, table).values({name: bindparam(name) for name in names})
    statement: Executable = inserting.on_conflict_do_update(
        index_elements=[table.c.content_hash],
        set_={"source": inserting.excluded.source, "retired_at": None},
    )
    return statement


@lru_cache
def publish(schema: Schema, kind: str) -> Executable:
    """Say on which chart a document runs, in one scope or everywhere."""
    table = schema.publications
    inserting = dialect.insert_into(kind, table).values(
        {column.name: bindparam(column.name) for column in table.c}
    )
    statement: Executable = inserting.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={
            "content_hash": inserting.excluded.content_hash,
            "published_at": inserting.excluded.published_at,
        },
    )
    return statement


@lru_cache
def current(schema: Schema, *, hold: bool) -> Select[Any]:
    """The chart of `document` in `scope`; `hold` keeps it from being retired before the commit."""
    charts, places = schema.charts, schema.publications
    statement = (
        select(charts.c.content_hash, charts.c.interpreter, charts.c.source, charts.c.retired_at)
        .join(places, places.c.content_hash == charts.c.content_hash)
        .where(
            places.c.document == bindparam("document"),
            places.c.everywhere | (places.c.scope == bindparam("scope")),
        )
        # The scope's own goes before the one for all.
        .order_by(places.c.everywhere)
        .limit(1)
    )
    # Shared: creations on one chart do not wait for each other.
    return statement.with_for_update(read=True, of=charts) if hold else statement


@lru_cache
def by_hash(schema: Schema, *, hold: bool = False) -> Select[Any]:
    """One chart by `content_hash`; `hold` as above."""
    table = schema.charts
    statement = select(table.c.content_hash, table.c.interpreter, table.c.source, table.c.retired_at).where(
        table.c.content_hash == bindparam("content_hash")
    )
    return statement.with_for_update(read=True) if hold else statement


@lru_cache
def lock(schema: Schema, kind: str) -> Select[Any]:
    """Lock one chart against everybody who holds it; tells the transaction's isolation level too."""
    table = schema.charts
    isolation = "current_setting('transaction_isolation')" if kind == "postgresql" else "'read committed'"
    return (
        select(table.c.retired_at, literal_column(isolation).label("isolation"))
        .where(table.c.content_hash == bindparam("content_hash"))
        .with_for_update()
    )


@lru_cache
def running(schema: Schema) -> Select[Any]:
    """How many executions of this chart have not ended."""
    table = schema.executions
    # The literal condition of the partial index, which it takes.
    return (
        select(func.count())
        .select_from(table)
        .where(table.c.content_hash == bindparam("content_hash"), text(NOT_TERMINAL))
    )


@lru_cache
def timers(schema: Schema) -> Select[Any]:
    """How many pending timers executions of this chart have."""
    table, executions = schema.timers, schema.executions
    return (
        select(func.count())
        .select_from(table.join(executions, executions.c.id == table.c.execution_id))
        .where(
            table.c.state == literal_column("'pending'"),
            executions.c.content_hash == bindparam("content_hash"),
        )
    )


@lru_cache
def retire(schema: Schema) -> Executable:
    """Mark it as retired."""
    table = schema.charts
    return (
        update(table)
        .where(table.c.content_hash == bindparam("of_hash"))
        .values(retired_at=bindparam("retired_at"))
    )


@lru_cache
def page(schema: Schema) -> Select[Any]:
    """All charts by hash, a page of them behind `after`."""
    table = schema.charts
    return (
        select(table)
        .where(table.c.content_hash > bindparam("after"))
        .order_by(table.c.content_hash)
        .limit(bindparam("limit"))
    )
