"""How a transaction of ours begins on PostgreSQL: at READ COMMITTED, whatever the connection's own level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statifier_router.dialect.common import BEGIN, kind
from statifier_router.dialect.prepared import wrapped

if TYPE_CHECKING:
    from sqlalchemy import Connection


def begin(connection: Connection) -> None:
    """Begin, before anything else does. Nothing on SQLite, and under asyncio, where the engine knows how.

    The driver begins by itself with the first statement where no transaction is open. To tell it the
    level of that, and to take it back, costs more than the command does.
    """
    if kind(connection) == "sqlite" or connection.dialect.is_async:
        return
    # Not where there is no libpq.
    from statifier_router.dialect import wire

    opened: Any = connection.connection.dbapi_connection
    try:
        wire.command(opened, BEGIN)
    except connection.dialect.loaded_dbapi.Error as error:
        raise wrapped(connection, "BEGIN", error) from error
