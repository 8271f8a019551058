"""The outline of a machine of transitions: its states and transitions, for whoever draws it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from statifier_router.interpreters.outline import Arrow, Box, Kind, Outline
from statifier_router.interpreters.transitions.definition import qualified


def outline_of(name: str, machine: Any, initial: Any) -> Outline:
    """The machine's states and transitions, in the order in which they were given."""
    separator = getattr(machine.state_cls, "separator", "")
    arrows = tuple(_arrows(machine.states, machine.events, "", separator))
    return Outline(name, tuple(_boxes(machine.states, "", separator)), arrows, _named(initial, ""))


def _boxes(states: Mapping[str, Any], prefix: str, separator: str) -> Iterator[Box]:
    for name, state in states.items():
        own = prefix + name
        inside = getattr(state, "states", {})
        initial = getattr(state, "initial", None)
        parallel = isinstance(initial, (list, tuple)) and len(initial) > 1
        below = tuple(_boxes(inside, own + separator, separator))
        kind: Kind = "parallel" if parallel else "final" if state.final else "state"
        entered = () if initial is None or parallel else _named(initial, own + separator)
        yield Box(own, name, kind, below, entered)


def _named(value: Any, prefix: str) -> tuple[str, ...]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(prefix + (each.name if isinstance(each, Enum) else str(each)) for each in values)


def _arrows(
    states: Mapping[str, Any], events: Mapping[str, Any], prefix: str, separator: str
) -> Iterator[Arrow]:
    for trigger, event in events.items():
        for source, transitions in event.transitions.items():
            for transition in transitions:
                targets = () if transition.dest is None else (prefix + transition.dest,)
                guards = tuple(
                    ("" if condition.target else "not ") + _guard(condition.func)
                    for condition in transition.conditions
                )
                yield Arrow(prefix + source, targets, (trigger,), guards)
    for name, state in states.items():
        if hasattr(state, "states"):
            yield from _arrows(state.states, state.events, prefix + name + separator, separator)


def _guard(function: Any) -> str:
    return function if isinstance(function, str) else qualified(function).rpartition(":")[2]
