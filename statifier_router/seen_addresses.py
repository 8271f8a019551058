"""Which addresses a pooled connection has seen lately: where one is expected, no insert of it is made ready.

To make ready an insert that is not needed is a twentieth of a delivery. What is remembered is a hint: where
it is wrong (the address was reaped), the delivery finds none, adds one by a statement of its own, and pays a
few trips for that once.
"""

from __future__ import annotations

from typing import Any

# How many hashes one generation holds. There are two, so that what is in use stays when the older one goes.
GENERATION = 4096

# Where it is kept with the pooled connection: whoever has that has this, and nobody else.
_NAME = "statifier_router_seen_addresses"


class SeenAddresses:
    """Hashes of places, the latest few thousand; two places of one hash cost a trip, and nothing more."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: set[int] = set()
        self._old: set[int] = set()

    @classmethod
    def of(cls, info: dict[str, Any]) -> SeenAddresses:
        """Those of a pooled connection, by what is kept with it."""
        seen: SeenAddresses | None = info.get(_NAME)
        if seen is None:
            seen = info[_NAME] = cls()
        return seen

    def __contains__(self, place: int) -> bool:
        return place in self._new or place in self._old

    def add(self, place: int) -> None:
        """Remember it; what was not seen for a whole generation is forgotten."""
        if len(self._new) >= GENERATION:
            self._new, self._old = set(), self._new
        self._new.add(place)

    def discard(self, place: int) -> None:
        """Forget it: it was not there."""
        self._new.discard(place)
        self._old.discard(place)
