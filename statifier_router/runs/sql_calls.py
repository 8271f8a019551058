"""One transaction at a target that is a database: within its time, and every error is a fault, or told."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from attrs import define, field
from sqlalchemy import Connection, Engine, func, select, true
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from statifier_router import dialect
from statifier_router.errors import ConfigError
from statifier_router.refusals import one_line
from statifier_router.runs.faults import RecordFault, Rejected, TimedOut, Unavailable
from statifier_router.runs.scrubbing import scrubbed

T = TypeVar("T")
Phase = Literal["connecting", "working", "committing"]

_SAID: Final = 500
# Of the time for a call: what the server may take for a statement. It gives up first, and says so.
_SHARE: Final = 0.75
# Of SQLSTATE, the first two characters: a value, a constraint, a limit or a trigger refuses this record.
_REJECTING: Final = frozenset({"22", "23", "44", "54", "P0"})
# A value of a type that its column cannot take.
_MISFIT: Final = frozenset({"42804", "42846"})
# Statement cancelled by its timeout, lock not to be had in time: rolled back, so nothing is in doubt.
_LATE: Final = frozenset({"57014", "55P03"})
# Rolled back as a whole, or a server that takes no work now: connection, transaction, resources, operator.
_AWAY: Final = frozenset({"08", "25", "40", "53", "57", "58", "XX"})
_SQLITE_LATE: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE_AWAY: Final = frozenset(
    {
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
    }
)
_SQLITE_REJECTING: Final = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG}
)


class _Abandoned(Exception):
    """Nobody waits for this call any more."""


@define
class _Progress:
    """How far a call came, and whether it is still waited for."""

    phase: Phase = "connecting"
    connection: Connection | None = None
    abandoned: bool = False
    lock: threading.Lock = field(factory=threading.Lock)

    def connected(self, connection: Connection) -> None:
        """Go on to work, unless the call is over."""
        with self.lock:
            if self.abandoned:
                raise _Abandoned
            self.connection, self.phase = connection, "working"

    def abandon(self) -> Connection | None:
        """End the call; its connection, where it has one."""
        with self.lock:
            self.abandoned = True
            return self.connection


def transact(engine: Engine, work: Callable[[Connection], T], timeout: timedelta) -> T:
    """What `work` answers in a transaction of its own at the target, committed.

    Raises `Rejected`, `Unavailable` and `TimedOut`, and `ConfigError` for what any record would meet: a
    missing table, a missing privilege. Errors of the driver are not chained: they quote the payload.
    """
    progress = _Progress()
    if dialect.kind(engine) == "sqlite":
        return _guarded(engine, work, timeout, progress)
    return _bounded(lambda: _guarded(engine, work, timeout, progress), timeout, progress)


def _guarded(engine: Engine, work: Callable[[Connection], T], timeout: timedelta, progress: _Progress) -> T:
    try:
        return _transacted(engine, work, timeout, progress)
    except PoolTimeout:
        raise Unavailable("no connection to the target's database was free") from None
    except StatementError as error:
        raise _fault_of(error, progress.phase) from None
    except (OverflowError, ValueError) as error:
        # A driver refuses some values on its own account, with errors of Python's.
        raise Rejected(one_line(scrubbed(error), _SAID)) from None


def _transacted(
    engine: Engine, work: Callable[[Connection], T], timeout: timedelta, progress: _Progress
) -> T:
    with engine.connect() as connection:
        progress.connected(connection)
        dialect.set_busy_timeout(connection, timeout)
        try:
            with connection.begin():
                if dialect.kind(connection) == "postgresql":
                    connection.execute(_time_limit(timeout * _SHARE))
                answer = work(connection)
                progress.phase = "committing"
        finally:
            if progress.abandoned:
                # Its socket was shut down: it is of no use to the pool.
                connection.invalidate()
            dialect.restore_busy_timeout(connection)
        return answer


def _time_limit(timeout: timedelta) -> Any:
    """Has the server give up each later statement of this transaction, waits for locks included."""
    milliseconds = min(max(timeout // timedelta(milliseconds=1), 1), 2**31 - 1)
    return select(func.set_config("statement_timeout", str(milliseconds), true()))


def _bounded(work: Callable[[], T], timeout: timedelta, progress: _Progress) -> T:
    """What `work` answers in a thread; where it is late, its connection is broken and it is left alone.

    A driver waits for a server that says nothing as long as the system does.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="statifier_router SqlWriter")
    thread.start()
    thread.join(timeout.total_seconds())
    if thread.is_alive():
        connection = progress.abandon()
        if connection is None:
            raise Unavailable("no connection to the target's database in time")
        _break_off(connection)
        raise TimedOut("the target's database did not answer in time")
    if errors:
        raise errors[0]
    return answers[0]


def _break_off(connection: Connection) -> None:
    """Shut the connection's socket down, so that nothing is sent over it any more."""
    # Whatever fails here: the thread is left alone all the same.
    with suppress(Exception):
        opened: Any = connection.connection.dbapi_connection
        with socket.socket(fileno=os.dup(opened.fileno())) as shared:
            shared.shutdown(socket.SHUT_RDWR)


def _fault_of(error: StatementError, phase: Phase) -> Exception:
    origin = error.orig
    said = one_line(scrubbed(origin if origin is not None else error), _SAID)
    if not isinstance(error, DBAPIError):
        # The value does not fit its column's type: nothing was sent.
        return Rejected(said)
    state = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
    code = getattr(origin, "sqlite_errorcode", None)
    if isinstance(state, str):
        return _of_state(state, said, phase)
    if isinstance(code, int):
        return _of_sqlite(code & 0xFF, said, phase)
    lost = error.connection_invalidated or isinstance(error, (InterfaceError, OperationalError))
    if phase == "connecting" or lost:
        return _away(said, phase)
    # The driver itself refused the value.
    return Rejected(said)


def _of_state(state: str, said: str, phase: Phase) -> Exception:
    if state in _LATE:
        return TimedOut(said, in_doubt=False)
    if state[:2] in _REJECTING or state in _MISFIT:
        return Rejected(said)
    if phase == "connecting" or state[:2] in _AWAY:
        # A deadlock or a serialization failure has rolled back, whenever it is told.
        return _away(said, "working" if state.startswith("40") else phase)
    return ConfigError(f"the target's database: {said}")


def _of_sqlite(code: int, said: str, phase: Phase) -> Exception:
    if code in _SQLITE_LATE:
        return TimedOut(said, in_doubt=False)
    if code in _SQLITE_REJECTING:
        return Rejected(said)
    if code in _SQLITE_AWAY:
        return _away(said, phase)
    return ConfigError(f"the target's database: {said}")


def _away(said: str, phase: Phase) -> RecordFault:
    return Unavailable(said, in_doubt=phase == "committing")
