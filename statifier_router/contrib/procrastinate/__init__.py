"""Runs and upkeep by the workers of Procrastinate (extra `procrastinate`), on the same PostgreSQL.

A job of a chain is a job of Procrastinate's. The one that follows is put into its queue in the
transaction that concludes a page: no crash loses it, and none is there twice. The rule's lease stays
underneath, so whatever the queue does, one job at a time has a rule. In a module of the host's::

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=...))
    outbound = Outbound(config, writers=..., rules=...)
    register_runs(app, outbound)
    register_upkeep(app, config)

Then any number of `procrastinate --app=shop.app worker` on any number of machines do the work. A worker
that is told to end waits for its jobs: give it a `shutdown_graceful_timeout` of some seconds, after which
a job hands over behind the record in hand. Successful jobs are kept by default:
`delete_jobs="successful"` keeps the queue small.

Behind a pooler of transactions neither library may prepare statements, and Procrastinate cannot listen:
`PsycopgConnector(kwargs={"prepare_threshold": None})` and `listen_notify=False` for the worker there,
`create_engine(url, connect_args={"prepare_threshold": None})` here.
"""

from __future__ import annotations

from statifier_router.contrib.procrastinate.runs import RunTasks, register_runs
from statifier_router.contrib.procrastinate.upkeep import register_upkeep

__all__ = ["RunTasks", "register_runs", "register_upkeep"]
