"""The library's engine without its clock, queues and threads: one event in, everything settled, and out.

Selecting, exiting and entering states stay the library's. What differs: nothing waits (a delayed
event becomes an effect), order is the document's, errors are told, and a loop without end is cut.
"""

# ruff: noqa: SLF001 - an engine is the inside of a machine: the library's own reaches the same names

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from statemachine.callbacks import CallbacksRegistry
from statemachine.engines.sync import SyncEngine
from statemachine.event import BoundEvent
from statemachine.event_data import EventData, TriggerData
from statemachine.exceptions import InvalidDefinition
from statemachine.orderedset import OrderedSet
from statemachine.state import State
from statemachine.transition import Transition

from statifier_router.errors import ConfigError
from statifier_router.interpreters.answers import checked_effect
from statifier_router.interpreters.statemachine.faults import ERROR_EXECUTION, EndlessLoop, Refusal, told
from statifier_router.interpreters.statemachine.structure import Node, Structure, names
from statifier_router.jsontext import Json
from statifier_router.savepoints import travels
from statifier_router.steps import NO_DATA, Cancel, Effect, NoData, Send

MICROSTEPS = 1_000
# An event that enables nothing is no microstep, but a chart could send itself those without end too.
_EVENTS = 10 * MICROSTEPS


class _NothingInvoked:
    """In the place of the library's manager of threads: charts with `<invoke>` are refused at load."""

    def mark_for_invoke(self, state: State, event_kwargs: object = None) -> None: ...

    def cancel_for_state(self, state: State) -> None: ...

    def cancel_all(self) -> None: ...


