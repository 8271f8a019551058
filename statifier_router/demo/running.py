"""Running the demo: every message through `route`, and the story of one parcel kept aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from attrs import field, frozen

from statifier_router import deferrals, timers
from statifier_router.config import Config
from statifier_router.demo.messages import PARCEL, Arrival
from statifier_router.outcomes import NoMatch, Outcome
from statifier_router.routing import route

_TICK = timedelta(minutes=10)


@frozen
class Told:
    """One message about the parcel of the story, and what its binding answered."""

    arrival: Arrival
    outcome: Outcome


@frozen
class Demonstration:
    """What every message led to, in order of arrival, and the story's part of it.

    `fired` and `expired` count what time brought about in between: timers, and kept events that were
    dropped.
    """

    outcomes: tuple[tuple[Outcome, ...], ...] = field(repr=False)
    story: tuple[Told, ...]
    execution_id: str
    fired: int
    expired: int


def start_of_day(now: datetime) -> datetime:
    """Yesterday's midnight: the whole day has passed, and its claims are still remembered."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=1)


def run(config: Config, arrivals: Sequence[Arrival], advance: Callable[[], None]) -> Demonstration:
    """Route every arrival at the instant it came: one transaction a message and binding.

    Every ten minutes in between do what a host schedules: fire timers, sweep kept events.
    """
    outcomes: list[tuple[Outcome, ...]] = []
    story: list[Told] = []
    fired = expired = 0
    tick = arrivals[0].arrived
    for arrival in arrivals:
        while tick <= arrival.arrived:
            fired += timers.fire_due(config, now=tick).fired
            expired += deferrals.sweep(config, now=tick).expired
            tick += _TICK
        answered = tuple(route(config, arrival.message, now=arrival.arrived))
        outcomes.append(answered)
        if _is_of_story(arrival):
            taken = (
                each for each in answered if not isinstance(each, NoMatch) and each.binding_id != "depots"
            )
            story += [Told(arrival, each) for each in taken]
        advance()
    ids = [getattr(told.outcome, "execution_id", None) for told in story]
    execution_id = next(id for id in ids if id is not None)
    return Demonstration(tuple(outcomes), tuple(story), execution_id, fired, expired)


def _is_of_story(arrival: Arrival) -> bool:
    data = arrival.message.data
    order = data.get("order")
    named = order.get("parcel") if isinstance(order, dict) else None
    return PARCEL in (named, data.get("parcel"), data.get("barcode"))
