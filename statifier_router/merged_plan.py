"""The merged plan: on PostgreSQL the acts of one delivery travel in two statements.

The first act (`claim`) runs *open* and keeps what it answered; the acts that follow read from that.
What the executor writes is kept until the last act (`record`), which writes it with the ledger row in
one *close*. Whatever open could not decide, and every rarer path, is a plain statement: the body of a
delivery is the same over both plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Literal

from attrs import define, field
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from statifier_router import claims, dialect, ledger
from statifier_router.addresses import FRESH_LEVELS, Found
from statifier_router.ambient import Frame
from statifier_router.arrays import arrays
from statifier_router.dialect import Held, Prepared, Row
from statifier_router.errors import ExecutionExists, StaleRevision
from statifier_router.executions import rows
from statifier_router.executions.journal import NewInput
from statifier_router.executor import TERMINAL, Execution
from statifier_router.gathering import Gathered
from statifier_router.jsontext import encode, encode_names
from statifier_router.merged_statements import (
    ADDED,
    CHANGES,
    EXECUTION,
    FOUND,
    ISOLATION,
    OUTBOX,
    STATUS,
    TIMERS,
    Sends,
    closed_creation,
    closed_step,
    held,
    opened,
)
from statifier_router.messages import event_text
from statifier_router.plain_plan import PlainActs
from statifier_router.savepoints import travels
from statifier_router.schema import Schema
from statifier_router.seen_addresses import SeenAddresses

# The shortest wait that the server knows.
_AT_ONCE = dialect.lock_timeout_setting(timedelta(milliseconds=1))


@define
class Pending:
    """The journal of one delivery: what its executor wrote, until it is written with the rest."""

    created: Execution | None = None
    before: Execution | None = None
    after: Execution | None = None
    moved: bool = False
    inputs: list[NewInput] = field(factory=list)

    def create(self, execution: Execution, inputs: Sequence[NewInput]) -> None:
        """Keep the new execution; what the same delivery makes of it replaces it."""
        self.created = execution
        self.inputs.extend(inputs)

    def move(self, before: Execution, after: Execution, inputs: Sequence[NewInput], *, moved: bool) -> None:
        """Keep the execution's changes."""
        self.inputs.extend(inputs)
        if self.created is not None:
            self.created = after
            return
        self.before, self.after, self.moved = before, after, moved


@define
class MergedActs(PlainActs):
    """Open at the first act, close at the last."""

    # The id to insert where the address is absent. None where one is expected; and where a host's own
    # function mints ids, which must not be asked for one that is not needed.
    minted: str | None = None
    journal: Pending = field(factory=Pending)
    _opened: Row | None = None
    # What this connection has seen, and the task's place as it is remembered there.
    _seen: SeenAddresses | None = None
    _place: int = 0

    def expects_address(self) -> bool:
        """Whether this connection has seen the address lately."""
        link, task = self.frame.link, self.task
        if not isinstance(link, Held):
            return False
        self._seen = seen = SeenAddresses.of(link.info)
        # Two configurations over one database may name their tables differently.
        self._place = hash((id(self.config.schema), task.scope, task.document, task.key))
        return self._place in seen

    def claim(self) -> bool:
        """Run open."""
        task = self.task
        pipe = self.frame.pipe
        if task.create == "always_new":
            if pipe is not None:
                pipe.begin()
            return super().claim()
        bound = self.frame.lock_timeout
        values = claims.as_values(
            task.claim, task.now, None if bound is None else dialect.lock_timeout_setting(bound)
        )
        values["at_scope"] = task.scope
        values["at_document"] = task.document
        values["at_key"] = task.key
        adds = task.create == "if_absent" and self.minted is not None
        if adds:
            values["minted_id"] = self.minted
        statement = opened(self.config.schema, bounded=bound is not None, adds=adds)
        # Open waits for three things; which of them it was is asked only when a wait ran out.
        self.frame.suspect = self._held
        self._opened = (
            statement.first(self.frame.link, values) if pipe is None else pipe.first(statement, values)
        )
        self.frame.suspect = None
        if self._opened is None:
            return False
        seen = self._seen
        if seen is not None:
            if self._opened[FOUND] is None:
                seen.discard(self._place)
            else:
                seen.add(self._place)
        return True

    def look_up(self) -> Found:
        """What open found; read again where a second look is asked for, or a `never` plan missed."""
        row = self._opened
        if row is None:
            return super().look_up()
        if row[FOUND] is None and row[ADDED] is None:
            undecided = self.task.create == "never" or self.minted is not None
            self._opened = None
            if undecided:
                return super().look_up()
        if row[STATUS] in TERMINAL:
            # While open waited the address may have been reaped, and given anew: only a statement of
            # its own sees that, and a message must not be dropped for an execution that it is not for.
            return super().look_up()
        return Found(row[FOUND], row[ISOLATION] in FRESH_LEVELS)

    def add_address(self, execution_id: str) -> bool:
        """Whether open inserted it; a plain insert where open did not try, or must be tried again."""
        row, self._opened = self._opened, None
        if row is not None and row[ADDED] is not None:
            return True
        return super().add_address(execution_id)

    def lock(self, execution_id: str) -> Execution | None:
        """The execution that open locked and read; a plain locked read decides what it did not see."""
        row, self._opened = self._opened, None
        if row is not None and row[EXECUTION] == execution_id:
            return rows.from_row(row[EXECUTION:])
        return super().lock(execution_id)

    def _held(self, connection: Connection) -> str | None:
        """The execution whose lock open waited for, None for the claim or the address.

        Asked after open has failed, under a savepoint that is undone: it keeps nothing, locks included.
        """
        task = self.task
        with connection.begin_nested() as asking:
            try:
                # Where the claim is still to be waited for, open came no further.
                taken = claims.take(connection, self.config.schema, task.claim, task.now, _AT_ONCE)
            except DBAPIError as error:
                if not travels(error):
                    raise
                taken = False
            place = {"scope": task.scope, "document": task.document, "key": task.key}
            row = held(self.config.schema).first(connection, place) if taken else None
            asking.rollback()
        return None if row is None else str(row[0])

    def record(self, outcome: str, *, execution_id: str | None, reason: str | None) -> None:
        """Run close, or write the ledger row alone where the executor wrote nothing."""
        pending = self.journal
        entry = self._entry(outcome, execution_id, reason)
        if pending.created is not None:
            close_creation(self.frame, self.config.schema, pending, entry, self.gathered)
        elif pending.before is not None and pending.after is not None:
            close_step(self.frame, self.config.schema, pending, entry, self.gathered)
        else:
            ledger.write(self.frame.link, self.config.schema, entry)


