"""Savepoints: the work of a door that joined a transaction stays whole, or leaves nothing."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection

from statifier_router import dialect
from statifier_router.ambient import Frame
from statifier_router.dialect import Link, trouble_of
from statifier_router.errors import DatabaseFault, DeliveryError

T = TypeVar("T")

log = logging.getLogger("statifier_router")

# Names come from here alone: nothing a caller supplies ever reaches a savepoint's name.
_savepoints = itertools.count(1)


def bracketed(frame: Frame, work: Callable[[Frame], T], *, refuse_doomed: bool = False) -> T:
    """Do a door's work in a savepoint: all of it stays, or none where it raises."""
    queued = len(frame.queue)
    try:
        with savepoint(frame.connection):
            answer = work(frame)
            if refuse_doomed and frame.doomed is not None:
                raise frame.doomed
            check_open(frame.link)
    except BaseException:
        # What was queued inside goes with it.
        del frame.queue[queued:]
        raise
    return answer


def pipelined(frame: Frame, work: Callable[[Frame], T]) -> T:
    """As `bracketed`, but the savepoint travels with the first statement, its release with the last.

    For a frame of which `dialect.pipes` says that it can be done, and whose transaction is the library's.
    """
    connection, queued = frame.link, len(frame.queue)
    name = f"sr_delivery_{next(_savepoints)}"
    pipe = dialect.Pipe(connection, f"SAVEPOINT {name}".encode(), f"RELEASE SAVEPOINT {name}".encode())
    frame.pipe = pipe

    def undo() -> None:
        frame.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")
        frame.connection.exec_driver_sql(f"RELEASE SAVEPOINT {name}")

    try:
        answer = work(frame)
        if frame.doomed is not None:
            raise frame.doomed
        check_open(connection)
        pipe.end()
    except BaseException:
        del frame.queue[queued:]
        if pipe.begun:
            undo_or_give_up(connection, undo)
        raise
    finally:
        frame.pipe = None
    return answer


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Keep what the block did where it ends well; undo it, and only it, where it raises."""
    name = f"sr_delivery_{next(_savepoints)}"
    connection.exec_driver_sql(f"SAVEPOINT {name}")
    try:
        yield
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {name}")
    except BaseException:

        def undo() -> None:
            connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {name}")

        undo_or_give_up(connection, undo)
        raise


def travels(error: BaseException) -> bool:
    """Whether this is a transient fault, which nothing inside a delivery may settle."""
    if isinstance(error, DeliveryError):
        return error.fault == "transient" and error.retryable
    trouble = trouble_of(error)
    return trouble is not None and trouble.kind in ("retry", "busy")


def in_own_savepoint(
    frame: Frame, work: Callable[[], T], *, undo_when: Callable[[T], bool] | None = None
) -> T:
    """Do `work` in a savepoint, which is undone where it raises, or where its answer says so.

    An error that `work` met in the database and swallowed undoes what it wrote, and nothing else.
    """
    connection = frame.connection
    name = f"sr_delivery_{next(_savepoints)}"
    connection.exec_driver_sql(f"SAVEPOINT {name}")
    queued = len(frame.queue)

    def undo() -> None:
        del frame.queue[queued:]
        connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {name}")

    try:
        answer = work()
    except BaseException:
        undo_or_give_up(connection, undo)
        raise
    if (undo_when is not None and undo_when(answer)) or not dialect.still_open(connection):
        undo()
    else:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {name}")
    return answer


def guarded(frame: Frame, work: Callable[[], None]) -> None:
    """Do `work` so that no failure of it harms the delivery; a transient fault travels all the same."""
    try:
        in_own_savepoint(frame, work)
    except Exception as error:
        if travels(error):
            raise
        log.warning("side row not written", exc_info=error)


def undo_or_give_up(link: Link, undo: Callable[[], None]) -> None:
    """Undo, without ever hiding the error being handled: a connection that cannot is given up."""
    if link.invalidated or link.closed:
        return
    try:
        undo()
    except BaseException as failure:
        link.invalidate()
        if not isinstance(failure, Exception):
            # Nothing hides that this very undo was interrupted.
            raise


def check_open(link: Link) -> None:
    """Refuse to go on over a transaction that the database has given up behind our back.

    SQLite ends a transaction by itself on some faults (a full disk), and host code could have
    ended one by hand; each further statement would then commit alone.
    """
    if not dialect.still_open(link):
        raise DatabaseFault(None)


def refuse_ended(link: Link) -> None:
    """Raise where host code, which has just run, has left no transaction to go on in.

    It may have met and swallowed a fault on which SQLite rolls back by itself.
    """
    if link.is_over() if isinstance(link, dialect.Held) else dialect.has_ended(link):
        raise DatabaseFault(None)
