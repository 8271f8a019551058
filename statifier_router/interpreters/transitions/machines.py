"""The library's machines, bounded: internal events wait their turn, and an endless chain ends.

Imported only where the extra is there.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import transitions as library
from transitions.core import EventData, State
from transitions.extensions.nesting import HierarchicalMachine, NestedState

from statifier_router.errors import ConfigError
from statifier_router.interpreters.transitions.definition import Definition, Library, qualified
from statifier_router.jsontext import Json
from statifier_router.messages import Event

VERSION: str = library.__version__
CLASSES = Library(State, NestedState, library.Machine)
MICROSTEPS = 1_000

Tree = dict[str, Any]
# Stands in the place of the model in what is bound to each.
_MODEL = object()


class EndlessLoop(Exception):
    """One event led to more internal events than a step may have. Told as the step's failure."""


class _Stepping:
    """What both kinds of machine do differently from the library's own.

    An event triggered inside a callback is queued until its transition is over, as with the
    library's `queued=True`; but the answer to the event that came from outside is the true one.
    """

    models: list[Any]
    model_attribute: str
    _waiting: deque[Callable[[], Any]]
    _open: bool
    _considered: bool
    _event_id: str | None
    _now: datetime | None
    _arity: dict[object, bool]
    _bound: tuple[type, dict[str, partial[Any]]] | None
    _start: Any

    def prepare_stepping(self) -> None:
        """Once, after the machine was built."""
        self._waiting = deque()
        self._open = False
        self._considered = False
        self._event_id = None
        self._now = None
        self._arity = {}
        self._bound = None

    def bind(self, model: Any) -> None:
        """Give the model its triggers, as the library's `add_model` does, in the place of the last one.

        `add_model` works out for each model what is the same for all of its class; what it found for
        the first one is given to the others.
        """
        self.models.clear()
        own: dict[str, Any] = vars(model)
        if self._bound is not None and self._bound[0] is type(model):
            for name, trigger in self._bound[1].items():
                if name not in own:
                    arguments = (model if each is _MODEL else each for each in trigger.args)
                    own[name] = partial(trigger.func, *arguments)
            setattr(model, self.model_attribute, self._start)
            self.models.append(model)
            return
        before = set(own)
        self.add_first(model)
        if "to" not in before:
            # It would move a model in the middle of a transition, past the queue.
            own.pop("to", None)
        added = {name: own[name] for name in own.keys() - before - {"state"}}
        if all(isinstance(value, partial) for value in added.values()):
            self._start = model.state
            self._bound = (
                type(model),
                {
                    name: partial(value.func, *(_MODEL if each is model else each for each in value.args))
                    for name, value in added.items()
                },
            )

    def add_first(self, model: Any) -> None:
        """The library's `add_model`."""
        raise NotImplementedError

    def tree(self) -> Tree:
        """The model's active states in document order, as nested names."""
        raise NotImplementedError

    def finished(self, tree: Tree) -> bool:
        """Whether every active state is final."""
        raise NotImplementedError

    def send(self, model: object, event: Event) -> Any:
        """The library's own way to hand an event to a model."""
        raise NotImplementedError

    def hear(self, model: object, event: Event, *, event_id: str, now: datetime) -> bool | None:
        """Hand over one event: True: it moved; False: every guard said no; None: nothing reacts."""
        self._considered = False
        self._event_id = event_id
        self._now = now
        try:
            answer = self.send(model, event)
        except (library.MachineError, AttributeError):
            # Raised before any transition was considered, it is the library's word for "nothing reacts".
            if self._considered:
                raise
            return None
        return bool(answer) if self._considered else None

    def tell(self, event_data: Any) -> None:
        """Put what a callback may want to know on the library's own `EventData`."""
        self._considered = True
        first = event_data.args[0] if event_data.args else {}
        # Handed on: by the step itself, or by a callback that passes on what it was given.
        handed_on = first if isinstance(first, (Event, EventData)) else None
        event_data.name = event_data.event.name
        event_data.data = first if handed_on is None else getattr(handed_on, "data", {})
        event_data.origin = getattr(handed_on, "origin", None)
        event_data.send_id = getattr(handed_on, "send_id", None)
        event_data.event_id = self._event_id
        event_data.now = self._now

    def _process(self, trigger: Callable[[], Any]) -> Any:
        if self._open:
            self._waiting.append(trigger)
            return True
        self._open = True
        try:
            answer = trigger()
            taken = 0
            while self._waiting and not self.finished(self.tree()):
                taken += 1
                if taken > MICROSTEPS:
                    raise EndlessLoop(f"more than {MICROSTEPS} internal events followed one event")
                self._waiting.popleft()()
            return answer
        finally:
            self._open = False
            self._waiting.clear()

    def _called(self, function: Callable[..., Any]) -> Callable[[Any], Any]:
        """`function` for the one argument that the library gives; it may take none."""
        takes_event = self._takes_event(function)

        def call(event_data: Any) -> Any:
            answer = function(event_data) if takes_event else function()
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise TypeError(
                    f"the callback {qualified(function)} is asynchronous: a step waits for nothing"
                )
            return answer

        return call

    def _takes_event(self, function: Callable[..., Any]) -> bool:
        # Kept only for what lives as long as the machine: a method's function, not the method.
        if isinstance(function, MethodType):
            key: object = function.__func__
        elif isinstance(function, FunctionType):
            key = function
        else:
            return _takes_one(function)
        known = self._arity.get(key)
        if known is None:
            known = self._arity[key] = _takes_one(function)
        return known


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