def close_creation(
    frame: Frame, schema: Schema, pending: Pending, entry: ledger.Entry, gathered: Gathered | None = None
) -> None:
    """Write a creation whole. Raises `ExecutionExists` where the id is taken."""
    assert pending.created is not None
    values = {f"execution_{name}": value for name, value in rows.as_values(pending.created).items()}
    _add_rest(values, pending, entry)
    details = pending.inputs[0].details
    values["input_0_details"] = None if details is None else encode(details)
    statement = closed_creation(
        schema,
        len(pending.inputs),
        guarded=_travels_with_commit(frame),
        sends=_add_gathered(values, gathered),
    )
    _close(frame, statement, values, partial(ExecutionExists, pending.created.id))


def close_step(
    frame: Frame, schema: Schema, pending: Pending, entry: ledger.Entry, gathered: Gathered | None = None
) -> None:
    """Write a step whole. Raises `StaleRevision` where the execution moved on."""
    before, after = pending.before, pending.after
    assert before is not None
    assert after is not None
    values: dict[str, Any] = {
        "execution_id": before.id,
        "from_revision": before.revision,
        "execution_status": after.status,
        "execution_failure": after.failure,
        "execution_ended_at": after.ended_at,
    }
    if pending.moved:
        values["execution_position"] = encode(after.position)
        values["execution_active"] = encode_names(after.active)
    _add_rest(values, pending, entry)
    statement = closed_step(
        schema,
        len(pending.inputs),
        moved=pending.moved,
        guarded=_travels_with_commit(frame),
        sends=_add_gathered(values, gathered),
    )
    _close(frame, statement, values, lambda: StaleRevision(before.id, before.revision))


def _travels_with_commit(frame: Frame) -> bool:
    """Whether nothing follows this close but COMMIT: a nested delivery's sender is still to be written."""
    return frame.pipe is not None and frame.depth == 1


def _close(
    frame: Frame, statement: Prepared, values: dict[str, Any], missed: Callable[[], Exception]
) -> None:
    if frame.pipe is not None and _travels_with_commit(frame):
        frame.pipe.defer(statement, values, missed)
    elif not statement.count(frame.link, values):
        raise missed()


def _add_gathered(values: dict[str, Any], gathered: Gathered | None) -> Sends:
    """Add what the step handed off; answers of which tables there are rows."""
    if gathered is None:
        return ()
    sends: list[Literal["outbox", "changes", "timers"]] = []
    if gathered.outbox:
        sends.append("outbox")
        values.update(arrays(gathered.outbox, OUTBOX, prefix="outbox_"))
    if gathered.changes:
        sends.append("changes")
        values.update(arrays(gathered.changes, CHANGES, prefix="changes_"))
    if gathered.timers:
        sends.append("timers")
        values.update(arrays(gathered.timers, TIMERS, prefix="timers_"))
    return tuple(sends)


def _add_rest(values: dict[str, Any], pending: Pending, entry: ledger.Entry) -> None:
    """Add the ledger row and the input rows: what a create and what an event writes of one."""
    # Every row of a delivery carries one instant, and names the execution that was written.
    values["now"] = entry.inserted_at
    values["ledger_binding_id"] = entry.binding_id
    values["ledger_message_id"] = entry.message_id
    values["ledger_scope"] = entry.scope
    values["ledger_outcome"] = entry.outcome
    values["ledger_key"] = entry.key
    values["ledger_reason"] = entry.reason
    for at, row in enumerate(pending.inputs):
        door, event, message_id, errors, context = _input_names(at)
        values[door] = row.door
        values[event] = None if row.event is None else event_text(row.event)
        values[message_id] = row.message_id
        values[errors] = encode(row.errors) if row.errors else None
        values[context] = encode(dict(row.context)) if row.context else None


@lru_cache(maxsize=256)
def _input_names(at: int) -> tuple[str, ...]:
    return tuple(f"input_{at}_{name}" for name in ("door", "event", "message_id", "errors", "context"))
