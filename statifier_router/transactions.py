"""Where a door's work runs: its own transaction, tried again on faults that another try mends; or
the one in force, bracketed by a savepoint.

Rules (20-delivery §2, §6):

- A door commits and retries only what it opened. In a borrowed transaction it leaves either its whole
  work behind or none of it, changes no setting, and never commits, closes or flushes.
- A transient fault inside a nested door travels as the database error it is, and dooms the
  transaction: the door that opened it starts again even where host code swallowed the error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from attrs import define, field
from sqlalchemy import Connection

from statifier_router import ambient, dialect, savepoints
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.dialect import trouble_of
from statifier_router.errors import ConfigError, DatabaseFault, ReentrantStep
from statifier_router.savepoints import bracketed, travels, undo_or_give_up
from statifier_router.telling import note_wait, raise_translated

T = TypeVar("T")

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
    retries: Retries | None = None
    while True:
        try:
            return attempt(config, work, minted, first, savepoint=savepoint, pipelined=pipelined)
        except Exception as error:
            if retries is None:
                retries = Retries(config.retries)
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
    waits = [first[place] for place in sorted(first)] if first else ()
    held = dialect.Held(config.opener)
    try:
        held.take()
        if held.is_sqlite:
            dialect.set_busy_timeout(held, config.lock_timeout)
        try:
            pipe = dialect.Pipe(held) if pipelined and not waits and not held.told_of_begin else None
            held.begin(sent=pipe is not None)
            frame = ambient.enter(held, minted, first, config.lock_timeout)
            frame.pipe = pipe
            try:
                for wait in waits:
                    wait(frame)
                answer = bracketed(frame, work) if savepoint else work(frame)
                if frame.doomed is not None:
                    raise frame.doomed
                if not held.is_open():
                    raise DatabaseFault(None)
                if pipe is not None:
                    pipe.close()
            except BaseException as error:
                undo_or_give_up(held, held.rollback)
                fault = error
                if frame.doomed is not None and isinstance(error, Exception):
                    fault = frame.doomed
                note_wait(fault, frame)
                if fault is error:
                    raise
                raise fault from error
            finally:
                ambient.leave(frame)
            held.commit()
            return answer
        finally:
            if held.is_sqlite and not held.invalidated:
                dialect.restore_busy_timeout(held)
    finally:
        held.close()


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
            note_wait(fault, frame)
            raise_translated(config, fault, binding_id, borrowed=connection)


@contextmanager
def reading(config: Config, connection: Any = None) -> Iterator[Connection]:
    """A connection to read on: the transaction in force, else one of its own that ends after.

    On a borrowed one a savepoint brackets the reading, so that its caller may go on after a fault.
    """
    joined = joinable(config, connection)
    if isinstance(joined, Frame):
        yield joined.connection
    elif joined is not None:
        with _told_reader(config, borrowed=joined), savepoints.savepoint(joined):
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
