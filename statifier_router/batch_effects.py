"""The effects of a batch's steps: rows that are kept in memory, and written with the rest of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from attrs import define, field, frozen

from statifier_router.errors import RouteRefused
from statifier_router.executor import EffectRefused, KeyedEffect
from statifier_router.jsontext import encode
from statifier_router.messages import Event, event_as_json
from statifier_router.sends import OutboxRoute, RecordRoute
from statifier_router.sends.routes import instance_of
from statifier_router.sends.sending import Handler
from statifier_router.steps import Cancel, Send

Row = dict[str, Any]


class Undone(BaseException):
    """The batch cannot be done as a set: undo it, and do it item by item.

    No `Exception`, so that no chart's or host's code on its way takes it for a failure.
    """


def give_up() -> NoReturn:
    """Raise `Undone`."""
    raise Undone


@define
class Effects:
    """What steps handed off, in order: rows of the outbox and of changes, timers, cancelled timers.

    A timer is known by its execution and its send id, a cancellation too.
    """

    outbox: list[Row] = field(factory=list)
    changes: list[Row] = field(factory=list)
    timers: list[Row] = field(factory=list)
    cancels: dict[tuple[str, str], None] = field(factory=dict)
    _armed: dict[tuple[str, str | None], list[Row]] = field(factory=dict)

    def arm(self, row: Row) -> None:
        """Keep a timer."""
        self.timers.append(row)
        self._armed.setdefault((row["execution_id"], row["send_id"]), []).append(row)

    def cancel(self, execution_id: str, send_id: str) -> None:
        """Cancel pending timers: those that stand in the table, and those that were armed before here."""
        self.cancels[execution_id, send_id] = None
        for row in self._armed.pop((execution_id, send_id), ()):
            row["state"] = "cancelled"

    def add(self, later: Effects) -> None:
        """Append what a later step handed off."""
        for execution_id, send_id in later.cancels:
            # Its own timers bear these cancellations already.
            self.cancel(execution_id, send_id)
        self.outbox.extend(later.outbox)
        self.changes.extend(later.changes)
        for row in later.timers:
            self.arm(row)


@frozen
class Collector(Handler):
    """Takes the effects of one execution, as the send handler does, and keeps what that would write.

    Whatever reaches further than our own rows raises `Undone`: another execution, or a host's route,
    would not see what the batch has only in memory.
    """

    effects: Effects = field(kw_only=True)

    def __call__(self, keyed: KeyedEffect) -> EffectRefused | None:
        """Keep one effect; answer why it was refused."""
        effect = keyed.effect
        if isinstance(effect, Cancel):
            self.effects.cancel(self.driven.execution_id, effect.send_id)
            return None
        return super().__call__(keyed)

    def refuse(self, send_key: str, reason: str, *, key: str | None = None) -> NoReturn:
        """A refused send writes a ledger row of its own, which is rare."""
        give_up()

    def _to_neighbour(self, keyed: KeyedEffect, send: Send) -> NoReturn:
        give_up()

    def _hand_off(self, name: str, event: Event, key: str) -> None:
        driven = self.driven
        route = instance_of(self.sending.config, driven.scope, name)
        if type(route) is RecordRoute:
            self._change(route, event)
            return
        if type(route) is not OutboxRoute:
            give_up()
        self.effects.outbox.append(
            {
                "queue": route.queue,
                "key": key,
                "execution_id": driven.execution_id,
                "scope": driven.scope,
                "event": encode(event_as_json(event)),
                "context": _context(driven.context),
                "created_at": driven.now,
            }
        )

    def _change(self, route: RecordRoute, event: Event) -> None:
        try:
            row = route.row_of(event, self.driven.now)
        except RouteRefused:
            # Told to the chart, or to whoever waits for its completion.
            give_up()
        self.effects.changes.append(row)

    def _arm(self, keyed: KeyedEffect, send: Send, delay: timedelta) -> EffectRefused | None:
        try:
            due_at = self.driven.now + delay
        except OverflowError:
            # It says why, and writes nothing.
            return super()._arm(keyed, send, delay)
        self.effects.arm(
            {
                "key": keyed.key,
                "execution_id": self.driven.execution_id,
                "send_id": send.send_id,
                "target": send.target,
                "event": encode(event_as_json(self._event(send))),
                "context": _context(self.driven.context),
                "due_at": due_at,
                "next_try_at": due_at,
                "state": "pending",
            }
        )
        return None


def _context(context: Mapping[str, str]) -> str | None:
    return encode(dict(context)) if context else None
