"""The demo's two state machines: the life of a parcel, and the day of a depot."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from statifier_router.charts import ChartRegistry
from statifier_router.interpreters import function
from statifier_router.jsontext import Json
from statifier_router.messages import Event
from statifier_router.steps import Step

# (state, event) -> the state it leads to. What is not here is refused: too late, or too old.
_PARCEL: Mapping[tuple[str, str], str] = {
    ("expected", "ordered"): "ordered",
    ("expected", "picked_up"): "moving",
    ("expected", "arrived"): "at_depot",
    ("expected", "delivered"): "delivered",
    ("ordered", "picked_up"): "moving",
    ("ordered", "arrived"): "at_depot",
    ("ordered", "delivered"): "delivered",
    ("ordered", "cancelled"): "cancelled",
    # The order may be heard of last: it is noted, and the parcel is where it is.
    ("moving", "ordered"): "moving",
    ("moving", "arrived"): "at_depot",
    ("moving", "delivered"): "delivered",
    ("at_depot", "ordered"): "at_depot",
    ("at_depot", "arrived"): "at_depot",
    ("at_depot", "delivered"): "delivered",
}
_FINAL = frozenset({"delivered", "cancelled"})


def charts() -> ChartRegistry:
    """Both charts, published for every scope."""
    registry = ChartRegistry()
    registry.publish(
        "parcel",
        function.chart("parcel", create=_create_parcel, step=_step_parcel, version="1"),
    )
    registry.publish("depot", function.chart("depot", create=_create_depot, step=_step_depot, version="1"))
    return registry


def _create_parcel(data: Json, now: datetime) -> Step:
    return Step({"state": "expected", "city": None, "depot": None, "last": ""}, active=["expected"])


def _step_parcel(position: Any, event: Event, now: datetime) -> Step:
    told: Any = event.data
    at = str(told.get("at") or "")
    state = _PARCEL.get((position["state"], event.name))
    is_stale = event.name == "arrived" and at < position["last"]
    if state is None or is_stale:
        return Step(position, outcome="refused", active=[position["state"]])
    after = {
        "state": state,
        "city": told.get("city", position["city"]),
        "depot": told.get("depot", position["depot"]),
        "last": position["last"] if event.name == "ordered" else max(at, position["last"]),
    }
    return Step(after, active=[state], status="completed" if state in _FINAL else "active")


def _create_depot(data: Json, now: datetime) -> Step:
    return Step({"parcels": 0}, active=["open"])


def _step_depot(position: Any, event: Event, now: datetime) -> Step:
    return Step({"parcels": position["parcels"] + 1}, active=["open"])
