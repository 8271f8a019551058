"""The acts of one delivery of a batch, answered from memory: what the batch has locked and read, and
what its earlier items have made of that.

What an item does is kept apart until it has ended well: an item that fails leaves no trace. Whatever
memory cannot answer raises `Undone`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NoReturn, TypeVar

from attrs import define, field, frozen

from statifier_router.addresses import Found
from statifier_router.ambient import Frame, Place
from statifier_router.batch_effects import Collector, Effects, give_up
from statifier_router.driving import Input
from statifier_router.executions.journal import NewInput
from statifier_router.executions.rows import StoredExecution
from statifier_router.executor import Discarded, Execution, StepContext, Stepped
from statifier_router.ledger import CONTENT_DIFFERS, Entry
from statifier_router.merged_plan import Pending
from statifier_router.messages import Event
from statifier_router.plain_plan import PlainActs
from statifier_router.sends import Sending
from statifier_router.steps import Chart
from statifier_router.tasks import Task

T = TypeVar("T")

# Binding, scope and message id.
ClaimKey = tuple[str, str, str]


@frozen
class Held:
    """A claim: the digest of what was taken, and until when it counts."""

    digest: str
    expires_at: datetime


def claim_of(task: Task) -> ClaimKey:
    """The key of the task's claim."""
    return task.claim.binding_id, task.claim.scope, task.claim.message_id


def place_of(task: Task) -> Place:
    """The place of the task's address."""
    return task.scope, task.document, task.key


@define
class Known:
    """The rows as the batch has them in memory: read under their locks, then moved by its items.

    A claim is None while it is free, a place while nothing is there, an execution where its row is gone.
    `added` are the addresses that the batch inserted, for executions that it is to create. The rest is
    what it is to write; what became of an execution that existed stands in `executions`.
    """

    claims: dict[ClaimKey, Held | None] = field(factory=dict)
    places: dict[Place, str | None] = field(factory=dict)
    added: dict[Place, str] = field(factory=dict)
    executions: dict[str, Execution | None] = field(factory=dict)
    created: dict[str, None] = field(factory=dict)
    # With each, whether its position is another one.
    stepped: dict[str, bool] = field(factory=dict)
    inputs: list[tuple[str, NewInput]] = field(factory=list)
    stamps: dict[Place, tuple[str, datetime]] = field(factory=dict)
    effects: Effects = field(factory=Effects)
    ledger: list[Entry] = field(factory=list)
    # Whether anybody tried to join the transaction, who must not.
    refused: bool = False


@define
class SetActs(PlainActs):
    """One item's acts. `keep` makes what it did part of the batch."""

    known: Known = field(kw_only=True)
    sending: Sending = field(kw_only=True)
    journal: Pending = field(factory=Pending)
    # The batch has looked for itself, when it inserted the addresses.
    adopts: bool = False
    _held: Held | None = None
    _added: str | None = None
    _ended: str | None = None
    _entries: list[Entry] = field(factory=list)
    _effects: Effects = field(factory=Effects)

    def claim(self) -> bool:
        """Take the claim; False for a duplicate."""
        claim = self.task.claim
        held = self.known.claims[claim_of(self.task)]
        if held is not None and held.expires_at >= self.task.now:
            return False
        self._held = Held(claim.digest, claim.expires_at)
        return True

    def record_duplicate(self) -> bool:
        """Keep a duplicate's ledger row; True where its content differs from what was taken."""
        held = self.known.claims[claim_of(self.task)]
        differs = held is not None and held.digest != self.task.digest
        self._entries.append(self._entry("duplicate", None, CONTENT_DIFFERS if differs else None))
        return differs

    def look_up(self) -> Found:
        """The address, as it stands by now."""
        place = place_of(self.task)
        if place not in self.known.places:
            # It was to be a duplicate, for which nothing is read.
            give_up()
        return Found(self.known.places[place], snapshot_is_fresh=True)

    def add_address(self, execution_id: str) -> bool:
        """Whether the batch has inserted it, with this id."""
        if self.known.added.get(place_of(self.task)) != execution_id:
            give_up()
        self._added = execution_id
        return True

    def lock(self, execution_id: str) -> Execution | None:
        """The execution, locked, as it stands by now."""
        execution = self.known.executions[execution_id]
        if isinstance(execution, StoredExecution) and execution.deferred:
            # Every step offers what is kept for it.
            give_up()
        return execution

    def create(self, context: StepContext, execution_id: str, chart: Chart) -> Stepped:
        """Create the execution."""
        return self._sealed(lambda: self.executor.create(context, execution_id, chart))

    def step(
        self, context: StepContext, execution: Execution, chart: Chart, event: Event
    ) -> Stepped | Discarded:
        """Step the execution."""
        return self._sealed(lambda: self.executor.step(context, execution, chart, event))

    def _sealed(self, act: Callable[[], T]) -> T:
        """Do it, but give up where a chart calls a door, or reads our tables: it would miss what is
        only in memory.
        """
        self.frame.on_join = self._refuse
        try:
            answer = act()
        finally:
            self.frame.on_join = None
        if self.known.refused:
            # A host's own code swallowed it.
            give_up()
        return answer

    def _refuse(self) -> NoReturn:
        self.known.refused = True
        give_up()

    def stamp(self, execution_id: str) -> None:
        """Note on the address that its execution was seen ended."""
        self._ended = execution_id

    def record(self, outcome: str, *, execution_id: str | None, reason: str | None) -> None:
        """Keep the delivery's ledger row."""
        self._entries.append(self._entry(outcome, execution_id, reason))

    def outgoing_for(self, frame: Frame, driven: Input) -> Collector:
        """What takes the effects of this item."""
        return Collector(self.sending, frame, driven, effects=self._effects)

    def keep(self) -> None:
        """Make what the item did part of the batch: it has ended well."""
        known, task = self.known, self.task
        if self._held is not None:
            known.claims[claim_of(task)] = self._held
        if self._added is not None:
            known.places[place_of(task)] = self._added
        self._keep_execution()
        if self._ended is not None:
            known.stamps.setdefault(place_of(task), (self._ended, task.now))
        known.effects.add(self._effects)
        known.ledger.extend(self._entries)

    def _keep_execution(self) -> None:
        known, pending = self.known, self.journal
        after = pending.created or pending.after
        if after is None:
            return
        if pending.created is not None:
            if after.id in known.executions:
                # A host's own function minted an id twice.
                give_up()
            known.created[after.id] = None
        elif after.id not in known.created:
            known.stepped[after.id] = known.stepped.get(after.id, False) or pending.moved
        known.executions[after.id] = after
        known.inputs.extend((after.id, each) for each in pending.inputs)
