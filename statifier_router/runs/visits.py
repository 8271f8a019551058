"""One record's turn in the transaction of a job: what stands is read, a call opened, an outcome written."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from attrs import frozen
from sqlalchemy.exc import IntegrityError

from statifier_router.dialect import is_unique_violation
from statifier_router.jsontext import encode
from statifier_router.runs import checking, record_rows
from statifier_router.runs.deciding import Call, Operation, Row, View
from statifier_router.runs.faults import LedgerRowAppeared
from statifier_router.runs.settling import Settled
from statifier_router.runs.standing import PARKED_BY_HAND
from statifier_router.runs.writers import has_verb, traits_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.runs.leases import Taken
    from statifier_router.runs.pages import Candidate, Page
    from statifier_router.runs.rules import Rule
    from statifier_router.schema import Schema


@frozen(kw_only=True)
class Opened:
    """A call that is opened: committed before it is made, and settled with its outcome."""

    view: View
    call: Call


def look(
    connection: Connection, schema: Schema, rule: Rule, writer: Any, page: Page, candidate: Candidate
) -> View:
    """All that is known of the candidate; its newest version is read here, signal and payload at once.

    Raises `ImpossibleCandidate` for a record that the source should never have handed over, and
    `LedgerRowAppeared` where there is a row that nobody knew of.
    """
    source_id = candidate.source_id
    answer = rule.source.load(connection, [source_id])
    record = checking.loaded(rule, source_id, answer)
    values = {"of_rule": rule.name, "of_source_id": source_id}
    found = connection.execute(record_rows.with_operation(schema), values).one()
    row = None if found.record_status is None else _of(found, "record", Row, record_rows.OF_RECORD)
    operation = None
    if found.operation_verb is not None:
        operation = _of(found, "operation", Operation, record_rows.OF_OPERATION)
    _check_row(rule, page, candidate, row, operation)
    return View(
        rule=rule,
        source_id=source_id,
        has_verb=lambda verb: has_verb(writer, verb),
        traits=traits_of(writer),
        row=row,
        operation=operation,
        record=record,
        begun=page.begun,
        looked_up=page.looked_up,
        due_before=page.due_before,
    )


def _of(found: Any, prefix: str, kind: Any, names: tuple[str, ...]) -> Any:
    return kind(**{name: getattr(found, f"{prefix}_{name}") for name in names})


def _check_row(
    rule: Rule, page: Page, candidate: Candidate, row: Row | None, operation: Operation | None
) -> None:
    """Raise where a row is there that the page, or the job that opened the operation, did not find."""
    if row is None or page.begun:
        return
    # A row that an operator parked meanwhile is theirs, and is left alone.
    unseen = candidate.has_row is False and row.error_kind != PARKED_BY_HAND
    left = operation is not None and not operation.in_doubt and operation.row_version is None
    if unseen or left:
        raise LedgerRowAppeared(rule=rule.name, source_id=candidate.source_id)


def open_call(
    connection: Connection, schema: Schema, taken: Taken, view: View, call: Call, now: datetime
) -> None:
    """Open the operation of a call, or open again the one that was never settled."""
    kept = view.operation
    payload = None
    if call.verb == "create":
        payload = encode(call.payload)
    elif call.verb == "lookup" and kept is not None:
        # The create that is asked about stays what it was.
        payload = kept.payload
    values = {
        "of_rule": view.rule.name,
        "of_source_id": view.source_id,
        "to_verb": "create" if call.verb == "lookup" else call.verb,
        "to_key": call.key,
        "to_signal": call.signal,
        "to_payload": payload,
        "to_lease_token": taken.token,
        "to_chain_id": taken.chain.id,
        "to_row_version": None if view.row is None else view.row.row_version,
        "to_started_at": now,
    }
    statement = record_rows.open_operation if kept is None else record_rows.reopen_operation
    connection.execute(statement(schema), values)


def write(
    connection: Connection, schema: Schema, view: View, settled: Settled, now: datetime, *, landed: bool
) -> None:
    """Write what became of the record, and of its operation.

    An operator may have changed the row during the call: then the row stays as they left it, unless the
    call landed (`landed`). Raises `LedgerRowAppeared` where a row is there that was not before.
    """
    of_record = {"of_rule": view.rule.name, "of_source_id": view.source_id}
    version = None if view.row is None else view.row.row_version
    if settled.outcome is not None:
        values = of_record | settled.outcome.values | {"now": now}
        version = _write_row(connection, schema, view, values, version, landed=landed)
    if settled.operation == "settled":
        connection.execute(record_rows.settle_operation(schema), of_record)
    elif settled.operation == "in_doubt":
        connection.execute(record_rows.keep_in_doubt(schema), of_record | {"to_row_version": version})


def _write_row(
    connection: Connection,
    schema: Schema,
    view: View,
    values: dict[str, Any],
    version: int | None,
    *,
    landed: bool,
) -> int:
    if version is None:
        try:
            connection.execute(record_rows.insert_record(schema), values)
        except IntegrityError as error:
            if not is_unique_violation(error, f"{schema.tables.prefix}records_pk"):
                raise
            raise LedgerRowAppeared(rule=view.rule.name, source_id=view.source_id) from error
        return 1
    update = record_rows.update_record(schema)
    if connection.execute(update, values | {"of_version": version}).rowcount:
        return version + 1
    now_there = connection.execute(record_rows.with_operation(schema), values).one().record_row_version
    if now_there is None:
        return _write_row(connection, schema, view, values, None, landed=landed)
    if landed:
        connection.execute(update, values | {"of_version": now_there})
        return int(now_there) + 1
    return int(now_there)
