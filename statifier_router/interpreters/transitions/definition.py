"""The definition of a chart as plain data: read once, refused early, hashed, handed out in copies."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from enum import Enum, EnumMeta
from typing import Any

from attrs import frozen

from statifier_router.errors import ConfigError
from statifier_router.jsontext import Json, digest
from statifier_router.text import NAME_LIMIT, checked

_STATE = ("name", "on_enter", "on_exit", "ignore_invalid_triggers", "final")
_NESTED_STATE = (*_STATE, "initial", "on_final")
_CHILDREN = ("children", "states", "parallel")
_TRANSITION = ("trigger", "source", "dest", "conditions", "unless", "before", "after", "prepare")
_TIMER = ("timeout", "on_timeout")


@frozen
class Library:
    """The classes of the library by which a definition's objects are told apart."""

    state: type[Any]
    nested_state: type[Any]
    machine: type[Any]


@frozen
class Definition:
    """States, transitions and the initial state, in the library's own notation: dicts, texts and enums.

    The library writes into the dicts that it is given, so `states` and `transitions` answer copies.
    """

    hierarchical: bool
    initial: Any
    separator: str
    _states: tuple[Any, ...]
    _transitions: tuple[Any, ...]

    def states(self) -> list[Any]:
        """The states, for one machine to keep."""
        return [_copied(state) for state in self._states]

    def transitions(self) -> list[Any]:
        """The transitions, for one machine to keep."""
        return [_copied(transition) for transition in self._transitions]

    def content_hash(self, name: str, version: str, model: object) -> str:
        """SHA-256 of everything that names this revision. Callables count by their names alone."""
        described: dict[str, Json] = {
            "interpreter": "transitions",
            "name": name,
            "version": version,
            "hierarchical": self.hierarchical,
            "initial": _described(self.initial),
            "states": _described(self._states),
            "transitions": _described(self._transitions),
            "model": None if model is None else qualified(model),
        }
        if self.hierarchical:
            # A program may set the library's separator; the names in a position depend on it.
            described["separator"] = self.separator
        return digest(described)


def read(
    states: object, transitions: object, initial: object, *, hierarchical: bool, library: Library
) -> Definition:
    """The definition, in plain data. Raises `ConfigError`, naming the place, for what a chart cannot have."""
    reader = _Reader(hierarchical=hierarchical, library=library)
    if not isinstance(initial, (str, Enum)) and not (hierarchical and isinstance(initial, (list, tuple))):
        raise ConfigError(f"initial must name a state, not {type(initial).__name__}")
    return Definition(
        hierarchical=hierarchical,
        initial=list(initial) if isinstance(initial, (list, tuple)) else initial,
        separator=library.nested_state.separator,
        states=tuple(reader.states(states, "states")),
        transitions=tuple(reader.transitions(transitions, "transitions")),
    )


