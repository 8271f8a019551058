"""What a chart looks like: its states and arrows, whatever library steps it. For whoever draws it.

An adapter that can tell it gives its charts a method `outline() -> Outline`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from attrs import frozen

Kind = Literal["state", "parallel", "final", "history", "deep history"]


@frozen
class Box:
    """A state: what is inside it, and which of that is entered first (all of it in a parallel state).

    `id` is what positions call it, `label` what people do.
    """

    id: str
    label: str
    kind: Kind = "state"
    inside: tuple[Box, ...] = ()
    initial: tuple[str, ...] = ()


@frozen
class Arrow:
    """A transition. Without targets it leaves no state."""

    source: str
    targets: tuple[str, ...]
    events: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The events that set it off, and what they have to find."""
        events = ", ".join(self.events)
        guards = f"[{' and '.join(self.guards)}]" if self.guards else ""
        return " ".join(part for part in (events, guards) if part)


@frozen
class Outline:
    """A whole chart; `initial` names what is entered first."""

    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    initial: tuple[str, ...] = ()

    def paths(self) -> dict[str, tuple[Box, ...]]:
        """For each state the boxes from the outermost down to itself, in document order."""
        return dict(_paths(self.boxes, ()))


def _paths(boxes: tuple[Box, ...], above: tuple[Box, ...]) -> Iterator[tuple[str, tuple[Box, ...]]]:
    for box in boxes:
        path = (*above, box)
        yield box.id, path
        yield from _paths(box.inside, path)
