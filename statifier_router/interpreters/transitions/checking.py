"""What a definition names is checked when it is loaded: states, callbacks, nothing asynchronous."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import transitions as library
from transitions.extensions.nesting import HierarchicalMachine

from statifier_router.errors import ConfigError
from statifier_router.interpreters.transitions.machines import Machine, check_state


def check_names(machine: Machine) -> None:
    """Raise `ConfigError` for a name that leads to no state.

    The library looks names up when they are needed: a slip would show at some later event.
    """
    for scope in _scopes(machine):
        for event in scope.events.values():
            for source, transitions in event.transitions.items():
                check_state(scope, source, f"the source of {event.name!r}")
                for transition in transitions:
                    if transition.dest is not None:
                        check_state(scope, transition.dest, f"the destination of {event.name!r}")
        if isinstance(machine, HierarchicalMachine):
            for state in scope.states.values():
                _check_initial(state)


def _check_initial(state: Any) -> None:
    for start in state.initial if isinstance(state.initial, (list, tuple)) else [state.initial]:
        if start is not None and getattr(start, "name", start) not in state.states:
            raise ConfigError(f"the initial state {start!r} of {state.name!r} is none of its children")


def check_callbacks(machine: Machine, model: object) -> None:
    """Raise `ConfigError` for a callback that is not there, or is asynchronous. `model` is a bound one."""
    for scope in _scopes(machine):
        for state in scope.states.values():
            on_final = getattr(state, "on_final", [])
            _check_callbacks(model, f"state {state.name!r}", *state.on_enter, *state.on_exit, *on_final)
        for event in scope.events.values():
            for transition in (each for group in event.transitions.values() for each in group):
                _check_callbacks(
                    model,
                    f"a transition of {event.name!r}",
                    *transition.prepare,
                    *(condition.func for condition in transition.conditions),
                    *transition.before,
                    *transition.after,
                )


def _scopes(machine: Any) -> Iterator[Any]:
    """The machine in each of its scopes: itself, and within every state that has others or transitions."""
    yield machine
    if isinstance(machine, HierarchicalMachine):
        for name in list(machine.states):
            with machine(name):
                yield from _scopes(machine)


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
