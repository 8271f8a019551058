"""What both kinds of chart have in common: seat a machine, let it take one event, read it off again.

A position is `{"states": [the active leaves], "data": {...}}`, in document order, and where there
is something to keep: `history`, `self` (attributes of a machine), `sends` (ids counted), `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import attrs
from statemachine.statemachine import StateChart

from statifier_router.errors import ConfigError
from statifier_router.interpreters.answers import BadAnswer, checked_effect
from statifier_router.interpreters.emitting import collecting
from statifier_router.interpreters.outline import Outline
from statifier_router.interpreters.statemachine.faults import told
from statifier_router.interpreters.statemachine.machines import Machine, Machines
from statifier_router.interpreters.statemachine.outlining import outline_of
from statifier_router.interpreters.statemachine.structure import BadPosition
from statifier_router.jsontext import Json, plain
from statifier_router.messages import Event
from statifier_router.savepoints import travels
from statifier_router.steps import Effect, Step

_KEYS = frozenset({"states", "data", "history", "self", "sends", "done"})


@attrs.frozen(kw_only=True)
class Position:
    """A position that was read, in the shape that it must have."""

    states: tuple[str, ...]
    data: dict[str, Any]
    history: dict[str, Any]
    own: dict[str, Any]
    sends: int
    done: bool


@attrs.frozen(eq=False, kw_only=True)
class StateMachineChart:
    """A chart over python-statemachine. Made by `scxml` or `chart`; threads may share it."""

    name: str
    content_hash: str
    interpreter: str
    interpreter_version: str
    # The library's class, for what draws or describes it. Its machines are not ours.
    chart_class: type[StateChart[Any]] = attrs.field(repr=False)
    _machines: Machines = attrs.field(repr=False)
    # So that the executor does not check again what is checked here.
    answers_checked: bool = True

    def create(self, *, data: Json, now: datetime) -> Step:
        """The first position: the initial states are entered, and everything that follows settles."""
        given = plain(data)
        with self._machines.lent() as lent, collecting() as effects:
            lent.engine.open(now=now, event_id="", effects=effects)
            execution = given.get("execution") if isinstance(given, dict) else None
            return self._answer(lent, None, effects, lambda: self._begin(lent, execution))

    def step(self, position: Json, event: Event, *, event_id: str, now: datetime) -> Step:
        """The answer to one event. A finished position is not stepped: the event is ignored."""
        read = read_position(position)
        seat = self._machines.structure.seat(read.states)
        if read.done:
            return Step(position, outcome="ignored", active=seat.leaves, status="completed")
        with self._machines.lent() as lent, collecting() as effects:
            engine = lent.engine
            engine.open(now=now, event_id=event_id, effects=effects)
            self._seat(lent, read)
            payload, origin = plain(event.data), event.origin
            trigger = engine.trigger(event.name, send_id=event.send_id)
            answer = self._answer(
                lent, position, effects, lambda: engine.take(trigger, payload=payload, origin=origin)
            )
            if answer.outcome == "failed" or engine.moved:
                return answer
            return attrs.evolve(
                answer,
                position=position,
                outcome="refused" if engine.named else "ignored",
                active=seat.leaves,
                effects=(),
            )

    def configuration(self, position: Json) -> tuple[str, ...]:
        """The active leaves of a position; raises `BadPosition` where it is not one of this chart's."""
        read = read_position(position)
        leaves = self._machines.structure.seat(read.states).leaves
        for name, remembered in read.history.items():
            self._machines.check_history(name, remembered)
        return leaves

    def finished(self, position: Json) -> bool:
        """Whether a legal position stands at the end of the chart, where no event moves it."""
        read = read_position(position)
        structure = self._machines.structure
        nodes = [structure.by_id[leaf] for leaf in structure.seat(read.states).leaves]
        return read.done or any(node.state.final and len(node.path) == 1 for node in nodes)

    def rename(self, position: Json, mapping: Mapping[str, str]) -> Json:
        """The position with its states, active and remembered, renamed: for `executions.migrate`."""
        read_position(position)
        renamed: Any = plain(position)
        renamed["states"] = [mapping.get(name, name) for name in renamed["states"]]
        if "history" in renamed:
            renamed["history"] = {
                mapping.get(name, name): [mapping.get(state, state) for state in states]
                for name, states in renamed["history"].items()
            }
        answer: Json = renamed
        return answer

    def outline(self) -> Outline:
        """Its states and transitions, for whoever draws it."""
        return outline_of(self.name, self.chart_class)

    # -- What the two kinds do each in their own way ---------------------------------------------------

    def _begin(self, lent: Machine, execution: Json) -> None:
        raise NotImplementedError

    def _seat(self, lent: Machine, read: Position) -> None:
        raise NotImplementedError

    def _kept(self, lent: Machine) -> dict[str, Json]:
        """What the position keeps beside states and history."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------------

    def _answer(self, lent: Machine, before: Json, effects: list[Effect], run: Callable[[], None]) -> Step:
        """The step that `run` makes; what it raises is a failure, told with all that went before."""
        engine = lent.engine
        try:
            run()
            if not engine.moved:
                return Step(before, errors=engine.errors)
            completed = not engine.running
            return Step(
                self._position(lent, completed=completed),
                active=self._leaves(lent),
                status="completed" if completed else "active",
                donedata=plain(engine.donedata) if isinstance(engine.donedata, dict) else engine.donedata,
                effects=[checked_effect(effect) for effect in effects],
                errors=engine.errors,
            )
        except (BadAnswer, ConfigError):
            # The chart's own fault, in words that say what to mend.
            raise
        except Exception as error:
            if travels(error):
                raise
            return Step(before, outcome="failed", errors=[*engine.errors, told(error)])

    def _leaves(self, lent: Machine) -> tuple[str, ...]:
        return self._machines.structure.leaves_of(lent.machine.configuration_values)

    def _position(self, lent: Machine, *, completed: bool) -> Json:
        leaves = self._leaves(lent)
        try:
            seat = self._machines.structure.seat(leaves)
        except BadPosition as fault:
            raise BadAnswer(f"the step ended in states that cannot be active together: {fault}") from fault
        if len(seat.values) != len(lent.machine.configuration_values):
            raise BadAnswer(f"the step ended in states that cannot be active together: {leaves!r}")
        position: dict[str, Json] = {"states": list(leaves), **self._kept(lent)}
        history = self._machines.history(lent)
        if history:
            position["history"] = history
        if completed:
            position["done"] = True
        return position


def read_position(position: Json) -> Position:
    """The parts of a position; raises `BadPosition` for what no chart of this kind answers."""
    if not isinstance(position, Mapping) or not {"states", "data"} <= position.keys() <= _KEYS:
        raise BadPosition("position must be what this chart answered: an object with states and data")
    states, data = position["states"], position["data"]
    history, own = position.get("history", {}), position.get("self", {})
    sends = position.get("sends", 0)
    if not isinstance(states, list) or not all(isinstance(name, str) for name in states):
        raise BadPosition("position['states'] must be a list of names of states")
    for name, value in (("data", data), ("history", history), ("self", own)):
        if not isinstance(value, dict):
            raise BadPosition(f"position[{name!r}] must be an object, not {type(value).__name__}")
    if not isinstance(sends, int):
        raise BadPosition(f"position['sends'] must be a count, not {type(sends).__name__}")
    assert isinstance(data, dict)
    assert isinstance(history, dict)
    assert isinstance(own, dict)
    return Position(
        states=tuple(states),
        data=data,
        history=history,
        own=own,
        sends=sends,
        done=bool(position.get("done")),
    )
