"""The statements over `executions` and `inputs`. Each is built once for a schema."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import Executable, bindparam, delete, func, insert, literal_column, select, update

from statifier_router import dialect
from statifier_router.dialect import Prepared
from statifier_router.executor import TERMINAL
from statifier_router.schema import Schema

TERMINAL_STATUSES = tuple(sorted(TERMINAL))


@lru_cache
def read(schema: Schema, *, lock: bool) -> Prepared:
    """One execution by `execution_id`; `lock` takes its row lock."""
    table = schema.executions
    statement = select(
        table.c.id,
        table.c.document,
        table.c.scope,
        table.c.key,
        table.c.content_hash,
        table.c.interpreter,
        table.c.status,
        table.c.position,
        table.c.active,
        table.c.revision,
        table.c.failure,
        table.c.created_at,
        table.c.ended_at,
        table.c.deferred,
    ).where(table.c.id == bindparam("execution_id"))
    # NO KEY UPDATE: nothing ever changes the id, so nothing that only refers to it has to wait.
    locking = statement.with_for_update(key_share=True) if lock else statement
    return Prepared(locking, instants=("created_at", "ended_at"))


@lru_cache
def statuses(schema: Schema) -> Executable:
    """The statuses of the executions in `execution_ids`."""
    table = schema.executions
    return select(table.c.id, table.c.status).where(
        table.c.id.in_(bindparam("execution_ids", expanding=True))
    )


@lru_cache
def add(schema: Schema, kind: str) -> Prepared:
    """Insert one execution, or nothing where the id is taken; answers the id it inserted."""
    table = schema.executions
    return Prepared(
        dialect.insert_into(kind, table)
        .values({column.name: bindparam(column.name) for column in table.c})
        .on_conflict_do_nothing(index_elements=[table.c.id])
        .returning(table.c.id)
    )


@lru_cache
def move(schema: Schema, *, moved: bool) -> Prepared:
    """Write a step's result where the row is still at `from_revision`.

    Without `moved` the position stays as it is, and is not written again.
    """
    positions = ["position", "active"] if moved else []
    return _where_unmoved(schema, ["status", "failure", "ended_at", *positions])


@lru_cache
def change_chart(schema: Schema) -> Prepared:
    """Write another chart and position where the row is still at `from_revision`."""
    return _where_unmoved(schema, ["content_hash", "interpreter", "position", "active"])


def _where_unmoved(schema: Schema, changes: list[str]) -> Prepared:
    table = schema.executions
    return Prepared(
        update(table)
        .where(
            table.c.id == bindparam("execution_id"),
            table.c.revision == bindparam("from_revision"),
        )
        .values(
            revision=table.c.revision + literal_column("1"), **{name: bindparam(name) for name in changes}
        )
    )


@lru_cache
def log(schema: Schema) -> Prepared:
    """Append one input row; its `seq` follows the last one.

    The execution's lock makes the number safe; a row that bypassed it meets the primary key.
    """
    table = schema.inputs
    mine = table.alias()
    following = (
        select(func.coalesce(func.max(mine.c.seq) + literal_column("1"), literal_column("0")))
        .where(mine.c.execution_id == bindparam("execution_id"))
        .scalar_subquery()
    )
    names = [name for name in table.c.keys() if name != "seq"]
    return Prepared(insert(table).values(seq=following, **{name: bindparam(name) for name in names}).inline())


@lru_cache
def inputs(schema: Schema) -> Executable:
    """The input log of `execution_id`, in order."""
    table = schema.inputs
    return select(table).where(table.c.execution_id == bindparam("execution_id")).order_by(table.c.seq)


@lru_cache
def prunable(schema: Schema) -> Executable:
    """Executions that ended before `before` and still have a position; locked, skipping held ones."""
    table = schema.executions
    return (
        select(table.c.id)
        .where(
            table.c.status.in_(TERMINAL_STATUSES),
            table.c.ended_at < bindparam("before"),
            table.c.position.is_not(None),
        )
        .order_by(table.c.ended_at)
        .limit(bindparam("limit"))
        .with_for_update(skip_locked=True)
    )


@lru_cache
def drop_positions(schema: Schema) -> Executable:
    """Forget the positions of `execution_ids`."""
    table = schema.executions
    return (
        update(table).where(table.c.id.in_(bindparam("execution_ids", expanding=True))).values(position=None)
    )


@lru_cache
def drop_inputs(schema: Schema) -> Executable:
    """Forget the input logs of `execution_ids`."""
    table = schema.inputs
    return delete(table).where(table.c.execution_id.in_(bindparam("execution_ids", expanding=True)))
