"""Acts of operators on many records of one rule: chosen once, then changed a chunk at a time.

Each chunk is a transaction of its own under the lock of the rule's row, so that a run waits for one at
most, and the audit row counts what was committed. A record whose call is in flight is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from statifier_router.paging import chunks
from statifier_router.runs import acting_statements as statements
from statifier_router.runs import auditing, rule_rows
from statifier_router.runs.bracket import reading, writing
from statifier_router.runs.filtering import Filters
from statifier_router.runs.standing import STATUSES

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.config import Config
    from statifier_router.schema import Schema

# Called with how many records are done, and of how many.
Progress = Callable[[int, int], None]


@frozen(kw_only=True)
class Selection:
    """Which records an act is meant for: those that are named, that fit the filters, or both."""

    rule: str
    statuses: tuple[str, ...]
    filters: Filters
    source_ids: tuple[str, ...] | None = None

    @property
    def told(self) -> dict[str, Any]:
        """As an audit row spells it."""
        named = {} if self.source_ids is None else auditing.named(self.source_ids)
        return {"rule": self.rule, **self.filters.told, **named}


@frozen(kw_only=True)
class Chunk:
    """Some records of a rule, under the lock of its row.

    `fit` are those that are to be changed, `missing` those that have no row. `at` is the place of the
    chunk's first record among all that were selected.
    """

    connection: Connection
    schema: Schema
    rule: str
    now: datetime
    at: int
    source_ids: Sequence[str]
    fit: Sequence[str]
    missing: Sequence[str]
    busy: int
    # The open operations at them, by id.
    operations: Mapping[str, Any]
    # A job that gave no sign for longer than its lease may still bring the outcome of one of them.
    revoke: bool

    @property
    def passed_over(self) -> int:
        """How many have a row that the act does not take."""
        return len(self.source_ids) - len(self.fit) - len(self.missing) - self.busy

    def execute(self, statement: Any, **more: Any) -> Any:
        """Run one of `acting_statements` on this rule, now."""
        return self.connection.execute(statement, {"of_rule": self.rule, "now": self.now, **more})

    def with_operation(self) -> list[str]:
        """Those to be changed at which an operation is open."""
        return [each for each in self.fit if each in self.operations]


# Changes a chunk; answers how many records it changed beside those that fit.
Change = Callable[[Chunk], int]


@define
class Tally:
    """How many records an act changed, and how many not: a call is in flight; another status; no row."""

    total: int
    count: int = 0
    busy: int = 0
    passed_over: int = 0
    unknown: int = 0
    audit_id: str | None = None

    def add(self, chunk: Chunk, more: int) -> None:
        """Count a chunk that is done."""
        self.count += len(chunk.fit) + more
        self.busy += chunk.busy
        self.passed_over += chunk.passed_over
        self.unknown += len(chunk.missing) - more


def act(
    config: Config,
    selection: Selection,
    change: Change,
    done: auditing.Entry,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Tally:
    """Change the selected records chunk by chunk, or only count them.

    What was committed before a fault stays, and its audit row with it.
    """
    with reading(config) as connection:
        chosen = _chosen(connection, config.schema, selection)
    tally = Tally(len(chosen))
    at = 0
    for ids in chunks(chosen):
        if dry_run:
            with reading(config) as connection:
                tally.add(_judged(connection, config, selection, ids, at, lock=False), 0)
        else:
            _change(config, selection, change, done, tally, ids, at)
        at += len(ids)
        if progress is not None:
            progress(at, tally.total)
    return tally


def total_of(config: Config, selection: Selection) -> int:
    """How many records are selected now."""
    with reading(config) as connection:
        return len(_chosen(connection, config.schema, selection))


def _chosen(connection: Connection, schema: Schema, selection: Selection) -> Sequence[str]:
    if selection.source_ids is not None:
        return selection.source_ids
    statement = statements.selected(schema, selection.filters.names, selection.statuses)
    return connection.execute(statement, selection.filters.values).scalars().all()


def _judged(
    connection: Connection,
    config: Config,
    selection: Selection,
    ids: Sequence[str],
    at: int,
    *,
    lock: bool,
) -> Chunk:
    schema, now = config.schema, config.now()
    of_rule = {"of_rule": selection.rule}
    named = of_rule | {"source_ids": list(ids)}
    rule = connection.execute((rule_rows.locked if lock else rule_rows.one)(schema), of_rule).one()
    operations = {row.source_id: row for row in connection.execute(statements.operations_of(schema), named)}
    fitting = statements.still_fitting(schema, selection.filters.names, selection.statuses)
    fit = set(connection.execute(fitting, selection.filters.values | named).scalars())
    missing: set[str] = set()
    if len(fit) < len(ids):
        any_row = statements.still_fitting(schema, frozenset({"rule"}), STATUSES)
        missing = set(ids) - set(connection.execute(any_row, named).scalars())
    calling = {each for each in fit | missing if _in_hand(rule, operations.get(each))}
    alive = rule.lease_until is not None and rule.lease_until >= now
    busy = calling if alive else set()
    return Chunk(
        connection=connection,
        schema=schema,
        rule=selection.rule,
        now=now,
        at=at,
        source_ids=ids,
        fit=[each for each in ids if each in fit and each not in busy],
        missing=[each for each in ids if each in missing and each not in busy],
        busy=len(busy),
        operations=operations,
        revoke=bool(calling) and not alive and rule.lease_until is not None,
    )


def _in_hand(rule: Any, operation: Any) -> bool:
    """Whether the job that took the rule last has this operation in hand."""
    return (
        operation is not None and not operation.in_doubt and bool(operation.lease_token == rule.lease_token)
    )


def _change(
    config: Config,
    selection: Selection,
    change: Change,
    done: auditing.Entry,
    tally: Tally,
    ids: Sequence[str],
    at: int,
) -> None:
    audit_id, more = tally.audit_id, 0
    with writing(config) as connection:
        chunk = _judged(connection, config, selection, ids, at, lock=True)
        if chunk.fit or chunk.missing:
            if chunk.revoke:
                chunk.execute(rule_rows.revoke(config.schema))
            more = change(chunk)
            audit_id = _audited(chunk, len(chunk.fit) + more, done, audit_id)
    # Only what was committed is counted.
    tally.audit_id = audit_id
    tally.add(chunk, more)


def _audited(chunk: Chunk, count: int, done: auditing.Entry, audit_id: str | None) -> str | None:
    """One row for the whole act, which every chunk counts on."""
    if audit_id is None and count:
        return auditing.write(chunk.connection, chunk.schema, done, count=count, at=chunk.now)
    if audit_id is not None:
        auditing.add(chunk.connection, chunk.schema, audit_id, count)
    return audit_id
