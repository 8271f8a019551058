"""What child processes run: messages routed beside each other, and deliveries that are killed on their way.

Arguments and results are JSON. A child makes its own engine and configuration from the database's URL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Protocol

import attrs

from statifier_router import (
    Config,
    Defer,
    OutboxRoute,
    Plan,
    create_engine,
    deferrals,
    deliver,
    deliver_event,
    route,
    timers,
)
from tests.support import charts
from tests.support.processes import pause
from tests.support.racing import PATIENCE, WritingPlainly
from tests.support.told import later, to, to_execution, told

SCANS = charts.scans()
PLAN = Plan("jobs", "parcel")
RELAY = charts.Calling("relay")
# Of a source of its own: what the carrier sends is for SCANS alone.
KEPT = charts.scans(
    id="kept",
    source="elsewhere",
    event="B",
    document="a",
    create="never",
    data=("after", "effects"),
    missing=Defer(charts.HOUR),
)


def config_of(url: str, plan: str = "merged", *, engine: dict[str, Any] | None = None, **kw: Any) -> Config:
    """The configuration of every child: one binding, charts that obey, an outbox that hears of every end.

    The plan counts on PostgreSQL only.
    """
    if plan == "plain":
        kw.setdefault("executor", WritingPlainly())
    kw.setdefault("charts", charts.registry(parcel=charts.obedient(), relay=RELAY, a=told("a"), b=told("b")))
    kw.setdefault("routes", {"box": OutboxRoute("box")})
    kw.setdefault("on_complete", "box")
    kw.setdefault("bindings", [SCANS, KEPT])
    return Config(create_engine(url, **(engine or {})), **kw)


# --- races ------------------------------------------------------------------------------------------


def route_in_rounds(
    url: str, rounds: list[list[tuple[str, str]]], plan: str = "merged"
) -> list[list[list[str | None]]]:
    """Route each round's messages, given as (message id, parcel), after pausing before the round.

    Answers for each message what was recorded and the execution's id.
    """
    # A crowd may wait long on a small machine: that is no fault.
    config = config_of(url, plan, lock_timeout=PATIENCE)
    # Connected before the first barrier, so that the children really begin together.
    config.engine.connect().close()
    answers = []
    for number, messages in enumerate(rounds):
        pause(f"round {number}")
        answers.append([_routed(config, message_id, parcel) for message_id, parcel in messages])
    return answers


def _routed(config: Config, message_id: str, parcel: str) -> list[str | None]:
    (outcome,) = route(config, charts.message(message_id, parcel), now=charts.NOW)
    return [outcome.recorded, getattr(outcome, "execution_id", None)]


# --- crashes ----------------------------------------------------------------------------------------


class Recorded(Protocol):
    """What an act answers: "duplicate" where it found everything done."""

    @property
    def recorded(self) -> str:
        """The ledger's spelling."""
        ...


@attrs.frozen
class _Did:
    recorded: str


@attrs.frozen
class Scenario:
    """A delivery that is to be killed, and what stands in the database before it."""

    before: Callable[[Config], object]
    act: Callable[[Config], Recorded]


def _first(config: Config) -> Recorded:
    return deliver(config, SCANS, "P7", charts.delivery("m-1"))


def _second(config: Config) -> Recorded:
    return deliver(config, SCANS, "P7", charts.delivery("m-2"))


def _last(config: Config) -> Recorded:
    return deliver(config, SCANS, "P7", charts.delivery("m-1", data={"do": "finished"}))


def _event(config: Config) -> Recorded:
    return deliver_event(config, PLAN, "P7", charts.envelope("arrived", "m-2"))


def _relayed(config: Config) -> Recorded:
    """A delivery inside a delivery: the inner one creates, under a savepoint of the outer one's step."""

    def relay(position: Any, event: Any, now: Any) -> None:
        deliver_event(config, PLAN, "P8", charts.envelope("arrived", "m-3"))

    with RELAY.calling(relay):
        return deliver(config, charts.scans(document="relay"), "P7", charts.delivery("m-2"))


