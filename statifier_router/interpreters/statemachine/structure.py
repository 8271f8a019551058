"""What is worked out once about a chart's states: document order, ancestors, legality, event names.

The library numbers states so that siblings' children share numbers, and takes the order in which
states were entered for that of the document; a restored machine would then act in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import frozen
from statemachine.state import HistoryState, State
from statemachine.transition import Transition

from statifier_router.errors import ConfigError, RouterError

# Of configurations, per chart: they are worked out again rather than kept without bound.
_SEATS_KEPT = 4096


class BadPosition(RouterError):
    """A position that this chart never answered; the message names the part."""


@frozen(eq=False)
class Node:
    """One state: its place in document order, and its transitions by what sets them off."""

    state: State
    id: str
    order: int
    # From the state itself up to the outermost.
    path: tuple[State, ...]
    eventless: tuple[Transition, ...]
    # Each with the prefixes of event names that it names; the empty one is every event.
    named: tuple[tuple[Transition, tuple[str, ...]], ...]


@frozen(eq=False)
class Seat:
    """A legal configuration: the library's values of all active states, and the leaves' ids."""

    values: tuple[Any, ...]
    leaves: tuple[str, ...]


class Structure:
    """The states of one chart class, seen as a tree in document order."""

    def __init__(self, states: Iterable[State]) -> None:
        self.nodes: dict[Any, Node] = {}
        self.by_id: dict[str, Node] = {}
        self.histories: dict[str, HistoryState] = {}
        self._seats: dict[tuple[str, ...], Seat] = {}
        for order, state in enumerate(_in_document_order(states)):
            if state.id in self.by_id or state.value in self.nodes:
                raise ConfigError(f"two states are called {state.id!r}: a position tells states by their id")
            node = Node(
                state,
                state.id,
                order,
                (state, *state.ancestors()),
                tuple(t for t in state.transitions if t.is_eventless and not t.initial),
                tuple((t, _prefixes(t)) for t in state.transitions if not t.is_eventless and not t.initial),
            )
            self.nodes[state.value] = self.by_id[state.id] = node
            for history in state.history:
                self.histories[history.id] = history
        self.has_eventless = any(node.eventless for node in self.by_id.values())

    def order_of(self, state: State) -> int:
        """The place of a state in document order."""
        return self.nodes[state.value].order

    def in_order(self, values: Iterable[Any]) -> list[Node]:
        """The nodes of these states of the library, in document order."""
        nodes = self.nodes
        return sorted((nodes[value] for value in values), key=_by_order)

    def leaves_of(self, values: Iterable[Any]) -> tuple[str, ...]:
        """The ids of the active states that have no states inside, in document order."""
        return tuple(node.id for node in self.in_order(values) if node.state.is_atomic)

    def seat(self, leaves: tuple[str, ...]) -> Seat:
        """The configuration with these leaves; raises `BadPosition` where it is not legal."""
        known = self._seats.get(leaves)
        if known is None:
            known = self._worked_out(leaves)
            if len(self._seats) >= _SEATS_KEPT:
                self._seats.clear()
            self._seats[leaves] = known
        return known

    def _worked_out(self, leaves: tuple[str, ...]) -> Seat:
        active: dict[str, Node] = {}
        for leaf in leaves:
            node = self.by_id.get(leaf)
            if node is None:
                raise BadPosition(f"position names the state {leaf!r}, which this chart does not have")
            for state in node.path:
                active[state.id] = self.by_id[state.id]
        if not active:
            raise BadPosition("position names no state")
        self._check_level([node.state for node in self._roots()], active, "the chart", all_of_them=False)
        for node in active.values():
            state = node.state
            if state.states:
                self._check_level(state.states, active, f"state {state.id!r}", all_of_them=state.parallel)
        nodes = sorted(active.values(), key=_by_order)
        return Seat(
            tuple(node.state.value for node in nodes),
            tuple(node.id for node in nodes if node.state.is_atomic),
        )

    def _roots(self) -> Iterator[Node]:
        return (node for node in self.by_id.values() if node.state.parent is None)

    def _check_level(
        self, states: Iterable[State], active: dict[str, Node], where: str, *, all_of_them: bool
    ) -> None:
        states = list(states)
        inside = [state.id for state in states if state.id in active]
        if all_of_them and len(inside) != len(states):
            missing = next(state.id for state in states if state.id not in active)
            raise BadPosition(f"{where} is parallel, but its region {missing!r} is not active")
        if not all_of_them and len(inside) != 1:
            raise BadPosition(f"{where} must have one active state, not {inside!r}")


def names(prefixes: tuple[str, ...], event: str) -> bool:
    """Whether one of the prefixes stands for this event, token by token."""
    return any(not p or event == p or event.startswith(f"{p}.") for p in prefixes)


def _prefixes(transition: Transition) -> tuple[str, ...]:
    return tuple(_prefix(str(event)) for event in transition.events)


def _prefix(descriptor: str) -> str:
    if descriptor == "*":
        return ""
    return descriptor.removesuffix(".*") if descriptor.endswith(".*") else descriptor.removesuffix(".")


def _in_document_order(states: Iterable[State]) -> Iterator[State]:
    for state in states:
        yield state
        yield from _in_document_order(state.states)


def _by_order(node: Node) -> int:
    return node.order
