"""The executor protocol, and the values it speaks.

An executor makes executions durable. The one that ships is `SQLExecutor`; a host with a store of
its own implements these three methods, each called inside the delivery's transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from attrs import field, frozen

from statifier_router import dialect
from statifier_router.jsontext import Json
from statifier_router.messages import Event
from statifier_router.steps import Chart, Effect, Step
from statifier_router.values import unchecked

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.config import Config
    from statifier_router.dialect import Link
    from statifier_router.executions.journal import Journal

ExecutionStatus = Literal["active", "suspended", "completed", "failed", "cancelled"]
Door = Literal[
    "create", "deliver", "deliver_event", "timer", "deferred", "reentry",
    "suspend", "resume", "cancel", "fail", "migrate",
]  # fmt: skip

TERMINAL: frozenset[ExecutionStatus] = frozenset({"completed", "failed", "cancelled"})


@frozen
class Execution:
    """One durable instance of one chart, as it stands in its row.

    `position` is None once `executions.prune` has dropped it. `failure` says why a failed one failed.
    """

    id: str
    document: str
    scope: str
    key: str = field(repr=False)
    content_hash: str
    interpreter: str
    status: ExecutionStatus
    position: Json = field(repr=False)
    active: tuple[str, ...]
    revision: int
    failure: str | None
    created_at: datetime
    ended_at: datetime | None

    @property
    def terminal(self) -> bool:
        """Whether it has ended: completed, failed or cancelled."""
        return self.status in TERMINAL


@frozen
class KeyedEffect:
    """One effect of a step, with the idempotency key that stays equal when the step is re-driven.

    `index` is its place in the step's effects; `wave` is 0 for the event's own step, 1 for the
    steps that answer a refused send.
    """

    effect: Effect
    key: str = field(repr=False)
    index: int
    wave: int


@frozen
class EffectRefused:
    """An effect was not handed off, and why. The executor tells the chart."""

    reason: str
    event: Literal["error.communication", "error.execution"] = "error.communication"


@frozen(weakref_slot=False)
class StepContext:
    """What an executor is given for one create or step: the transaction, and who is being served.

    `effects` hands one effect on and answers None, or why it was refused. `door` and `driver` go
    into the input log and the idempotency keys: `driver` is the digest of the event that drives the
    step. `journal` takes the writes of `SQLExecutor`; an executor with a store of its own needs none.
    With `keeps_unmatched` an answer "refused" or "ignored" is to leave no trace: the event is kept.
    """

    # What `connection` is asked for: most executors of a delivery never do.
    link: Link = field(repr=False, alias="connection")
    config: Config = field(repr=False)
    scope: str
    document: str
    key: str = field(repr=False)
    message_id: str
    now: datetime
    context: Mapping[str, str] = field(repr=False)
    effects: Callable[[KeyedEffect], EffectRefused | None] = field(repr=False)
    door: Door = field(default="deliver", kw_only=True)
    driver: str = field(default="", kw_only=True, repr=False)
    journal: Journal | None = field(default=None, kw_only=True, repr=False)
    keeps_unmatched: bool = field(default=False, kw_only=True)

    @property
    def connection(self) -> Connection:
        """The delivery's own: what is written on it exists exactly when the step does."""
        return dialect.in_full(self.link)

    def effect_key(self, execution_id: str, revision: int, wave: int | str, index: int) -> str:
        """The idempotency key of one effect, equal when the same event drives the same position again.

        `revision` is the one after the step.
        """
        driver = hashlib.sha256(f"{self.message_id}\n{self.driver}".encode()).hexdigest()[:32]
        return f"{execution_id}:{revision}:{wave}:{index}:{driver}"


@frozen(weakref_slot=False)
class Stepped:
    """The execution as it stands after the step, and what the chart answered."""

    execution: Execution
    step: Step


known_stepped = unchecked(Stepped)


@frozen
class Discarded:
    """The executor found the execution ended, and did not step it."""

    execution: Execution


@runtime_checkable
class Executor(Protocol):
    """Creates and steps executions durably, in the transaction it is handed."""

    def fetch(
        self, connection: Connection, config: Config, execution_id: str, *, lock: bool
    ) -> Execution | None:
        """The execution, or None. `lock` waits for and takes its row lock, until commit."""
        ...

    def create(self, context: StepContext, execution_id: str, chart: Chart) -> Stepped:
        """Create it on this chart. Raises `ExecutionExists` for an id that is taken."""
        ...

    def step(
        self, context: StepContext, execution: Execution, chart: Chart, event: Event
    ) -> Stepped | Discarded:
        """Step a locked (or just created) execution with one event, and write what came of it."""
        ...
