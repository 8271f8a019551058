"""What a definition names is checked when it is loaded: states, callbacks, nothing asynchronous."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import transitions as library
from transitions.extensions.nesting import HierarchicalMachine

from statifier_router.errors import ConfigError
from statifier_router.interpreters.transitions.machines import Machine


def check(machine: Machine, initial: object, model: object) -> None:
    """Raise `ConfigError` for a name that leads nowhere, and for a callback that is asynchronous.

    The library looks names up when they are needed: a slip would show at some later event.
    """
    for name in initial if isinstance(initial, list) else [initial]:
        _check_state(machine, name, "initial")
    if isinstance(machine, HierarchicalMachine):
        _check_nested(machine, model)
    else:
        for state in machine.states.values():
            _check_callbacks(model, f"state {state.name!r}", *state.on_enter, *state.on_exit)
        for event in machine.events.values():
            for source in event.transitions:
                _check_state(machine, source, f"the source of {event.name!r}")
            _check_transitions(machine, model, event)


def _check_nested(machine: HierarchicalMachine, model: object) -> None:
    nested: list[Any] = list(machine.states.values())
    for state in nested:
        name = state.name
        if machine.state_cls.separator in name:
            raise ConfigError(
                f"state {name!r} holds {machine.state_cls.separator!r}, which separates a state from its "
                "parent: give it another name, or set NestedState.separator before the chart is made"
            )
        _check_callbacks(model, f"state {name!r}", *state.on_enter, *state.on_exit, *state.on_final)
        starts = state.initial if isinstance(state.initial, (list, tuple)) else [state.initial]
        for start in starts:
            if start is not None and getattr(start, "name", start) not in state.states:
                raise ConfigError(f"the initial state {start!r} of {name!r} is none of its children")
        with machine(name):
            _check_nested(machine, model)
    for event in machine.events.values():
        for source in event.transitions:
            _check_state(machine, source, f"the source of {event.name!r}")
        _check_transitions(machine, model, event)


def _check_transitions(machine: Any, model: object, event: Any) -> None:
    for transition in (each for group in event.transitions.values() for each in group):
        if transition.dest is not None:
            _check_state(machine, transition.dest, f"the destination of {event.name!r}")
        conditions = (condition.func for condition in transition.conditions)
        _check_callbacks(
            model,
            f"a transition of {event.name!r}",
            *transition.prepare,
            *conditions,
            *transition.before,
            *transition.after,
        )


def _check_state(machine: Any, name: Any, place: str) -> None:
    try:
        machine.get_state(name)
    except ValueError:
        raise ConfigError(f"{place} is {name!r}, which is no state of this chart") from None


def _check_callbacks(model: object, place: str, *callbacks: Any) -> None:
    for callback in callbacks:
        for name, function in _functions(model, place, callback):
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"{place} calls {name}, which is async: a step waits for nothing")
            if not callable(function):
                raise ConfigError(f"{place} calls {name!r}, which is not callable")


def _functions(model: object, place: str, callback: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(callback, str):
        yield getattr(callback, "__qualname__", repr(type(callback))), callback
        return
    found = inspect.getattr_static(model, callback, None)
    if isinstance(found, property):
        # A property answers a guard's value: reading it here would run the host's code.
        return
    try:
        yield callback, library.Machine.resolve_callable(callback, SimpleNamespace(model=model))  # type: ignore[arg-type]  # all it reads
    except AttributeError:
        raise ConfigError(
            f"{place} calls {callback!r}, which is neither on the model nor a path to a function"
        ) from None
