"""The send handler: where each effect of a step goes, and what becomes of one that was refused."""

from __future__ import annotations

from datetime import timedelta

from statifier_router import ledger
from statifier_router import timer_table as timer_rows
from statifier_router.ambient import Frame
from statifier_router.config import Config
from statifier_router.driving import Input
from statifier_router.errors import OnCompleteFailed, RouteRefused
from statifier_router.executions import SQLExecutor
from statifier_router.executor import EffectRefused, Executor, KeyedEffect, StepContext, Stepped
from statifier_router.messages import Event
from statifier_router.savepoints import guarded
from statifier_router.schema import Schema
from statifier_router.sends import neighbours, routes
from statifier_router.sends.record_route import RecordRoute
from statifier_router.sends.routes import OutboxRoute
from statifier_router.steps import NO_DATA, Cancel, Send
from statifier_router.text import error_text
from statifier_router.values import made_often

EXECUTION = "execution"
# What SCXML calls its own event processor: the same as no type at all.
SCXML_TYPES = frozenset({"scxml", "http://www.w3.org/TR/scxml/#SCXMLEventProcessor"})


_DEFAULT = SQLExecutor()


@made_often
class Sending:
    """Makes the handler of each execution that is driven; holds what they all share."""

    config: Config
    executor: Executor

    @classmethod
    def of(cls, config: Config) -> Sending:
        """The one of this configuration."""
        return cls(config, config.executor or _DEFAULT)

    def outgoing(self, frame: Frame, driven: Input) -> Handler:
        """The handler of one execution's effects."""
        return Handler(self, frame, driven)

    def settle(self, frame: Frame) -> None:
        """Deliver what was queued for executions whose step was open; the outermost door calls it."""
        if frame.queue:
            neighbours.drain(self, frame)


@made_often
class Handler:
    """Takes the effects of one execution, driven by one input. `deaf` hands on no more neighbours' sends."""

    sending: Sending
    frame: Frame
    driven: Input
    deaf: bool = False

    def __call__(self, keyed: KeyedEffect) -> EffectRefused | None:
        """Hand one effect on, in the step's transaction and under the execution's lock."""
        effect = keyed.effect
        if isinstance(effect, Cancel):
            if self.driven.gathered is not None:
                self.driven.gathered.cancel(effect.send_id)
            timer_rows.cancel(self.frame.link, self._schema, self.driven.execution_id, effect.send_id)
            return None
        if effect.type is not None and not self._knows(effect.type):
            return EffectRefused(f"no handler for sends of type {effect.type!r}", "error.execution")
        if effect.target is None:
            return self._to_itself(keyed, effect)
        if effect.target == EXECUTION:
            return self._to_neighbour(keyed, effect)
        return self._to_route(keyed, effect, effect.target)

    def completed(self, stepped: Stepped, context: StepContext) -> None:
        """Hand `done.execution` to the completion route. Raises `OnCompleteFailed` where it refuses."""
        name = self.sending.config.on_complete
        if name is None:
            return
        execution = stepped.execution
        data = stepped.step.donedata
        event = (
            Event("done.execution", origin=execution.id)
            if data is NO_DATA
            else Event("done.execution", data, origin=execution.id)
        )
        key = context.effect_key(execution.id, execution.revision, "complete", 0)
        refused = self._hand_off(name, event, key)
        if refused is not None:
            raise OnCompleteFailed(name, refused.reason)

    def refuse(self, send_key: str, reason: str, *, key: str | None = None) -> None:
        """Write the ledger row of a refused send; a row that fails never harms the step."""
        entry = ledger.Entry(
            binding_id=EXECUTION,
            message_id=send_key,
            scope=self.driven.scope,
            outcome="send_refused",
            inserted_at=self.driven.now,
            key=key,
            execution_id=self.driven.execution_id,
            reason=reason,
        )
        guarded(self.frame, lambda: ledger.write(self.frame.link, self._schema, entry))

    @property
    def _schema(self) -> Schema:
        return self.sending.config.schema

    def _knows(self, type: str) -> bool:
        return type == self.sending.config.send_type or type in SCXML_TYPES

    def _to_itself(self, keyed: KeyedEffect, send: Send) -> EffectRefused | None:
        if send.delay is None:
            return EffectRefused(
                "a send to itself without a delay is the chart's own business", "error.execution"
            )
        return self._arm(keyed, send, send.delay)

    def _to_neighbour(self, keyed: KeyedEffect, send: Send) -> EffectRefused | None:
        if self.deaf:
            self.refuse(keyed.key, "hops")
            return EffectRefused("hops")
        return neighbours.send(self, keyed, send)

    def _to_route(self, keyed: KeyedEffect, send: Send, target: str) -> EffectRefused | None:
        if routes.instance_of(self.sending.config, self.driven.scope, target) is None:
            self.refuse(keyed.key, "route")
            return EffectRefused(f"no route is named {target!r}")
        if send.delay is not None:
            return self._arm(keyed, send, send.delay)
        return self._hand_off(target, self._event(send), keyed.key)

    def _hand_off(self, name: str, event: Event, key: str) -> EffectRefused | None:
        driven, config = self.driven, self.sending.config
        instance = routes.instance_of(config, driven.scope, name)
        context = routes.RouteContext(
            connection=self.frame.link,
            execution_id=driven.execution_id,
            scope=driven.scope,
            document=driven.document,
            key=driven.key,
            send_id=event.send_id,
            route=name,
            now=driven.now,
            context=driven.context,
            schema=config.schema,
        )
        gathered = driven.gathered
        if gathered is not None and type(instance) is OutboxRoute:
            gathered.outbox.append(instance.row_of(event, key, context))
            return None
        if gathered is not None and type(instance) is RecordRoute:
            try:
                gathered.changes.append(instance.row_of(event, context.now))
            except RouteRefused as refused:
                return EffectRefused(error_text(refused.reason))
            return None
        return routes.hand_off(self.frame, instance, event, key, context)

    def hand_off_later(self, name: str, event: Event, key: str) -> EffectRefused | None:
        """Hand off what a timer held back; refused where no route has this name any more."""
        if routes.instance_of(self.sending.config, self.driven.scope, name) is None:
            self.refuse(key, "route")
            return EffectRefused(f"no route is named {name!r}")
        return self._hand_off(name, event, key)

    def _arm(self, keyed: KeyedEffect, send: Send, delay: timedelta) -> EffectRefused | None:
        try:
            due_at = self.driven.now + delay
        except OverflowError:
            return EffectRefused(f"a delay of {delay} leads past the last year", "error.execution")
        row = timer_rows.row_of(
            key=keyed.key,
            execution_id=self.driven.execution_id,
            send_id=send.send_id,
            target=send.target,
            event=self._event(send),
            context=self.driven.context,
            due_at=due_at,
        )
        if self.driven.gathered is not None:
            self.driven.gathered.timers.append(row)
        else:
            timer_rows.arm(self.frame.link, self._schema, row)
        return None

    def _event(self, send: Send) -> Event:
        return Event(send.event, send.data, origin=self.driven.execution_id, send_id=send.send_id)
