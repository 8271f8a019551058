"""Durable executions: the default executor, their input log, and what an operator may do to them.

>>> from statifier_router import executions
>>> executions.fetch.__name__
'fetch'
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from statifier_router.ambient import Frame
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.errors import ConfigError
from statifier_router.executions import rows as _rows
from statifier_router.executions import statements as _statements
from statifier_router.executions.migrating import migrate
from statifier_router.executions.operating import cancel, fail, resume, suspend
from statifier_router.executions.replaying import Replayed, replay
from statifier_router.executions.rows import Input
from statifier_router.executions.sql_executor import SQLExecutor
from statifier_router.executor import Execution
from statifier_router.paging import checked_execution_id, checked_limit, chunks
from statifier_router.transactions import reading, run

__all__ = [
    "Input",
    "Replayed",
    "SQLExecutor",
    "cancel",
    "fail",
    "fetch",
    "inputs",
    "migrate",
    "prune",
    "replay",
    "resume",
    "suspend",
]

_DEFAULT = SQLExecutor()


def fetch(config: Config, execution_id: str, *, connection: Any = None) -> Execution | None:
    """The execution as it stands, or None. Takes no lock."""
    execution_id = checked_execution_id(execution_id)
    with reading(config, connection) as own:
        executor = config.executor or _DEFAULT
        return executor.fetch(own, config, execution_id, lock=False)


def inputs(config: Config, execution_id: str, *, connection: Any = None) -> list[Input]:
    """The execution's input log, oldest first; empty for an unknown or pruned one."""
    execution_id = checked_execution_id(execution_id)
    with reading(config, connection) as own:
        return _rows.inputs(own, config.schema, execution_id)


def prune(config: Config, *, before: datetime, limit: int = 1000, connection: Any = None) -> int:
    """Forget positions and input logs of at most `limit` executions that ended before `before`.

    The rows stay, so that a late message still finds its execution finished. One transaction;
    executions locked by others are passed over. Answers how many it pruned: call until 0.
    """
    before = as_utc(before, "before", ConfigError)
    limit = checked_limit(limit)

    def work(frame: Frame) -> int:
        own = frame.connection
        found = own.execute(_statements.prunable(config.schema), {"before": before, "limit": limit})
        ids = list(found.scalars())
        for some in chunks(ids):
            own.execute(_statements.drop_inputs(config.schema), {"execution_ids": some})
            own.execute(_statements.drop_positions(config.schema), {"execution_ids": some})
        return len(ids)

    return run(config, work, connection=connection)
