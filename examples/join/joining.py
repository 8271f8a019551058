"""Impressions and clicks, joined: one execution for each impression id, whichever of the two comes first.

Both come from one source, under two bindings. What was joined goes to the outbox `joined_records`, what
found no partner in time to `dead_letter`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from statifier_router import Binding, ChartRegistry, Config, OutboxRoute
from statifier_router.interpreters import statemachine

BINDINGS = [
    Binding(
        id="impressions",
        source="ads",
        match={"kind": "impression"},
        key="impression_id",
        document="join",
        event="impression",
        data=("campaign", "page"),
    ),
    Binding(
        id="clicks",
        source="ads",
        match={"kind": "click"},
        key="impression_id",
        document="join",
        event="click",
        data=("link",),
    ),
]

ROUTES = {"joined_records": OutboxRoute("joined_records"), "dead_letter": OutboxRoute("dead_letter")}


def charts() -> ChartRegistry:
    registry = ChartRegistry()
    text = Path(__file__).with_name("join.scxml").read_text(encoding="utf-8")
    registry.publish("join", statemachine.scxml(text))
    return registry


def configure(engine: Engine, **more: Any) -> Config:
    """The configuration over this engine; `more` goes to `Config`."""
    return Config(engine, charts=charts(), bindings=BINDINGS, routes=ROUTES, **more)