class Engine(SyncEngine):
    """Runs one machine for one step at a time; `open` makes it forget the step before."""

    def __init__(self, sm: Any, structure: Structure) -> None:
        super().__init__(sm)
        if sm._callbacks.has_async_callbacks:
            raise ConfigError(
                f"{type(sm).__name__} has callbacks that are coroutines: a step waits for nothing, "
                "so write them as plain functions"
            )
        self._structure = structure
        self._invoke_manager: Any = _NothingInvoked()
        self._null = TriggerData(sm, event=None)
        self.open(now=None, event_id="", effects=[])

    def open(self, *, now: datetime | None, event_id: str, effects: list[Effect]) -> None:
        """Forget the last step and prepare for one at `now`, whose effects go to `effects`."""
        self.now = now
        self.event_id = event_id
        self.effects = effects
        self.errors: list[str] = []
        self.current: TriggerData | None = None
        self._first: TriggerData | None = None
        self.payload: Any = None
        self.origin: str | None = None
        self.moved = False
        self.named = False
        self.running = True
        self.donedata: Json | NoData = NO_DATA
        self._taken: deque[TriggerData] = deque()
        self._raised: deque[TriggerData] = deque()
        self._microsteps = self._events = self._effects_seen = 0
        self._failing_guards: set[int] = set()
        self._last_error: BaseException | None = None
        self._root_parallel_final_pending = None
        self._cache.clear()

    # -- What the machine calls -------------------------------------------------------------------

    def start(self, **kwargs: Any) -> None:
        """Nothing: a machine is seated, or begun by `begin`, never by being constructed."""

    def processing_loop(self) -> None:
        """Nothing: an event that a callback sends waits in its queue for the step that is running."""

    def put(self, trigger_data: TriggerData, internal: bool = False) -> None:  # noqa: FBT001, FBT002
        """Queue an event that the chart sends itself; a delayed one becomes an effect."""
        event = trigger_data.event
        error = trigger_data.kwargs.get("error")
        if event == ERROR_EXECUTION and isinstance(error, BaseException):
            self._tell(error)
        if event is not None and event.delay:
            self.effects.append(_delayed(trigger_data, event.delay))
        elif internal:
            self._raised.append(trigger_data)
        else:
            self._taken.append(trigger_data)

    def cancel_event(self, send_id: str) -> None:
        """Drop what this step has queued under the id; what earlier steps sent is the executor's."""
        self._taken = deque(trigger for trigger in self._taken if trigger.send_id != send_id)
        self.effects.append(checked_effect(Cancel(send_id)))

    def clear(self) -> None:
        """Drop every queued event."""
        self._taken.clear()
        self._raised.clear()

    # -- One step -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Enter the initial states, and settle."""
        trigger = self.trigger("__initial__")
        self.moved = True
        initial = self._initial_transitions(trigger)  # type: ignore[no-untyped-call] # the library's
        self._enter_states(initial, trigger, OrderedSet(), OrderedSet())
        self._settle()

    def take(self, trigger: TriggerData, *, payload: Json, origin: str | None) -> None:
        """Handle the event of this step, and settle."""
        self._first = trigger
        self.payload = payload
        self.origin = origin
        try:
            self._handle(trigger)
        except Refusal as refusal:
            self._tell(refusal.__cause__ or refusal)
            self.named = True
            return
        self.named = self.moved or self._is_named(str(trigger.event))
        self._settle()

    def trigger(
        self, event: str, *args: Any, internal: bool = False, send_id: str | None = None, **kwargs: Any
    ) -> TriggerData:
        """An event as the library queues it."""
        known = type(self.sm)._events
        name = next((e.name for e in known if e == event), event) if event in known else event
        bound = BoundEvent(id=event, name=name, internal=internal, _sm=self.sm)
        return TriggerData(self.sm, event=bound, send_id=send_id, args=args, kwargs=kwargs)

    def raise_error(self, event: str, error: BaseException) -> None:
        """Tell an error, and let the chart hear it before anything that waits outside."""
        self._tell(error)
        send_id = getattr(error, "send_id", None)
        self._raised.append(self.trigger(event, internal=True, send_id=send_id, error=error))

    def data_of(self, trigger: TriggerData | None) -> Any:
        """The data of an event: what the step was given, or what the chart sent itself."""
        if trigger is None or trigger is self._null:
            trigger = self.current
        if trigger is None:
            return None
        if trigger is self._first:
            return self.payload
        if trigger.args:
            return trigger.args[0] if len(trigger.args) == 1 else list(trigger.args)
        error = trigger.kwargs.get("error")
        if isinstance(error, BaseException):
            text = told(error)
            return {"reason": text, "error": text}
        return trigger.kwargs.get("data", trigger.kwargs) if trigger.kwargs else None

    def _handle(self, trigger: TriggerData) -> None:
        self._events += 1
        if self._events > _EVENTS:
            raise EndlessLoop(f"the chart sent itself more than {_EVENTS:,} events in one step")
        self._cache.clear()
        self.current = trigger
        enabled = self.select_transitions(trigger)
        if enabled:
            self.microstep(list(enabled), trigger)

    def _settle(self) -> None:
        """Take what the chart raised and sent itself, until nothing is left or it has ended."""
        while self.running:
            self._run_macrostep()
            self._check_root_final_state()  # type: ignore[no-untyped-call] # the library's
            if not self._is_waiting():
                return
            self._handle(self._taken.popleft())

    def _is_waiting(self) -> bool:
        """Whether the chart goes on, and sent itself something to go on with."""
        return self.running and (bool(self._taken) or self._sent_to_itself())

    def _run_macrostep(self) -> bool:
        while self.running:
            self._cache.clear()
            enabled = self._selected(self._null, None) if self._structure.has_eventless else None
            if enabled:
                self.microstep(list(enabled), self._null)
            elif self._raised:
                self._handle(self._raised.popleft())
            else:
                break
        return self.moved

    def _sent_to_itself(self) -> bool:
        """Whether `emit` named neither a target nor a delay: the chart itself, in this same step."""
        for index in range(self._effects_seen, len(self.effects)):
            effect = self.effects[index]
            if isinstance(effect, Send) and not (effect.target or effect.type or effect.delay):
                del self.effects[index]
                self._effects_seen = index
                self.put(self.trigger(effect.event, send_id=effect.send_id, data=effect.data))
                return True
        self._effects_seen = len(self.effects)
        return False

    def microstep(self, transitions: list[Transition], trigger_data: TriggerData) -> Any:
        """Take these transitions, as the library does, unless the step has taken too many."""
        self._microsteps += 1
        if self._microsteps > MICROSTEPS:
            raise EndlessLoop(
                f"the chart did not settle within {MICROSTEPS:,} microsteps: look for transitions "
                "without an event, or events it sends itself, that enable each other"
            )
        self.moved = True
        self._failing_guards.clear()
        return super().microstep(transitions, trigger_data)

    # -- Selecting, in document order ------------------------------------------------------------------

    def select_transitions(self, trigger_data: TriggerData) -> OrderedSet[Transition]:
        """The transitions that this event enables."""
        return self._selected(trigger_data, str(trigger_data.event))

    def _selected(self, trigger: TriggerData, event: str | None) -> OrderedSet[Transition]:
        enabled: OrderedSet[Transition] = OrderedSet()
        for node in self._active_nodes():
            if node.state.is_atomic:
                found = self._first_of(node, trigger, event)
                if found is not None:
                    enabled.add(found)
        return self._filter_conflicting_transitions(enabled) if len(enabled) > 1 else enabled

    def _first_of(self, leaf: Node, trigger: TriggerData, event: str | None) -> Transition | None:
        nodes = self._structure.nodes
        for state in leaf.path:
            node = nodes[state.value]
            if event is None:
                candidates: Iterable[Transition] = node.eventless
            else:
                candidates = [t for t, prefixes in node.named if names(prefixes, event)]
            for transition in candidates:
                if self._conditions_match(transition, trigger):
                    return transition
        return None

    def _is_named(self, event: str) -> bool:
        """Whether an active state has a transition for this event, whatever its guard says."""
        return any(names(prefixes, event) for node in self._active_nodes() for _, prefixes in node.named)

    def _active_nodes(self) -> list[Node]:
        return self._structure.in_order(self.sm._config.values)

    def _conditions_match(self, transition: Transition, trigger_data: TriggerData) -> bool:
        callbacks: CallbacksRegistry = self.sm._callbacks
        validators, guards = transition.validators.key, transition.cond.key
        if validators not in callbacks and guards not in callbacks:
            return True
        args, kwargs = self._get_args_kwargs(transition, trigger_data)
        try:
            callbacks.call(validators, *args, **kwargs)
        except Exception as error:
            if travels(error) or self.moved:
                raise
            raise Refusal from error
        heard = self._on_error_handler()

        def guard_failed(error: Exception) -> None:
            # Asked again before anything has moved, it would fail again, for ever.
            if id(transition) not in self._failing_guards:
                self._failing_guards.add(id(transition))
                assert heard is not None
                heard(error)

        return bool(callbacks.all(guards, *args, on_error=guard_failed if heard else None, **kwargs))

    def _prepare_exit_states(self, enabled_transitions: list[Transition]) -> Any:
        infos, _ = super()._prepare_exit_states(enabled_transitions)
        order_of = self._structure.order_of
        infos = sorted(infos, key=lambda info: order_of(info.state), reverse=True)
        return infos, OrderedSet(info.state for info in infos)

    def _prepare_entry_states(self, *args: Any) -> Any:
        infos, default_entry, history_content, configuration = super()._prepare_entry_states(*args)
        order_of = self._structure.order_of
        infos = sorted(infos, key=lambda info: order_of(info.state))
        # The library lists the transition that led to a history state beside the history's own
        # default, and would run its actions a second time. It relies on that for an initial
        # transition only, where it does not know which of several to run.
        history_content = {
            parent: [info for info in found if _runs_nowhere_else(info.transition)]
            for parent, found in history_content.items()
        }
        return infos, default_entry, history_content, configuration

    # -- Errors, and the end ---------------------------------------------------------------------------

    def _on_error_handler(self) -> Callable[[Exception], None] | None:
        return self.heard if self.sm.catch_errors_as_events else None

    def heard(self, error: Exception) -> None:
        """Let the chart hear an error of its own as `error.execution`; raise what is not its own."""
        if isinstance(error, (InvalidDefinition, EndlessLoop)) or travels(error):
            raise error
        self.raise_error(ERROR_EXECUTION, error)

    def _handle_error(self, error: Exception, trigger_data: TriggerData) -> None:
        if not self.sm.catch_errors_as_events or isinstance(error, EndlessLoop) or travels(error):
            raise error
        if trigger_data.event is not None and str(trigger_data.event) == ERROR_EXECUTION:
            # The library drops it, lest an error's own handler fail for ever; it is told all the same.
            self._tell(error)
            return
        self.raise_error(ERROR_EXECUTION, error)

    def _tell(self, error: BaseException) -> None:
        if error is not self._last_error:
            self._last_error = error
            self.errors.append(told(error))

    def _handle_final_state(self, target: State, on_entry_result: list[Any]) -> None:
        if target.parent is not None:
            super()._handle_final_state(target, on_entry_result)
            return
        self.running = False
        self.donedata = self._donedata(target, on_entry_result)

    def _donedata(self, target: State, on_entry_result: list[Any]) -> Json | NoData:
        """The library's rule for nested finals: what entering it returned, dicts being put together."""
        results = [result for result in on_entry_result if result is not None]
        mappings = [result for result in results if isinstance(result, dict)]
        if mappings:
            return {name: value for mapping in mappings for name, value in mapping.items()}
        return results[-1] if results else NO_DATA

    # -- What callbacks are called with -----------------------------------------------------------------

    def _get_args_kwargs(
        self,
        transition: Transition,
        trigger_data: TriggerData,
        target: State | None = None,
        source: State | None = None,
    ) -> Any:
        key = (id(transition), id(trigger_data), id(target), id(source))
        known = self._cache.get(key)
        if known is not None:
            return known
        event_data = EventData(trigger_data=trigger_data, transition=transition)
        if target:
            event_data.state = event_data.target = target
        if source:
            event_data.state = event_data.source = source
        kwargs = event_data.extended_kwargs
        self._offer(kwargs, trigger_data)
        found = (event_data.args, kwargs)
        self._cache[key] = found
        return found

    def _offer(self, kwargs: dict[str, Any], trigger: TriggerData) -> None:
        """Add what this kind of chart offers its callbacks beyond the library's own names."""


def _runs_nowhere_else(transition: Transition) -> bool:
    source = transition.source
    if source.is_history:
        return True
    return bool(transition.initial) and sum(bool(t.initial) for t in source.transitions) > 1


def _delayed(trigger: TriggerData, delay_ms: float) -> Effect:
    """A delayed event as an effect; what it carries must be a mapping, for it comes back as one."""
    if trigger.args:
        raise ConfigError(
            f"the delayed event {str(trigger.event)!r} carries positional arguments: give them names"
        )
    kwargs = trigger.kwargs
    data = kwargs["data"] if set(kwargs) == {"data"} else dict(kwargs)
    return checked_effect(
        Send(str(trigger.event), data, send_id=trigger.send_id, delay=timedelta(milliseconds=delay_ms))
    )
