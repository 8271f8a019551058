"""Parking by hand: a record that holds up its rule is set aside, so that the others go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from statifier_router.errors import ConfigError
from statifier_router.runs import acting_statements as statements
from statifier_router.runs import auditing
from statifier_router.runs.acting import Chunk, Selection, act
from statifier_router.runs.asking import rule_name
from statifier_router.runs.bracket import reading
from statifier_router.runs.filtering import checked_source_ids, filters
from statifier_router.runs.records import Record
from statifier_router.runs.standing import PARKED_BY_HAND

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound

# Parked rows stay as they are, with the reason that they have.
TAKES = ("delivered", "suppressed", "failed")


@frozen(kw_only=True)
class Parked:
    """What parking did: `count` records are parked now.

    Not parked: `busy` ones, whose call is in flight (ask again in a moment); those that are parked
    already (`passed_over`); `unknown` ones, which neither the rule nor its source knows.
    """

    rule: str
    count: int
    busy: int
    passed_over: int
    unknown: int
    audit_id: str | None = None


def park(outbound: Outbound, rule: object, source_ids: Iterable[str], *, reason: str, actor: str) -> Parked:
    """See `Outbound.park`."""
    why = auditing.checked_reason(reason)
    if why is None:
        raise ConfigError("reason must say why")
    named = checked_source_ids(source_ids)
    name = rule_name(outbound, rule)
    selection = Selection(rule=name, statuses=TAKES, filters=filters(rule=name), source_ids=named)
    done = auditing.entry(actor, "park", selection.told, reason=why)
    signals = _signals(outbound, name, named)

    def change(chunk: Chunk) -> int:
        fault = {"to_error_kind": PARKED_BY_HAND, "to_last_error": why}
        if chunk.fit:
            chunk.execute(statements.park(chunk.schema), source_ids=list(chunk.fit), **fault)
        added = 0
        for source_id in chunk.missing:
            operation = chunk.operations.get(source_id)
            signal = signals.get(source_id) if operation is None else operation.signal
            if signal is not None:
                row = {"of_source_id": source_id, "to_signal": signal, **fault}
                chunk.execute(statements.add_parked(chunk.schema), **row)
                added += 1
        if opened := [each for each in (*chunk.fit, *chunk.missing) if each in chunk.operations]:
            # Whether its call took effect nobody knows: it is resumed, as it was, once it is released.
            chunk.execute(statements.keep_operations(chunk.schema, doubt=True), source_ids=opened)
        return added

    tally = act(outbound.config, selection, change, done)
    return Parked(
        rule=name,
        count=tally.count,
        busy=tally.busy,
        passed_over=tally.passed_over,
        unknown=tally.unknown,
        audit_id=tally.audit_id,
    )


def _signals(outbound: Outbound, rule: str, named: tuple[str, ...]) -> dict[str, str]:
    """The signals of records as their source has them: of what has no row, a mistyped id is told."""
    known = outbound.known_rules.get(rule)
    if known is None or not named:
        return {}
    with reading(outbound.config) as connection:
        loaded: Mapping[str, Any] = known.source.load(connection, list(named))
    return {source_id: record.signal for source_id, record in loaded.items() if isinstance(record, Record)}
