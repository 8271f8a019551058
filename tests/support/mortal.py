"""A process that may die between any two statements or around any call, played in the process of the test.

It has an engine, a configuration and an `Outbound` of its own. Where it dies, `Death` is raised, and from
then on each statement that it tries raises it again: whatever would tidy up does not come to it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import attrs
import psycopg
from sqlalchemy import event

from statifier_router.runs import Changes, Created, Outbound, WriterTraits
from statifier_router.testing.targets import VERBS

if TYPE_CHECKING:
    from statifier_router.runs import Record, Rule, WriteContext
    from statifier_router.testing.targets import ScriptedTarget

Moment = Literal["scan", "before", "after"]
Watch = Callable[["Process", str, "WriteContext"], None]


class Death(BaseException):
    """The process is killed here."""


@attrs.define
class Freeze:
    """At the `left`-th moment of this kind the process stands still, and others act meanwhile."""

    moment: Moment
    left: int
    act: Callable[[], None]


class Process:
    """One process. `dies_in` points from now it dies: each statement, commit and side of a call is one."""

    def __init__(self, name: str, make_config: Any, database: Any, target: ScriptedTarget, **kw: Any) -> None:
        self.name = name
        self.target = target
        engine = database.engine(connect_args=_under_watch(database.kind, self))
        self.config = make_config(database, engine=engine, **kw)
        self.writer = Line(self)
        self.source = Watched(self)
        self.watch: Watch | None = None
        self.dies_in: int | None = None
        self.dead = False
        self.freeze: Freeze | None = None
        # What stood in the tables when it thawed, where another one had taken its rule by then.
        self.thawed_over: Any = None
        # Numbers of requests: whose answers came when it had lost its rule, and that reached the target then.
        self.unheard: set[int] = set()
        self.late: set[int] = set()
        self.lives = 0
        self.outbound: Outbound
        event.listen(engine, "commit", self.point)

    def begin(self, rule: Rule, *, verbs: Sequence[str], traits: WriterTraits, health: Any) -> None:
        """Begin, or begin again after a death, with this code."""
        self.config.engine.dispose()
        self.dies_in, self.dead, self.freeze = None, False, None
        self.lives += 1
        self.writer.has(VERBS)
        self.outbound = Outbound(
            self.config,
            writers={rule.driver: self.writer},
            health=health,
            lease=timedelta(seconds=90),
            rules=[attrs.evolve(rule, source=self.source)],
            owner=f"{self.name}:{self.lives}",
        )
        assert not self.outbound.save_unsaved()
        # A verb that goes away later is met by a run, no more by the saving of the rule.
        self.writer.has(verbs)
        self.writer.traits = traits

    def point(self, *_: object) -> None:
        """Die here, where it is time to, or go on."""
        if self.dies_in == 0:
            self.dead = True
        if self.dead:
            raise Death
        if self.dies_in is not None:
            self.dies_in -= 1

    def at(self, moment: Moment) -> None:
        """Stand still here, where that was asked for."""
        freeze = self.freeze
        if freeze is None or freeze.moment != moment:
            return
        if freeze.left:
            freeze.left -= 1
            return
        self.freeze = None
        freeze.act()

    def no_transaction(self) -> bool:
        """Whether every connection of it is back in its pool."""
        pool: Any = self.config.engine.pool
        return bool(pool.checkedout() == 0)


def _under_watch(kind: str, process: Process) -> dict[str, Any]:
    """Arguments for a driver whose every statement is a point; the library passes SQLAlchemy with some."""
    if kind == "sqlite":

        class Cursor(sqlite3.Cursor):
            def execute(self, *arguments: Any) -> Any:
                process.point()
                return super().execute(*arguments)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

        return {"factory": Connection}

    class PostgreSQLCursor(psycopg.Cursor[Any]):
        def execute(self, *arguments: Any, **kw: Any) -> Any:
            process.point()
            return super().execute(*arguments, **kw)

    return {"cursor_factory": PostgreSQLCursor}


class Watched:
    """The changes of parcels, as this process reads them."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.inner = Changes("parcel")
        self.identity = self.inner.identity

    def scan(self, connection: Any, after: Any, limit: int) -> Sequence[Record]:
        found = self.inner.scan(connection, after, limit)
        self.process.at("scan")
        return found

    def load(self, connection: Any, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        return self.inner.load(connection, source_ids)

    def held_back(self, connection: Any, record: Record) -> str | None:
        return self.inner.held_back(connection, record)


class Line:
    """The writer of a process: its line to the target."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.traits = WriterTraits()

    def has(self, verbs: Sequence[str]) -> None:
        """Have these verbs and no others."""
        for verb in VERBS:
            self.__dict__.pop(verb, None)
            if verb not in verbs:
                setattr(self, verb, None)

    def create(self, payload: Any, context: WriteContext) -> Created:
        return Created(self._call("create", context, payload=payload))

    def update(self, remote_id: str, payload: Any, context: WriteContext) -> None:
        self._call("update", context, remote_id=remote_id, payload=payload)

    def delete(self, remote_id: str, context: WriteContext) -> None:
        self._call("delete", context, remote_id=remote_id)

    def ping(self, timeout: timedelta) -> None:
        self._call("ping", None)

    def lookup(self, context: WriteContext) -> Created | None:
        found = self._call("lookup", context)
        return None if found is None else Created(found)

    def _call(self, verb: str, context: Any, **kw: Any) -> Any:
        process = self.process
        process.point()
        if process.watch is not None:
            process.watch(process, verb, context)
        process.at("before")
        answer, fault = None, None
        is_late = process.thawed_over is not None
        try:
            answer = process.target.call(verb, context, **kw)
        except Exception as error:
            fault = error
        number = process.target.requests[-1].number
        if is_late:
            process.late.add(number)
        process.at("after")
        if process.thawed_over is not None:
            process.unheard.add(number)
        process.point()
        if fault is not None:
            raise fault
        return answer
