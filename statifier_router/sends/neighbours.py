"""The reserved target `execution`: one durable execution sends to another, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from statifier_router import addresses, charts, keeping, tasks
from statifier_router.ambient import Frame
from statifier_router.bindings import Dedupe, Plan
from statifier_router.delivery import perform
from statifier_router.driving import Driving, Input
from statifier_router.errors import (
    ConfigError,
    DeliveryError,
    ExecutionSuspended,
    KeyInvalid,
    StepFailed,
)
from statifier_router.executions.operating import lock_execution
from statifier_router.executions.sql_executor import refusal_event
from statifier_router.executor import EffectRefused, KeyedEffect
from statifier_router.jsontext import Json, digest
from statifier_router.keeping import Keeper
from statifier_router.keys import check_key
from statifier_router.messages import Envelope, Event
from statifier_router.outcomes import Dropped
from statifier_router.savepoints import in_own_savepoint
from statifier_router.steps import Send
from statifier_router.tasks import Task
from statifier_router.text import NAME_LIMIT, checked, error_text

if TYPE_CHECKING:
    from statifier_router.sends.sending import Handler, Sending

HORIZON = Dedupe(timedelta(hours=72))
# Reasons that stand in the ledger already when the sender is told: its refusal's row, or the target's.
_RECORDED = frozenset({"suspended", "hops", "no_execution", "finished"})
# How many queued sends one transaction delivers: two executions that answer each other must end.
MOST_HOPS = 100
# How deep deliveries nest in one another. Each level is some twenty calls of Python's stack, which
# the host uses too: what would go deeper is queued.
DEEPEST = 16


@frozen
class _Queued:
    """A send that waits for the end of the open steps."""

    handler: Handler
    keyed: KeyedEffect
    send: Send
    task: Task


class _Refused(Exception):
    def __init__(self, reason: str, key: str | None = None) -> None:
        self.reason = reason
        self.key = key
        super().__init__(reason)


def send(handler: Handler, keyed: KeyedEffect, send: Send) -> EffectRefused | None:
    """Deliver a send to its neighbour now; queue it where the neighbour's own step is open, or too deep."""
    try:
        task = _task(handler, keyed, send)
    except _Refused as refused:
        handler.refuse(keyed.key, refused.reason, key=refused.key)
        return EffectRefused(refused.reason)
    if handler.frame.depth >= DEEPEST or _is_stepping(handler, task):
        handler.frame.queue.append(_Queued(handler, keyed, send, task))
        return None
    return _deliver(handler, keyed, task)


def _task(handler: Handler, keyed: KeyedEffect, send: Send) -> Task:
    driven = handler.driven
    if send.delay is not None:
        raise _Refused("delay")
    params: Mapping[str, Json] = send.data if isinstance(send.data, Mapping) else {}
    try:
        document = checked(params.get("document"), "document", ConfigError, limit=NAME_LIMIT)
    except ConfigError:
        raise _Refused("document") from None
    try:
        key = check_key(params.get("key"))
    except KeyInvalid:
        raise _Refused("key") from None
    create = params.get("create", "if_absent")
    if create not in ("if_absent", "never"):
        raise _Refused("create", key)
    if (document, key) == (driven.document, driven.key):
        raise _Refused("self_address", key)
    data = {name: value for name, value in params.items() if name not in ("document", "key", "create")}
    event = Event(send.event, data, origin=driven.execution_id, send_id=send.send_id)
    envelope = Envelope(event, keyed.key, driven.scope, driven.now, context=driven.context)
    plan = Plan.reserved("execution", document, "never" if create == "never" else "if_absent", HORIZON)
    return tasks.of_plan(plan, key, envelope)


def _is_stepping(handler: Handler, task: Task) -> bool:
    frame = handler.frame
    place = (task.scope, task.document, task.key)
    if place not in frame.stepping.values():
        return False
    # An execution made by `always_new` has no address: the one at this place may be another.
    found = addresses.look_up(frame.connection, handler.sending.config.schema, *place)
    return found.execution_id in frame.stepping


