"""What child processes run: messages routed beside each other, and deliveries that are killed on their way.

Arguments and results are JSON. A child makes its own engine and configuration from the database's URL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import attrs

from statifier_router import Config, Outcome, Plan, create_engine, deliver, deliver_event, route
from tests.support import charts
from tests.support.processes import pause
from tests.support.racing import PATIENCE, WritingPlainly

SCANS = charts.scans()
PLAN = Plan("jobs", "parcel")
RELAY = charts.Calling("relay")


def config_of(url: str, plan: str = "merged", *, engine: dict[str, Any] | None = None, **kw: Any) -> Config:
    """The configuration of every child: one binding, and a chart that obeys.

    The plan counts on PostgreSQL only.
    """
    if plan == "plain":
        kw.setdefault("executor", WritingPlainly())
    kw.setdefault("charts", charts.registry(parcel=charts.obedient(), relay=RELAY))
    kw.setdefault("bindings", [SCANS])
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


@attrs.frozen
class Scenario:
    """A delivery that is to be killed, and what stands in the database before it."""

    before: Callable[[Config], object]
    act: Callable[[Config], Outcome]


def _first(config: Config) -> Outcome:
    return deliver(config, SCANS, "P7", charts.delivery("m-1"))


def _second(config: Config) -> Outcome:
    return deliver(config, SCANS, "P7", charts.delivery("m-2"))


def _last(config: Config) -> Outcome:
    return deliver(config, SCANS, "P7", charts.delivery("m-1", data={"do": "finished"}))


def _event(config: Config) -> Outcome:
    return deliver_event(config, PLAN, "P7", charts.envelope("arrived", "m-2"))


def _relayed(config: Config) -> Outcome:
    """A delivery inside a delivery: the inner one creates, under a savepoint of the outer one's step."""

    def relay(position: Any, event: Any, now: Any) -> None:
        deliver_event(config, PLAN, "P8", charts.envelope("arrived", "m-3"))

    with RELAY.calling(relay):
        return deliver(config, charts.scans(document="relay"), "P7", charts.delivery("m-2"))


def _nothing(config: Config) -> None:
    pass


SCENARIOS = {
    "create": Scenario(_nothing, _first),
    "existing": Scenario(_first, _second),
    "duplicate": Scenario(_first, _first),
    "deliver_event": Scenario(_first, _event),
    "finished": Scenario(_last, _second),
    "nested": Scenario(_nothing, _relayed),
}


def deliver_between_marks(url: str, scenario: str, plan: str) -> str:
    """Make the scenario's delivery; a statement before it tells this process's id, one after it its end."""
    config = config_of(url, plan)
    _mark(config, f"SELECT 'begin {os.getpid()}'")
    outcome = SCENARIOS[scenario].act(config)
    _mark(config, "SELECT 'end'")
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
    return ran[:-1]
