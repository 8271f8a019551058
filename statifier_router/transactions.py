"""Where a door's work runs: its own transaction, tried again on faults that another try mends; or
the one in force, bracketed by a savepoint.

Rules (20-delivery §2, §6):

- A door commits and retries only what it opened. In a borrowed transaction it leaves either its whole
  work behind or none of it, changes no setting, and never commits, closes or flushes.
- A transient fault inside a nested door travels as the database error it is, and dooms the
  transaction: the door that opened it starts again even where host code swallowed the error.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from attrs import define, field
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from statifier_router import ambient, dialect, migrations
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.dialect import Trouble, trouble_of
from statifier_router.errors import (
    ConfigError,
    DatabaseFault,
    DeliveryError,
    ExecutionBusy,
    IsolationConflict,
    ReentrantStep,
    SchemaError,
)

T = TypeVar("T")

log = logging.getLogger("statifier_router")

_WAIT = "_statifier_router_wait"

# Names come from here alone: nothing a caller supplies ever reaches a savepoint's name.
_savepoints = itertools.count(1)

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


@define
class Retries:
    """How often, and after which pauses (seconds), a whole transaction is tried again."""

    left: int
    jitter: Callable[[], float] = random.random
    _pause: float = field(default=FIRST_PAUSE, init=False)

    def pause_after(self, error: BaseException) -> float | None:
        """The pause before the next try; None where this fault is not retried, or none is left."""
        trouble = trouble_of(error)
        if trouble is None or trouble.kind != "retry" or self.left <= 0:
            return None
        self.left -= 1
        pause = self._pause * (0.5 + self.jitter())
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return pause


def run(
    config: Config,
    work: Callable[[Frame], T],
    *,
    connection: Any = None,
    savepoint: bool = False,
    pipelined: bool = False,
    binding_id: str | None = None,
) -> T:
    """Run `work` in the transaction in force, or in one of its own that is committed after it.

    `savepoint` brackets the work even in a transaction of its own; a joined one always is.
    `pipelined` work begins and ends its own transaction through `frame.pipe`.
    Transient faults come out as `ExecutionBusy`, `IsolationConflict` or `DatabaseFault`, except out
    of a nested door.
    """
    joined = joinable(config, connection)
    if isinstance(joined, Frame):
        return _nested(joined, work)
    if joined is not None:
        return _borrowed(config, joined, work, binding_id)
    minted: dict[tuple[str, ...], str] = {}
    first: dict[ambient.Place, Callable[[Frame], None]] = {}
    retries = Retries(config.retries)
    while True:
        try:
            return attempt(config, work, minted, first, savepoint=savepoint, pipelined=pipelined)
        except Exception as error:
            delay = retries.pause_after(error)
            if delay is None:
                raise_translated(config, error, binding_id)
        # No connection is held here.
        dialect.pause(config.writer, delay)


def joinable(config: Config, connection: Any) -> Frame | Connection | None:
    """What a call joins: the frame of an open delivery, a borrowed connection, or None for neither.

    Raises `ConfigError` for a connection that cannot carry a delivery, and for an asynchronous engine
    where nobody awaits it, before any statement.
    """
    dialect.check_bridged(config.writer)
    if connection is None:
        return ambient.in_force(config.writer)
    borrowed = connection_of(connection, config)
    frame = ambient.of_connection(borrowed)
    if frame is not None:
        return frame
    dialect.check_borrowed(borrowed)
    if borrowed.dialect.name != config.writer.dialect.name:
        raise ConfigError(
            f"connection is one to {borrowed.dialect.name}, the configuration's engine is one to "
            f"{config.writer.dialect.name}"
        )
    return borrowed


def connection_of(connection: Any, config: Config) -> Connection:
    """The SQLAlchemy connection of what a caller lent: itself, or a session's (never flushed)."""
    if isinstance(connection, Connection):
        return connection
    # Imported here: a host without the ORM does not pay for it.
    from sqlalchemy.exc import UnboundExecutionError
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, scoped_session):
        connection = connection()
    if not isinstance(connection, Session):
        raise ConfigError(
            f"connection must be a SQLAlchemy Connection or Session, not {type(connection).__name__}"
        )
    try:
        return connection.connection()
    except UnboundExecutionError:
        return connection.connection(bind_arguments={"bind": config.writer})


