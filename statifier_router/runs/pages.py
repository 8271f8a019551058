"""The page of one job: what is due, or what changed. It is read without a lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, field, frozen

from statifier_router.paging import chunks
from statifier_router.runs import checking, record_rows
from statifier_router.runs.deciding import TERMINAL, same_version
from statifier_router.runs.positions import read

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.runs.records import Position, Record
    from statifier_router.runs.rules import Rule
    from statifier_router.schema import Schema


@frozen(kw_only=True)
class Candidate:
    """A record that is offered. `has_row` is what the page knows of it; None where it did not ask."""

    source_id: str
    position: Position = None
    has_row: bool | None = None
    # Neither a call nor a row comes of it.
    passed_over: bool = False


@define
class Page:
    """The candidates of one job, and how far it came with them."""

    phase: Literal["drain", "scan"]
    candidates: Sequence[Candidate]
    # Whether the phase goes on behind it.
    more: bool
    due_before: datetime | None = None
    index: int = 0
    passed_over: int = 0
    # Of the candidate in hand: calls were made; a lookup was one of them.
    begun: bool = field(default=False, init=False)
    looked_up: bool = field(default=False, init=False)

    @property
    def current(self) -> Candidate | None:
        """The candidate whose turn it is; None at the end of the page."""
        while self.index < len(self.candidates):
            candidate = self.candidates[self.index]
            if not candidate.passed_over:
                return candidate
            self.index += 1
            self.passed_over += 1
        return None

    def advance(self) -> None:
        """The visit to the candidate in hand has ended."""
        self.index += 1
        self.begun = self.looked_up = False

    @property
    def follower(self) -> Candidate | None:
        """The one whose turn comes after the one in hand."""
        rest = (self.candidates[at] for at in range(self.index + 1, len(self.candidates)))
        return next((each for each in rest if not each.passed_over), None)

    @property
    def position(self) -> Position:
        """Up to where everything is concluded; None where nothing is, and in a drain.

        A position that the next candidate shares is not concluded.
        """
        if self.current is None:
            return self.candidates[-1].position if self.candidates else None
        ahead = self.candidates[self.index].position
        concluded = (each.position for each in reversed(self.candidates[: self.index]))
        return next((position for position in concluded if position != ahead), None)


def drain(connection: Connection, schema: Schema, rule: Rule, *, token: int, due_before: datetime) -> Page:
    """What dead jobs left open, then what was due when the chain began."""
    size, due_before = rule.batch_size, due_limit(due_before)
    values = {"of_rule": rule.name, "of_token": token, "due_before": due_before, "limit": size}
    left = connection.execute(left_open(schema), values).scalars().all()
    due = connection.execute(record_rows.due(schema), values).scalars().all()
    ids = list(dict.fromkeys([*left, *due]))
    candidates = [Candidate(source_id=source_id) for source_id in ids[:size]]
    return Page("drain", candidates, more=len(ids) >= size, due_before=due_before)


def left_open(schema: Schema) -> Any:
    """The operations that the drain sweeps."""
    return record_rows.left_open(schema)


def due_limit(due_before: datetime) -> datetime:
    """Up to when records are due in a chain: its start, so that each is offered once in it."""
    return due_before


def scan(
    connection: Connection, schema: Schema, rule: Rule, *, cursor: str | None, position: str | None
) -> Page:
    """What changed behind the chain's own position, or behind the cursor where the chain has none yet."""
    after = read(position) if position is not None else _first(rule, read(cursor))
    records, more = _whole_ties(connection, rule, after)
    rows = _rows(connection, schema, rule, records)
    candidates = [
        Candidate(
            source_id=record.source_id,
            position=record.position,
            has_row=record.source_id in rows,
            passed_over=record.source_id in rows and is_passed_over(rule, rows[record.source_id], record),
        )
        for record in records
    ]
    return Page("scan", candidates, more=more)


def _first(rule: Rule, cursor: Position) -> Position:
    rewound = getattr(rule.source, "rewound", None)
    return cursor if cursor is None or rewound is None else rewound(cursor)


def _whole_ties(connection: Connection, rule: Rule, after: Position) -> tuple[list[Record], bool]:
    """At most a page of records, whose last position is not shared by one beyond it; whether more follow.

    Records that share one position and are more than a page are one page all the same.
    """
    size = rule.batch_size
    while True:
        limit = size + 1
        answer = rule.source.scan(connection, after, limit)
        records = checking.scanned(rule, answer, after, limit)
        if len(records) <= size:
            return records, False
        beyond = records[size].position
        whole = [record for record in records[:size] if record.position != beyond]
        if whole:
            return whole, True
        size *= 2


def is_passed_over(rule: Rule, row: Any, record: Record) -> bool:
    """Whether a scanned record is nothing to do: parked, the drain's, or of the version that was handled."""
    if row.status in TERMINAL or row.status == "failed":
        return True
    if rule.kind == "message" and row.status == "delivered":
        return True
    return same_version(row, record.signal, deleted=record.deleted)


def _rows(connection: Connection, schema: Schema, rule: Rule, records: Sequence[Record]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for chunk in chunks([record.source_id for record in records]):
        values = {"of_rule": rule.name, "source_ids": list(chunk)}
        for row in connection.execute(record_rows.states(schema), values):
            found[row.source_id] = row
    return found
