"""Asynchronous engines made ready."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from statifier_router import dialect
from statifier_router.errors import ConfigError, MissingExtra


def create_engine(url: str | URL, **kw: Any) -> AsyncEngine:
    """An `AsyncEngine` ready for the library; `kw` goes to `create_async_engine`. It never connects.

    `postgresql://` takes psycopg, `sqlite://` takes aiosqlite. Raises `ConfigError` for another
    database or driver and for SQLite in memory, `MissingExtra` without aiosqlite. Its pool belongs to
    one event loop: `await engine.dispose()` before that ends.

    >>> create_engine("postgresql://host/parcels").url.drivername
    'postgresql+psycopg'
    """
    checked = dialect.checked_url(url, asynchronous=True)
    try:
        made = create_async_engine(checked, **kw)
    except ModuleNotFoundError as error:
        if error.name != "aiosqlite":
            raise
        raise MissingExtra("asyncio", "an AsyncEngine to SQLite") from error
    return prepare_engine(made)


def prepare_engine(engine: AsyncEngine) -> AsyncEngine:
    """Make a host's own `AsyncEngine` ready for the library, in place, and answer it; idempotent.

    What that means for each database is as for `statifier_router.prepare_engine`.

    >>> engine = create_async_engine("sqlite+aiosqlite:///parcels.db")
    >>> prepare_engine(engine) is engine
    True
    """
    if not isinstance(engine, AsyncEngine):
        raise ConfigError(f"engine must be an AsyncEngine, not {type(engine).__name__}")
    dialect.prepare(engine.sync_engine, asynchronous=True)
    return engine
