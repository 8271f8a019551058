"""Folding an input log: the position that the log alone leads to."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from statifier_router import charts
from statifier_router.config import Config
from statifier_router.errors import ConfigError, ExecutionNotFound
from statifier_router.executions import rows
from statifier_router.executions.sql_executor import ask_create, ask_step, changes_position
from statifier_router.executor import Execution
from statifier_router.jsontext import Json, encode
from statifier_router.paging import checked_execution_id
from statifier_router.transactions import reading


@frozen
class Replayed:
    """The position that the input log leads to, and whether the stored one agrees, to the byte."""

    position: Json = field(repr=False)
    agrees: bool


def replay(config: Config, execution_id: str, *, connection: Any = None) -> Replayed:
    """Fold the execution's input log through its chart, writing nothing.

    `agrees` compares position, active states and status with the row. Effects are not handed on.
    Raises `ExecutionNotFound`, `ChartNotResolved`, `StepFailed`, and `ConfigError` for an execution
    whose log was pruned.
    """
    execution_id = checked_execution_id(execution_id)
    with reading(config, connection) as own:
        execution = rows.read(own, config.schema, execution_id, lock=False)
        log = rows.inputs(own, config.schema, execution_id)
    if execution is None:
        raise ExecutionNotFound(execution_id)
    if execution.position is None and not log:
        raise ConfigError(f"execution {execution_id} was pruned: there is no log to replay")
    return fold(config, execution, log)


def fold(config: Config, execution: Execution, log: list[rows.Input]) -> Replayed:
    """Fold `log` and compare with `execution`."""
    created: Any = log[0].details
    chart = charts.for_hash(config, created["content_hash"], execution.id)
    step = ask_create(chart, execution.id, data=created["data"], now=log[0].at)
    position, active, status = step.position, step.active, str(step.status)
    for row in log[1:]:
        if row.door == "migrate":
            moved: Any = row.details
            chart = charts.for_hash(config, moved["content_hash"], execution.id)
            position, active = moved["position"], tuple(moved["active"])
            continue
        if row.event is None:
            status = _after_act(row.door, status)
            continue
        step = ask_step(
            chart,
            execution.id,
            position,
            row.event,
            event_id=row.message_id or "",
            now=row.at,
        )
        if changes_position(step):
            position, active, status = step.position, step.active, str(step.status)
    agrees = (
        encode(position) == encode(execution.position)
        and tuple(active) == execution.active
        and status == execution.status
    )
    return Replayed(position, agrees)


def _after_act(door: str, status: str) -> str:
    return {
        "suspend": "suspended",
        "resume": "active",
        "cancel": "cancelled",
        "fail": "failed",
    }.get(door, status)
