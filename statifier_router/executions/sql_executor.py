"""`SQLExecutor`: executions in the host's own database.

A step reads downward: guard, ask the chart, hand its effects on, let it hear refusals once, write.
Everything is written after the effects, so that a row exists in its final form or not at all.
"""

from __future__ import annotations

from datetime import datetime
from typing import NoReturn

import attrs
from sqlalchemy import Connection

from statifier_router.config import Config
from statifier_router.errors import ChartMismatch, StepFailed
from statifier_router.executions import rows
from statifier_router.executions.journal import Journal, NewInput, WriteAtOnce
from statifier_router.executor import (
    TERMINAL,
    Discarded,
    EffectRefused,
    Execution,
    ExecutionStatus,
    KeyedEffect,
    StepContext,
    Stepped,
    known_stepped,
)
from statifier_router.interpreters.answers import checked_step
from statifier_router.jsontext import Json, plain
from statifier_router.messages import Event, copied_event
from statifier_router.savepoints import refuse_ended, travels
from statifier_router.steps import Chart, Send, Step
from statifier_router.text import error_text


class SQLExecutor:
    """The default executor: lock, position and input log in the tables of `statifier_router`.

    One delivery at a time steps an execution, by its row lock, until the transaction ends; and a
    step is written only where the row is still at the revision it was read at.
    """

    def fetch(
        self, connection: Connection, config: Config, execution_id: str, *, lock: bool
    ) -> Execution | None:
        """The execution, or None; `lock` waits for its row lock."""
        return rows.read(connection, config.schema, execution_id, lock=lock)

    def create(self, context: StepContext, execution_id: str, chart: Chart) -> Stepped:
        """Create it at revision 0. Raises `ExecutionExists` and `StepFailed`."""
        data = identity(context, execution_id)
        answer = ask_create(chart, execution_id, data=data, now=context.now)
        step, reentries, unheard = _hand_on(context, execution_id, 0, chart, answer)
        status, failure, ended_at = _ending(step, context.now)
        execution = rows.StoredExecution(
            id=execution_id,
            document=context.document,
            scope=context.scope,
            key=context.key,
            content_hash=chart.content_hash,
            interpreter=chart.interpreter,
            status=status,
            position=step.position,
            active=step.active,
            revision=0,
            failure=failure,
            created_at=context.now,
            ended_at=ended_at,
        )
        created = NewInput(
            door="create",
            at=context.now,
            message_id=context.message_id,
            errors=(*answer.errors, *unheard),
            context=context.context,
            details={
                "data": data,
                "content_hash": chart.content_hash,
                "interpreter": chart.interpreter,
                "interpreter_version": chart.interpreter_version,
            },
        )
        _journal(context).create(execution, [created, *reentries])
        return Stepped(execution, step)

    def step(
        self, context: StepContext, execution: Execution, chart: Chart, event: Event
    ) -> Stepped | Discarded:
        """Step it once. Raises `ChartMismatch`, `StepFailed` and `StaleRevision`."""
        if execution.status in TERMINAL:
            return Discarded(execution)
        if chart.content_hash != execution.content_hash:
            raise ChartMismatch(execution.content_hash, execution.id, chart.content_hash)
        answer = ask_step(
            chart,
            execution.id,
            execution.position,
            event,
            event_id=context.message_id,
            now=context.now,
        )
        if context.keeps_unmatched and not changes_position(answer):
            return Stepped(execution, answer)
        step, reentries, unheard = _hand_on(context, execution.id, execution.revision + 1, chart, answer)
        moved = bool(reentries) or changes_position(answer)
        status, failure, ended_at = _ending(step, context.now)
        after = rows.after_step(
            execution,
            status=status,
            position=step.position,
            active=step.active if moved else execution.active,
            failure=failure,
            ended_at=ended_at,
        )
        heard = NewInput(
            context.door,
            context.now,
            event,
            context.message_id,
            None,
            (*answer.errors, *unheard),
            context.context,
        )
        _journal(context).move(execution, after, [heard, *reentries], moved=moved)
        # The outcome is the event's own; where the execution ended is told by the last step.
        told = step if step.outcome == answer.outcome else attrs.evolve(step, outcome=answer.outcome)
        return known_stepped(after, told)


def identity(context: StepContext, execution_id: str) -> Json:
    """What a chart is created with: who its execution is."""
    return {
        "execution": {
            "id": execution_id,
            "scope": context.scope,
            "document": context.document,
            "key": context.key,
        }
    }


def changes_position(step: Step) -> bool:
    """Whether this answer may carry another position than the one it was given."""
    return step.outcome in ("moved", "unknown")


