"""What operators ask: how rules stand, their chains, their records, and what is parked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from statifier_router.errors import ConfigError
from statifier_router.jsontext import decode
from statifier_router.paging import checked_limit
from statifier_router.runs import asking_statements as statements
from statifier_router.runs import error_kinds
from statifier_router.runs.bracket import reading
from statifier_router.runs.calls import EQUAL_FAULTS
from statifier_router.runs.filtering import Filters, checked_status, filters
from statifier_router.runs.rules import Rule
from statifier_router.runs.standing import (
    PARKED,
    STATUSES,
    BreakerStatus,
    ChainStatus,
    RecordRow,
    RuleStatus,
    breaker_of,
    chain_of,
    record_of,
)
from statifier_router.runs.states import Seen, advice_on_failed, closed_by, command, judged
from statifier_router.text import KEY_LIMIT, checked

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.runs.outbound import Outbound
    from statifier_router.schema import Schema

# The running one, and those whose faults are compared.
LAST_CHAINS = 1 + EQUAL_FAULTS


# --- Rules ----------------------------------------------------------------------------------------


def rule_name(outbound: Outbound, rule: object) -> str:
    """The name of a rule that this process knows or that was ever saved.

    Saves it where this process knows it and nobody has saved it yet. Raises `ConfigError`, which lists
    the names that there are.
    """
    wanted = rule.name if isinstance(rule, Rule) else rule
    if isinstance(wanted, str) and wanted in outbound.known_rules:
        return outbound.rule_named(wanted).name
    with reading(outbound.config) as connection:
        saved = set(connection.execute(statements.rule_names(outbound.config.schema)).scalars())
    if isinstance(wanted, str) and wanted in saved:
        return wanted
    names = ", ".join(sorted(saved | set(outbound.known_rules))) or "none"
    raise ConfigError(f"no rule is named {wanted!r}; there are: {names}")


def rules(outbound: Outbound) -> list[RuleStatus]:
    """How every rule stands, in the order of their names.

    Saves the rules that this process was given and has not saved; one that is refused is told as
    failing. Counts all records.
    """
    refused = outbound.save_unsaved()
    schema, now = outbound.config.schema, outbound.config.now()
    with reading(outbound.config) as connection:
        rows = {row["name"]: row for row in connection.execute(statements.rules(schema)).mappings()}
        numbers = _Numbers(connection, schema, now)
        breakers = breakers_by_target(connection, schema)
        chains = {name: chains_on(connection, schema, name, LAST_CHAINS) for name in rows}
    found = []
    for name in sorted(rows.keys() | refused.keys()):
        row: Mapping[Any, Any] = rows.get(name, {})
        known = outbound.known_rules.get(name)
        definition: Any = decode(row["definition"]) if row else known and known.definition
        seen = Seen(
            now=now,
            lease=outbound.lease,
            known=known,
            row=row,
            definition=definition,
            refused=refused.get(name),
            chains=chains.get(name, []),
            breaker=breakers.get(definition["target"]),
            health=closed_by(outbound, known),
            has_writer=definition["driver"] in outbound.writers,
        )
        found.append(_status(name, seen, numbers))
    return found


def _status(name: str, seen: Seen, numbers: _Numbers) -> RuleStatus:
    state, advice = judged(name, seen)
    counts = numbers.of(name)
    if counts["failed"] and state in ("idle", "breaker open"):
        advice = "; ".join(filter(None, (advice, advice_on_failed(name, counts["failed"]))))
    cursor = seen.row.get("cursor")
    due, oldest = numbers.due.get(name, (0, None))
    return RuleStatus(
        name=name,
        state=state,
        advice=advice,
        definition=seen.definition,
        cursor=None if cursor is None else decode(cursor),
        paused=bool(seen.row.get("paused")),
        known_here=seen.known is not None,
        chain=seen.running,
        last_chain=seen.last,
        counts=counts,
        due=due,
        oldest_due=oldest,
        in_doubt=numbers.in_doubt.get(name, 0),
        breaker=seen.breaker,
        closed_since=seen.row.get("closed_since"),
        health=seen.health,
    )


class _Numbers:
    """Counts of records by rule."""

    def __init__(self, connection: Connection, schema: Schema, now: datetime) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        for rule, status, count in connection.execute(statements.counts(schema)):
            self._counts.setdefault(rule, {})[status] = count
        dismissed = connection.execute(statements.dismissed(schema))
        self._dismissed: dict[str, int] = {rule: count for rule, count in dismissed}  # noqa: C416 - rows
        due = connection.execute(statements.due(schema), {"now": now})
        self.due: dict[str, tuple[int, datetime]] = {rule: (count, oldest) for rule, count, oldest in due}
        in_doubt = connection.execute(statements.in_doubt(schema))
        self.in_doubt: dict[str, int] = {rule: count for rule, count, _ in in_doubt}

    def of(self, rule: str) -> dict[str, int]:
        """By status, all of them named, and "parked"."""
        counts = self._counts.get(rule, {})
        named = {status: counts.get(status, 0) for status in STATUSES}
        parked = sum(named[status] for status in PARKED) - self._dismissed.get(rule, 0)
        return {**named, "parked": parked}


def breakers(outbound: Outbound) -> list[BreakerStatus]:
    """Every breaker that ever counted a fault, in the order of the targets."""
    with reading(outbound.config) as connection:
        return list(breakers_by_target(connection, outbound.config.schema).values())


def breakers_by_target(connection: Connection, schema: Schema) -> dict[str, BreakerStatus]:
    """The same by target, on this connection."""
    rows = connection.execute(statements.breakers(schema)).mappings()
    return {row["target"]: breaker_of(row) for row in rows}


# --- Chains ---------------------------------------------------------------------------------------


def chains(outbound: Outbound, rule: object, *, limit: int = 20) -> list[ChainStatus]:
    """The chains of a rule, the newest first; at most `limit`."""
    limit = checked_limit(limit)
    name = rule_name(outbound, rule)
    with reading(outbound.config) as connection:
        return chains_on(connection, outbound.config.schema, name, limit)


def chains_on(connection: Connection, schema: Schema, rule: str, limit: int) -> list[ChainStatus]:
    """The same on this connection."""
    values = {"of_rule": rule, "limit": limit}
    return [chain_of(row) for row in connection.execute(statements.chains(schema), values).mappings()]


# --- Records --------------------------------------------------------------------------------------


def records(
    outbound: Outbound, rule: object, *, status: str | None = None, limit: int = 100, after: str | None = None
) -> list[RecordRow]:
    """The records of a rule in the order of their ids, at most `limit`, behind the id `after`."""
    limit = checked_limit(limit)
    values: dict[str, Any] = {"limit": limit}
    if status is not None:
        values["of_status"] = checked_status(status)
    if after is not None:
        values["after"] = checked(after, "after", ConfigError, limit=KEY_LIMIT)
    values["of_rule"] = rule_name(outbound, rule)
    statement = statements.records(
        outbound.config.schema, of_status=status is not None, paged=after is not None
    )
    with reading(outbound.config) as connection:
        return [record_of(row) for row in connection.execute(statement, values).mappings()]


def parked(
    outbound: Outbound,
    rule: object = None,
    *,
    status: str | None = None,
    error_kind: str | None = None,
    since: datetime | None = None,
    acknowledged: bool | None = False,
    limit: int = 100,
    after: RecordRow | None = None,
) -> list[RecordRow]:
    """The records that wait for an operator, those parked first on top; filters add up.

    `since` is when they were parked. `acknowledged`: False for those that nobody has dismissed, True for
    the dismissed ones, None for both. `after` is the last one of the page before.
    """
    limit = checked_limit(limit)
    values: dict[str, Any] = {"limit": limit}
    if after is not None:
        if not isinstance(after, RecordRow) or after.parked_at is None:  # type: ignore[redundant-expr]  # a caller's
            raise ConfigError("after must be a parked RecordRow, the last one of the page before")
        values |= {
            "after_at": after.parked_at,
            "after_rule": after.rule,
            "after_source_id": after.source_id,
        }
    given = _parked_filters(
        outbound, rule, status=status, error_kind=error_kind, since=since, acknowledged=acknowledged
    )
    statement = statements.parked(outbound.config.schema, given.names, paged=after is not None)
    with reading(outbound.config) as connection:
        rows = connection.execute(statement, values | given.values).mappings()
        return [record_of(row) for row in rows]


def _parked_filters(outbound: Outbound, rule: object, **given: Any) -> Filters:
    name = None if rule is None else rule_name(outbound, rule)
    status = given["status"]
    if status in STATUSES and status not in PARKED:
        listed = command("records", name or "RULE", "--status", status)
        raise ConfigError(
            f"status must be one of {', '.join(PARKED)}: what is {status} is not parked; to list it: {listed}"
        )
    found = filters(rule=name, statuses=PARKED, **given)
    error_kinds.check(outbound, name, found.values.get("of_error_kind"))
    return found


def count_parked(outbound: Outbound, rule: object = None, **given: Any) -> int:
    """How many `parked` would answer without a limit."""
    fit = _parked_filters(outbound, rule, **given)
    statement = statements.count_parked(outbound.config.schema, fit.names)
    with reading(outbound.config) as connection:
        return int(connection.execute(statement, fit.values).scalar_one())
