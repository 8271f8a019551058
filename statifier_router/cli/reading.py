"""What the command line reads beyond the modules' own functions. Nothing here writes or locks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from attrs import field, frozen
from sqlalchemy import Connection, Executable, Select, bindparam, select

from statifier_router import addresses, charts, executions, ledger
from statifier_router.claims import Claim
from statifier_router.config import Config
from statifier_router.errors import RouterError
from statifier_router.executions.sql_executor import ask_create, ask_step, changes_position
from statifier_router.executor import Execution
from statifier_router.ledger import LedgerRow
from statifier_router.schema import Schema
from statifier_router.steps import Chart
from statifier_router.transactions import reading

_PAGE = 1_000


# --- Rows -----------------------------------------------------------------------------------------


def claims_of(config: Config, message_id: str) -> list[Claim]:
    """Every claim on a message, whichever binding and scope took it.

    No index leads with the message's id, for no delivery asks so: a scan of the claims, which their
    reaper keeps few.
    """
    with reading(config) as connection:
        rows = connection.execute(_claims(config.schema), {"message_id": message_id}).mappings()
        return [Claim(**row) for row in rows]


@lru_cache
def _claims(schema: Schema) -> Select[Any]:
    table = schema.claims
    columns = (table.c.binding_id, table.c.scope, table.c.message_id, table.c.digest, table.c.expires_at)
    return (
        select(*columns)
        .where(table.c.message_id == bindparam("message_id"))
        .order_by(table.c.binding_id, table.c.scope)
    )


def ledger_of(config: Config, message_id: str) -> list[LedgerRow]:
    """Every ledger row of a message, oldest first."""
    found: list[LedgerRow] = []
    while True:
        after = found[-1].id if found else None
        page = ledger.rows(config, message_id=message_id, limit=_PAGE, after=after)
        found += page
        if len(page) < _PAGE:
            return found


def scopes_of_addresses(config: Config) -> list[str]:
    """Every scope that has an address."""
    with reading(config) as connection:
        return _texts(connection, _scopes(config.schema))


@lru_cache
def _scopes(schema: Schema) -> Select[Any]:
    return select(schema.addresses.c.scope).distinct().order_by(schema.addresses.c.scope)


def _texts(connection: Connection, statement: Executable) -> list[str]:
    return [str(value) for value in connection.execute(statement).scalars()]


# --- An execution's story -------------------------------------------------------------------------


@frozen
class Moment:
    """One input, and the states around it.

    `before` is None on the create. `answer` is the chart's ("moved", "refused", …), None for an
    operator's act. All are None from where the chart could not be asked again.
    """

    input: executions.Input
    before: tuple[str, ...] | None = None
    after: tuple[str, ...] | None = None
    status: str | None = None
    answer: str | None = None


@frozen
class Story:
    """An execution with its whole log; `gap` says why states are not told, where they are not."""

    execution: Execution
    address: addresses.Address | None
    moments: tuple[Moment, ...] = field(repr=False)
    gap: str | None


def story_of(config: Config, execution_id: str) -> Story | None:
    """The execution and what each input made of it, or None.

    The states between inputs are stored nowhere: the chart is asked again, as `executions.replay` does.
    """
    execution = executions.fetch(config, execution_id)
    if execution is None:
        return None
    log = executions.inputs(config, execution_id)
    moments, gap = _moments(config, execution, log)
    return Story(execution, addresses.by_execution(config, execution_id), tuple(moments), gap)


def _moments(
    config: Config, execution: Execution, log: list[executions.Input]
) -> tuple[list[Moment], str | None]:
    if not log:
        return [], "its input log was pruned" if execution.position is None else "it has no input log"
    told: list[Moment] = []
    try:
        chart = charts.for_execution(config, execution)
        for moment in _folded(chart, execution.id, log):
            told.append(moment)  # noqa: PERF402 - what was told before a fault is kept
    except (RouterError, TypeError) as error:
        rest = [Moment(each) for each in log[len(told) :]]
        return told + rest, str(error)
    return told, None


def _folded(chart: Chart, execution_id: str, log: list[executions.Input]) -> Iterator[Moment]:
    created: Any = log[0].details
    step = ask_create(chart, execution_id, data=created["data"], now=log[0].at)
    active, status = step.active, str(step.status)
    yield Moment(log[0], None, active, status, step.outcome)
    position = step.position
    for row in log[1:]:
        before = active
        answer = None
        if row.event is None:
            status = _STATUS_AFTER.get(row.door, status)
        else:
            step = ask_step(
                chart, execution_id, position, row.event, event_id=row.message_id or "", now=row.at
            )
            answer = str(step.outcome)
            if changes_position(step):
                position, active, status = step.position, step.active, str(step.status)
        yield Moment(row, before, active, status, answer)


_STATUS_AFTER = {"suspend": "suspended", "resume": "active", "cancel": "cancelled", "fail": "failed"}