class _Flat(_Stepping, library.Machine):
    @staticmethod
    def resolve_callable(func: Any, event_data: Any) -> Any:
        return event_data.machine._called(library.Machine.resolve_callable(func, event_data))  # noqa: SLF001 - its own

    def finished(self, tree: Tree) -> bool:
        return all(self.states[name].final for name in tree)

    def add_first(self, model: Any) -> None:
        self.add_model(model)

    def tree(self) -> Tree:
        return {self.get_model_state(self.models[0]).name: {}}

    def send(self, model: object, event: Event) -> Any:
        # By the table of events, never by an attribute: a model may have one of the same name.
        trigger = self.events.get(event.name)
        return False if trigger is None else trigger.trigger(model, event)


class _Nested(_Stepping, HierarchicalMachine):
    @staticmethod
    def resolve_callable(func: Any, event_data: Any) -> Any:
        return event_data.machine._called(library.Machine.resolve_callable(func, event_data))  # noqa: SLF001 - its own

    def finished(self, tree: Tree) -> bool:
        return _all_final(tree, self.states)

    def add_first(self, model: Any) -> None:
        self.add_model(model)

    def tree(self) -> Tree:
        tree = self.build_state_tree(self.models[0].state, self.state_cls.separator)
        return _in_order(tree, self.states)

    def send(self, model: object, event: Event) -> Any:
        return self.trigger_event(model, event.name, event)

    def _check_event_result(self, res: bool | None, model: Any, trigger: str) -> bool:  # noqa: FBT001 - its own
        # The library's own cannot look up the states of parallel regions within a region.
        if res is not None:
            return res
        found = leaves(self, self.tree())
        if all(self.get_state(name).ignore_invalid_triggers for name in found):
            return False
        raise library.MachineError(f"Can't trigger event {trigger!r} from state(s) {', '.join(found)}!")


def _all_final(tree: Tree, states: Mapping[str, Any]) -> bool:
    """The library's own rule: a leaf by its `final`, a state with active children by all of them."""
    return all(
        _all_final(child, states[name].states) if child else states[name].final
        for name, child in tree.items()
    )


Machine = _Flat | _Nested


def build(definition: Definition) -> Machine:
    """A machine of its own for one pair of hands. Raises `ConfigError` for what the library refuses."""
    arguments: dict[str, Any] = {
        "model": None,
        "states": definition.states(),
        "transitions": definition.transitions(),
        "initial": None,
        "send_event": True,
        # A `to_<state>` that any event of that name could pull is no part of a chart that others send to.
        "auto_transitions": False,
    }
    try:
        machine = (
            _nested_class(definition.separator)(**arguments)
            if definition.hierarchical
            else _Flat(**arguments)
        )
    except (ValueError, TypeError, KeyError, AttributeError, library.MachineError) as fault:
        raise ConfigError(f"the library refuses the definition: {fault}") from fault
    for name in definition.initial if isinstance(definition.initial, list) else [definition.initial]:
        # Set afterwards, and looked up first: the library adds an initial state that is not there.
        check_state(machine, name, "initial")
    machine.initial = definition.initial
    machine.prepare_stepping()
    machine.prepare_event = [machine.tell]
    return machine


