"""What became of many messages, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import define, field

from statifier_router.outcomes import NoMatch, Outcome

# The order in which people read them: what arrived first, what needs a hand last.
ORDER = (
    "created_and_delivered",
    "delivered",
    "duplicate",
    "deferred",
    "dropped: finished",
    "dropped: unmatched_event",
    "dropped: no_execution",
    "dropped: deferral_full",
    "unrouted",
    "no_match",
    "key_refused",
)


@define
class Tally:
    """Counts of outcomes, by binding and over all.

    `unrouted` counts the messages that no binding took: a `NoMatch` at each, or no binding at all.
    """

    messages: int = 0
    unrouted: int = 0
    by_binding: dict[str, Counter[str]] = field(factory=dict)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Count a message that was routed to its end."""
        self.messages += 1
        if all(isinstance(outcome, NoMatch) for outcome in outcomes):
            self.unrouted += 1
        self.add_part(outcomes)

    def add_part(self, outcomes: Iterable[Outcome]) -> None:
        """Count what was committed of a message that then failed."""
        for outcome in outcomes:
            self.by_binding.setdefault(outcome.binding_id, Counter())[outcome.recorded] += 1

    def outcomes(self) -> dict[str, int]:
        """Over all bindings, in reading order; only what happened."""
        total: Counter[str] = Counter()
        for counts in self.by_binding.values():
            total.update(counts)
        if self.unrouted:
            total["unrouted"] += self.unrouted
        return {name: total[name] for name in in_order(total)}


def in_order(names: Iterable[str]) -> list[str]:
    """The names in reading order, unknown ones last."""
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
