"""The statements over `breakers`: one row a target, shared by every rule and process that calls it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, Select, bindparam, literal_column, select, update

from statifier_router import dialect
from statifier_router.schema import Schema

FIELDS = ("state", "failures", "open_until", "probe_until", "trips")


@lru_cache
def locked(schema: Schema) -> Select[Any]:
    """The breaker of `of_target`, locked; after the row of a rule, never before one."""
    table = schema.breakers
    return (
        select(*(table.c[name] for name in FIELDS))
        .where(table.c.target == bindparam("of_target"))
        .with_for_update()
    )


@lru_cache
def ensure(schema: Schema, kind: str) -> Executable:
    """The row of a target that has none yet; nothing where another process was quicker."""
    table = schema.breakers
    inserted: Executable = (
        dialect.insert_into(kind, table)
        .values(
            target=bindparam("of_target"),
            state=literal_column("'closed'"),
            failures=literal_column("0"),
            trips=literal_column("0"),
        )
        .on_conflict_do_nothing(index_elements=[table.c.target])
    )
    return inserted


@lru_cache
def store(schema: Schema) -> Executable:
    """The breaker's new state."""
    table = schema.breakers
    return (
        update(table)
        .where(table.c.target == bindparam("of_target"))
        .values({name: bindparam(f"to_{name}") for name in FIELDS})
    )
