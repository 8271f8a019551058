"""The content hash of a `StateChart` class: its states, transitions and callbacks by name, and a version."""

# ruff: noqa: SLF001 - the library keeps the names of callbacks in private lists

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from statemachine.callbacks import CallbackSpec
from statemachine.state import State
from statemachine.statemachine import StateChart
from statemachine.transition import Transition

from statifier_router.jsontext import Json, digest

_FLAGS = (
    "allow_event_without_transition",
    "atomic_configuration_update",
    "catch_errors_as_events",
    "enable_self_transition_entries",
)


def digest_of(chart_class: type[StateChart[Any]], model: type[Any] | None, *, version: str) -> str:
    """SHA-256 of the class's definition. Callbacks count by name: `version` stands for what they do."""
    definition: Json = {
        "interpreter": "statemachine",
        "class": _qualified(chart_class),
        "model": None if model is None else _qualified(model),
        "version": version,
        "flags": {name: bool(getattr(chart_class, name)) for name in _FLAGS},
        "callbacks": _callbacks(chart_class, chart_class._specs),
        "listeners": [_qualified(listener) for listener in chart_class._class_listeners],
        "states": [_state(chart_class, state) for state in chart_class.states],
    }
    return digest(definition)


def _state(chart_class: type[StateChart[Any]], state: State) -> Json:
    return {
        "id": state.id,
        "initial": bool(state.initial),
        "final": bool(state.final),
        "parallel": bool(state.parallel),
        "callbacks": _callbacks(chart_class, state._specs),
        "transitions": [_transition(chart_class, transition) for transition in state.transitions],
        "states": [_state(chart_class, inner) for inner in state.states],
        "history": [
            {
                "id": history.id,
                "type": history.type.value,
                "transitions": [_transition(chart_class, transition) for transition in history.transitions],
            }
            for history in state.history
        ],
    }


def _transition(chart_class: type[StateChart[Any]], transition: Transition) -> Json:
    return {
        "targets": [target.id for target in transition.targets],
        "events": [[str(event), event.delay, bool(event.internal)] for event in transition.events],
        "internal": bool(transition.internal),
        "initial": bool(transition.initial),
        "callbacks": _callbacks(chart_class, transition._specs),
    }


def _callbacks(chart_class: type[StateChart[Any]], specs: Iterable[CallbackSpec]) -> Json:
    """The callbacks in force. A name of convention counts where the class has a method of that name."""
    return [
        [spec.group.name, spec.attr_name or _qualified(spec.func), spec.expected_value]
        for spec in specs
        if not spec.is_convention or hasattr(chart_class, spec.func)
    ]


def _qualified(thing: Any) -> str:
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"
