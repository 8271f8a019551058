"""The statements over `rules`: saving one, and the lease that one job at a time holds on it.

Whoever changes anything of a rule locks its row first, jobs and operators alike: nothing races.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Executable,
    Select,
    bindparam,
    exists,
    false,
    insert,
    literal_column,
    select,
    update,
)

from statifier_router.schema import Schema


@lru_cache
def locked(schema: Schema) -> Select[Any]:
    """The row of the rule `of_rule`, locked; SQLite's writer has everything locked."""
    table = schema.rules
    return select(table).where(table.c.name == bindparam("of_rule")).with_for_update()


@lru_cache
def one(schema: Schema) -> Select[Any]:
    """The row of the rule `of_rule`, without locking."""
    table = schema.rules
    return select(table).where(table.c.name == bindparam("of_rule"))


@lru_cache
def insert_one(schema: Schema) -> Executable:
    """A rule's first row."""
    table = schema.rules
    return insert(table).values(
        name=bindparam("of_rule"),
        digest=bindparam("to_digest"),
        definition=bindparam("to_definition"),
        paused=false(),
        lease_token=literal_column("0"),
    )


@lru_cache
def redefine(schema: Schema) -> Executable:
    """Another definition; a chain that runs ends as superseded by it."""
    table = schema.rules
    return (
        update(table)
        .where(table.c.name == bindparam("of_rule"))
        .values(digest=bindparam("to_digest"), definition=bindparam("to_definition"))
    )


@lru_cache
def has_rows(schema: Schema) -> Select[Any]:
    """Whether anything was written for the rule `of_rule` beside its own row."""
    records, operations = schema.records, schema.operations
    of_rule: BindParameter[str] = bindparam("of_rule")
    return select(exists().where(records.c.rule == of_rule) | exists().where(operations.c.rule == of_rule))
