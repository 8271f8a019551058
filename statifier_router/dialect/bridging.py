"""Asynchronous engines: what of SQLAlchemy's asyncio bridge the rest of the package asks for.

Behind an `AsyncEngine` stands an `Engine` whose driver is awaited. It works inside a greenlet that
somebody awaits (`run_sync`, `statifier_router.aio`), and only there. Everything of it is imported when
an asynchronous engine is met: a host without one needs no greenlet.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeGuard

from sqlalchemy import Engine

from statifier_router.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def sync_engine(engine: object) -> object:
    """The `Engine` behind an `AsyncEngine`; anything else as it is."""
    return engine.sync_engine if is_async_engine(engine) else engine


def is_async_engine(engine: object) -> TypeGuard[AsyncEngine]:
    """Whether this is SQLAlchemy's `AsyncEngine`."""
    if isinstance(engine, Engine):
        return False
    try:
        from sqlalchemy.ext.asyncio import AsyncEngine
    except ImportError:
        # Without greenlet nobody can have made one.
        return False
    return isinstance(engine, AsyncEngine)


def in_bridge() -> bool:
    """Whether this code runs in a greenlet that somebody awaits."""
    from sqlalchemy.util.concurrency import in_greenlet

    return in_greenlet()


def check_bridged(
    engine: Engine, mend: str = "await the function of the same name in statifier_router.aio"
) -> None:
    """Raise `ConfigError` where an asynchronous engine is to work and its driver cannot be awaited."""
    if engine.dialect.is_async and not in_bridge():
        raise ConfigError(f"engine is an AsyncEngine, which works for coroutines alone: {mend}")


def pause(engine: Engine, seconds: float) -> None:
    """Wait; where the engine's driver is awaited this is awaited too, and the event loop runs on."""
    if not engine.dialect.is_async:
        time.sleep(seconds)
        return
    import asyncio

    from sqlalchemy.util import await_

    await_(asyncio.sleep(seconds))
