"""Machines of one chart class: made idle, lent to one step at a time, seated anew for each.

Making a machine costs more than most steps, so an idle one is kept. It is in one pair of hands at
a time, and whatever a step left in it is taken out before the next.
"""

# ruff: noqa: SLF001 - seating a machine is what its library has no public way for

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from attrs import frozen
from statemachine.event import Event as LibraryEvent
from statemachine.orderedset import OrderedSet
from statemachine.state import InstanceState, State
from statemachine.statemachine import StateChart

from statifier_router.errors import ConfigError
from statifier_router.interpreters.statemachine.engine import Engine
from statifier_router.interpreters.statemachine.structure import BadPosition, Structure

# Of idle machines: as many as threads step one chart at once, with room to spare.
_IDLE_KEPT = 32

_OWN_NAMES = frozenset(
    {
        "model",
        "history_values",
        "state_field",
        "start_configuration_values",
        "_callbacks",
        "_config",
        "_listeners",
        "_engine",
    }
)
# What may be shared by executions that know nothing of each other.
_SHARED = (FunctionType, BuiltinFunctionType, ModuleType, type)

EngineMaker = Callable[[Any, Structure], Engine]


@frozen(eq=False)
class Machine:
    """One machine, and what it and its model hold when freshly made."""

    machine: StateChart[Any]
    engine: Engine
    fresh_model: dict[str, Any]
    fresh_self: dict[str, Any]
    listeners: int


class Machines:
    """The machines of one chart class."""

    def __init__(
        self,
        chart_class: type[StateChart[Any]],
        make_engine: EngineMaker,
        make_model: Callable[[], Any] | None,
        **arguments: Any,
    ) -> None:
        self.structure = Structure(chart_class.states)
        self._make_model = make_model
        self._arguments = arguments
        self._idle: deque[Machine] = deque(maxlen=_IDLE_KEPT)
        structure = self.structure
        self._seated = _seated(chart_class, lambda machine: make_engine(machine, structure))
        probe = self._made()
        for node in structure.by_id.values():
            if node.state.invoke.key in probe.machine._callbacks._registry:
                raise ConfigError(
                    f"state {node.id!r} of {chart_class.__name__} has an invoke, which runs a thread: "
                    "emit to a route, and let its answer come back as a message"
                )
        # A listener made per machine, or an object that a model keeps, could carry what one
        # execution left into another: such machines are used once.
        self._reusable = not any(callable(listener) for listener in chart_class._class_listeners) and all(
            _shareable(value) for value in (*probe.fresh_model.values(), *probe.fresh_self.values())
        )

    @contextmanager
    def lent(self) -> Iterator[Machine]:
        """A machine for one step. One that a raise left behind is not used again."""
        lent: Machine | None = None
        with suppress(IndexError):
            lent = self._idle.pop()
        if lent is None:
            lent = self._made()
        yield lent
        lent.engine.open(now=None, event_id="", effects=[])
        if self._reusable and len(lent.machine._listeners) == lent.listeners:
            self._idle.append(lent)

    def _made(self) -> Machine:
        if self._make_model is None:
            machine = self._seated(**self._arguments)
        else:
            machine = self._seated(self._make_model(), **self._arguments)
        model = machine.model
        if not hasattr(model, "__dict__"):
            raise ConfigError(
                f"the model {type(model).__name__} has no __dict__, in which its data could stand"
            )
        engine = machine._engine
        assert isinstance(engine, Engine)
        return Machine(
            machine,
            engine,
            {name: value for name, value in vars(model).items() if name != machine.state_field},
            _own(machine),
            len(machine._listeners),
        )

    def seat(
        self,
        lent: Machine,
        leaves: tuple[str, ...],
        history: dict[str, Any],
        model: dict[str, Any],
        own: dict[str, Any],
    ) -> None:
        """Put the machine where a position says. No action runs."""
        furnish(lent, model, own)
        machine = lent.machine
        machine._config.value = OrderedSet(self.structure.seat(leaves).values) if leaves else None
        machine.history_values = {name: self._states(machine, name, ids) for name, ids in history.items()}

    def check_history(self, history: str, ids: Any) -> None:
        """Raise `BadPosition` where the chart has no such history state, or could not remember these."""
        known = self.structure.histories.get(history)
        if known is None or not isinstance(ids, list):
            raise BadPosition(f"position has a history {history!r}, which this chart does not have")
        for name in ids:
            node = self.structure.by_id.get(name)
            if node is None or known.parent not in node.path[1:]:
                raise BadPosition(f"position remembers {name!r} in {history!r}, which cannot remember it")

    def _states(self, machine: StateChart[Any], history: str, ids: Any) -> list[State]:
        self.check_history(history, ids)
        by_id = self.structure.by_id
        return [machine._config._instance_states[by_id[name].state.value] for name in ids]

    def history(self, lent: Machine) -> dict[str, Any]:
        """What the machine remembers, for a position."""
        in_order = self.structure.in_order
        values = lent.machine.history_values
        return {
            name: [node.id for node in in_order(state.value for state in values[name])]
            for name in sorted(values)
        }


