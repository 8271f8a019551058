"""A chart that sends, waits and ends as its events tell it, and what tests ask about its sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select

from statifier_router import NO_DATA, Cancel, Event, Send, Step, executions, ledger
from statifier_router.dialect import reader_options
from statifier_router.interpreters import function
from statifier_router.interpreters.function import FunctionChart
from statifier_router.jsontext import decode
from tests.support.rows import everything

Effects = Sequence[Mapping[str, Any]]


def told(
    name: str = "told", *, on_create: Effects = (), ends_on_create: bool = False, version: str = "1"
) -> FunctionChart:
    """A chart whose event's data says all that its step does.

    `effects`: a list of sends (`event`, `data`, `target`, `type`, `send_id`, `delay` in seconds) and
    cancels (`cancel`); `on_error`: the effects with which it answers each error that it hears; `after`
    (a name): refused unless an event of that name was seen; `answer`: ignored, failed, raised, unknown;
    `end`: completes, with `donedata` where given. What it saw and heard is in its position.
    """

    def create(data: Any, now: datetime) -> Step:
        position = {"who": data["execution"].get("key"), "seen": [], "heard": [], "on_error": []}
        return Step(
            position,
            active=["done" if ends_on_create else "open"],
            status="completed" if ends_on_create else "active",
            effects=[_effect(each) for each in on_create],
        )

    return function.chart(name, create=create, step=_step, version=f"{version} {on_create} {ends_on_create}")


def _step(position: Any, event: Event, now: datetime) -> Step:
    if event.name.startswith("error."):
        data: Any = event.data
        position["heard"].append([event.name, data["event"], data["reason"], event.send_id])
        return Step(position, active=["open"], effects=[_effect(each) for each in position["on_error"]])
    told: Any = event.data if isinstance(event.data, dict) else {}
    if "after" in told and told["after"] not in position["seen"]:
        return Step(position, outcome="refused", active=["open"])
    answer = told.get("answer", "moved")
    if answer == "raised":
        raise ValueError(f"{event.name} raised")
    if answer in ("ignored", "failed"):
        return Step(
            position, outcome=answer, active=["open"], errors=["told to"] if answer == "failed" else []
        )
    position["seen"].append(event.name)
    position["on_error"] = told.get("on_error", position["on_error"])
    return Step(
        position,
        outcome=answer,
        active=["done" if "end" in told else "open"],
        status="completed" if "end" in told else "active",
        donedata=told.get("donedata", NO_DATA),
        effects=[_effect(each) for each in told.get("effects", ())],
    )


def _effect(told: Mapping[str, Any]) -> Send | Cancel:
    if "cancel" in told:
        return Cancel(told["cancel"])
    rest = dict(told)
    delay = rest.pop("delay", None)
    return Send(
        rest.pop("event"),
        rest.pop("data", None),
        delay=None if delay is None else timedelta(seconds=delay),
        **rest,
    )


def to(target: str | None, event: str = "notice", data: Any = None, **kw: Any) -> dict[str, Any]:
    """A send to a route."""
    return {"event": event, "data": data, "target": target, **kw}


def to_execution(key: Any, event: str = "hello", document: Any = "b", **params: Any) -> dict[str, Any]:
    """A send to another execution; `params` are its data."""
    return {"event": event, "target": "execution", "data": {"document": document, "key": key, **params}}


def later(seconds: float, event: str = "tick", *, send_id: str | None = None, **kw: Any) -> dict[str, Any]:
    """A delayed send: to itself, unless `target` says where."""
    return {"event": event, "delay": seconds, "send_id": send_id, **kw}


# --- what tests ask -----------------------------------------------------------------------------------


def position_of(config: Any, execution_id: str) -> Any:
    """What an execution saw and heard."""
    execution = executions.fetch(config, execution_id)
    assert execution is not None
    return execution.position


def at(config: Any, key: str, document: str = "b", scope: str = "acme") -> Any:
    """The position of the execution at this address."""
    (row,) = [
        row
        for row in everything(config).addresses
        if (row["document"], row["key"], row["scope"]) == (document, key, scope)
    ]
    return position_of(config, row["execution_id"])


def stored(config: Any, table: str) -> list[dict[str, Any]]:
    """The rows of a table, by its key; JSON is decoded."""
    of = getattr(config.schema, table)
    with reader_options(config.engine).connect() as connection:
        rows = connection.execute(select(of).order_by(*of.primary_key.columns)).mappings()
        return [
            {
                name: decode(value) if name in ("event", "context") and value is not None else value
                for name, value in row.items()
            }
            for row in rows
        ]


def handed_off(config: Any) -> list[tuple[str, str, Any]]:
    """The outbox in order: queue, event name, data."""
    return [(row["queue"], row["event"]["name"], row["event"]["data"]) for row in stored(config, "outbox")]


def timer_states(config: Any) -> list[str]:
    """The states of all timers, sorted."""
    return sorted(row["state"] for row in stored(config, "timers"))


def outcomes(config: Any, **kw: Any) -> list[str]:
    """The ledger in order: outcomes, each with its reason where it has one."""
    found = ledger.rows(config, limit=10_000, **kw)
    return [row.outcome if row.reason is None else f"{row.outcome} ({row.reason})" for row in found]


class Noting:
    """A host's route that notes what it was handed; `act` may do more, and raise."""

    def __init__(self, act: Callable[[Event, str, Any], None] | None = None) -> None:
        self.handed: list[tuple[Event, str, Any]] = []
        self.act = act

    def hand_off(self, event: Event, key: str, context: Any) -> None:
        """Note it."""
        self.handed.append((event, key, context))
        if self.act is not None:
            self.act(event, key, context)

    @property
    def names(self) -> list[str]:
        """The names of the events it was handed."""
        return [event.name for event, _, _ in self.handed]
