"""What a source hands over is checked: a record that should never come is a fault of the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from statifier_router.errors import ConfigError
from statifier_router.jsontext import NotJson, plain
from statifier_router.runs.faults import ImpossibleCandidate
from statifier_router.runs.positions import is_after, is_position
from statifier_router.runs.records import Position, Record
from statifier_router.runs.rules import Rule
from statifier_router.text import KEY_LIMIT, checked


def scanned(rule: Rule, answer: object, after: Position, limit: int) -> list[Record]:
    """The records of a page; raises `ImpossibleCandidate`."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Sequence):
        raise _impossible(rule, f"scan answered {type(answer).__name__}, not a sequence of records")
    if len(answer) > limit:
        raise _impossible(rule, f"scan answered {len(answer)} records where at most {limit} were asked for")
    seen: set[str] = set()
    last = after
    for record in answer:
        _check_record(rule, record)
        if record.source_id in seen:
            raise _impossible(rule, f"record {record.source_id!r} stands twice in a page", record.source_id)
        seen.add(record.source_id)
        _check_position(rule, record, after, last)
        last = record.position
    return list(answer)


def loaded(rule: Rule, source_id: str, answer: object) -> Record | None:
    """The newest version of one record, its payload a copy that is plain JSON.

    None where the source has it no more. Raises `ImpossibleCandidate`.
    """
    if not isinstance(answer, Mapping):
        raise _impossible(rule, f"load answered {type(answer).__name__}, not a mapping from id to record")
    record: Any = answer.get(source_id)
    if record is None:
        return None
    _check_record(rule, record, source_id)
    if record.source_id != source_id:
        problem = f"load answered record {record.source_id!r} for {source_id!r}"
        raise _impossible(rule, problem, source_id)
    try:
        payload = plain(record.payload)
    except NotJson as error:
        problem = f"the payload of record {source_id!r} is not JSON: {error}"
        raise _impossible(rule, problem, source_id) from error
    found: Record = evolve(record, payload=payload)
    return found


def _check_record(rule: Rule, record: object, asked: str | None = None) -> None:
    if not isinstance(record, Record):
        raise _impossible(rule, f"{type(record).__name__} is not a Record", asked)
    for field in ("source_id", "signal"):
        try:
            checked(getattr(record, field), field, ConfigError, limit=KEY_LIMIT)
        except ConfigError as error:
            raise _impossible(rule, str(error), asked) from None
    # A database without booleans answers 0 and 1; anything else might pass for a deletion.
    deleted: object = record.deleted
    if not isinstance(deleted, int) or deleted not in (0, 1):
        problem = f"record {record.source_id!r} has deleted={deleted!r}, not True or False"
        raise _impossible(rule, problem, record.source_id)
    # A rule without a scope takes the records of every one.
    if rule.scope is not None and record.scope != rule.scope:
        problem = f"record {record.source_id!r} is of the scope {record.scope!r}, the rule of {rule.scope!r}"
        raise _impossible(rule, problem, record.source_id)


def _check_position(rule: Rule, record: Record, after: Position, last: Position) -> None:
    position = record.position
    named = f"record {record.source_id!r} stands at {position!r}"
    if position is None or not is_position(position):
        raise _impossible(
            rule, f"{named}, which is not an integer, text, or a tuple of them", record.source_id
        )
    try:
        if not is_after(position, after):
            raise _impossible(
                rule, f"{named}, not behind {after!r}, after which was asked for", record.source_id
            )
        if is_after(last, position):
            raise _impossible(rule, f"{named}, before the record that it follows", record.source_id)
    except TypeError as error:
        raise _impossible(rule, str(error), record.source_id) from None


def _impossible(rule: Rule, problem: str, source_id: str | None = None) -> ImpossibleCandidate:
    return ImpossibleCandidate(problem, rule=rule.name, source_id=source_id)