def _wait_for(sending: Sending, task: Task, frame: Frame) -> None:
    """Take a neighbour's lock before one's own, as whoever deadlocked with its sender did."""
    place = (task.scope, task.document, task.key)
    found = addresses.look_up(frame.connection, sending.config.schema, *place)
    if found.execution_id is not None:
        lock_execution(sending.config, frame, sending.executor, found.execution_id)


def _deliver(handler: Handler, keyed: KeyedEffect, task: Task) -> EffectRefused | None:
    sending = handler.sending
    place = (task.scope, task.document, task.key)
    handler.frame.first[place] = partial(_wait_for, sending, task)
    try:
        outcome = perform(
            sending.config,
            task,
            executor=sending.executor,
            outgoing_for=sending.outgoing,
            settle=sending.settle,
            connection=handler.frame.connection,
            savepoint=True,
        )
    except ExecutionSuspended:
        handler.refuse(keyed.key, "suspended", key=task.key)
        return EffectRefused("suspended")
    except DeliveryError as error:
        if error.fault == "transient":
            # Whatever the chart made of it would be committed, and its message lost.
            raise
        return EffectRefused(error_text(error))
    return EffectRefused(outcome.reason) if isinstance(outcome, Dropped) else None


def drain(sending: Sending, frame: Frame) -> None:
    """Deliver the queue, in order, until it is empty; the failure of each reaches its sender."""
    while frame.queue:
        frame.flush()
        queued: _Queued = frame.queue.pop(0)
        frame.hops += 1
        if frame.hops > MOST_HOPS:
            queued.handler.refuse(queued.keyed.key, "hops", key=queued.task.key)
            refused: EffectRefused | None = EffectRefused("hops")
        else:
            refused = _deliver(queued.handler, queued.keyed, queued.task)
        if refused is not None:
            _tell(sending, frame, queued, refused)


def _tell(sending: Sending, frame: Frame, queued: _Queued, refused: EffectRefused) -> None:
    """A further step of the sender: its own has ended when a queued send fails.

    Where its chart can no longer take the news, the ledger does.
    """
    sender = queued.handler.driven
    send = queued.send
    event = refusal_event(refused, send.event, send.target, send.send_id)

    def work() -> None:
        execution = sending.executor.fetch(frame.connection, sending.config, sender.execution_id, lock=True)
        if execution is None or execution.status != "active":
            if refused.reason not in _RECORDED:
                queued.handler.refuse(queued.keyed.key, refused.reason, key=queued.task.key)
            return
        chart = charts.for_execution(sending.config, execution)
        driven = Input(
            execution_id=execution.id,
            scope=execution.scope,
            document=execution.document,
            key=execution.key,
            message_id=queued.keyed.key,
            now=sender.now,
            context=sender.context,
            door="reentry",
            digest=digest({"event": event.name, "data": event.data}),
        )
        outgoing_for = _deaf(sending) if frame.hops > MOST_HOPS else sending.outgoing
        stepped = Driving(
            config=sending.config,
            frame=frame,
            executor=sending.executor,
            outgoing_for=outgoing_for,
            input=driven,
        ).step(execution, chart, event)
        keeper = Keeper(sending.config, frame, sending.executor, outgoing_for)
        keeping.offer(keeper, stepped.execution, sender.now)

    try:
        in_own_savepoint(frame, work)
    except StepFailed as failed:
        # The sender's chart cannot take the news; its step, which sent, stands.
        queued.handler.refuse(queued.keyed.key, error_text(failed.reason), key=queued.task.key)


def _deaf(sending: Sending) -> Callable[[Frame, Input], Handler]:
    from statifier_router.sends.sending import Handler

    return lambda frame, driven: Handler(sending, frame, driven, deaf=True)
