"""The statements over `chains`. Whoever changes a running one has its rule's row locked."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, Select, bindparam, false, func, insert, literal_column, select, update

from statifier_router.schema import Schema


@lru_cache
def one(schema: Schema) -> Select[Any]:
    """The chain `of_chain`."""
    table = schema.chains
    return select(table).where(table.c.id == bindparam("of_chain"))


@lru_cache
def running(schema: Schema) -> Select[Any]:
    """The chain of `of_rule` that is not over; by its partial index."""
    table = schema.chains
    return select(table).where(
        table.c.rule == bindparam("of_rule"), table.c.state == literal_column("'running'")
    )


@lru_cache
def under_way(schema: Schema) -> Select[Any]:
    """The chains that are not over, and whether a job has the rule at `now`; by their partial index."""
    chains, rules = schema.chains, schema.rules
    return (
        select(
            chains.c.rule,
            chains.c.id,
            chains.c.job_seq,
            func.coalesce(rules.c.lease_until >= bindparam("now"), false()).label("taken"),
        )
        .join(rules, rules.c.name == chains.c.rule)
        .where(chains.c.state == literal_column("'running'"))
        .order_by(chains.c.rule)
    )


@lru_cache
def insert_one(schema: Schema) -> Executable:
    """A chain that begins, with its drain."""
    table = schema.chains
    return insert(table).values(
        id=bindparam("of_chain"),
        rule=bindparam("of_rule"),
        state=literal_column("'running'"),
        phase=literal_column("'drain'"),
        due_before=bindparam("now"),
        digest=bindparam("to_digest"),
        job_seq=literal_column("1"),
        heartbeat_at=bindparam("now"),
        counters=bindparam("to_counters"),
    )


@lru_cache
def beat(schema: Schema) -> Executable:
    """A sign of life."""
    table = schema.chains
    return update(table).where(table.c.id == bindparam("of_chain")).values(heartbeat_at=bindparam("now"))


@lru_cache
def go_on(schema: Schema) -> Executable:
    """A page is concluded, and another job follows."""
    table = schema.chains
    return (
        update(table)
        .where(table.c.id == bindparam("of_chain"))
        .values(
            job_seq=bindparam("to_seq"),
            phase=bindparam("to_phase"),
            position=bindparam("to_position"),
            counters=bindparam("to_counters"),
            heartbeat_at=bindparam("now"),
        )
    )


@lru_cache
def end(schema: Schema, *, counted: bool) -> Executable:
    """The chain is over; one that is over already stays as it is. `counted`: its counters are known."""
    table = schema.chains
    values: dict[str, Any] = {
        "state": bindparam("to_state"),
        "end": bindparam("to_end"),
        "fault_kind": bindparam("to_fault_kind"),
        "fault_source_id": bindparam("to_fault_source_id"),
        "fault_text": bindparam("to_fault_text"),
        "heartbeat_at": bindparam("now"),
    }
    if counted:
        values |= {"position": bindparam("to_position"), "counters": bindparam("to_counters")}
    return (
        update(table)
        .where(table.c.id == bindparam("of_chain"), table.c.state == literal_column("'running'"))
        .values(values)
    )


@lru_cache
def last_ended(schema: Schema) -> Select[Any]:
    """How the newest chains of `of_rule` ended, at most `limit`."""
    table = schema.chains
    return (
        select(table.c.state, table.c.fault_kind, table.c.fault_source_id, table.c.fault_text)
        .where(table.c.rule == bindparam("of_rule"), table.c.state != literal_column("'running'"))
        .order_by(table.c.id.desc())
        .limit(bindparam("limit"))
    )
