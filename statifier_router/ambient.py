"""The transaction in force: which delivery is running here, and which executions are mid-step.

A context variable is copied into tasks and threads that a delivery starts. A frame therefore knows
the thread and task it belongs to, and whether it is still open, so that none of them ever writes
into a transaction that is not its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from statifier_router.dialect import Held, Link, Pipe, in_full

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

# Scope, document and key.
Place = tuple[str, str, str]
Home = tuple[int, "asyncio.Task[Any] | None"]

_frames: ContextVar[Frame | None] = ContextVar("statifier_router_frames", default=None)
_route: ContextVar[tuple[str, Home] | None] = ContextVar("statifier_router_route", default=None)


def _here() -> tuple[int, asyncio.Task[Any] | None]:
    """This thread, and this task where an event loop runs in it."""
    # The usual question raises where no loop runs, which is nearly everywhere.
    loop = asyncio._get_running_loop()  # noqa: SLF001 - documented, in spite of its name
    return threading.get_ident(), None if loop is None else asyncio.current_task(loop)


@define(eq=False)
class Frame:
    """One transaction that a door works in, while it does.

    Attributes:
        link: where every statement of the delivery goes: a caller's connection, or what the library holds
            of the pool.
        minted: ids that an earlier attempt at the same delivery minted, by what they were for.
        doomed: the transient fault that a nested door met. Whoever swallows it, the transaction
            cannot be committed any more: the door that opened it starts again.
        lock_timeout: bounds each wait for a lock in a transaction that the library opened; None in a
            borrowed one, whose settings are its caller's.
        stepping: the executions whose step is open, and where each of them is addressed.
        queue: sends to executions whose step is open; the outermost door delivers them before the
            commit. `hops` counts those that it delivered.
        pipe: the transaction's own in pipelined mode, None in the ordinary one.
        first: what another attempt at the same work does before anything else, by place: it waits for
            the neighbours that this one sends to. Attempts share it, as they share `minted`.
        depth: how many doors are open in this transaction.
        waiting_for: the execution whose row lock is being waited for, for the error's sake.
        suspect: while one statement may wait for several things: finds out which execution is held,
            once the wait has run out and was undone.
        on_join: called before anything joins this transaction, while what a batch has made of its
            executions stands in memory alone; it raises.
        token: what `leave` puts back.
    """

    link: Link
    parent: Frame | None
    minted: dict[tuple[str, ...], str]
    first: dict[Place, Callable[[Frame], None]]
    lock_timeout: timedelta | None
    doomed: Exception | None = None
    stepping: dict[str, Place] = field(factory=dict)
    queue: list[Any] = field(factory=list)
    hops: int = 0
    pipe: Pipe | None = None
    depth: int = 0
    waiting_for: str | None = None
    suspect: Callable[[Connection], str | None] | None = None
    on_join: Callable[[], None] | None = None
    open: bool = True
    token: Token[Frame | None] | None = None
    _home: tuple[int, asyncio.Task[Any] | None] = field(factory=_here)

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's connection of this transaction; made when it is first asked for."""
        return in_full(self.link)

    def is_of(self, connection: Connection) -> bool:
        """Whether it works on this very connection."""
        link = self.link
        return link.is_made(connection) if isinstance(link, Held) else link is connection

    def flush(self) -> None:
        """Let what a pipelined delivery kept for its last trip go now: more statements follow."""
        if self.pipe is not None:
            self.pipe.flush()

    def is_here(self) -> bool:
        """Whether this thread and task are the frame's own, and its transaction still runs."""
        return self.open and self._home == _here()

    def joined(self) -> Frame:
        """The frame, for whoever is about to work in it."""
        if self.on_join is not None:
            self.on_join()
        return self


def in_force(engine: Engine) -> Frame | None:
    """The innermost open frame of this thread and task on this engine's database, or None."""
    frame = _frames.get()
    while frame is not None:
        if frame.is_here() and frame.link.engine.pool is engine.pool:
            return frame.joined()
        frame = frame.parent
    return None


def on_database(engine: Engine) -> Frame | None:
    """As `in_force`, whatever engine the frame's connection comes from: a host may lend one of its own.

    For reading what no delivery keeps in memory: nothing is told of the joining.
    """
    frame = _frames.get()
    while frame is not None:
        if frame.is_here() and _same_database(frame.link.engine, engine):
            return frame
        frame = frame.parent
    return None


def _same_database(one: Engine, other: Engine) -> bool:
    return one.pool is other.pool or _named(one) == _named(other)


def _named(engine: Engine) -> tuple[object, ...]:
    url = engine.url
    kind = url.get_backend_name()
    database = str(Path(url.database or "").absolute()) if kind == "sqlite" else url.database
    return kind, url.host, url.port, database, url.query


def any_here() -> bool:
    """Whether a delivery, on whatever database, is running in this thread and task."""
    frame = _frames.get()
    while frame is not None:
        if frame.is_here():
            return True
        frame = frame.parent
    return False


def of_connection(connection: Connection) -> Frame | None:
    """The open frame that already works on this very connection, or None."""
    frame = _frames.get()
    while frame is not None:
        if frame.is_here() and frame.is_of(connection):
            return frame.joined()
        frame = frame.parent
    return None


def enter(
    link: Link,
    minted: dict[tuple[str, ...], str],
    first: dict[Place, Callable[[Frame], None]] | None = None,
    lock_timeout: timedelta | None = None,
) -> Frame:
    """Make the transaction of `link` the one in force, until `leave`."""
    frame = Frame(link, _frames.get(), minted, {} if first is None else first, lock_timeout)
    frame.token = _frames.set(frame)
    return frame


def leave(frame: Frame) -> None:
    """End what `enter` began."""
    frame.open = False
    if frame.token is not None:
        _frames.reset(frame.token)


class entered:  # noqa: N801 - it is used as a function is; a generator costs three times as much
    """Make the transaction of `link` the one in force for the block."""

    __slots__ = ("_frame", "_link", "_minted")

    def __init__(self, link: Link, minted: dict[tuple[str, ...], str]) -> None:
        self._link, self._minted = link, minted

    def __enter__(self) -> Frame:
        self._frame = enter(self._link, self._minted)
        return self._frame

    def __exit__(self, *_: object) -> None:
        leave(self._frame)


class stepping:  # noqa: N801 - as above
    """Mark the execution's step as open for the block."""

    __slots__ = ("_execution_id", "_frame", "_place")

    def __init__(self, frame: Frame, execution_id: str, place: Place) -> None:
        self._frame, self._execution_id, self._place = frame, execution_id, place

    def __enter__(self) -> None:
        self._frame.stepping[self._execution_id] = self._place

    def __exit__(self, *_: object) -> None:
        self._frame.stepping.pop(self._execution_id, None)


@contextmanager
def running_route(execution_id: str) -> Iterator[None]:
    """Mark that a host's route runs for this execution, here, for the block."""
    token = _route.set((execution_id, _here()))
    try:
        yield
    finally:
        _route.reset(token)


def route_running() -> str | None:
    """The execution for which a route runs in this thread and task, or None."""
    mark = _route.get()
    return mark[0] if mark is not None and mark[1] == _here() else None
