"""`statifier_router.migrations` for asyncio: each takes the connection whose transaction it runs in.

>>> import asyncio
>>> asyncio.run(sql("sqlite")).splitlines()[1]
'BEGIN IMMEDIATE;'
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from statifier_router import migrations
from statifier_router.aio.bridge import across, lent
from statifier_router.migrations import LATEST
from statifier_router.tables import Tables

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    Lent = AsyncConnection | AsyncSession | async_scoped_session[Any]

__all__ = ["LATEST", "current", "down", "sql", "up", "verify"]

_DEFAULT = Tables()


async def up(connection: Lent, *, tables: Tables = _DEFAULT, to: int | None = None) -> tuple[int, ...]:
    """Bring the tables up to version `to`, as `statifier_router.migrations.up` does."""
    return await across(partial(migrations.up, lent(connection), tables=tables, to=to))


async def down(connection: Lent, *, tables: Tables = _DEFAULT, to: int | None = None) -> tuple[int, ...]:
    """Undo versions, dropping what they hold, as `statifier_router.migrations.down` does."""
    return await across(partial(migrations.down, lent(connection), tables=tables, to=to))


async def current(connection: Lent, *, tables: Tables = _DEFAULT) -> int:
    """The version the tables are at, as `statifier_router.migrations.current` reads it."""
    return await across(partial(migrations.current, lent(connection), tables=tables))


async def verify(connection: Lent, *, tables: Tables = _DEFAULT) -> None:
    """Raise `SchemaError` where `statifier_router.migrations.verify` does."""
    await across(partial(migrations.verify, lent(connection), tables=tables))


async def sql(dialect: str, *, since: int = 0, to: int | None = None, tables: Tables = _DEFAULT) -> str:
    """The script of `statifier_router.migrations.sql`; it waits for nothing."""
    return migrations.sql(dialect, since=since, to=to, tables=tables)