def check_state(machine: Any, name: Any, place: str) -> None:
    """Raise `ConfigError`, naming the place, where the machine (in its present scope) has no such state."""
    try:
        machine.get_state(name)
    except ValueError:
        raise ConfigError(f"{place} is {name!r}, which is no state of this chart") from None


def _nested_class(separator: str) -> type[_Nested]:
    """A class whose separator no later setting of the library's global one can change."""
    state_class = type("_State", (NestedState,), {"separator": separator})
    return type("_Nested", (_Nested,), {"state_cls": state_class})


def _in_order(tree: Mapping[str, Any], states: Mapping[str, Any]) -> Tree:
    return {name: _in_order(tree[name], states[name].states) for name in states if name in tree}


def written(machine: Machine, tree: Tree) -> Json:
    """A tree as the library itself writes states: a name, or a list of names and lists."""
    return _written(tree, _separator(machine), ())


def _written(tree: Tree, separator: str, above: tuple[str, ...]) -> Json:
    names: list[Json] = [
        _written(child, separator, (*above, name)) if child else separator.join((*above, name))
        for name, child in tree.items()
    ]
    return names if len(names) > 1 else names[0]


def leaves(machine: Machine, tree: Tree) -> tuple[str, ...]:
    """The names of the innermost active states, in document order."""
    return tuple(_leaves(tree, _separator(machine), ()))


def _leaves(tree: Tree, separator: str, above: tuple[str, ...]) -> Iterator[str]:
    for name, child in tree.items():
        if child:
            yield from _leaves(child, separator, (*above, name))
        else:
            yield separator.join((*above, name))


def _separator(machine: Machine) -> str:
    return machine.state_cls.separator if isinstance(machine, HierarchicalMachine) else ""


def seat(machine: Machine, model: object, state: Json) -> None:
    """Put the model where a position says; no entry action runs. `ConfigError` for an unknown state."""
    _check_known(machine, state)
    if isinstance(machine, HierarchicalMachine):
        machine.set_state(state, model)  # type: ignore[arg-type]  # nested lists of names, as the library writes them
    else:
        machine.set_state(str(state), model)


def legal(machine: Machine, state: Json, initial: object) -> tuple[str, ...]:
    """The leaves of a position's states; `ConfigError` where this machine cannot stand so."""
    _check_known(machine, state)
    if not isinstance(machine, HierarchicalMachine):
        return (str(state),)
    tree: Any = machine.build_state_tree(state, machine.state_cls.separator)  # type: ignore[arg-type]  # as above
    _check_children(tree, machine.states, initial, "the chart")
    return leaves(machine, _in_order(tree, machine.states))


def _check_children(tree: Tree, states: Mapping[str, Any], initial: object, parent: str) -> None:
    if len(tree) > 1 and not isinstance(initial, (list, tuple)):
        raise ConfigError(f"position[state] is in {len(tree)} states of {parent}, which has no parallel ones")
    if initial is not None and not tree:
        raise ConfigError(f"position[state] is in {parent}, but in none of its states")
    for name, below in tree.items():
        _check_children(below, states[name].states, states[name].initial, name)


def _check_known(machine: Machine, state: Json) -> None:
    if not isinstance(machine, HierarchicalMachine) and not isinstance(state, str):
        raise ConfigError("position[state] must be the name of a state")
    for name in _names(state):
        try:
            machine.get_state(name)
        except ValueError:
            raise ConfigError(f"position[state] names {name!r}, which this chart does not have") from None


def _names(state: Json) -> Iterator[str]:
    if isinstance(state, str):
        yield state
    elif isinstance(state, list) and state:
        for item in state:
            yield from _names(item)
    else:
        raise ConfigError("position[state] must be the name of a state, or a list of them")