def furnish(lent: Machine, model: dict[str, Any], own: dict[str, Any]) -> None:
    """Give the model and the machine these attributes, and no others but what is no data of theirs."""
    attributes = vars(lent.machine.model)
    attributes.clear()
    attributes.update({name: value for name, value in lent.fresh_model.items() if not is_data(value)})
    attributes.update(model)
    for name in _own(lent.machine):
        del vars(lent.machine)[name]
    vars(lent.machine).update({name: value for name, value in lent.fresh_self.items() if not is_data(value)})
    vars(lent.machine).update(own)


def data_of(attributes: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """The attributes that are data: all but those that came with the object, and are no data."""
    return {
        name: value
        for name, value in attributes.items()
        if not (name in fresh and fresh[name] is value and not is_data(value))
    }


def own_attributes(lent: Machine) -> dict[str, Any]:
    """The attributes that callbacks set on the machine itself."""
    return data_of(_own(lent.machine), lent.fresh_self)


def model_attributes(lent: Machine) -> dict[str, Any]:
    """The attributes of the model, but for the library's own."""
    attributes = dict(vars(lent.machine.model))
    attributes.pop(lent.machine.state_field, None)
    return data_of(attributes, lent.fresh_model)


def _own(machine: StateChart[Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(machine).items()
        if name not in _OWN_NAMES and not isinstance(value, InstanceState)
    }


def is_data(value: Any) -> bool:
    """Whether a value is kept in the position, or refused there; what is not comes anew with each machine."""
    return value is None or isinstance(
        value, (bool, int, float, str, list, dict, tuple, set, frozenset, bytes, bytearray, deque)
    )


def _shareable(value: Any) -> bool:
    return is_data(value) or isinstance(value, _SHARED)


def _method(make_engine: Callable[[Any], Engine]) -> Callable[[Any], Engine]:
    # A class given as an attribute would not be bound to the machine.
    return lambda machine: make_engine(machine)  # noqa: PLW0108


def _seated(
    chart_class: type[StateChart[Any]], make_engine: Callable[[Any], Engine]
) -> type[StateChart[Any]]:
    """The class with our engine. Made past the metaclass, which would declare every state again."""
    names: dict[str, Any] = {
        "__module__": chart_class.__module__,
        "__qualname__": chart_class.__qualname__,
        "_get_engine": _method(make_engine),
    }
    for name in dir(StateChart):
        # The library makes states and events attributes of the class, over its own methods.
        found = chart_class.__dict__.get(name)
        if isinstance(found, (State, LibraryEvent)):
            names[name] = StateChart.__dict__.get(name)
    made: type[StateChart[Any]] = type.__new__(type(chart_class), chart_class.__name__, (chart_class,), names)
    return made
