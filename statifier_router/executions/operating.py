"""What an operator does to an execution. Each act takes its lock and leaves an input row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

import attrs

from statifier_router import dialect, timer_table
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.errors import ConfigError, ExecutionNotFound
from statifier_router.executions.journal import NewInput, WriteAtOnce
from statifier_router.executions.sql_executor import SQLExecutor
from statifier_router.executor import Door, Execution, Executor
from statifier_router.jsontext import Json
from statifier_router.paging import checked_execution_id
from statifier_router.text import NAME_LIMIT, checked, error_text
from statifier_router.transactions import refuse_open_step, run


def cancel(
    config: Config, execution_id: str, *, actor: str = "host", connection: Any = None
) -> Execution | Literal[False]:
    """End the execution as `cancelled`. No chart is asked, and no completion hook runs.

    Answers the execution as it then stands, or False where it had ended before (nothing written).
    Raises `ExecutionNotFound`; `ReentrantStep` from inside its own step.
    """

    def change(execution: Execution, now: datetime) -> Execution:
        return attrs.evolve(execution, status="cancelled", ended_at=now)

    return _act(config, execution_id, "cancel", change, actor, connection)


def fail(
    config: Config,
    execution_id: str,
    *,
    reason: str,
    actor: str = "host",
    connection: Any = None,
) -> Execution | Literal[False]:
    """End the execution as `failed`, for `reason` (2,000 characters are kept).

    Answers and raises as `cancel` does.
    """
    if not isinstance(reason, str):
        raise ConfigError(f"reason must be text, not {type(reason).__name__}")
    why = error_text(reason)
    if not why:
        raise ConfigError("reason must say why")

    def change(execution: Execution, now: datetime) -> Execution:
        return attrs.evolve(execution, status="failed", failure=why, ended_at=now)

    return _act(config, execution_id, "fail", change, actor, connection, {"reason": why})


def suspend(
    config: Config, execution_id: str, *, actor: str = "host", connection: Any = None
) -> Execution | Literal[False]:
    """Put the execution on hold: its events are refused as `ExecutionSuspended`, none is lost.

    Answers and raises as `cancel` does; one that is suspended already is answered, nothing written.
    """

    def change(execution: Execution, now: datetime) -> Execution | None:
        return None if execution.status == "suspended" else attrs.evolve(execution, status="suspended")

    return _act(config, execution_id, "suspend", change, actor, connection)


def resume(
    config: Config, execution_id: str, *, actor: str = "host", connection: Any = None
) -> Execution | Literal[False]:
    """Let a suspended execution take events again.

    Answers and raises as `cancel` does; one that is active already is answered, nothing written.
    """

    def change(execution: Execution, now: datetime) -> Execution | None:
        return None if execution.status == "active" else attrs.evolve(execution, status="active")

    return _act(config, execution_id, "resume", change, actor, connection)


def _act(
    config: Config,
    execution_id: str,
    door: Door,
    change: Callable[[Execution, datetime], Execution | None],
    actor: str,
    connection: Any,
    details: Json = None,
) -> Execution | Literal[False]:
    execution_id = checked_execution_id(execution_id)
    actor = checked(actor, "actor", ConfigError, limit=NAME_LIMIT)
    now = config.now()

    def work(frame: Frame) -> Execution | Literal[False]:
        before = locked(config, frame, execution_id)
        if before.terminal:
            return False
        changed = change(before, now)
        if changed is None:
            return before
        after = attrs.evolve(changed, revision=before.revision + 1)
        acted = NewInput(door=door, at=now, actor=actor, details=details)
        WriteAtOnce(frame.connection, config.schema).move(before, after, [acted], moved=False)
        if door == "resume":
            # Timers that came due meanwhile were put off; they are due at their own time again.
            frame.connection.execute(timer_table.wake(config.schema), {"of_execution": execution_id})
        return after

    return run(config, work, connection=connection)


def locked(config: Config, frame: Frame, execution_id: str) -> Execution:
    """The execution, its row locked within the bounded wait. Raises `ExecutionNotFound`."""
    execution = lock_execution(config, frame, SQLExecutor(), execution_id)
    if execution is None:
        raise ExecutionNotFound(execution_id)
    return execution


def lock_execution(config: Config, frame: Frame, executor: Executor, execution_id: str) -> Execution | None:
    """The execution or None, its lock taken within the bounded wait. Raises `ReentrantStep`."""
    refuse_open_step(frame, execution_id)
    if frame.lock_timeout is not None:
        dialect.bound_waits(frame.connection, frame.lock_timeout)
    frame.waiting_for = execution_id
    execution = executor.fetch(frame.connection, config, execution_id, lock=True)
    frame.waiting_for = None
    return execution
