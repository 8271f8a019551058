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
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)

from statifier_router.dialect import Prepared
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


@lru_cache
def acquire(schema: Schema) -> Executable:
    """Take the lease of the rule `of_rule` where nobody has it; its token is one that was never used."""
    table = schema.rules
    free = or_(
        table.c.lease_until.is_(None),
        table.c.lease_until < bindparam("now", type_=table.c.lease_until.type),
    )
    return (
        update(table)
        .where(table.c.name == bindparam("of_rule"), free)
        .values(
            lease_owner=bindparam("to_owner"),
            lease_token=table.c.lease_token + 1,
            lease_until=bindparam("to_until"),
        )
        .returning(*_facts(schema), table.c.lease_token)
    )


@lru_cache
def fence(schema: Schema, kind: str) -> Prepared:
    """Renew the lease `of_token`; no row where it is lost. Locks the rule's row until the commit.

    On PostgreSQL it bounds every wait of its transaction too, its own being the first. It answers `FACTS`.
    """
    table = schema.rules
    statement = (
        update(table)
        .where(table.c.name == bindparam("of_rule"), table.c.lease_token == bindparam("of_token"))
        .values(lease_until=bindparam("to_until"))
        .returning(*_facts(schema))
    )
    if kind == "postgresql":
        setting = func.set_config(literal_column("'lock_timeout'"), bindparam("lock_timeout"), true())
        statement = statement.where(setting.is_not(None))
    return Prepared(statement)


_OF_BREAKER = ("state", "failures", "open_until", "probe_until", "trips")
# The names of what a job is told with its lease.
FACTS = ("paused", "digest", "cursor", "chain_state", *(f"breaker_{name}" for name in _OF_BREAKER))


def _facts(schema: Schema) -> list[Any]:
    """What a job has to know before it goes on, read with its lease."""
    rules, chains, breakers = schema.rules, schema.chains, schema.breakers
    state = select(chains.c.state).where(chains.c.id == bindparam("of_chain"))

    def of_target(name: str) -> Any:
        found = select(breakers.c[name]).where(breakers.c.target == bindparam("of_target"))
        return found.scalar_subquery().label(f"breaker_{name}")

    return [
        rules.c.paused,
        rules.c.digest,
        rules.c.cursor,
        state.scalar_subquery().label("chain_state"),
        *(of_target(name) for name in _OF_BREAKER),
    ]


@lru_cache
def give_back(schema: Schema, *, moved: bool, closed: bool | None) -> Executable:
    """End the lease `of_token`, at the end of a job.

    `moved`: the cursor goes to `to_cursor`. `closed`: whether the rule's connections were; None where
    nobody asked.
    """
    table = schema.rules
    values: dict[str, Any] = {"lease_owner": null(), "lease_until": null()}
    if moved:
        values["cursor"] = bindparam("to_cursor")
    if closed is not None:
        now: BindParameter[Any] = bindparam("now", type_=table.c.closed_since.type)
        values["closed_since"] = func.coalesce(table.c.closed_since, now) if closed else null()
    return (
        update(table)
        .where(table.c.name == bindparam("of_rule"), table.c.lease_token == bindparam("of_token"))
        .values(values)
    )


@lru_cache
def revoke(schema: Schema) -> Executable:
    """Take the rule from a job that is dead: its token fits no more."""
    table = schema.rules
    return (
        update(table)
        .where(table.c.name == bindparam("of_rule"))
        .values(lease_token=table.c.lease_token + 1, lease_owner=null(), lease_until=null())
    )