@frozen
class _Reader:
    hierarchical: bool
    library: Library

    def states(self, value: object, place: str) -> list[Any]:
        if isinstance(value, EnumMeta):
            value = list(value)
        if isinstance(value, (str, Enum, Mapping, self.library.state, self.library.machine)):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{place} must be a list of states, not {type(value).__name__}")
        if not value:
            raise ConfigError(f"{place} must not be empty")
        return [self._state(item, f"{place}[{index}]") for index, item in enumerate(value)]

    def _state(self, value: object, place: str) -> Any:
        if isinstance(value, self.library.machine):
            raise ConfigError(
                f"{place} is a {type(value).__name__}, which would be shared by all threads: "
                "give its states and transitions"
            )
        if isinstance(value, self.library.state):
            return self._object(value, place)
        if isinstance(value, Enum) and self.hierarchical and isinstance(value.value, EnumMeta):
            value = {"name": value, "children": value.value}
        elif isinstance(value, Enum) and self.hierarchical and isinstance(value.value, Mapping):
            value = {"name": value, **value.value}
        if isinstance(value, str):
            return checked(value, place, ConfigError, limit=NAME_LIMIT)
        if isinstance(value, Enum):
            return value
        if isinstance(value, Mapping):
            return self._mapping(value, place)
        raise ConfigError(f"{place} must be text, an enum member or a dict, not {type(value).__name__}")

    def _mapping(self, value: Mapping[Any, Any], place: str) -> dict[str, Any]:
        known = (*_NESTED_STATE, *_CHILDREN, "transitions") if self.hierarchical else _STATE
        for key in value:
            if key in _TIMER:
                raise ConfigError(
                    f"{place} has a {key}: a Timeout state starts threads; "
                    "emit an event to yourself with a delay instead"
                )
            if key not in known and key in (*_NESTED_STATE, *_CHILDREN, "transitions"):
                raise ConfigError(f"{place} has {key}, which needs hierarchical=True")
            if key not in known:
                raise ConfigError(f"{place} has the unknown key {key!r}; known are {', '.join(known)}")
        name = value.get("name")
        if not isinstance(name, Enum):
            checked(name, f"{place}[name]", ConfigError, limit=NAME_LIMIT)
        separator = self.library.nested_state.separator
        if self.hierarchical and separator in str(getattr(name, "name", name)):
            raise ConfigError(
                f"{place}[name] holds {separator!r}, which separates a state from its parent: give the state "
                "another name, or set NestedState.separator before the chart is made"
            )
        state = {"name": name, **{key: _value(value[key]) for key in value if key in _NESTED_STATE}}
        if not isinstance(value.get("final", False), bool):
            raise ConfigError(f"{place}[final] must be True or False")
        for key in _CHILDREN:
            if value.get(key):
                state[key] = self.states(value[key], f"{place}[{key}]")
        if value.get("transitions"):
            state["transitions"] = self.transitions(value["transitions"], f"{place}[transitions]")
        return state

    def _object(self, value: Any, place: str) -> dict[str, Any]:
        wanted = self.library.nested_state if self.hierarchical else self.library.state
        if type(value) is not wanted:
            raise ConfigError(
                f"{place} is a {type(value).__name__}: only a plain {wanted.__name__} (or a dict) can be "
                "stepped; states that time, count or keep things by themselves lose them between steps"
            )
        state = {
            "name": value.value,
            "on_enter": value.on_enter,
            "on_exit": value.on_exit,
            "final": value.final,
        }
        if value.ignore_invalid_triggers is not None:
            state["ignore_invalid_triggers"] = value.ignore_invalid_triggers
        if self.hierarchical:
            if value.events:
                raise ConfigError(f"{place} carries transitions: give them in a dict")
            state |= {"initial": value.initial, "on_final": value.on_final}
            state |= {"children": list(value.states.values())} if value.states else {}
        return self._mapping(state, place)

    def transitions(self, value: object, place: str) -> list[dict[str, Any]]:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{place} must be a list of transitions, not {type(value).__name__}")
        return [self._transition(item, f"{place}[{index}]") for index, item in enumerate(value)]

    def _transition(self, value: object, place: str) -> dict[str, Any]:
        if isinstance(value, (list, tuple)):
            if not 3 <= len(value) <= len(_TRANSITION):
                raise ConfigError(f"{place} must hold a trigger, a source and a destination")
            value = dict(zip(_TRANSITION, value, strict=False))
        if not isinstance(value, Mapping):
            raise ConfigError(f"{place} must be a list or a dict, not {type(value).__name__}")
        for key in value:
            if key not in _TRANSITION:
                raise ConfigError(f"{place} has the unknown key {key!r}; known are {', '.join(_TRANSITION)}")
        for key in ("trigger", "source", "dest"):
            if key not in value:
                raise ConfigError(f"{place} has no {key}")
        checked(value["trigger"], f"{place}[trigger]", ConfigError, limit=NAME_LIMIT)
        transition = {key: _value(item) for key, item in value.items()}
        transition["source"] = [self._named(item, f"{place}[source]") for item in _listed(value["source"])]
        if transition["source"] == ["*"]:
            # The library reads the wildcard only where it stands alone.
            transition["source"] = "*"
        if value["dest"] is not None:
            transition["dest"] = self._named(value["dest"], f"{place}[dest]")
        return transition

    def _named(self, value: object, place: str) -> str | Enum:
        if isinstance(value, self.library.state):
            value = value.name
        if isinstance(value, (str, Enum)):
            return value
        raise ConfigError(f"{place} must name a state, not {type(value).__name__}")


def _listed(value: object) -> list[Any]:
    if isinstance(value, EnumMeta):
        return list(value)
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _value(value: object) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def _described(value: object) -> Json:
    """`value` as JSON in which no two kinds of thing look alike."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Enum):
        return {"enum": value.name}
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {"dict": {key: _described(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    return {"callable": qualified(value)}


def qualified(value: object) -> str:
    """A callable's module and name, which are the same in every process."""
    while isinstance(value, functools.partial):
        value = value.func
    module = getattr(value, "__module__", None) or type(value).__module__
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{module}:{name}"