def _nothing(config: Config) -> None:
    pass


def _going(message_id: str, *effects: dict[str, Any], **told_: Any) -> Callable[[Config], Recorded]:
    def act(config: Config) -> Recorded:
        data = {"effects": list(effects), **told_}
        return deliver_event(config, Plan("jobs", "a"), "A1", charts.envelope("go", message_id, data=data))

    return act


# To an outbox, to two timers of which one is cancelled at once, to a neighbour that does the same and
# answers, to nobody, and to one that has ended.
_SENDING = (
    to("box", "first"),
    later(60, "tick", send_id="s"),
    later(90, "box", target="box"),
    {"cancel": "s"},
    to_execution(
        "B1",
        effects=[to("box", "second"), later(60, send_id="s"), to_execution("A1", "answer", document="a")],
    ),
    to("nowhere"),
    to("box", "third"),
)


def _armed(config: Config) -> None:
    inner = [to("box", "fired"), to_execution("B1", effects=[later(60)]), {"cancel": "s"}, later(600)]
    _going("m-0", later(60, "tick", data={"effects": inner}), later(600, send_id="s"))(config)


def _fire(config: Config) -> Recorded:
    fired = timers.fire_due(config, now=charts.NOW + 60 * charts.SECOND)
    return _Did("delivered" if fired.fired else "duplicate")


def _early(config: Config) -> Recorded:
    data = {"effects": [to("box", "landed"), later(60)]}
    return deliver(config, KEPT, "A1", charts.delivery("m-1", data=data))


def _create_over_kept(config: Config) -> Recorded:
    return _going("m-2", to("box", "created"))(config)


def _sweep(config: Config) -> Recorded:
    swept = deferrals.sweep(config, now=charts.NOW + 2 * charts.HOUR)
    return _Did("dropped" if swept.expired else "duplicate")


SCENARIOS = {
    "create": Scenario(_nothing, _first),
    "existing": Scenario(_first, _second),
    "duplicate": Scenario(_first, _first),
    "deliver_event": Scenario(_first, _event),
    "finished": Scenario(_last, _second),
    "nested": Scenario(_nothing, _relayed),
    "sends of a creation": Scenario(_nothing, _going("m-1", *_SENDING)),
    "sends of a step": Scenario(_going("m-0"), _going("m-1", *_SENDING, end=True, donedata={"n": 1})),
    "a timer": Scenario(_armed, _fire),
    "an early event": Scenario(_nothing, _early),
    "a creation that early events wait for": Scenario(_early, _create_over_kept),
    "a sweep": Scenario(_early, _sweep),
}


def deliver_between_marks(url: str, scenario: str, plan: str) -> str:
    """Make the scenario's delivery; a statement before it tells this process's id, one after it its end."""
    config = config_of(url, plan)
    _mark(config, f"SELECT 'begin {os.getpid()}'")
    outcome = SCENARIOS[scenario].act(config)
    _mark(config, "SELECT 'end'")
    config.engine.dispose()
    return outcome.recorded


def _mark(config: Config, sql: str) -> None:
    with config.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(sql)


def deliver_traced(url: str, scenario: str, kill_at: int | None) -> list[str]:
    """On SQLite: make the scenario's delivery, and kill this process before statement `kill_at`.

    Answers the statements that SQLite ran; `kill_at` may be one more than there are.
    """
    config = config_of(url, engine={"pool_size": 1, "max_overflow": 0})
    ran: list[str] = []

    def trace(sql: str) -> None:
        ran.append(sql)
        if len(ran) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with config.engine.connect() as connection:
        driver = connection.connection.driver_connection
    assert driver is not None
    driver.set_trace_callback(trace)
    SCENARIOS[scenario].act(config)
    driver.set_trace_callback(None)
    trace("the end")
    config.engine.dispose()
    return ran[:-1]