def attempt(
    config: Config,
    work: Callable[[Frame], T],
    minted: dict[tuple[str, ...], str],
    first: dict[ambient.Place, Callable[[Frame], None]],
    *,
    savepoint: bool = False,
    pipelined: bool = False,
) -> T:
    """One try: open a transaction, do the work, commit. Whatever is raised, nothing is left open."""
    waits = [first[place] for place in sorted(first)]
    with config.opener.connect() as connection:
        dialect.set_busy_timeout(connection, config.lock_timeout)
        try:
            pipelined = pipelined and not waits and not connection.dispatch.begin
            pipe = dialect.Pipe(connection) if pipelined else None
            if pipe is None:
                dialect.begin(connection)
            transaction = connection.begin()
            with ambient.entered(connection, minted, lock_timeout=config.lock_timeout) as frame:
                frame.pipe, frame.first = pipe, first
                try:
                    for wait in waits:
                        wait(frame)
                    answer = bracketed(frame, work) if savepoint else work(frame)
                    if frame.doomed is not None:
                        raise frame.doomed
                    _check_open(connection)
                    if pipe is not None:
                        pipe.close()
                except BaseException as error:
                    _undo(connection, transaction.rollback)
                    fault = error
                    if frame.doomed is not None and isinstance(error, Exception):
                        fault = frame.doomed
                    _note_wait(fault, frame)
                    if fault is error:
                        raise
                    raise fault from error
            transaction.commit()
            return answer
        finally:
            if not connection.invalidated:
                dialect.restore_busy_timeout(connection)


def _nested(frame: Frame, work: Callable[[Frame], T]) -> T:
    if frame.doomed is not None:
        # Nothing done from here on can be committed.
        raise frame.doomed
    try:
        return bracketed(frame, work)
    except Exception as error:
        if frame.doomed is not None:
            # Something between that fault and here put its own error in its place.
            raise frame.doomed from (None if frame.doomed is error else error)
        if travels(error):
            frame.doomed = error
        raise


def _borrowed(
    config: Config, connection: Connection, work: Callable[[Frame], T], binding_id: str | None
) -> T:
    with ambient.entered(connection, {}) as frame:
        try:
            return bracketed(frame, work, refuse_doomed=True)
        except Exception as error:
            fault = error if frame.doomed is None else frame.doomed
            _note_wait(fault, frame)
            raise_translated(config, fault, binding_id, borrowed=connection)


def bracketed(frame: Frame, work: Callable[[Frame], T], *, refuse_doomed: bool = False) -> T:
    """Do a door's work in a savepoint: all of it stays, or none where it raises."""
    queued = len(frame.queue)
    try:
        with _savepoint(frame.connection):
            answer = work(frame)
            if refuse_doomed and frame.doomed is not None:
                raise frame.doomed
            _check_open(frame.connection)
    except BaseException:
        # What was queued inside goes with it.
        del frame.queue[queued:]
        raise
    return answer


@contextmanager
def _savepoint(connection: Connection) -> Iterator[None]:
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

        _undo(connection, undo)
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
        _undo(connection, undo)
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


def _undo(connection: Connection, undo: Callable[[], None]) -> None:
    """Undo, without ever hiding the error being handled: a connection that cannot is given up."""
    if connection.invalidated or connection.closed:
        return
    try:
        undo()
    except BaseException as failure:
        connection.invalidate()
        if not isinstance(failure, Exception):
            # Nothing hides that this very undo was interrupted.
            raise


def _check_open(connection: Connection) -> None:
    """Refuse to go on over a transaction that the database has given up behind our back.

    SQLite ends a transaction by itself on some faults (a full disk), and host code could have
    ended one by hand; each further statement would then commit alone.
    """
    if not dialect.still_open(connection):
        raise DatabaseFault(None)


def refuse_ended(connection: Connection) -> None:
    """Raise where host code, which has just run, has left no transaction to go on in.

    It may have met and swallowed a fault on which SQLite rolls back by itself.
    """
    if dialect.has_ended(connection):
        raise DatabaseFault(None)


