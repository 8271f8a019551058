"""One record's turn in the transaction of a job: what stands is read, a call opened, an outcome written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from attrs import frozen
from sqlalchemy.exc import IntegrityError

from statifier_router import dialect
from statifier_router.dialect import Link, Prepared, in_full, is_unique_violation, together
from statifier_router.jsontext import encode
from statifier_router.runs import checking, record_rows, sources
from statifier_router.runs.bracket import run_last
from statifier_router.runs.deciding import Call, Operation, Row, View
from statifier_router.runs.faults import LedgerRowAppeared
from statifier_router.runs.settling import Settled
from statifier_router.runs.standing import PARKED_BY_HAND
from statifier_router.runs.writers import has_verb, traits_of

if TYPE_CHECKING:
    from statifier_router.runs.leases import Taken
    from statifier_router.runs.pages import Candidate, Page
    from statifier_router.runs.records import Record
    from statifier_router.runs.rules import Rule
    from statifier_router.schema import Schema


@frozen(kw_only=True)
class Opened:
    """A call that is opened: committed before it is made, and settled with its outcome."""

    view: View
    call: Call


@frozen(kw_only=True)
class Standing:
    """How a record stands, and what its source answered; None where that has to be asked for itself."""

    source_id: str
    row: Row | None
    operation: Operation | None
    loaded: Mapping[str, Record | None] | None


def _asked(schema: Schema, rule: Rule, source_id: str) -> list[tuple[Prepared, dict[str, Any]]]:
    """What is asked of one record, in one wait."""
    own = sources.asked_of(rule.source, schema, source_id)
    of_record = {"of_rule": rule.name, "of_source_id": source_id}
    return [(record_rows.with_operation(schema), of_record), *(() if own is None else (own,))]


def _stood(source_id: str, told: Sequence[tuple[Sequence[Any], int]]) -> Standing:
    """The answers to `_asked`."""
    row, operation = _read(told[0][0][0])
    loaded = sources.answered(source_id, told[1][0]) if len(told) > 1 else None
    return Standing(source_id=source_id, row=row, operation=operation, loaded=loaded)


def look(
    connection: Link,
    schema: Schema,
    rule: Rule,
    writer: Any,
    page: Page,
    candidate: Candidate,
    ahead: Standing | None = None,
) -> View:
    """All that is known of the candidate; its newest version is read here, signal and payload at once.

    `ahead` is what was asked in this transaction already, with the outcome of the record before it.

    Raises `ImpossibleCandidate` for a record that the source should never have handed over, and
    `LedgerRowAppeared` where there is a row that nobody knew of.
    """
    source_id = candidate.source_id
    if ahead is None or ahead.source_id != source_id:
        ahead = _stood(source_id, together(connection, _asked(schema, rule, source_id)))
    answer: object = ahead.loaded
    if answer is None:
        answer = rule.source.load(in_full(connection), [source_id])
    record = checking.loaded(rule, source_id, answer)
    row, operation = ahead.row, ahead.operation
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


def standing(
    connection: Link, schema: Schema, rule: Rule, source_id: str
) -> tuple[Row | None, Operation | None]:
    """The record's row and its operation, as they are now."""
    values = {"of_rule": rule.name, "of_source_id": source_id}
    found = record_rows.with_operation(schema).first(connection, values)
    assert found is not None
    return _read(found)


def _read(found: tuple[Any, ...]) -> tuple[Row | None, Operation | None]:
    of_row = dict(zip(record_rows.OF_RECORD, found, strict=False))
    of_operation = dict(zip(record_rows.OF_OPERATION, found[len(of_row) :], strict=True))
    row = None if of_row["status"] is None else Row(**of_row)
    if of_operation["verb"] is None:
        return row, None
    # SQLite has no booleans.
    return row, Operation(**of_operation | {"in_doubt": bool(of_operation["in_doubt"])})


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
    connection: Link,
    schema: Schema,
    taken: Taken,
    view: View,
    call: Call,
    now: datetime,
    *,
    spent: str | None,
) -> bool:
    """Open the operation of a call, or open again the one that was never settled.

    `spent` is the record whose operation is settled in this transaction: answers whether its row serves
    this one now.
    """
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
    if kept is not None:
        run_last(connection, record_rows.reopen_operation(schema), values)
        return False
    if spent is None:
        run_last(connection, record_rows.open_operation(schema), values)
        return False
    kind, values["of_spent"] = dialect.kind(connection), spent
    rolled = record_rows.roll_on(schema, kind)
    if kind == "postgresql":
        run_last(connection, rolled, values)
    elif not rolled.count(connection, values):
        # An operator took it away when the lease had run out.
        record_rows.open_operation(schema).count(connection, values)
    return True


def write(
    connection: Link,
    schema: Schema,
    view: View,
    settled: Settled,
    now: datetime,
    *,
    landed: bool,
    follower: str | None = None,
) -> Standing | None:
    """Write what became of the record, and whether its operation is in doubt.

    The row of an operation that is settled is left to `settle`. An operator may have changed the row
    during the call: then it stays as they left it, unless the call landed (`landed`). Raises
    `LedgerRowAppeared` where a row is there that was not before.

    `follower` is the record whose turn comes next: it is asked for in the same wait, and answered; None
    where there was no wait.
    """
    ahead: Standing | None = None
    of_record = {"of_rule": view.rule.name, "of_source_id": view.source_id}
    version = None if view.row is None else view.row.row_version
    if settled.outcome is not None:
        values = of_record | settled.outcome.values | {"now": now}
        asked = [] if follower is None else _asked(schema, view.rule, follower)
        version, told = _write_row(connection, schema, view, values, version, landed=landed, asked=asked)
        if follower is not None:
            ahead = _stood(follower, told)
    if settled.operation == "in_doubt":
        in_full(connection).execute(
            record_rows.keep_in_doubt(schema), of_record | {"to_row_version": version}
        )
    return ahead


def settle(connection: Link, schema: Schema, rule: Rule, source_id: str) -> None:
    """It is known what became of the record's call: nothing of it stays open."""
    record_rows.settle_operation(schema).count(connection, {"of_rule": rule.name, "of_source_id": source_id})


def _write_row(
    connection: Link,
    schema: Schema,
    view: View,
    values: dict[str, Any],
    version: int | None,
    *,
    landed: bool,
    asked: Sequence[tuple[Prepared, dict[str, Any]]] = (),
) -> tuple[int, list[tuple[list[Any], int]]]:
    """Answers the version that the row has then, and what was `asked` with it."""
    if version is None:
        try:
            _, *told = together(connection, [(record_rows.insert_record(schema), values), *asked])
        except IntegrityError as error:
            if not is_unique_violation(error, f"{schema.tables.prefix}records_pk"):
                raise
            raise LedgerRowAppeared(rule=view.rule.name, source_id=view.source_id) from error
        return 1, told
    update = record_rows.update_record(schema)
    (_, count), *told = together(connection, [(update, values | {"of_version": version}), *asked])
    if count:
        return version + 1, told
    row, _ = standing(connection, schema, view.rule, view.source_id)
    if row is None:
        version, _ = _write_row(connection, schema, view, values, None, landed=landed)
        return version, told
    if landed:
        update.count(connection, values | {"of_version": row.row_version})
        return row.row_version + 1, told
    return row.row_version, told
