"""`why`: what is read about one record before it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from statifier_router.jsontext import Json, decode
from statifier_router.refusals import told
from statifier_router.runs import asking_statements as statements
from statifier_router.runs import positions, rule_rows
from statifier_router.runs.asking import LAST_CHAINS, breakers_by_target, chains_on, rule_name
from statifier_router.runs.bracket import reading
from statifier_router.runs.filtering import checked_source_id
from statifier_router.runs.records import Record
from statifier_router.runs.rules import Rule
from statifier_router.runs.standing import record_of
from statifier_router.runs.states import Seen, closed_by
from statifier_router.runs.whys import Case, Why, reason_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.runs.outbound import Outbound


def why(outbound: Outbound, rule: object, source_id: str) -> Why:
    """See `Outbound.why`."""
    source_id = checked_source_id(source_id)
    name = rule_name(outbound, rule)
    with reading(outbound.config) as connection:
        case = _case(outbound, connection, name, source_id)
    reason, text, advice = reason_of(case)
    return Why(rule=name, source_id=source_id, reason=reason, text=text, advice=advice, facts=_facts(case))


def _case(outbound: Outbound, connection: Connection, name: str, source_id: str) -> Case:
    schema = outbound.config.schema
    rule = connection.execute(rule_rows.one(schema), {"of_rule": name}).mappings().one()
    of_record = {"of_rule": name, "of_source_id": source_id}
    row = connection.execute(statements.record(schema), of_record).mappings().one_or_none()
    operation = connection.execute(statements.operation(schema), of_record).mappings().one_or_none()
    seen = _seen(outbound, connection, rule)
    newest, problem, held_back = None, None, None
    if seen.known is not None:
        try:
            newest = _loaded(seen.known, connection, source_id)
            held_back = _held_back(connection, seen.known, newest)
        except Exception as error:
            # A host's own source: the rule meets it too, and the record's row tells all the same.
            problem = told(error)
    return Case(
        rule=name,
        source_id=source_id,
        seen=seen,
        row=None if row is None else record_of(row),
        operation=operation,
        calling=_calling(seen, operation),
        asked=seen.known is not None and problem is None,
        newest=newest,
        problem=problem,
        held_back=held_back,
        behind_cursor=_behind(rule["cursor"], seen.known, newest),
    )


def _loaded(rule: Rule, connection: Connection, source_id: str) -> Record | None:
    newest: Any = rule.source.load(connection, [source_id]).get(source_id)
    if newest is not None and not isinstance(newest, Record):
        raise TypeError(f"load answered {type(newest).__name__} for it, not a Record")
    return newest


def _seen(outbound: Outbound, connection: Connection, rule: Mapping[Any, Any]) -> Seen:
    schema, name = outbound.config.schema, rule["name"]
    known = outbound.known_rules.get(name)
    definition: Any = decode(rule["definition"])
    return Seen(
        now=outbound.config.now(),
        lease=outbound.lease,
        known=known,
        row=rule,
        definition=definition,
        refused=None,
        chains=chains_on(connection, schema, name, LAST_CHAINS),
        breaker=breakers_by_target(connection, schema).get(definition["target"]),
        health=closed_by(outbound, known),
        has_writer=definition["driver"] in outbound.writers,
    )


def _calling(seen: Seen, operation: Mapping[Any, Any] | None) -> bool:
    """Whether a job that is alive has the record's call in hand."""
    if operation is None or operation["in_doubt"]:
        return False
    until = seen.row["lease_until"]
    alive = until is not None and until >= seen.now
    return alive and bool(operation["lease_token"] == seen.row["lease_token"])


def _held_back(connection: Connection, known: Rule | None, newest: Record | None) -> str | None:
    """Why the rule's source does not hand over the newest version yet, where it can tell."""
    ask = getattr(known and known.source, "held_back", None)
    if not callable(ask) or newest is None:
        return None
    answer = ask(connection, newest)
    return None if answer is None else str(answer)


def _behind(cursor: str | None, known: Rule | None, newest: Record | None) -> bool | None:
    """Whether the next scan begins behind the newest version; None where it cannot be told."""
    if cursor is None or known is None or newest is None or newest.position is None:
        return None
    begins = positions.read(cursor)
    rewound = getattr(known.source, "rewound", None)
    try:
        if callable(rewound):
            begins = rewound(begins)
        return not positions.is_after(newest.position, begins)
    except Exception:
        # A host's own source, again.
        return None


def _facts(case: Case) -> dict[str, Json]:
    row, operation, newest = case.row, case.operation, case.newest
    facts: dict[str, Any] = {
        "target": case.seen.definition["target"],
        "row": None
        if row is None
        else {
            "status": row.status,
            "remote_id": row.remote_id,
            "signal": row.signal,
            "attempts": row.attempts,
            "next_attempt_at": _told(row.next_attempt_at),
            "error_kind": row.error_kind,
            "last_error": row.last_error,
            "parked_at": _told(row.parked_at),
            "acknowledged_at": _told(row.acknowledged_at),
            "updated_at": _told(row.updated_at),
        },
        "operation": None
        if operation is None
        else {
            "verb": operation["verb"],
            "in_doubt": operation["in_doubt"],
            "signal": operation["signal"],
            "chain_id": operation["chain_id"],
            "started_at": _told(operation["started_at"]),
        },
        "source": None if newest is None else {"signal": newest.signal, "deleted": newest.deleted},
    }
    return facts


def _told(instant: Any) -> str | None:
    return None if instant is None else str(instant.isoformat())
