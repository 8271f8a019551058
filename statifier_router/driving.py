"""Driving one execution by one input: its step's mark, its failures, its effects, its end.

Doors, timers, kept events and refused sends all step an execution this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol, TypeVar

from attrs import field

from statifier_router import ambient
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.errors import StepFailed
from statifier_router.executions import SQLExecutor
from statifier_router.executions.journal import Journal
from statifier_router.executor import (
    TERMINAL,
    Discarded,
    Door,
    EffectRefused,
    Execution,
    Executor,
    KeyedEffect,
    StepContext,
    Stepped,
)
from statifier_router.gathering import Gathered
from statifier_router.messages import Event, copied_event
from statifier_router.savepoints import in_own_savepoint
from statifier_router.steps import Chart
from statifier_router.values import made_often, unchecked

T = TypeVar("T")


class Outgoing(Protocol):
    """Takes what one execution sends while it is driven, and its end."""

    def __call__(self, keyed: KeyedEffect) -> EffectRefused | None:
        """Hand one effect on; answer None, or why it was refused."""
        ...

    def completed(self, stepped: Stepped, context: StepContext) -> None:
        """The execution ended in this very create or step."""
        ...


@made_often
class Input:
    """What drives an execution: whose it is, and the identity that makes its effects' keys."""

    execution_id: str
    scope: str
    document: str
    key: str = field(repr=False)
    message_id: str
    now: datetime
    context: Mapping[str, str] = field(repr=False)
    door: Door
    digest: str = field(repr=False)
    # Where rows that the step hands off wait to be written with it; None: they are written at once.
    gathered: Gathered | None = field(default=None, repr=False)


_step_context = unchecked(StepContext)
OutgoingFor = Callable[[Frame, Input], Outgoing]


@made_often
class Driving:
    """One execution, driven by one input, in one transaction."""

    config: Config
    frame: Frame
    executor: Executor
    outgoing_for: OutgoingFor
    input: Input
    journal: Journal | None = None
    # An event that the chart does not take leaves no trace: whoever drives it keeps it.
    keeps_unmatched: bool = False

    def create(
        self, chart: Chart, act: Callable[[StepContext, str, Chart], Stepped] | None = None
    ) -> Stepped:
        """Create the execution. Raises `StepFailed` for an answer that must leave nothing behind."""
        own = self.input
        outgoing = self.outgoing_for(self.frame, own)
        context = self._context(outgoing)
        with ambient.stepping(self.frame, own.execution_id, (own.scope, own.document, own.key)):
            created = (act or self.executor.create)(context, own.execution_id, chart)
            if not isinstance(created, Stepped):
                raise TypeError(
                    f"the executor's create answered {type(created).__name__}: it must answer a Stepped"
                )
            self._settle(created, context, outgoing)
        return created

    def step(
        self,
        execution: Execution,
        chart: Chart,
        event: Event,
        act: Callable[[StepContext, Execution, Chart, Event], Stepped | Discarded] | None = None,
    ) -> Stepped | Discarded:
        """Step a locked (or just created) execution with one event. Raises `StepFailed`."""
        own, frame = self.input, self.frame
        if type(self.executor) is not SQLExecutor:
            # A host's own may change what it is handed, and the data are the message's.
            event = copied_event(event)
        outgoing = self.outgoing_for(frame, own)
        context = self._context(outgoing)
        asked = act or self.executor.step
        frame.stepping[own.execution_id] = (own.scope, own.document, own.key)
        try:
            if self.keeps_unmatched and not isinstance(self.executor, SQLExecutor):
                # A host's executor may have written what must leave no trace.
                stepped = in_own_savepoint(
                    frame, lambda: asked(context, execution, chart, event), undo_when=_is_unmatched
                )
            else:
                stepped = asked(context, execution, chart, event)
            if isinstance(stepped, Stepped):
                self._settle(stepped, context, outgoing)
            elif not isinstance(stepped, Discarded):
                raise TypeError(
                    f"the executor's step answered {type(stepped).__name__}: "
                    "it must answer a Stepped or a Discarded"
                )
        finally:
            frame.stepping.pop(own.execution_id, None)
        return stepped

    def _settle(self, stepped: Stepped, context: StepContext, outgoing: Outgoing) -> None:
        step = stepped.step
        if step.outcome == "failed":
            reason = "; ".join(step.errors) or "its step answered 'failed'"
            raise StepFailed(stepped.execution.id, reason)
        if step.errors and self.config.on_chart_error == "reject":
            raise StepFailed(stepped.execution.id, "; ".join(step.errors))
        if stepped.execution.status in TERMINAL:
            outgoing.completed(stepped, context)

    def _context(self, outgoing: Outgoing) -> StepContext:
        own = self.input
        return _step_context(
            self.frame.link,
            self.config,
            own.scope,
            own.document,
            own.key,
            own.message_id,
            own.now,
            own.context,
            outgoing,
            own.door,
            own.digest,
            self.journal,
            self.keeps_unmatched,
        )


def as_door(frame: Frame, work: Callable[[], T], settle: Callable[[Frame], None]) -> T:
    """Do a door's work; the outermost one of the transaction then settles what waits for its end."""
    frame.depth += 1
    try:
        answer = work()
        if frame.depth == 1:
            settle(frame)
        return answer
    finally:
        frame.depth -= 1


def _is_unmatched(stepped: Stepped | Discarded) -> bool:
    return isinstance(stepped, Stepped) and stepped.step.outcome in ("refused", "ignored")
