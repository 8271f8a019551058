"""The horizon of scans: up to where changes and messages are handed over, and who holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen
from sqlalchemy import bindparam, column, exists, select, text

from statifier_router import committed, dialect
from statifier_router.columns import XID
from statifier_router.runs.bracket import reading
from statifier_router.runs.findings import Finding
from statifier_router.runs.open_transactions import OpenTransaction, open_transactions
from statifier_router.runs.own_sources import Reader, readers
from statifier_router.runs.states import command

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.config import Config
    from statifier_router.runs.outbound import Outbound
    from statifier_router.schema import Schema


@frozen(kw_only=True)
class Horizon:
    """Transaction ids on the server: below `reached` all have ended, `next` has not been given out yet.

    `holders` are the transactions of this database that have begun to write, the oldest id first: that one
    holds scans back.
    """

    reached: int
    next: int
    holders: tuple[OpenTransaction, ...]


def horizon(config: Config) -> Horizon | None:
    """How it stands; None on SQLite, where nothing is ever held back.

    >>> from statifier_router.doctest_support import config
    >>> horizon(config()) is None
    True
    """
    with reading(config) as connection:
        return _horizon(connection)


def _horizon(connection: Connection) -> Horizon | None:
    if dialect.kind(connection) == "sqlite":
        return None
    reached = committed.horizon(connection)
    return Horizon(
        reached=reached,
        next=connection.execute(_next).scalar_one(),
        holders=tuple(open_transactions(connection)),
    )


_next: Any = text("SELECT pg_snapshot_xmax(pg_current_snapshot()) AS next").columns(column("next", XID))


def findings(outbound: Outbound) -> list[Finding]:
    """For `doctor`: who has held scans back for long, and rules that stand in another server's order."""
    schema = outbound.config.schema
    with reading(outbound.config) as connection:
        found = _horizon(connection)
        own = readers(connection, schema)
        if found is None or not own:
            return []
        strange = [reader for reader in own if _is_strange(connection, schema, reader, found.next)]
    long = [
        held(holder)
        for holder in found.holders[:1]
        if holder.age is None or holder.age > outbound.tick_interval
    ]
    return [*long, *map(_rebase, strange)]


def held(holder: OpenTransaction) -> Finding:
    """What is told of the transaction that holds scans back."""
    if holder.prepared is not None:
        name = holder.prepared.replace("'", "''")
        advice = f"COMMIT PREPARED or ROLLBACK PREPARED '{name}', in this database"
    else:
        advice = f"end it where it was begun, or on the server: SELECT pg_terminate_backend({holder.pid})"
    return Finding(
        kind="horizon_held",
        # Without the right to see its age, nothing says that it is long.
        severity="notice" if holder.age is None else "problem",
        rule=None,
        text=f"changes and messages that are newer than an open transaction wait for its end: {holder}",
        advice=advice,
    )


def _is_strange(connection: Connection, schema: Schema, reader: Reader, upper: int) -> bool:
    """Whether its cursor, or a row that it reads, bears an id that this server has not given out yet."""
    if reader.cursor is not None and reader.cursor[0] >= upper:
        return True
    table = getattr(schema, reader.table)
    name = table.c.entity if reader.table == "changes" else table.c.queue
    ahead = exists().where(name == reader.name, table.c.xid >= bindparam("upper", type_=XID))
    return bool(connection.execute(select(ahead), {"upper": upper}).scalar_one())


def _rebase(reader: Reader) -> Finding:
    return Finding(
        kind="needs_rebase",
        severity="problem",
        rule=reader.rule,
        text=(
            f"rule {reader.rule!r} stands in the order of another server: its cursor or rows of the table "
            f"{reader.table} bear transaction ids that this one has not reached, as after a dump and restore"
        ),
        advice=command("rebase"),
    )
