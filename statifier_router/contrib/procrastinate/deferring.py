"""Jobs are put into Procrastinate's queue, and looked at, in a transaction of ours.

The workers' connector is asynchronous, and its connections are not ours: so Procrastinate's own queries
are run by a synchronous connector that has none, and is handed the connection each time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from datetime import timedelta

    from procrastinate.manager import JobManager
    from procrastinate.tasks import Task
    from sqlalchemy import Connection


def defer(
    connection: Connection,
    task: Task[Any, Any, Any],
    *,
    lock: str,
    queueing_lock: str,
    after: timedelta | None = None,
    **arguments: Any,
) -> None:
    """Put a job of `task` into the queue, in the transaction that is open on `connection`.

    Raises Procrastinate's `AlreadyEnqueued` where one with this queueing lock waits; the transaction is
    spoiled then.
    """
    wait: Any = {} if after is None else {"schedule_in": {"microseconds": round(after.total_seconds() * 1e6)}}
    job = task.configure(lock=lock, queueing_lock=queueing_lock, **wait).make_new_job(**arguments)
    _manager().defer_job(job, connection=_driver(connection))


def check_same_database(connection: Connection, job_id: int | None) -> None:
    """Raise `ConfigError` where the running job is not seen on `connection`.

    The queue would be another database's then, and the jobs that follow would wait for ever.
    """
    from procrastinate.exceptions import ConnectorException, NoResult
    from procrastinate.jobs import Status

    try:
        status = None
        if job_id is not None:
            status = _manager().get_job_status(job_id, connection=_driver(connection))
    except (ConnectorException, NoResult):
        status = None
    if status is not Status.DOING:
        raise ConfigError(
            "Procrastinate's app and config.engine must be of one database, with Procrastinate's tables on "
            "the search path of both: the job that runs is not seen by config.engine"
        )


@lru_cache
def _manager() -> JobManager:
    from procrastinate import SyncPsycopgConnector
    from procrastinate.manager import JobManager

    return JobManager(SyncPsycopgConnector())


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection
