"""Seeing on the server that one transaction waits for another."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, text

POLLS = 1000


class NotBlocked(AssertionError):
    """The transaction that should wait does not."""


def backend_pid(connection: Connection) -> int:
    """The server's process behind a connection."""
    return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def wait_until_blocked(engine: Engine, pid: int, *, by: int | None = None, polls: int = POLLS) -> list[int]:
    """Return once backend `pid` waits for a lock (of backend `by`, where given); answers who blocks it.

    Looks `polls` times, ten milliseconds apart, on one connection of `engine`; then raises `NotBlocked`
    with what `pid` was doing instead.
    """
    blockers = text("SELECT pg_blocking_pids(:pid)")
    found: list[int] = []
    with engine.connect() as connection:
        for _ in range(polls):
            found = connection.execute(blockers, {"pid": pid}).scalar_one()
            if found and (by is None or by in found):
                return found
            connection.execute(text("SELECT pg_sleep(0.01)"))
        doing = connection.execute(
            text("SELECT state, wait_event_type, query FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}
        ).one_or_none()
    raise NotBlocked(f"backend {pid} is blocked by {found}, not by {by or 'anyone'}; it is {doing}")


def wait_until_one_is_blocked(engine: Engine, *, by: int, count: int = 1, polls: int = POLLS) -> list[int]:
    """Return once `count` backends wait for backend `by`; for those whose pid is not known."""
    waiting = text("SELECT pid FROM pg_stat_activity WHERE :by = ANY (pg_blocking_pids(pid)) ORDER BY pid")
    found: list[int] = []
    # Within one transaction the list of backends stays what it was at the first look.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(polls):
            found = list(connection.scalars(waiting, {"by": by}))
            if len(found) >= count:
                return found
            connection.execute(text("SELECT pg_sleep(0.01)"))
    raise NotBlocked(f"{len(found)} of {count} backends wait for backend {by}")
