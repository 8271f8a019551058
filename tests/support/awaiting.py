"""Configurations for `statifier_router.aio`, and tasks that are cancelled at a wait of the test's choosing.

A wait is a moment at which a task hands control back to the event loop. They are counted, so that a test
names one by its number and never by a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import attrs
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from statifier_router import Config, aio
from tests.support import servers
from tests.support.databases import Database

_POLLS = 1000


def url_of(database: Database) -> str:
    """The URL at which `aio` reaches a test's database."""
    url = make_url(database.url)
    if database.kind == "sqlite":
        url = url.set(drivername="sqlite+aiosqlite")
    return url.render_as_string(hide_password=False)


@asynccontextmanager
async def an_engine(database: Database, **kw: Any) -> AsyncIterator[AsyncEngine]:
    """An asynchronous engine with a fresh pool, disposed of at the end of the block."""
    engine = aio.create_engine(url_of(database), **kw)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def beside(twin: Config, database: Database, **kw: Any) -> AsyncIterator[Config]:
    """The same configuration as `twin`, which is one of the plain doors, over an asynchronous engine."""
    async with an_engine(database, **kw) as engine:
        yield attrs.evolve(twin, engine=engine)


# --- waits ------------------------------------------------------------------------------------------


@attrs.define
class Waits:
    """Counts the waits of every task that the running loop begins, and calls `act` at number `at`.

    `turns` more turns of the loop pass before it is called: what was waited for may be there by then.
    """

    at: int | None = None
    act: Callable[[], object] | None = None
    turns: int = 0
    count: int = 0

    def passed(self) -> None:
        """One more wait begins."""
        self.count += 1
        if self.count == self.at:
            self._after(self.turns)

    def _after(self, turns: int) -> None:
        assert self.act is not None
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._after, turns - 1)
        else:
            loop.call_soon(self.act)


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine whose every wait is told."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits: Waits) -> None:
        self._coroutine = coroutine
        self._waits = waits

    def send(self, value: Any) -> Any:
        waited_for = self._coroutine.send(value)
        self._waits.passed()
        return waited_for

    def throw(self, *error: Any) -> Any:
        waited_for = self._coroutine.throw(*error)
        self._waits.passed()
        return waited_for

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()


async def waiting(waits: Waits, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Await `work()` in a task of its own and count every wait in it; `waits.act` may cancel that task."""
    loop = asyncio.get_running_loop()

    def counted(_: asyncio.AbstractEventLoop, coroutine: Any, **kw: Any) -> Any:
        return asyncio.Task(_Counted(coroutine, waits), loop=loop, **kw)

    loop.set_task_factory(counted)
    try:
        return await loop.create_task(work())
    finally:
        loop.set_task_factory(None)


async def cancelled_at(
    at: int, work: Callable[[], Awaitable[Any]], *, turns: int = 0, insisting: bool = False
) -> bool:
    """Cancel `work()` at its wait `at`; answer whether it ended so, rather than before it was cancelled.

    With `insisting` it is cancelled again at each turn of the loop until it has ended, as cancel scopes do.
    """
    task: list[asyncio.Task[Any]] = []

    async def held() -> Any:
        task.append(asyncio.current_task())  # type: ignore[arg-type]  # a coroutine runs in one
        return await work()

    def cancel() -> None:
        if not task[0].done():
            task[0].cancel()
            if insisting:
                asyncio.get_running_loop().call_soon(cancel)

    try:
        await waiting(Waits(at, cancel, turns), held)
    except asyncio.CancelledError:
        return True
    return False


async def turns(count: int) -> None:
    """Let the loop turn, and nothing else."""
    for _ in range(count):
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


async def waits_of(work: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    """How often `work()` waits when nobody cancels it."""
    waits = Waits()
    await waiting(waits, work)
    return waits.count


# --- what is left behind ----------------------------------------------------------------------------


async def others_ended() -> None:
    """Return when every other task has ended: cancelled, SQLAlchemy's own blocks leave their end to one."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


def check_nothing_left(config: Config, database: Database) -> None:
    """`AssertionError` where a connection is still out, a task still runs, or a transaction is still open."""
    assert config.engine.pool.checkedout() == 0, config.engine.pool.status()  # type: ignore[attr-defined]  # a queue
    assert asyncio.all_tasks() == {asyncio.current_task()}
    if database.kind == "postgresql":
        _check_server(database)
    else:
        # Fails at once while another connection holds the write lock.
        engine = database.bare_engine(isolation_level="AUTOCOMMIT", connect_args={"timeout": 0})
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.exec_driver_sql("ROLLBACK")
        engine.dispose()


_BUSY = text(
    "SELECT pid, state, query FROM pg_stat_activity"
    " WHERE datname = :name AND backend_type = 'client backend' AND state <> 'idle'"
)


def _check_server(database: Database) -> None:
    # The server sees a closed connection a moment later than the client.
    busy = []
    with servers.administrator().connect() as connection:
        for _ in range(_POLLS):
            busy = list(connection.execute(_BUSY, {"name": database.name}))
            if not busy:
                return
            connection.execute(text("SELECT pg_sleep(0.01)"))
    raise AssertionError(f"transactions are still open: {busy}")
