"""Contests of two at one execution, in numbers: a timer and its cancel, an early event and the creation
it waits for, two executions that send to each other. A test runs few of each, `bench/contests.py` many.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, text

from statifier_router import (
    Config,
    Defer,
    Event,
    OutboxRoute,
    Plan,
    addresses,
    create_engine,
    deferrals,
    deliver,
    deliver_event,
    executions,
    ledger,
    timers,
)
from tests.support import charts, processes
from tests.support.locks import backend_pid, wait_until_one_is_blocked
from tests.support.racing import PATIENCE, TIMEOUT, WritingPlainly, threads
from tests.support.told import later, timer_states, to, to_execution, told

PLAN = Plan("jobs", "a")
DUE = charts.NOW + timedelta(seconds=60)
EARLY = charts.scans(
    id="early",
    event="B",
    document="a",
    data=("after",),
    create="never",
    missing=Defer(charts.HOUR),
    unmatched=Defer(charts.HOUR),
)
CREATES = charts.scans(id="creates", event="A", document="a", data=())


def config_on(engine: Engine, plan: str = "merged", **kw: Any) -> Config:
    """A configuration whose documents `a` and `b` their events tell what to do; patient with locks."""
    kw.setdefault("charts", charts.registry(a=told("a"), b=told("b")))
    if plan == "plain":
        kw.setdefault("executor", WritingPlainly())
    return Config(engine, lock_timeout=PATIENCE, bindings=[CREATES, EARLY], **kw)


# --- a timer against its cancel -----------------------------------------------------------------------


class Gate:
    """A route at which the first of two waits, its step open, until the server says that the other waits
    for it. Whoever comes second passes.
    """

    def __init__(self, watcher: Engine) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()
        self._taken = False

    def reset(self) -> None:
        """For the next race."""
        self._taken = False

    def __call__(self, event: Event, key: str, context: Any) -> None:
        """Wait, where this is the first."""
        with self._lock:
            first, self._taken = not self._taken, True
        if first:
            connection: Connection = context.connection
            wait_until_one_is_blocked(self._watcher, by=backend_pid(connection))


def timer_races(
    make: Callable[..., Config], watcher: Engine, count: int, plan: str = "merged"
) -> Counter[str]:
    """Race a timer against its cancel, `count` times; answers how often each of them won.

    Both begin together; whoever takes the execution's lock keeps its step open until the other is seen
    waiting. Raises `AssertionError` where not exactly one of them won.
    """
    gate = Gate(watcher)
    config = make(plan, routes={"gate": gate, "box": OutboxRoute("box")})
    dice = random.Random(20)
    won: Counter[str] = Counter()
    with threads() as beside:
        for number in range(count):
            key = f"K{number}"
            tick = later(60, "tick", send_id="s", data={"effects": [to("gate")]})
            sent = charts.envelope("go", f"arm-{number}", data={"effects": [tick]})
            created: Any = deliver_event(config, PLAN, key, sent)
            gate.reset()
            start = threading.Barrier(2)
            # The two take different paths to the lock: a few reads before it give each of them its share.
            heads_up = dice.randrange(-3, 6)

            def fire(start: threading.Barrier = start, reads: int = -heads_up) -> int:
                start.wait(TIMEOUT)
                _read(config, reads)
                return timers.fire_due(config, now=DUE).fired

            def cancel(
                start: threading.Barrier = start, key: str = key, number: int = number, reads: int = heads_up
            ) -> str:
                sent = charts.envelope(
                    "stop", f"stop-{number}", data={"effects": [{"cancel": "s"}, to("gate")]}
                )
                start.wait(TIMEOUT)
                _read(config, reads)
                return deliver_event(config, PLAN, key, sent).recorded

            firing, cancelling = beside(fire), beside(cancel)
            assert cancelling.result(TIMEOUT) == "delivered"
            fired = firing.result(TIMEOUT)
            execution: Any = executions.fetch(config, created.execution_id)
            seen = execution.position["seen"]
            assert seen == (["go", "tick", "stop"] if fired else ["go", "stop"]), (fired, seen)
            won["timer" if fired else "cancel"] += 1
    assert Counter(timer_states(config)) == Counter(fired=won["timer"], cancelled=won["cancel"])
    assert len(ledger.rows(config, outcome="timer_fired", limit=count + 1)) == won["timer"]
    return won


def _read(config: Config, times: int) -> None:
    for _ in range(times):
        timers.pending(config, execution_id="nobody")


# --- an early event against the creation it waits for -----------------------------------------------------


def keeping_races(make: Callable[..., Config], count: int, plan: str = "merged") -> Counter[str]:
    """Race an early event against the creation of its execution; answers how the early one went.

    Raises `AssertionError` where one is left waiting.
    """
    early, creating = make(plan), make(plan)
    went: Counter[str] = Counter()
    dice = random.Random(9)
    with threads() as beside:
        for number in range(count):
            key, start = f"K{number}", threading.Barrier(2)
            heads_up = dice.randrange(-2, 3)

            def keep(
                start: threading.Barrier = start, key: str = key, reads: int = heads_up, number: int = number
            ) -> str:
                start.wait(TIMEOUT)
                _read(early, reads)
                return deliver(early, EARLY, key, charts.delivery(f"early-{number}")).recorded

            def create(
                start: threading.Barrier = start, key: str = key, reads: int = -heads_up, number: int = number
            ) -> Any:
                start.wait(TIMEOUT)
                _read(creating, reads)
                return deliver(creating, CREATES, key, charts.delivery(f"creates-{number}"))

            keeping, made = beside(keep), beside(create)
            created = made.result(TIMEOUT)
            went[keeping.result(TIMEOUT)] += 1
            assert created.recorded == "created_and_delivered"
            execution: Any = executions.fetch(early, created.execution_id)
            assert execution.position["seen"] == ["A", "B"], (number, execution.position)
    assert deferrals.pending(early) == []
    return went


# --- two executions that send to each other ---------------------------------------------------------------


def send_across(url: str, mine: str, other: str, plan: str, until: int, most: int) -> dict[str, Any]:
    """In a child: step `mine`, which sends to `other`, until the server has counted `until` deadlocks.

    Answers how many messages it delivered, at most `most`, and whatever was raised.
    """
    config = config_on(create_engine(url), plan)
    beside = create_engine(url)
    assert deadlocks(beside) >= 0
    processes.pause("ready")
    raised: list[str] = []
    sent = 0
    while sent < most and not raised:
        effects = [to_execution(other, f"from-{mine}", document="a", n=sent)]
        envelope = charts.envelope("go", f"{mine}-{sent}", data={"effects": effects})
        try:
            deliver_event(config, PLAN, mine, envelope)
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
        sent += 1
        if sent % 10 == 0 and deadlocks(beside) >= until:
            break
    return {"sent": sent, "raised": raised}


def deadlocks(engine: Engine) -> int:
    """What the server has counted in this database until now."""
    counted = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        return int(connection.execute(counted).scalar_one())


def check_crossings(config: Config, told_: Sequence[dict[str, Any]], keys: Sequence[str]) -> None:
    """Every message was delivered once, and every send arrived once, in the order of its sender."""
    for each in told_:
        assert each["raised"] == []
    for (mine, other), (mine_told, other_told) in (
        ((keys[0], keys[1]), (told_[0], told_[1])),
        ((keys[1], keys[0]), (told_[1], told_[0])),
    ):
        seen, heard = _crossed(config, mine)
        assert heard == []
        assert seen.count("go") == mine_told["sent"]
        assert seen.count(f"from-{other}") == other_told["sent"]


def _crossed(config: Config, key: str) -> tuple[list[str], list[Any]]:
    address = addresses.find(config, "acme", "a", key)
    assert address is not None
    execution: Any = executions.fetch(config, address.execution_id)
    return execution.position["seen"], execution.position["heard"]
