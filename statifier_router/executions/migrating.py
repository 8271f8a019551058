"""Moving one execution to another revision of its document, under its lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import attrs

from statifier_router import charts
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.errors import ChartNotResolved, ConfigError, Unresolved
from statifier_router.executions.journal import NewInput, WriteAtOnce
from statifier_router.executions.operating import locked
from statifier_router.executor import Execution
from statifier_router.jsontext import Json, NotJson, plain
from statifier_router.paging import checked_execution_id
from statifier_router.refusals import told
from statifier_router.savepoints import travels
from statifier_router.steps import Chart
from statifier_router.text import NAME_LIMIT, checked
from statifier_router.transactions import run

T = TypeVar("T")
PositionMapping = Callable[[Json], Json] | Mapping[str, str]


def migrate(
    config: Config,
    execution_id: str,
    to: Chart | str,
    *,
    mapping: PositionMapping,
    actor: str = "host",
    connection: Any = None,
) -> Execution | Literal[False]:
    """Move the execution to the chart `to` (a chart, or its content hash), without stepping it.

    `mapping` makes the new position of the old one: a pure function of the position, or a mapping
    from old to new names of states (`{}` keeps them), for adapters that can rename states. Nothing
    is entered or left, no effect is handed on. One transaction, under the execution's lock, with an
    input row that names the actor. A chart that cannot judge a position (`function`) takes any,
    and the active states stay as they were until its next step.

    Answers the execution as it then stands, or False where it had ended (nothing written). Raises
    `ConfigError` where the mapped configuration is not legal in the new chart, or is an end of it,
    or the new chart is retired; `ChartNotResolved` where the charts do not know the new chart by its
    hash; and otherwise as `cancel` does.
    """
    execution_id = checked_execution_id(execution_id)
    actor = checked(actor, "actor", ConfigError, limit=NAME_LIMIT)
    if not callable(mapping) and not isinstance(mapping, Mapping):
        raise ConfigError(
            f"mapping must be a function of the position or a mapping of names of states, "
            f"not {type(mapping).__name__}"
        )
    if not isinstance(to, str) and (problem := charts.not_a_chart(to)):
        raise ConfigError(f"to {problem}")
    content_hash = to if isinstance(to, str) else to.content_hash
    now = config.now()

    def work(frame: Frame) -> Execution | Literal[False]:
        before = locked(config, frame, execution_id)
        if before.terminal:
            return False
        chart = _target(config, content_hash, execution_id)
        position = _mapped(chart, before.position, mapping)
        after = attrs.evolve(
            before,
            content_hash=chart.content_hash,
            interpreter=chart.interpreter,
            position=position,
            active=_legal(chart, position, before.active),
            revision=before.revision + 1,
        )
        migrated = NewInput(
            door="migrate",
            at=now,
            actor=actor,
            details={
                "content_hash": chart.content_hash,
                "interpreter": chart.interpreter,
                "interpreter_version": chart.interpreter_version,
                "position": position,
                "active": list(after.active),
            },
        )
        WriteAtOnce(frame.connection, config.schema).change_chart(before, after, [migrated])
        return after

    return run(config, work, connection=connection)


def _target(config: Config, content_hash: str, execution_id: str) -> Chart:
    """The chart to move to, by its hash even where it was given: the next event will ask that way.

    Where charts can be retired, this one is kept from it until the commit.
    """
    try:
        chart = charts.for_hash(config, content_hash, execution_id)
    except ChartNotResolved as error:
        raise _TargetNotResolved(content_hash, execution_id, reason=error.reason) from error
    hold = getattr(config.chart_source, "hold", None)
    if hold is not None:
        try:
            hold(content_hash)
        except Unresolved as retired:
            raise ConfigError(f"to is chart {content_hash}: {retired.reason}") from retired
    return chart


def _mapped(chart: Chart, position: Json, mapping: PositionMapping) -> Json:
    if isinstance(mapping, Mapping):
        rename = getattr(chart, "rename", None)
        if rename is None and mapping:
            raise ConfigError(
                f"mapping must be a function: charts of {chart.interpreter!r} cannot rename states"
            )
        mapped = position if rename is None else _asked(lambda: rename(position, mapping), chart)
    else:
        try:
            mapped = mapping(plain(position))
        except Exception as error:
            if travels(error):
                raise
            raise ConfigError(f"mapping raised {told(error)}") from error
    try:
        return plain(mapped)
    except NotJson as fault:
        raise ConfigError(f"mapping's answer{fault.path} {fault.problem}") from None


def _legal(chart: Chart, position: Json, active: tuple[str, ...]) -> tuple[str, ...]:
    """The active states of `position` in `chart`; an adapter that cannot judge keeps the old ones."""
    configuration = getattr(chart, "configuration", None)
    if configuration is None:
        return active
    leaves = _asked(lambda: tuple(configuration(position)), chart)
    finished = getattr(chart, "finished", None)
    if finished is not None and _asked(lambda: finished(position), chart):
        # No event would move it, and none would ever end it.
        raise ConfigError(
            f"mapping's answer stands at the end of chart {chart.content_hash} ({', '.join(leaves)}): "
            "a migration ends no execution; executions.cancel and executions.fail do"
        )
    return leaves


def _asked(judge: Callable[[], T], chart: Chart) -> T:
    try:
        return judge()
    except Exception as error:
        raise ConfigError(
            f"mapping's answer is not a legal configuration of chart {chart.content_hash}: {error}"
        ) from error


class _TargetNotResolved(ChartNotResolved):
    """The chart to move to is not among the configuration's."""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"to is chart {self.content_hash}, which the charts do not have{why}; publish it, then migrate "
            f"execution {self.execution_id}"
        )
