"""What is done for one record: a call, a row that needs no call, or nothing. Nothing here asks the database.

Nobody interrogates the target to decide. The policy decides first, then whether the record has an
address there. A call that may have taken effect is settled before anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal

from attrs import field, frozen

from statifier_router.jsontext import Json, decode, digest
from statifier_router.runs.records import Record
from statifier_router.runs.rules import Policy, Rule
from statifier_router.runs.writers import WriterTraits

Verb = Literal["create", "update", "delete", "lookup"]
Status = Literal["delivered", "suppressed", "failed", "exhausted", "remote_gone"]

TERMINAL: Final = ("exhausted", "remote_gone")
# The signal of a row whose record was not found at its source: no version has it, so any that comes is new.
ABSENT: Final = ""

DELETED: Final = "deleted"
CREATE_ONLY: Final = "create_only"
UPDATE_ONLY: Final = "update_only"
UNKNOWN_CREATE: Final = "unknown_create"


@frozen(kw_only=True)
class Row:
    """How a record stands in the table of records."""

    status: Status
    remote_id: str | None
    signal: str
    attempts: int
    next_attempt_at: datetime | None
    error_kind: str | None
    generation: int
    row_version: int

    @property
    def is_terminal(self) -> bool:
        """Whether no run offers it again, whatever its source does."""
        return self.status in TERMINAL


@frozen(kw_only=True)
class Operation:
    """A call that was made, or begun, and was never settled: it may have taken effect.

    One that is not `in_doubt` was left open by a job that ended without a word.
    """

    verb: Verb
    key: str
    signal: str
    # JSON, of a create.
    payload: str | None = field(repr=False)
    in_doubt: bool
    row_version: int | None


@frozen(kw_only=True)
class View:
    """All that is known when a record's turn comes. `record` is its newest version; None for none."""

    rule: Rule
    source_id: str
    has_verb: Callable[[str], bool]
    traits: WriterTraits
    row: Row | None
    operation: Operation | None
    record: Record | None
    # Within this visit: a call has been made already; a lookup was one of them.
    begun: bool
    looked_up: bool
    # Failed records are offered by the drain alone; this is up to when it takes them.
    due_before: datetime | None

    @property
    def is_deleted(self) -> bool:
        """Whether the record is not at its source any more."""
        return self.record is None or self.record.deleted

    @property
    def signal(self) -> str:
        """Of the newest version."""
        return ABSENT if self.record is None else self.record.signal

    @property
    def generation(self) -> int:
        """How many versions were delivered."""
        return 0 if self.row is None else self.row.generation

    @property
    def remote_id(self) -> str | None:
        """The record's address at the target, where it is known."""
        return None if self.row is None else self.row.remote_id

    @property
    def attempts(self) -> int:
        """Attempts that failed since the last one that did not."""
        return self.row.attempts if self.row is not None and self.row.status == "failed" else 0


@frozen(kw_only=True)
class Call:
    """One call to make. `resumed`: one before it may have taken effect. `outdated`: a newer version waits."""

    verb: Verb
    key: str
    signal: str
    payload: Json = field(default=None, repr=False)
    remote_id: str | None = None
    resumed: bool = False
    outdated: bool = False


@frozen(kw_only=True)
class Rest:
    """The record needs no call; its row says why."""

    status: Literal["suppressed", "exhausted"]
    reason: str
    text: str


@frozen
class Leave:
    """Nothing is done: neither a call nor a row."""


LEAVE: Final = Leave()
Decision = Call | Rest | Leave

_AT_SOURCE: Final = Rest(
    status="suppressed", reason=DELETED, text="the record was deleted at its source, or is not found there"
)
_CREATES: Final = Rest(
    status="suppressed",
    reason=CREATE_ONLY,
    text="the record is at the target, and the policy of its rule never updates",
)
_UPDATES: Final = Rest(
    status="suppressed",
    reason=UPDATE_ONLY,
    text="the record has no address at the target, and the policy of its rule never creates",
)
_UNKNOWN: Final = Rest(
    status="exhausted",
    reason=UNKNOWN_CREATE,
    text="nobody knows whether the create took effect: look at the target, then release the record by "
    "its address there (adopt), as not created (recreate), or once more (retry)",
)


def decide(view: View) -> Decision:
    """What is done for the record now."""
    row, operation = view.row, view.operation
    if row is not None and row.is_terminal:
        return LEAVE
    left_open = operation is not None and not operation.in_doubt
    if row is not None and row.status == "failed" and not (view.begun or left_open or _is_due(view, row)):
        return LEAVE
    if operation is not None and (decision := _resume(view, operation)) is not None:
        return decision
    rests = row is not None and row.status != "failed" and not _is_offered(view, row)
    # A call that was never settled may have brought another version than the one that the row tells of.
    return LEAVE if rests and operation is None and not view.begun else _fresh(view)


