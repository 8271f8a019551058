"""A chart over the library: seat a fresh model, hand over one event, read the position off again."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import attrs

from statifier_router.errors import ConfigError
from statifier_router.interpreters.answers import BadAnswer, checked_step
from statifier_router.interpreters.emitting import collecting
from statifier_router.interpreters.outline import Outline
from statifier_router.interpreters.transitions import machines
from statifier_router.interpreters.transitions.definition import Definition
from statifier_router.interpreters.transitions.outlining import outline_of
from statifier_router.jsontext import Json, plain
from statifier_router.messages import Event
from statifier_router.steps import NO_DATA, Effect, Step, StepOutcome

_KEPT = frozenset({"state", "data", "execution"})
_CONTAINERS = (list, dict, set, bytearray, deque)


class Model:
    """The model of a chart that names none: nothing but `data` and `execution`."""

    data: dict[str, Any]
    execution: Any


@attrs.frozen(eq=False)
class TransitionsChart:
    """A chart whose states and transitions are the library's. Made by `chart`."""

    name: str
    content_hash: str
    interpreter_version: str
    _definition: Definition
    _factory: Callable[[], Any]
    # A machine is in one pair of hands at a time: the library's hierarchical one keeps the scope of the
    # step it is in on itself, so two threads in one machine step into each other's states.
    _idle: deque[machines.Machine] = attrs.field(factory=deque, init=False, repr=False)
    interpreter: str = "transitions"
    version: str = "1"
    # So that the executor does not check what `_answer` has checked.
    answers_checked: bool = True

    def create(self, *, data: Json, now: datetime) -> Step:
        """The first position, checked to be JSON. As in the library, the initial state is not entered."""
        given = plain(data)
        given = given if isinstance(given, dict) else {}
        execution = given.pop("execution", None)
        with collecting() as emitted:
            model = self._factory()
            machine = self._take()
            _furnish(model, {**_own_data(model), **given}, execution)
            machine.bind(model)
            answer = _answer(machine, model, execution, "moved", emitted)
        self._give_back(machine)
        return checked_step(answer, before=None, created=True)

    def step(self, position: Json, event: Event, *, event_id: str, now: datetime) -> Step:
        """The answer to one event. What a callback raises comes out as it is: the step has failed."""
        state, data, execution = _parts(position)
        with collecting() as emitted:
            model = self._factory()
            machine = self._take()
            _furnish(model, data, execution)
            machine.bind(model)
            machines.seat(machine, model, state)
            if machine.finished(machine.tree()):
                answer = _answer(machine, model, execution, "ignored", emitted)
            else:
                before = _attributes(model)
                try:
                    moved = machine.hear(model, attrs.evolve(event), event_id=event_id, now=now)
                except machines.EndlessLoop as endless:
                    return Step(position, outcome="failed", errors=(str(endless),))
                outcome: StepOutcome = "moved" if moved else "ignored" if moved is None else "refused"
                answer = _answer(machine, model, execution, outcome, emitted)
                if moved:
                    _check_attributes(model, before, completed=answer.status == "completed")
        self._give_back(machine)
        return checked_step(answer, before=position, created=False)

    def configuration(self, position: Json) -> tuple[str, ...]:
        """The active leaves of a position; raises `ConfigError` where it is not one of this chart's."""
        state, _, _ = _parts(position)
        machine = self._take()
        active = machines.legal(machine, state, self._definition.initial)
        self._give_back(machine)
        return active

    def finished(self, position: Json) -> bool:
        """Whether a legal position stands at the end of the chart, where no event moves it."""
        state, _, _ = _parts(position)
        model, machine = self._factory(), self._take()
        machine.bind(model)
        machines.seat(machine, model, state)
        finished = machine.finished(machine.tree())
        self._give_back(machine)
        return finished

    def rename(self, position: Json, mapping: Mapping[str, str]) -> Json:
        """The position with its states renamed, a state's new name counting for those within it too."""
        state, data, execution = _parts(position)
        separator = self._definition.separator if self._definition.hierarchical else None
        return {"state": _renamed(state, mapping, separator), "data": data, "execution": execution}

    def outline(self) -> Outline:
        """Its states and transitions, for whoever draws it."""
        machine = self._take()
        drawn = outline_of(self.name, machine, self._definition.initial)
        self._give_back(machine)
        return drawn

    # A machine that a raise left behind is not given back: building one costs less than trusting it.

    def _take(self) -> machines.Machine:
        with suppress(IndexError):
            return self._idle.pop()
        return machines.build(self._definition)

    def _give_back(self, machine: machines.Machine) -> None:
        machine.models.clear()
        self._idle.append(machine)


def _parts(position: Json) -> tuple[Json, dict[str, Any], Json]:
    copy = plain(position)
    if (
        not isinstance(copy, dict)
        or not {"state", "data"} <= copy.keys()
        or not isinstance(copy["data"], dict)
    ):
        raise ConfigError(
            "position must be what this chart answered: an object with state, data and execution"
        )
    return copy["state"], copy["data"], copy.get("execution")


def _renamed(state: Json, mapping: Mapping[str, str], separator: str | None) -> Json:
    if isinstance(state, list):
        return [_renamed(item, mapping, separator) for item in state]
    if not isinstance(state, str):
        return state
    name, within = state, ""
    while name not in mapping and separator is not None and separator in name:
        name, _, last = name.rpartition(separator)
        within = f"{separator}{last}{within}"
    return mapping.get(name, name) + within


def _own_data(model: Any) -> dict[str, Any]:
    own = getattr(model, "data", {})
    if not isinstance(own, dict):
        raise ConfigError(f"the model's data must be a dict, not {type(own).__name__}")
    return own


def _furnish(model: Any, data: dict[str, Any], execution: Json) -> None:
    model.data = data
    # A copy of its own: the model cannot change who the execution is.
    model.execution = plain(execution)


def _attributes(model: Any) -> dict[str, tuple[object, object]]:
    """The model's attributes that no position keeps, each with a copy of what can change in place."""
    return {
        name: (value, value.copy() if isinstance(value, _CONTAINERS) else None)
        for name, value in vars(model).items()
        if name not in _KEPT
    }


def _check_attributes(model: Any, before: Mapping[str, tuple[object, object]], *, completed: bool) -> None:
    """Refuse to lose what a callback put on the model: the next step starts with a new one."""
    for name, value in vars(model).items():
        if name in _KEPT or (name == "donedata" and completed):
            continue
        if isinstance(getattr(type(model), name, None), functools.cached_property):
            continue
        old, copy = before.get(name, (None, None))
        if name not in before or old is not value or (copy is not None and copy != value):
            raise BadAnswer(f"the step set the model's {name!r}, which would be lost: keep it in self.data")


def _answer(
    machine: machines.Machine, model: Any, execution: Json, outcome: StepOutcome, emitted: list[Effect]
) -> Step:
    tree = machine.tree()
    completed = outcome == "moved" and machine.finished(tree)
    return Step(
        {"state": machines.written(machine, tree), "data": _own_data(model), "execution": execution},
        outcome=outcome,
        active=machines.leaves(machine, tree),
        status="completed" if completed else "active",
        donedata=_donedata(model) if completed else NO_DATA,
        effects=emitted,
    )


def _donedata(model: Any) -> Any:
    value = getattr(model, "donedata", NO_DATA)
    return value() if callable(value) else value
