"""The outline of a chart of python-statemachine: its states and transitions, for whoever draws it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from statemachine.state import HistoryState, State
from statemachine.statemachine import StateChart
from statemachine.transition import Transition

from statifier_router.interpreters.outline import Arrow, Box, Kind, Outline


def outline_of(name: str, chart_class: type[StateChart[Any]]) -> Outline:
    """The class's states and transitions in document order."""
    states = list(chart_class.states)
    return Outline(name, tuple(map(_box, states)), tuple(_arrows(states)), _initial(states))


def _box(state: State) -> Box:
    inside = [*state.states, *state.history]
    return Box(
        state.id,
        _label(state),
        _kind(state),
        tuple(map(_box, inside)),
        () if state.parallel else _initial(state.states),
    )


def _label(state: State) -> str:
    """Its name where it was given one: the library makes one of the id, which is not what positions say."""
    name = str(state.name or "")
    return state.id if _words(name) == _words(state.id) else name


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _kind(state: State) -> Kind:
    if isinstance(state, HistoryState):
        return "deep history" if state.type.value == "deep" else "history"
    if state.parallel:
        return "parallel"
    return "final" if state.final else "state"


def _initial(states: Iterable[State]) -> tuple[str, ...]:
    listed = list(states)
    named = [state.id for state in listed if state.initial]
    return tuple(named or [state.id for state in listed[:1]])


def _arrows(states: Iterable[State]) -> Iterator[Arrow]:
    for state in states:
        yield from (_arrow(state, each) for each in state.transitions if not each.initial)
        yield from _arrows(state.states)
        for history in state.history:
            yield from (_arrow(history, each) for each in history.transitions)


def _arrow(source: State, transition: Transition) -> Arrow:
    targets = tuple(target.id for target in transition.targets)
    stays = transition.internal and targets == (source.id,)
    return Arrow(
        source.id,
        () if stays else targets,
        tuple(_events(transition)),
        tuple(str(guard) for guard in transition.cond),
    )


def _events(transition: Transition) -> Iterator[str]:
    names = [str(event) for event in transition.events]
    for name in dict.fromkeys(names):
        # The library knows `done_state_x` as `done.state.x` too.
        if "." not in name or name.replace(".", "_") not in names:
            yield name
