"""What tests of two connections share: threads beside the test, transactions left open, both plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine

from statifier_router import Config, SQLExecutor, executions
from tests.support.charts import obedient, registry
from tests.support.databases import Database
from tests.support.locks import NotBlocked, backend_pid, wait_until_one_is_blocked

# A wait for a lock ends when the test lets it; the bound only ends a test that fails.
PATIENCE = timedelta(seconds=60)
TIMEOUT = 90
MOMENT = timedelta(milliseconds=50)

PLANS = ("merged", "plain")

Beside = Callable[..., "Future[Any]"]
Configure = Callable[..., Any]


class WritingPlainly(SQLExecutor):
    """The default executor, derived by a host: its deliveries take the plain plan on PostgreSQL too."""


@contextmanager
def threads() -> Iterator[Beside]:
    """Runs functions in threads of their own; waits for them at the end."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def configuring(database: Database, make_config: Any, plan: str = "merged") -> Configure:
    """Makes configurations on one database, each with an engine of its own, and patient."""

    def configure(**kw: Any) -> Any:
        kw.setdefault("charts", registry(parcel=obedient()))
        kw.setdefault("lock_timeout", PATIENCE)
        if plan == "plain":
            kw.setdefault("executor", WritingPlainly())
        return make_config(database, **kw)

    return configure


@contextmanager
def open_transaction(config: Config) -> Iterator[tuple[Connection, int]]:
    """A host's transaction, left open until the test ends it; and the server's process behind it."""
    with config.engine.connect() as connection:
        pid = backend_pid(connection) if connection.dialect.name == "postgresql" else 0
        yield connection, pid


@contextmanager
def disposing(engine: Engine) -> Iterator[Engine]:
    """Close the engine's connections at the end, whatever happens: what they lead to may go too."""
    try:
        yield engine
    finally:
        engine.dispose()


def blocked(database: Database, by: int, *waiting: Future[Any]) -> None:
    """Return once the server says that as many others wait for `by`; none of them has ended."""
    try:
        wait_until_one_is_blocked(database.bare_engine(), by=by, count=len(waiting))
    except NotBlocked:
        for one in waiting:
            if one.done():
                # What it raised tells more.
                one.result()
        raise
    assert not any(one.done() for one in waiting)


def seen(config: Config, execution_id: str) -> Any:
    """What moved the execution, in order."""
    execution = executions.fetch(config, execution_id)
    assert execution is not None
    assert isinstance(execution.position, dict)
    return execution.position["seen"]
