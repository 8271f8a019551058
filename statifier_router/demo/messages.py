"""One day of messages about parcels: late, twice and out of order, the same for the same seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import datetime, timedelta

from attrs import frozen

from statifier_router.jsontext import Json
from statifier_router.messages import Message

COUNT = 2_000
# The parcel whose story is told, whatever the seed.
PARCEL = "P42"
SCOPE = "eu"

_DAY = timedelta(days=1)
_CITIES = ("Lyon", "Porto", "Ghent", "Turin", "Brno", "Aarhus")
_DEPOTS = ("LYS", "OPO", "GNE", "TRN", "BRQ", "AAR")
_LATE = 0.12
_TWICE = 0.14


@frozen
class Arrival:
    """A message, when what it tells happened, and when it came."""

    message: Message
    happened: datetime
    arrived: datetime

    @property
    def late_by(self) -> timedelta:
        """How long it was under way; seconds for most."""
        return self.arrived - self.happened


def day(start: datetime, *, seed: int = 42, count: int = COUNT) -> list[Arrival]:
    """`count` arrivals within 24 hours from `start`, in the order in which they come.

    >>> from datetime import UTC
    >>> arrivals = day(datetime(2026, 1, 1, tzinfo=UTC), count=300)
    >>> len(arrivals), len({each.message.message_id for each in arrivals}) < 300
    (300, True)
    """
    dice = random.Random(seed)  # noqa: S311 - a demo, no secret
    story = list(_story(start))
    made: list[Arrival] = []
    numbers = itertools.count(100)
    while len(made) < count - len(story):
        arrivals = _life(dice, start, f"P{next(numbers)}", made)
        made += [each for each in arrivals if each.arrived < start + _DAY]
    made = made[: count - len(story)] + story
    return sorted(made, key=lambda each: (each.arrived, each.message.message_id))


# --- What happens to a parcel ---------------------------------------------------------------------


def _life(dice: random.Random, start: datetime, parcel: str, before: list[Arrival]) -> Iterator[Arrival]:
    """Everything that is told about one parcel, and now and then something about none."""
    at = start + timedelta(seconds=dice.randrange(20 * 3600))
    yield from _sent(dice, _shop("order", parcel, at, city=dice.choice(_CITIES)), at)
    if dice.random() < 0.05:
        yield from _sent(dice, _shop("wish", parcel, at), at)
    if dice.random() < 0.07:
        # Some are cancelled in time, some too late, and some shops cancel what they never ordered.
        later = at + timedelta(minutes=dice.randrange(1, 240))
        which = f"{parcel}X" if dice.random() < 0.3 else parcel
        yield from _sent(dice, _shop("cancel", which, later), later)
    at += timedelta(minutes=dice.randrange(5, 120))
    yield from _sent(dice, _carrier("pickup", parcel, at), at)
    for _ in range(dice.choice((1, 1, 2, 2, 3))):
        at += timedelta(minutes=dice.randrange(20, 150))
        barcode: Json = parcel if dice.random() > 0.02 else int(parcel[1:])
        yield from _sent(dice, _depot(dice.choice(_DEPOTS), barcode, at), at)
    at += timedelta(minutes=dice.randrange(20, 180))
    yield from _sent(dice, _carrier("delivery", parcel, at), at)


def _sent(dice: random.Random, message: Message, at: datetime) -> Iterator[Arrival]:
    late = dice.random() < _LATE
    delay = timedelta(minutes=dice.randrange(15, 360)) if late else timedelta(seconds=dice.randrange(1, 40))
    yield Arrival(message, at, at + delay)
    if dice.random() < _TWICE:
        again = at + delay + timedelta(seconds=dice.randrange(2, 5400))
        yield Arrival(message, at, again)


# --- What each source says about it ---------------------------------------------------------------


def _shop(kind: str, parcel: str, at: datetime, *, city: str | None = None) -> Message:
    data: dict[str, Json] = {"kind": kind, "order": {"parcel": parcel}, "at": _text(at)}
    if city is not None:
        data["city"] = city
    return Message("shop", f"shop-{kind}-{parcel}", SCOPE, data)


def _carrier(scan: str, parcel: str, at: datetime) -> Message:
    return Message(
        "carrier", f"scan-{scan}-{parcel}", SCOPE, {"scan": scan, "parcel": parcel, "at": _text(at)}
    )


def _depot(depot: str, barcode: Json, at: datetime) -> Message:
    return Message(
        "depot",
        f"hook-{depot}-{barcode}-{at:%H%M}",
        SCOPE,
        {"event": "arrival", "depot": depot, "barcode": barcode, "at": _text(at)},
    )


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


# --- The parcel whose story is told ---------------------------------------------------------------


def _story(start: datetime) -> Iterator[Arrival]:
    def clock(hour: int, minute: int) -> datetime:
        return start + timedelta(hours=hour, minutes=minute)

    def told(message: Message, happened: datetime, *arrived: datetime) -> Iterator[Arrival]:
        for each in arrived or (happened,):
            yield Arrival(message, happened, each)

    order = _shop("order", PARCEL, clock(8, 2), city="Lyon")
    pickup = _carrier("pickup", PARCEL, clock(9, 40))
    first = _depot("OPO", PARCEL, clock(11, 5))
    second = _depot("LYS", PARCEL, clock(14, 20))
    cancel = _shop("cancel", PARCEL, clock(14, 45))
    delivery = _carrier("delivery", PARCEL, clock(16, 30))
    yield from told(pickup, clock(9, 40), clock(9, 40), clock(9, 55))
    yield from told(order, clock(8, 2), clock(10, 12))
    yield from told(second, clock(14, 20))
    yield from told(cancel, clock(14, 45))
    yield from told(first, clock(11, 5), clock(15, 3))
    yield from told(delivery, clock(16, 30), clock(16, 30), clock(16, 31))
    lost = _depot("LYS", PARCEL, clock(14, 22))
    yield from told(lost, clock(14, 22), clock(17, 48))
