"""Chains: a tick begins one for every rule that has none alive; its jobs end it."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from statifier_router import ids
from statifier_router.clock import as_utc
from statifier_router.dialect import Link, in_full
from statifier_router.errors import ConfigError, SchemaError
from statifier_router.runs import chain_rows, record_rows, rule_rows
from statifier_router.runs.bracket import reading, writing
from statifier_router.runs.ends import ChainEnd, ChainId, JobEnd

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.config import Config
    from statifier_router.runs.job import Stopping
    from statifier_router.runs.outbound import Outbound
    from statifier_router.runs.rules import Rule

log = logging.getLogger("statifier_router")

# Without a sign for so many leases, a chain is dead.
DEAD_AFTER: Final = 2


def tick(outbound: Outbound, now: datetime | None) -> list[ChainId]:
    """A chain for every rule of this process that is not paused and has none alive.

    A rule at which this fails hinders no other; where it fails at all of them, the first error is raised.
    """
    instant = outbound.config.now() if now is None else as_utc(now, "now", ConfigError)
    begun: list[ChainId] = []
    errors: list[Exception] = []
    rules = list(outbound.known_rules)
    for name in rules:
        try:
            chain_id = start(outbound, name, instant)
        except SchemaError:
            raise
        except Exception as error:
            log.exception("chain not begun", extra={"statifier_router.rule": name})
            errors.append(error)
        else:
            if chain_id is not None:
                begun.append(chain_id)
    if errors and len(errors) == len(rules):
        raise errors[0]
    return begun


def start(outbound: Outbound, rule_name: str, now: datetime) -> ChainId | None:
    """A chain of this rule, in one transaction under the lock of its row; None where there is to be none."""
    rule = outbound.rule_named(rule_name)
    with writing(outbound.config) as connection:
        return _start(connection, outbound, rule, now)


def _start(connection: Connection, outbound: Outbound, rule: Rule, now: datetime) -> ChainId | None:
    schema = outbound.config.schema
    of_rule = {"of_rule": rule.name}
    row = connection.execute(rule_rows.locked(schema), of_rule).one_or_none()
    if row is None or row.digest != rule.digest:
        # This process runs other code than the one that saved the rule last.
        log.warning("rule is another one in the database", extra={"statifier_router.rule": rule.name})
        return None
    if row.paused:
        return None
    running = connection.execute(chain_rows.running(schema), of_rule).one_or_none()
    if running is not None:
        if not is_dead(running.heartbeat_at, now, outbound.lease):
            return None
        _cancel(connection, outbound.config, rule, running, now)
    chain_id = ids.chain_id()
    values = of_rule | {"of_chain": chain_id, "to_digest": rule.digest, "to_counters": "{}", "now": now}
    connection.execute(chain_rows.insert_one(schema), values)
    return chain_id


def is_dead(heartbeat_at: datetime, now: datetime, lease: timedelta) -> bool:
    """Whether a chain that is not over has given no sign for so long that nobody waits for it.

    A sign from as far ahead is of a clock that was put back since: who waited for that instant to come
    would wait as long as the clock was wrong.
    """
    return abs(now - heartbeat_at) > DEAD_AFTER * lease


def last_sign(heartbeat_at: datetime, now: datetime) -> str:
    """How a dead chain's last sign is told of."""
    at = f"{heartbeat_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"no sign since {at}" if heartbeat_at <= now else f"its last sign at {at}, ahead of the clock"


def _cancel(connection: Connection, config: Config, rule: Rule, chain: Any, now: datetime) -> None:
    """End a dead chain; a job of it that comes to life again has lost its lease."""
    schema = config.schema
    values = {"of_rule": rule.name, "of_chain": chain.id}
    called_last = connection.execute(record_rows.called_last(schema), values).scalar_one_or_none()
    connection.execute(rule_rows.revoke(schema), {"of_rule": rule.name})
    end(
        connection,
        config,
        chain.id,
        "cancelled",
        ChainEnd.CANCELLED,
        now,
        source_id=called_last,
        text="it gave no sign of life for two leases, and the next chain took its place"
        if chain.heartbeat_at <= now
        else "its last sign of life is ahead of the clock, and the next chain took its place",
    )
    log.warning(
        "dead chain cancelled",
        extra={"statifier_router.rule": rule.name, "statifier_router.chain": chain.id},
    )


def end(
    connection: Link,
    config: Config,
    chain_id: str,
    state: str,
    how: ChainEnd,
    now: datetime,
    *,
    kind: str | None = None,
    source_id: str | None = None,
    text: str | None = None,
    progress: tuple[str | None, str] | None = None,
) -> None:
    """Write that a chain is over, under the lock of its rule's row; `progress` is position and counters."""
    values: dict[str, Any] = {
        "of_chain": chain_id,
        "to_state": state,
        "to_end": how.name,
        "to_fault_kind": kind,
        "to_fault_source_id": source_id,
        "to_fault_text": text,
        "now": now,
    }
    if progress is not None:
        values |= {"to_position": progress[0], "to_counters": progress[1]}
    in_full(connection).execute(chain_rows.end(config.schema, counted=progress is not None), values)


@frozen(kw_only=True)
class UnderWay:
    """A chain that is not over. `seq` is the number of its job in turn; `taken`: a job has its rule."""

    rule: str
    chain_id: ChainId
    seq: int
    taken: bool


def under_way(outbound: Outbound, now: datetime) -> list[UnderWay]:
    """The chains of this process's rules that are not over."""
    with reading(outbound.config) as connection:
        rows = connection.execute(chain_rows.under_way(outbound.config.schema), {"now": now}).all()
    return [
        UnderWay(rule=row.rule, chain_id=row.id, seq=row.job_seq, taken=row.taken)
        for row in rows
        if row.rule in outbound.known_rules
    ]


def run(outbound: Outbound, chain_id: ChainId, *, stopping: Stopping | None = None) -> ChainEnd:
    """Run the jobs of a chain, one after the other, until it is over; raises the fault that ended it."""
    answer = outbound.run_job(chain_id, stopping=stopping)
    while answer is JobEnd.MORE:
        answer = outbound.run_job(chain_id, stopping=stopping)
    if answer is JobEnd.BUSY:
        return ChainEnd.BUSY
    with reading(outbound.config) as connection:
        row = connection.execute(chain_rows.one(outbound.config.schema), {"of_chain": chain_id}).one()
    # A job that lost its lease leaves its chain to whoever has it.
    return ChainEnd.BUSY if row.end is None else ChainEnd[row.end]
