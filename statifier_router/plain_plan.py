"""The plan of statements of one delivery: which statement does each of its acts.

`Acts` is what the body of `delivery` asks for, in this order. `PlainActs` does each act with one
statement of its own, on either database and over any executor.
"""

from __future__ import annotations

from typing import Protocol

from attrs import define, field

from statifier_router import addresses, change_table, claims, dialect, ledger, outbox, timer_table
from statifier_router.addresses import Found
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.executions import SQLExecutor, rows
from statifier_router.executions.journal import Journal
from statifier_router.executor import (
    Discarded,
    Execution,
    Executor,
    StepContext,
    Stepped,
)
from statifier_router.gathering import Gathered
from statifier_router.messages import Event
from statifier_router.steps import Chart
from statifier_router.tasks import Task


class Acts(Protocol):
    """What a delivery does to the database, act by act.

    `journal` takes what the executor writes, where this plan writes it later; None where at once.
    `adopts` is whether a creation has still to look for events that are kept by its address.
    """

    @property
    def journal(self) -> Journal | None:
        """Takes what the executor writes."""
        ...

    @property
    def gathered(self) -> Gathered | None:
        """Takes the rows that the step hands off, where this plan writes them; None where others do."""
        ...

    @property
    def adopts(self) -> bool:
        """Whether a creation looks for kept events."""
        ...

    def claim(self) -> bool:
        """Take the claim; False for a duplicate."""
        ...

    def record_duplicate(self) -> bool:
        """Write a duplicate's ledger row; True where its content differs from what was taken."""
        ...

    def look_up(self) -> Found:
        """Read the address."""
        ...

    def add_address(self, execution_id: str) -> bool:
        """Insert the address with the minted id; False where another delivery was first."""
        ...

    def lock(self, execution_id: str) -> Execution | None:
        """Lock and read the execution."""
        ...

    def create(self, context: StepContext, execution_id: str, chart: Chart) -> Stepped:
        """Create the execution."""
        ...

    def step(
        self, context: StepContext, execution: Execution, chart: Chart, event: Event
    ) -> Stepped | Discarded:
        """Step the execution."""
        ...

    def stamp(self, execution_id: str) -> None:
        """Note on the address that its execution was seen ended."""
        ...

    def record(self, outcome: str, *, execution_id: str | None, reason: str | None) -> None:
        """Write the delivery's ledger row."""
        ...


@define
class PlainActs:
    """One statement an act."""

    config: Config
    frame: Frame
    executor: Executor
    task: Task
    # A plain plan writes at once.
    journal: Journal | None = None
    gathered: Gathered | None = field(factory=Gathered)
    adopts: bool = True

    def claim(self) -> bool:
        """Take the claim; False for a duplicate."""
        bound = self.frame.lock_timeout
        return claims.take(
            self.frame.link,
            self.config.schema,
            self.task.claim,
            self.task.now,
            None if bound is None else dialect.lock_timeout_setting(bound),
        )

    def record_duplicate(self) -> bool:
        """Write a duplicate's ledger row; True where its content differs from what was taken."""
        entry = self._entry("duplicate", None, None)
        return ledger.write_duplicate(self.frame.link, self.config.schema, entry, self.task.claim)

    def look_up(self) -> Found:
        """Read the address."""
        task = self.task
        return addresses.look_up(self.frame.link, self.config.schema, task.scope, task.document, task.key)

    def add_address(self, execution_id: str) -> bool:
        """Insert the address with the minted id; False where another delivery was first."""
        task = self.task
        return addresses.insert(
            self.frame.link,
            self.config.schema,
            task.scope,
            task.document,
            task.key,
            execution_id,
            task.now,
        )

    def lock(self, execution_id: str) -> Execution | None:
        """Lock and read the execution."""
        self.frame.waiting_for = execution_id
        if type(self.executor) is SQLExecutor:
            execution = rows.read(self.frame.link, self.config.schema, execution_id, lock=True)
        else:
            execution = self.executor.fetch(self.frame.connection, self.config, execution_id, lock=True)
        self.frame.waiting_for = None
        return execution

    def create(self, context: StepContext, execution_id: str, chart: Chart) -> Stepped:
        """Create the execution."""
        return self.executor.create(context, execution_id, chart)

    def step(
        self, context: StepContext, execution: Execution, chart: Chart, event: Event
    ) -> Stepped | Discarded:
        """Step the execution."""
        return self.executor.step(context, execution, chart, event)

    def stamp(self, execution_id: str) -> None:
        """Note on the address that its execution was seen ended."""
        task = self.task
        addresses.stamp(
            self.frame.link,
            self.config.schema,
            task.scope,
            task.document,
            task.key,
            execution_id,
            task.now,
        )

    def record(self, outcome: str, *, execution_id: str | None, reason: str | None) -> None:
        """Write what the step handed off, and the delivery's ledger row."""
        self._write_gathered()
        entry = self._entry(outcome, execution_id, reason)
        ledger.write(self.frame.link, self.config.schema, entry)

    def _write_gathered(self) -> None:
        if self.gathered is not None:
            for row in self.gathered.outbox:
                outbox.add(self.frame.link, self.config.schema, row)
            for row in self.gathered.changes:
                change_table.append(self.frame.link, self.config.schema, row)
            for row in self.gathered.timers:
                timer_table.arm(self.frame.link, self.config.schema, row)

    def _entry(self, outcome: str, execution_id: str | None, reason: str | None) -> ledger.Entry:
        task = self.task
        return ledger.Entry(
            task.binding_id,
            task.message_id,
            task.scope,
            outcome,
            task.now,
            task.key,
            execution_id,
            reason,
        )