def _is_due(view: View, row: Row) -> bool:
    due = row.next_attempt_at
    return view.due_before is not None and due is not None and due <= view.due_before


def same_version(row: Row, signal: str, *, deleted: bool) -> bool:
    """Whether a delivered or suppressed row is of this version: equality of signals, never their order."""
    return row.signal == signal and deleted == (row.status == "suppressed" and row.error_kind == DELETED)


def operation_key(
    rule: str, source_id: str, generation: int, verb: str, signal: str, superseded: str | None = None
) -> str:
    """The key of a call: the same for every attempt at one version, and another for every version.

    The number of versions delivered before is part of it, so that one that comes back (A, B, A) has a
    key of its own; so is the key of a call in doubt that this one takes the place of.
    """
    parts: list[Any] = [rule, source_id, generation, verb, signal]
    if superseded is not None:
        parts.append(superseded)
    return digest(parts)


def _is_offered(view: View, row: Row) -> bool:
    if view.rule.kind == "message" and row.status == "delivered":
        return False
    return not same_version(row, view.signal, deleted=view.is_deleted)


# --- a call that was never settled --------------------------------------------------------------------


def _resume(view: View, operation: Operation) -> Decision | None:
    """How the operation is settled; None where a fresh decision takes its place."""
    if operation.verb == "create":
        # Where the address is known, an operator has settled it.
        return _resume_create(view, operation) if view.remote_id is None else None
    if operation.verb == "delete":
        return _resume_delete(view, operation)
    return None


def _resume_create(view: View, operation: Operation) -> Decision:
    rule = view.rule
    call = Call(
        verb="create",
        key=operation.key,
        signal=operation.signal,
        payload=None if operation.payload is None else decode(operation.payload),
        resumed=True,
        outdated=needs_follow_up(view, operation),
    )
    if view.has_verb("lookup") and not view.looked_up:
        return Call(verb="lookup", key=call.key, signal=call.signal, resumed=True, outdated=call.outdated)
    if view.is_deleted:
        return _AT_SOURCE
    if "create" not in rule.verbs:
        return _UPDATES
    if parks_unknown_create(view):
        return _UNKNOWN
    return call


def parks_unknown_create(view: View) -> bool:
    """Whether a create in doubt waits for an operator; one who released the record has had the last word."""
    if view.rule.on_unknown_create != "park" or view.traits.honours_keys:
        return False
    return view.row is None or view.row.error_kind != UNKNOWN_CREATE


def needs_follow_up(view: View, operation: Operation) -> bool:
    """Whether a newer version has to follow where this operation turns out to have taken effect."""
    if view.rule.kind == "message":
        return False
    return view.is_deleted != (operation.verb == "delete") or view.signal != operation.signal


def _resume_delete(view: View, operation: Operation) -> Decision | None:
    if view.remote_id is None or not view.has_verb("delete"):
        return None
    return Call(
        verb="delete",
        key=operation.key,
        signal=operation.signal,
        remote_id=view.remote_id,
        resumed=True,
        outdated=not view.is_deleted,
    )


# --- fresh --------------------------------------------------------------------------------------------


def _fresh(view: View) -> Decision:
    rule, record = view.rule, view.record
    if record is None or record.deleted:
        if view.remote_id is not None and rule.policy is Policy.UPSERT and rule.kind == "state":
            return _call(view, "delete") if view.has_verb("delete") else _AT_SOURCE
        return _AT_SOURCE
    if rule.kind == "message":
        return _call(view, "create")
    if view.remote_id is None:
        return _UPDATES if rule.policy is Policy.UPDATE_ONLY else _call(view, "create")
    return _CREATES if rule.policy is Policy.CREATE_ONLY else _call(view, "update")


def _call(view: View, verb: Verb) -> Call:
    """The newest version; under the key that it has already where it is in doubt itself."""
    operation, record = view.operation, view.record
    if operation is not None and operation.verb == verb and operation.signal == view.signal:
        key = operation.key
    else:
        superseded = None if operation is None else operation.key
        key = operation_key(view.rule.name, view.source_id, view.generation, verb, view.signal, superseded)
    return Call(
        verb=verb,
        key=key,
        signal=view.signal,
        payload=None if record is None or verb == "delete" else record.payload,
        remote_id=None if verb == "create" else view.remote_id,
        resumed=operation is not None,
    )
