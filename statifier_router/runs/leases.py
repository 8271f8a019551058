"""The lease of a rule: one job at a time owns it, and every write of a job proves that it still does.

It is a row with an expiry and a token that counts up, the same on both databases. A job that was frozen
past its lease finds another token there, and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from attrs import frozen

from statifier_router import dialect
from statifier_router.dialect import Link, in_full
from statifier_router.errors import ConfigError
from statifier_router.runs import breaker, chain_rows, rule_rows
from statifier_router.runs.bracket import first_row, reading, writing
from statifier_router.runs.breaker import Breaker
from statifier_router.runs.ends import JobEnd

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.config import Config
    from statifier_router.runs.outbound import Outbound
    from statifier_router.runs.rules import Rule

log = logging.getLogger("statifier_router")


class LeaseLost(Exception):
    """Inside a job: another one owns the rule now."""


@frozen(kw_only=True)
class Facts:
    """What stands beside the lease, read under the lock of the rule's row."""

    paused: bool
    digest: str
    cursor: str | None
    chain_state: str | None
    breaker: Breaker


@frozen(kw_only=True)
class Taken:
    """A rule that a job has taken: its token, its chain as it was then, and since when."""

    rule: Rule
    token: int
    chain: Any
    facts: Facts
    at: datetime


class _NothingToDo(Exception):
    """Undoes the taking of a lease."""

    def __init__(self, answer: JobEnd) -> None:
        self.answer = answer


def take(outbound: Outbound, chain_id: str, seq: int | None) -> Taken | JobEnd:
    """Take the chain's rule for one job.

    `ENDED` where the chain is over, or where `seq` is not the number of its next job; `BUSY` where
    another job has the rule, or where this process knows the rule by another definition than the
    chain's. Raises `ConfigError` for a chain or a rule that is not known.
    """
    config = outbound.config
    with reading(config) as connection:
        chain = connection.execute(chain_rows.one(config.schema), {"of_chain": chain_id}).one_or_none()
    if chain is None:
        raise ConfigError(f"chain_id {chain_id!r} is of no chain: take one that tick() answered")
    rule = outbound.rule_named(chain.rule)
    if chain.state != "running" or (seq is not None and seq != chain.job_seq):
        return JobEnd.ENDED
    try:
        with writing(config) as connection:
            return _take(connection, outbound, rule, chain_id, chain.job_seq)
    except _NothingToDo as nothing:
        return nothing.answer


def _take(connection: Connection, outbound: Outbound, rule: Rule, chain_id: str, seq: int) -> Taken:
    config = outbound.config
    now = config.now()
    values = {
        "of_rule": rule.name,
        "of_chain": chain_id,
        "of_target": rule.target,
        "now": now,
        "to_owner": outbound.owner,
        "to_until": now + outbound.lease,
    }
    row = connection.execute(rule_rows.acquire(config.schema), values).one_or_none()
    if row is None:
        raise _NothingToDo(JobEnd.BUSY)
    # Read again under the lock: the job that had the rule may have been of this chain.
    chain = connection.execute(chain_rows.one(config.schema), {"of_chain": chain_id}).one()
    if chain.state != "running" or chain.job_seq != seq:
        raise _NothingToDo(JobEnd.ENDED)
    if row.digest == chain.digest and rule.digest != chain.digest:
        log.warning(
            "rule is another one in the database",
            extra={"statifier_router.rule": rule.name, "statifier_router.chain": chain_id},
        )
        raise _NothingToDo(JobEnd.BUSY)
    connection.execute(chain_rows.beat(config.schema), {"of_chain": chain_id, "now": now})
    return Taken(rule=rule, token=row.lease_token, chain=chain, facts=_facts(row._asdict()), at=now)


def fenced(connection: Link, outbound: Outbound, taken: Taken, now: datetime) -> Facts | None:
    """Renew the lease and lock the rule's row: the first statement of everything that a job writes.

    None where the lease is lost. Whoever then holds it has a greater token.
    """
    config = outbound.config
    kind = dialect.kind(connection)
    values = {
        "of_rule": taken.rule.name,
        "of_token": taken.token,
        "of_chain": taken.chain.id,
        "of_target": taken.rule.target,
        "to_until": now + outbound.lease,
        "lock_timeout": dialect.lock_timeout_setting(config.lock_timeout),
    }
    row = first_row(connection, rule_rows.fence(config.schema, kind), values)
    return None if row is None else _facts(dict(zip(rule_rows.FACTS, row, strict=True)))


def give_back(
    connection: Link,
    config: Config,
    taken: Taken,
    now: datetime,
    *,
    cursor: str | None = None,
    closed: bool | None = None,
) -> None:
    """End the lease, and move the rule's cursor where `cursor` is given."""
    values: dict[str, Any] = {"of_rule": taken.rule.name, "of_token": taken.token}
    if cursor is not None:
        values["to_cursor"] = cursor
    if closed:
        values["now"] = now
    statement = rule_rows.give_back(config.schema, moved=cursor is not None, closed=closed)
    in_full(connection).execute(statement, values)


def _facts(told: Mapping[str, Any]) -> Facts:
    return Facts(
        paused=bool(told["paused"]),
        digest=told["digest"],
        cursor=told["cursor"],
        chain_state=told["chain_state"],
        breaker=breaker.of_facts(told),
    )
