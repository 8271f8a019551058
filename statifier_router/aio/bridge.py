"""The bridge: a function of the library as a coroutine, with the same body.

The whole call runs in one greenlet, so that whatever its driver waits for is awaited: statements, a
free connection of the pool, the pause before another try. The greenlet runs in a task of its own,
because cleaning up waits too: rolling back, handing the connection back. A cancellation is passed on
once, as one; those that follow it (a second time-out, a cancel scope that insists) find the caller
still waiting, and the clean-up undisturbed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import greenlet_spawn

from statifier_router import ambient
from statifier_router.config import Config
from statifier_router.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


def coroutine_of(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """`function(config, ..., connection=None)` as a coroutine over an asynchronous engine.

    >>> from statifier_router import addresses
    >>> inspect.iscoroutinefunction(coroutine_of(addresses.find))
    True
    """

    @wraps(function)
    async def bridged(*args: P.args, **kwargs: P.kwargs) -> T:
        config = args[0] if args else kwargs.get("config")
        if isinstance(config, Config) and not config.writer.dialect.is_async:
            raise ConfigError(
                "engine is a plain Engine, whose waits would block the event loop: "
                "make it with statifier_router.aio.create_engine(url)"
            )
        if kwargs.get("connection") is not None:
            kwargs["connection"] = lent(kwargs["connection"])
        return await across(partial(function, *args, **kwargs))

    # The examples of the original are not examples of this.
    bridged.__doc__ = inspect.cleandoc(function.__doc__ or "").partition(">>>")[0].rstrip()
    return bridged


def lent(connection: object) -> Connection | Session:
    """What stands behind a connection or session that a caller lends. Raises `ConfigError`."""
    if isinstance(connection, async_scoped_session):
        # Asked here: its registry may go by the task.
        connection = connection()
    if isinstance(connection, AsyncSession):
        return connection.sync_session
    if isinstance(connection, AsyncConnection):
        behind = connection.sync_connection
        if behind is None or behind.closed:
            raise ConfigError("connection is not open: async with engine.begin() as connection")
        return behind
    if isinstance(connection, (Connection, Session, scoped_session)):
        raise ConfigError(
            f"connection must be an AsyncConnection or AsyncSession, not a plain {type(connection).__name__}"
        )
    raise ConfigError(
        f"connection must be an AsyncConnection or AsyncSession, not {type(connection).__name__}"
    )


async def across(work: Callable[[], T]) -> T:
    """Run `work` in a greenlet and answer what it answers. Cancelled, it ends when all is undone."""
    if ambient.any_here():
        # Awaited from inside a delivery, whose transaction belongs to this task: it must stay in it.
        return await greenlet_spawn(work)
    task = asyncio.get_running_loop().create_task(greenlet_spawn(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await _end_of(task)
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
            # A loop that shuts down has cancelled both.
            if not task.cancelling():
                task.cancel()
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


def _end_of(task: asyncio.Task[Any]) -> asyncio.Future[None]:
    """Done when the task is; to cancel it leaves the task alone."""
    end = task.get_loop().create_future()

    def told(_: asyncio.Task[Any]) -> None:
        if not end.done():
            end.set_result(None)

    task.add_done_callback(told)
    return end
