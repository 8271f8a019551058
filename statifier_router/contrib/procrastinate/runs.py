"""The tasks of delivery runs: a tick, the jobs of chains, and a sweep that finds those that nobody does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from attrs import frozen

from statifier_router.contrib.procrastinate import library
from statifier_router.contrib.procrastinate.deferring import check_same_database, defer
from statifier_router.errors import ConfigError
from statifier_router.runs import BUSY, ChainId, Outbound
from statifier_router.runs.bracket import reading, writing
from statifier_router.runs.chains import under_way

if TYPE_CHECKING:
    from procrastinate import Blueprint, JobContext
    from procrastinate.manager import JobManager
    from procrastinate.tasks import Task
    from sqlalchemy import Connection

log = logging.getLogger("statifier_router")


@frozen(kw_only=True)
class RunTasks:
    """The tasks that `register_runs` made; `tick.defer(timestamp=0)` ticks now."""

    tick: Task[Any, Any, Any]
    job: Task[Any, Any, Any]
    sweep: Task[Any, Any, Any]


def register_runs(
    app: Blueprint,
    outbound: Outbound,
    *,
    tick: str = "*/5 * * * *",
    sweep: str = "* * * * *",
    queue: str = "statifier_router",
    busy_after: timedelta = timedelta(seconds=5),
    stalled_after: timedelta = timedelta(seconds=30),
) -> RunTasks:
    """Register the tasks of the runs of `outbound` on Procrastinate's `app`, an App or a Blueprint.

    `tick` and `sweep` are lines of cron, with seconds as a sixth field where wanted. The tick begins a
    chain for every rule that has none; let it come as often as `outbound.tick_interval`. A job that
    finds its rule taken is offered again after `busy_after`. The sweep offers jobs for chains that go on
    and have none: a worker was killed, whose job counts as failed once the worker gave no sign for
    `stalled_after`. A job that raises has failed its chain, and is not tried again. All of them are in
    `queue`.

    Raises `ConfigError`, naming the argument, and `MissingExtra`.

    >>> import procrastinate
    >>> from statifier_router.doctest_support import config
    >>> from statifier_router.runs import Outbound
    >>> app = procrastinate.App(connector=procrastinate.PsycopgConnector())
    >>> register_runs(app, Outbound(config(), writers={}))
    Traceback (most recent call last):
    ...
    statifier_router.errors.ConfigError: config.engine must be one of PostgreSQL by psycopg: ...
    """
    if not isinstance(outbound, Outbound):
        raise ConfigError(f"outbound must be an Outbound, not {type(outbound).__name__}")
    library.check(app, outbound.config, queue)
    library.check_positive(busy_after, "busy_after")
    library.check_positive(stalled_after, "stalled_after")
    ticking = library.periodic(app, tick, "tick")
    sweeping = library.periodic(app, sweep, "sweep")

    @app.task(name="statifier_router:job", queue=queue, pass_context=True)
    def run_job(context: JobContext, *, rule: str, chain_id: str, seq: int) -> str:
        return jobs.run(rule, chain_id, seq, context)

    # No lock, which a killed worker would leave behind: two at once do no harm.
    @ticking
    @app.task(
        name="statifier_router:tick",
        queue=queue,
        queueing_lock=library.queueing_lock(outbound.config, "tick"),
        pass_context=True,
    )
    def run_tick(context: JobContext, timestamp: int) -> int:
        return jobs.tick(context.job.id)

    @sweeping
    @app.task(
        name="statifier_router:sweep",
        queue=queue,
        queueing_lock=library.queueing_lock(outbound.config, "sweep"),
        pass_context=True,
    )
    async def run_sweep(context: JobContext, timestamp: int) -> int:
        names = [task.name for task in (tasks.tick, tasks.job, tasks.sweep)]
        await _give_up_stalled(context.app.job_manager, names, stalled_after)
        return await asyncio.to_thread(jobs.offer)

    tasks = RunTasks(tick=run_tick, job=run_job, sweep=run_sweep)
    jobs = _Jobs(outbound, tasks, busy_after)
    return tasks


@frozen
class _Jobs:
    """What the tasks do."""

    outbound: Outbound
    tasks: RunTasks
    busy_after: timedelta

    def tick(self, job_id: int | None) -> int:
        """Begin the chains that are to be begun, and offer their first jobs; answers how many."""
        with reading(self.outbound.config) as connection:
            check_same_database(connection, job_id)
        return self.offer(self.outbound.tick())

    def offer(self, begun: Collection[ChainId] = ()) -> int:
        """Offer a job for every chain that was just begun, and for those that have none.

        Answers how many. Where a job has the rule, its chain will have the next one from it.
        """
        chains = under_way(self.outbound, self.outbound.config.now())
        wanted = [each for each in chains if not each.taken or each.chain_id in begun]
        return sum(self._offer(each.rule, each.chain_id, each.seq) for each in wanted)

    def run(self, rule: str, chain_id: str, seq: int, context: JobContext) -> str:
        """Do one page; answers how it ended."""

        def successor(connection: Connection, chain_id: str, seq: int) -> None:
            self._defer(connection, rule, chain_id, seq)

        answer = self.outbound.run_job(chain_id, successor=successor, seq=seq, stopping=context.should_abort)
        if answer is BUSY:
            self._offer(rule, chain_id, seq, after=self.busy_after)
        return answer.name

    def _offer(self, rule: str, chain_id: str, seq: int, after: timedelta | None = None) -> bool:
        """Offer a job in a transaction of its own; whether it was not waiting already."""
        from procrastinate.exceptions import AlreadyEnqueued

        try:
            with writing(self.outbound.config) as connection:
                self._defer(connection, rule, chain_id, seq, after)
        except AlreadyEnqueued:
            return False
        return True

    def _defer(
        self, connection: Connection, rule: str, chain_id: str, seq: int, after: timedelta | None = None
    ) -> None:
        defer(
            connection,
            self.tasks.job,
            lock=f"outbound:{rule}",
            # Of one page there waits one job at most; one that comes too late anyway does nothing.
            queueing_lock=f"outbound:{chain_id}:{seq}",
            after=after,
            rule=rule,
            chain_id=chain_id,
            seq=seq,
        )


async def _give_up_stalled(manager: JobManager, names: Iterable[str], after: timedelta) -> None:
    """Fail the jobs of dead workers: their locks would hold up every other job of the rule."""
    from procrastinate.exceptions import ConnectorException
    from procrastinate.jobs import Status

    for name in names:
        stalled = await manager.get_stalled_jobs(
            task_name=name, seconds_since_heartbeat=after.total_seconds()
        )
        for job in stalled:
            log.warning("job of a dead worker given up", extra={"statifier_router.job": job.id})
            try:
                await manager.finish_job(job=job, status=Status.FAILED, delete_job=False)
            except ConnectorException:
                # It ended meanwhile, by its worker or by another sweep.
                log.debug("job had ended", extra={"statifier_router.job": job.id}, exc_info=True)