def _note_wait(error: BaseException, frame: Frame) -> None:
    """Keep on the error what was being waited for, or how to find out: the frame is about to end."""
    # An exception may refuse attributes; then the error is told without it.
    with suppress(AttributeError):
        if not hasattr(error, _WAIT):
            setattr(error, _WAIT, (frame.waiting_for, frame.suspect))


def _waited_for(config: Config, error: Exception, borrowed: Connection | None) -> str | None:
    """The execution whose lock was waited for in vain, None for a claim or an address."""
    wait: tuple[str | None, Callable[[Connection], str | None] | None]
    wait = getattr(error, _WAIT, (None, None))
    execution_id, suspect = wait
    if suspect is None:
        return execution_id
    try:
        if borrowed is not None:
            return suspect(borrowed)
        with config.writer.connect() as connection:
            return suspect(connection)
    except SQLAlchemyError:
        # Whatever befalls the asking, the wait that ran out is what the caller is told.
        return None


def raise_translated(
    config: Config,
    error: Exception,
    binding_id: str | None,
    *,
    borrowed: Connection | None = None,
) -> NoReturn:
    """Raise `error` as what the caller of an outermost door is told."""
    if isinstance(error, DeliveryError):
        if error.binding_id is None:
            error.binding_id = binding_id
        raise error
    trouble = trouble_of(error)
    if trouble is None:
        raise error
    if trouble.kind == "schema":
        _probe_schema(config, error, borrowed)
        raise error
    raise _told(config, error, trouble, binding_id, borrowed) from error


def _told(
    config: Config,
    error: Exception,
    trouble: Trouble,
    binding_id: str | None,
    borrowed: Connection | None,
) -> DeliveryError:
    if trouble.kind == "busy":
        waited_for = _waited_for(config, error, borrowed)
        return ExecutionBusy(waited_for, binding_id=binding_id)
    if borrowed is not None and dialect.is_serialization(error):
        return IsolationConflict(binding_id=binding_id)
    return DatabaseFault(trouble.sqlstate, binding_id=binding_id)


def _probe_schema(config: Config, error: Exception, borrowed: Connection | None) -> None:
    """Raise `SchemaError` where the tables are not what this version needs.

    A statement that met a missing table may also have been the host's own: the error alone does
    not tell.
    """
    try:
        if borrowed is not None:
            migrations.verify(borrowed, tables=config.tables)
            return
        with config.reader.connect() as connection:
            migrations.verify(connection, tables=config.tables)
    except SchemaError as fault:
        raise fault from error


@contextmanager
def reading(config: Config, connection: Any = None) -> Iterator[Connection]:
    """A connection to read on: the transaction in force, else one of its own that ends after.

    On a borrowed one a savepoint brackets the reading, so that its caller may go on after a fault.
    """
    joined = joinable(config, connection)
    if isinstance(joined, Frame):
        yield joined.connection
    elif joined is not None:
        with _told_reader(config, borrowed=joined), _savepoint(joined):
            yield joined
    else:
        with _told_reader(config), config.reader.connect() as own:
            yield own


@contextmanager
def _told_reader(config: Config, *, borrowed: Connection | None = None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise_translated(config, error, None, borrowed=borrowed)


def refuse_open_step(frame: Frame, execution_id: str) -> None:
    """Raise `ReentrantStep` where the execution's own step is open in this transaction."""
    if execution_id in frame.stepping:
        raise ReentrantStep(execution_id)


def around(config: Config, scope: str, door: str, work: Callable[[], T]) -> T:
    """Run a whole door inside the host's `around_delivery`, holding it to its contract."""
    if config.around_delivery is None:
        return work()
    calls = 0
    answers: list[T] = []

    def once() -> T:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise ConfigError("around_delivery called work a second time; call it exactly once")
        answers.append(work())
        return answers[0]

    answer = config.around_delivery(scope, door, once)
    if calls == 0:
        raise ConfigError("around_delivery did not call work; call it exactly once")
    if not answers:
        raise ConfigError("around_delivery swallowed what work raised; let it through")
    if answer is not answers[0]:
        raise ConfigError("around_delivery must answer what work answered")
    return answers[0]