def ask_create(chart: Chart, execution_id: str, *, data: Json, now: datetime) -> Step:
    """The chart's first step; a raise, a failure or a malformed answer is `StepFailed`."""
    try:
        answer = chart.create(data=data, now=now)
        if not _is_checked(chart):
            answer = checked_step(answer, before=None, created=True)
    except Exception as error:
        _fail(execution_id, error)
    return answer if answer.outcome != "failed" else _fail(execution_id, answer)


def ask_step(
    chart: Chart, execution_id: str, position: Json, event: Event, *, event_id: str, now: datetime
) -> Step:
    """The chart's answer to one event; a raise, a failure or a malformed answer is `StepFailed`."""
    is_checked = _is_checked(chart)
    if is_checked:
        given, own_event = position, event
    else:
        # A chart of the host's may change what it is handed; the log keeps what was delivered.
        given, own_event = plain(position), copied_event(event)
    try:
        answer = chart.step(given, own_event, event_id=event_id, now=now)
        if not is_checked:
            answer = checked_step(answer, before=position, created=False)
    except Exception as error:
        _fail(execution_id, error)
    return answer if answer.outcome != "failed" else _fail(execution_id, answer)


def _is_checked(chart: Chart) -> bool:
    """Whether its adapter checks its answers and keeps to itself what it is handed, as those that ship do."""
    return bool(getattr(chart, "answers_checked", False))


def _fail(execution_id: str, cause: Exception | Step) -> NoReturn:
    if isinstance(cause, Step):
        raise StepFailed(execution_id, "; ".join(cause.errors) or "its step answered 'failed'")
    if travels(cause):
        # Not the chart's doing: code inside it met a fault that the outermost door retries.
        raise cause
    raise StepFailed(execution_id, error_text(f"{type(cause).__name__}: {cause}")) from cause


def _hand_on(
    context: StepContext, execution_id: str, revision: int, chart: Chart, answer: Step
) -> tuple[Step, list[NewInput], tuple[str, ...]]:
    """Hand the effects on, then let the chart hear each refusal: one wave, never a second.

    Answers the last step, the input rows of what was heard, and what an ended chart no longer heard.
    """
    refuse_ended(context.link)
    if not answer.effects:
        return answer, [], ()
    refusals = _hand_on_wave(context, execution_id, revision, answer, wave=0)
    step = answer
    reentries: list[NewInput] = []
    index = 0
    for at, (send, refused) in enumerate(refusals):
        if step.status != "active":
            return step, reentries, _unheard(refusals[at:])
        event = refusal_event(refused, send.event, send.target, send.send_id)
        told = ask_step(
            chart,
            execution_id,
            step.position,
            event,
            event_id=context.message_id,
            now=context.now,
        )
        late = _hand_on_wave(context, execution_id, revision, told, wave=1, first=index)
        index += len(told.effects)
        # A refusal met while telling of refusals is recorded: nothing bounds a second wave.
        reentries.append(
            NewInput(
                door="reentry",
                at=context.now,
                event=event,
                message_id=context.message_id,
                errors=(*told.errors, *_unheard(late)),
            )
        )
        step = attrs.evolve(told, errors=(*step.errors, *told.errors)) if changes_position(told) else step
    return step, reentries, ()


def _unheard(refusals: list[tuple[Send, EffectRefused]]) -> tuple[str, ...]:
    return tuple(f"not handed off: {refused.reason}" for _, refused in refusals)


def _hand_on_wave(
    context: StepContext, execution_id: str, revision: int, step: Step, *, wave: int, first: int = 0
) -> list[tuple[Send, EffectRefused]]:
    refusals: list[tuple[Send, EffectRefused]] = []
    for index, effect in enumerate(step.effects, start=first):
        key = context.effect_key(execution_id, revision, wave, index)
        refused = context.effects(KeyedEffect(effect, key, index, wave))
        if refused is not None and isinstance(effect, Send):
            refusals.append((effect, refused))
    return refusals


def refusal_event(refused: EffectRefused, event: str, target: str | None, send_id: str | None) -> Event:
    """What a chart hears of a send that was not handed off."""
    return Event(refused.event, {"reason": refused.reason, "event": event, "target": target}, send_id=send_id)


def _journal(context: StepContext) -> Journal:
    return context.journal or WriteAtOnce(context.link, context.config.schema)


def _ending(step: Step, now: datetime) -> tuple[ExecutionStatus, str | None, datetime | None]:
    """The status an answer leads to, why where it failed, and when where it ended."""
    if step.status == "active":
        return "active", None, None
    if step.status == "completed":
        return "completed", None, now
    return "failed", error_text("; ".join(step.errors) or "its chart ended in failure"), now
