"""What the command line reads beyond the modules' own functions. Nothing here writes or locks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

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
    gap = None
    standing = None
    for part in _parts(log):
        begun = len(told)
        try:
            for moment, after in _folded(config, execution.id, part, standing):
                told.append(moment)
                standing = after
        except (RouterError, TypeError) as error:
            # What was told before a fault is kept, and the next migration says anew where it stands.
            told += [Moment(each) for each in part[len(told) - begun :]]
            gap = gap or str(error)
            standing = None
    return told, gap


def _parts(log: list[executions.Input]) -> Iterator[list[executions.Input]]:
    """The log by the charts it ran on: each part begins with the create, or with a migration."""
    starts = [index for index, row in enumerate(log) if index == 0 or row.door == "migrate"]
    for start, end in zip(starts, [*starts[1:], len(log)], strict=True):
        yield log[start:end]


@frozen
class _Standing:
    position: Any
    active: tuple[str, ...]
    status: str | None


def _folded(
    config: Config, execution_id: str, part: list[executions.Input], before: _Standing | None
) -> Iterator[tuple[Moment, _Standing]]:
    """Each input of the part, and how the execution stands after it; `before` is how it stood before."""
    first, details = part[0], cast("Any", part[0].details)
    if first.door == "migrate":
        status = None if before is None else before.status
        now = _Standing(details["position"], tuple(details["active"]), status)
        yield Moment(first, None if before is None else before.active, now.active, status), now
        if len(part) == 1:
            return
        chart = charts.for_hash(config, details["content_hash"], execution_id)
    else:
        chart = charts.for_hash(config, details["content_hash"], execution_id)
        step = ask_create(chart, execution_id, data=details["data"], now=first.at)
        now = _Standing(step.position, step.active, str(step.status))
        yield Moment(first, None, now.active, now.status, step.outcome), now
    for row in part[1:]:
        was, answer = now.active, None
        if row.event is None:
            now = _Standing(now.position, now.active, _STATUS_AFTER.get(row.door, now.status))
        else:
            step = ask_step(
                chart, execution_id, now.position, row.event, event_id=row.message_id or "", now=row.at
            )
            answer = str(step.outcome)
            if changes_position(step):
                now = _Standing(step.position, step.active, str(step.status))
        yield Moment(row, was, now.active, now.status, answer), now


_STATUS_AFTER = {"suspend": "suspended", "resume": "active", "cancel": "cancelled", "fail": "failed"}
