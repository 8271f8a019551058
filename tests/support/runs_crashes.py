"""A process killed at every statement and around every call of a chain; others go on, and all is compared.

On PostgreSQL the proxy kills, and on SQLite the trace callback, as in `crashes`. Around a call the depot
kills: before the target has taken it, and after that, while the process has not heard. The proxy can also
cut the connection alone, and the process lives on.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from typing import Any, Literal

import attrs

from tests.support import crashes
from tests.support import runs_workers as workers
from tests.support.databases import Database
from tests.support.depot import Arrived, Depot
from tests.support.depot import Verdict as CallVerdict
from tests.support.forks import Forks
from tests.support.proxy import Proxy, Verdict
from tests.support.runs_world import START, Way, World

Moment = Literal["before", "after", "answered"]


@attrs.frozen
class Tried:
    """One point at which a process was killed, and what was wrong after the others had come to rest."""

    number: int
    moment: Moment
    what: str
    way: Way
    problems: list[str]

    def __str__(self) -> str:
        one_line = " ".join(self.what.split())
        return f"{self.number:3} {self.moment:8} {one_line:50.50} {self.way:5} {self.problems or 'clean'}"


@attrs.frozen
class Report:
    """All points of one variant. `counted` is how many statements and calls there are, by another count."""

    variant: str
    counted: int
    calls: int
    tried: list[Tried]

    @property
    def points(self) -> int:
        """How many statements and calls a process was killed at."""
        return len({each.number for each in self.tried if each.moment != "answered"})

    @property
    def wrong(self) -> list[Tried]:
        """Those after which something was wrong."""
        return [each for each in self.tried if each.problems]

    def __str__(self) -> str:
        kills = len(self.tried)
        return (
            f"chain, {self.variant}: {self.counted} statements and calls ({self.calls} calls), {self.points} "
            f"points, {kills} kills, {kills - len(self.wrong)} clean"
        )


@attrs.frozen
class Point:
    """A statement or a call of the chain that nobody kills."""

    number: int
    what: str
    is_call: bool


# --- killing --------------------------------------------------------------------------------------------


@attrs.define
class _Killer:
    """Numbers the statements between the marks, and the calls, and kills at one of them."""

    at: int | None = None
    moment: Moment = "before"
    seen: list[Point] = attrs.field(factory=list)
    # Else the connection is cut, and the process lives on.
    kills: bool = True
    _pid: int | None = None

    def on_statement(self, n: int, sql: str) -> Verdict:
        """For the proxy."""
        del n
        if sql.startswith("SELECT 'begin "):
            self._pid = int(re.sub(r"\D", "", sql))
            return "forward"
        if self._pid is None:
            return "forward"
        if sql == "SELECT 'end'":
            return self._kill("cut") if self.moment == "answered" else "forward"
        return self._met(sql, is_call=False)

    def on_call(self, call: Arrived) -> CallVerdict:
        """For the depot."""
        self._pid = call.pid
        if call.number:
            # The process numbers its statements itself.
            self.seen.extend(Point(0, "", False) for _ in range(call.number - len(self.seen) - 1))
        return self._met(str(call), is_call=True)

    def _met(self, what: str, *, is_call: bool) -> Verdict:
        self.seen.append(Point(len(self.seen) + 1, what, is_call))
        if len(self.seen) != self.at or self.moment == "answered":
            return "forward"
        return self._kill("cut" if self.moment == "before" else "cut_after")

    def _kill(self, verdict: Verdict) -> Verdict:
        assert self._pid is not None
        if self.kills:
            os.kill(self._pid, signal.SIGKILL)
        return verdict


def kill_at_every_point(database: Database, variant: str, forks: Forks, *, thorough: bool = False) -> Report:
    """Kill a process before each statement, after each commit, and on both sides of each call.

    Where keys are not honoured, around calls alone: nothing else can tell the difference. `thorough`: at
    every point of every variant, on both sides, and with both ways to go on; else the ways take turns.
    """
    world = World.made(database, variant)
    try:
        points, counted = (_wire if database.kind == "postgresql" else _traced)(world, forks)
        everywhere = thorough or world.keyed
        tried = [
            _try(world, forks, point, moment, way)
            for point in points
            for moment in _moments(database, point, everywhere=everywhere, thorough=thorough)
            for way in _ways(point, moment, thorough=thorough)
        ]
        last = attrs.evolve(points[-1], number=len(points) + (database.kind == "sqlite"), what="(the end)")
        tried.append(_try(world, forks, last, "answered", "tick"))
        calls = sum(point.is_call for point in points)
        return Report(variant, counted if everywhere else calls, calls, tried)
    finally:
        world.config.engine.dispose()


def _moments(database: Database, point: Point, *, everywhere: bool, thorough: bool) -> list[Moment]:
    if point.is_call:
        return ["before", "after"]
    if not everywhere:
        return []
    # What is not committed is as good as not run. On SQLite, the next point is the other side of this one.
    both = database.kind == "postgresql" and (thorough or point.what == "COMMIT")
    return ["before", "after"] if both else ["before"]


def _ways(point: Point, moment: Moment, *, thorough: bool) -> list[Way]:
    if thorough:
        return ["tick", "again"]
    return ["again" if (point.number + (moment == "after")) % 2 else "tick"]


def _wire(world: World, forks: Forks) -> tuple[list[Point], int]:
    """What a chain does that nobody kills: on the wire, and as server and target count it."""
    _warm(world, forks, f"{workers.__name__}:run_between_marks")
    target, killer = world.restored(), _Killer()
    with crashes.logging_statements(world.database) as logged, Depot(target, killer.on_call) as depot:
        with Proxy(world.database.url, killer.on_statement) as proxy:
            ended = forks.run(f"{workers.__name__}:run_between_marks", *_arguments(world, proxy.url, depot))
        statements = logged()
    assert ended.result == "COMPLETED", ended
    counted = sum(not point.is_call for point in killer.seen) if statements is None else statements
    return killer.seen, counted + len(depot.arrived)


def _traced(world: World, forks: Forks) -> tuple[list[Point], int]:
    """The same on SQLite, as its trace counts it, and the target."""
    _warm(world, forks, f"{workers.__name__}:run_traced", None)
    with Depot(world.restored()) as depot:
        arguments = _arguments(world, world.database.url, depot)
        ended = forks.run(f"{workers.__name__}:run_traced", *arguments, None)
    assert ended.result is not None, ended
    calls = iter(depot.arrived)
    points = [
        Point(number, str(next(calls)) if sql is None else sql, sql is None)
        for number, sql in enumerate(ended.result, start=1)
    ]
    return points, sum(not point.is_call for point in points) + len(depot.arrived)


def _warm(world: World, forks: Forks, function: str, *more: Any) -> None:
    with Depot(world.restored()) as depot:
        forks.warm(function, *_arguments(world, world.database.url, depot), *more)


def _arguments(world: World, url: str, depot: Depot) -> tuple[Any, ...]:
    if world.database.kind == "postgresql":
        url = crashes.named(url)
    return url, depot.port, START.isoformat(), world.variant


def _try(world: World, forks: Forks, point: Point, moment: Moment, way: Way) -> Tried:
    target, killer = world.restored(), _Killer(point.number, moment)
    with Depot(target, killer.on_call) as depot:
        if world.database.kind == "postgresql":
            with Proxy(world.database.url, killer.on_statement) as proxy:
                arguments = _arguments(world, proxy.url, depot)
                ended = forks.run(f"{workers.__name__}:run_between_marks", *arguments)
                crashes.wait_until_it_is_gone(world.config)
        else:
            at = None if point.is_call and moment != "answered" else point.number
            arguments = _arguments(world, world.database.url, depot)
            ended = forks.run(f"{workers.__name__}:run_traced", *arguments, at)
        assert ended.signal == signal.SIGKILL, f"{point} {moment}: {ended}"
        # Whoever heard the call has taken it by now.
    wrong = world.go_on(world.outbound(target), way)
    return Tried(point.number, moment, point.what, way, world.problems(depot, wrong))


# --- the connection alone ---------------------------------------------------------------------------------


def lose_every_commit(database: Database, forks: Forks, *, thorough: bool = False) -> Report:
    """Cut the connection on both sides of every commit, and of every statement where `thorough`.

    PostgreSQL only. The process lives on: it writes what it can on a fresh connection, and raises.
    """
    world = World.made(database, "keyed")
    try:
        points, counted = _wire(world, forks)
        chosen = [each for each in points if not each.is_call and (thorough or each.what == "COMMIT")]
        tried = [_lose(world, forks, point, moment) for point in chosen for moment in ("before", "after")]
        return Report("connections lost", counted if thorough else len(chosen), 0, tried)
    finally:
        world.config.engine.dispose()


def _lose(world: World, forks: Forks, point: Point, moment: Moment) -> Tried:
    killer = _Killer(point.number, moment, kills=False)
    target = world.restored()
    before = len(target.requests)
    with (
        Depot(target, killer.on_call) as depot,
        Proxy(world.database.url, killer.on_statement) as proxy,
    ):
        ended = forks.run(f"{workers.__name__}:run_between_marks", *_arguments(world, proxy.url, depot))
        crashes.wait_until_it_is_gone(world.config)
    problems = []
    if ended.error is None or not ended.error.splitlines()[-1].startswith("(Background"):
        problems.append(f"it ended with {str(ended)[-400:]}")
    problems += [
        f"a chain failed with {row['fault_kind']}"
        for row in world.read()["chains"]
        if row["state"] == "failed" and row["fault_kind"] != "OperationalError"
    ]
    wrong = world.go_on(world.outbound(depot.target))
    calls = Counter((each.verb, each.source_id) for each in depot.arrived)
    calls.update((each.verb, each.source_id) for each in depot.target.requests[before + len(depot.arrived) :])
    # The target did not answer to these when they were called first.
    doubled = {call for call, count in calls.items() if count > 1} - {("create", "slow")}
    if doubled:
        problems.append(f"called again: {doubled}")
    return Tried(point.number, moment, point.what, "tick", problems + world.problems(depot, wrong))
