"""The doors for asyncio: every function as a coroutine, over SQLAlchemy's `AsyncEngine`.

They are the functions of `statifier_router` themselves, run across SQLAlchemy's bridge: one body, one
bridge a call. A configuration with an `AsyncEngine` serves these, one with an `Engine` serves those.
`connection=` takes an `AsyncConnection`, an `AsyncSession` or an `async_scoped_session`.

A coroutine that is cancelled, wherever it waits, undoes what it had begun before it ends. A message
whose hand-over was cancelled may have been taken all the same, if its commit was on the way: hand it
over again, and it comes back as a duplicate.

>>> import asyncio
>>> from statifier_router import Binding, ChartRegistry, Config, Message, Step, aio
>>> from statifier_router.interpreters import function
>>> parcel = function.chart(
...     "parcel",
...     create=lambda data, now: Step({"scans": 0}, active=["moving"]),
...     step=lambda position, event, now: Step({"scans": position["scans"] + 1}, active=["moving"]),
... )
>>> charts = ChartRegistry()
>>> charts.publish("parcel", parcel)
>>> scans = Binding(id="scans", source="depot", match={}, key="parcel", document="parcel", event="scanned")
>>> async def main():
...     engine = aio.create_engine("sqlite:///parcels.db")
...     async with engine.begin() as connection:
...         await aio.migrations.up(connection)
...     config = Config(engine, charts=charts, bindings=[scans])
...     outcomes = await aio.route(config, Message("depot", "m-1", "acme", {"parcel": "P7"}))
...     await engine.dispose()
...     return outcomes
>>> asyncio.run(main())
[CreatedAndDelivered(binding_id='scans', execution_id='ex_...')]
"""

from __future__ import annotations

from statifier_router.errors import MissingExtra

try:
    import sqlalchemy.ext.asyncio  # noqa: F401  # it asks for greenlet
except ImportError as error:
    raise MissingExtra("asyncio", "statifier_router.aio") from error

from statifier_router import batches, routing
from statifier_router.aio import addresses, claims, deferrals, executions, ledger, migrations, timers
from statifier_router.aio.bridge import coroutine_of
from statifier_router.aio.engines import create_engine, prepare_engine

__all__ = [
    "addresses",
    "claims",
    "create_engine",
    "deferrals",
    "deliver",
    "deliver_event",
    "deliver_many",
    "executions",
    "ledger",
    "migrations",
    "prepare_engine",
    "route",
    "route_many",
    "timers",
]

route = coroutine_of(routing.route)
deliver = coroutine_of(routing.deliver)
deliver_event = coroutine_of(routing.deliver_event)
route_many = coroutine_of(batches.route_many)
deliver_many = coroutine_of(batches.deliver_many)
