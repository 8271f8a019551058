"""The doors: `route`, `deliver`, `deliver_event`."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import Any

from statifier_router import delivery as _delivery
from statifier_router import ledger, tasks
from statifier_router.ambient import Frame, route_running
from statifier_router.bindings import Binding, Plan
from statifier_router.clock import as_utc
from statifier_router.config import Config
from statifier_router.errors import ConfigError, DeliveryError, MessageError, ReentrantRoute
from statifier_router.judging import bindings_of, judged
from statifier_router.messages import Delivery, Envelope, Message
from statifier_router.outcomes import Outcome
from statifier_router.sends import Sending
from statifier_router.tasks import Task
from statifier_router.transactions import around, joinable, run

log = logging.getLogger("statifier_router")


def route(
    config: Config, message: Message, *, now: datetime | None = None, connection: Any = None
) -> list[Outcome]:
    """Deliver a message to the execution of every binding that it is for, one after the other.

    Each binding is a transaction of its own, unless `connection` (or a delivery that is running in
    this thread) gives the one to join. Answers one outcome for each enabled binding of the message's
    source, in configuration order. `now` is the one instant that every row carries; the clock's by
    default.

    A `DeliveryError` stops it: what earlier bindings did stays and stands on `error.outcomes`. Hand
    the message over again when it is mended; the earlier bindings will find it a duplicate.

    >>> from statifier_router import Message, route
    >>> from statifier_router.doctest_support import config
    >>> route(config(), Message("carrier", "m-1", "acme", {"parcel": "P7"}))
    [CreatedAndDelivered(binding_id='scans', execution_id='ex_1')]
    """
    check_config(config)
    if not isinstance(message, Message):
        raise MessageError(f"message must be a Message, not {type(message).__name__}")
    instant = config.now() if now is None else as_utc(now, "now", MessageError)
    refuse_inside_route()
    joinable(config, connection)
    return around(config, message.scope, "route", partial(_route, config, message, instant, connection))


def _route(config: Config, message: Message, now: datetime, connection: Any) -> list[Outcome]:
    outcomes: list[Outcome] = []
    try:
        for judgement in judged(config, bindings_of(config, message.scope), message, now):
            if isinstance(judgement, Task):
                outcomes.append(_perform(config, judgement, connection, savepoint=False))
                continue
            if judgement.entry is not None:
                record(config, judgement.entry, connection)
            if judgement.outcome is not None:
                outcomes.append(judgement.outcome)
    except DeliveryError as error:
        error.outcomes = tuple(outcomes)
        raise
    except Exception as error:
        if outcomes:
            done = ", ".join(f"{each.binding_id}: {each.recorded}" for each in outcomes)
            error.add_note(f"statifier_router: already delivered of this message: {done}")
        raise
    return outcomes


def record(config: Config, entry: ledger.Entry, connection: Any) -> None:
    """Write a ledger row that stands alone: under a savepoint, or in a short transaction."""

    def work(frame: Frame) -> None:
        ledger.write(frame.link, config.schema, entry)

    run(config, work, connection=connection, binding_id=entry.binding_id)


def deliver(
    config: Config, binding: Binding, key: str, delivery: Delivery, *, connection: Any = None
) -> Outcome:
    """Deliver one message to the execution at `key`, for one binding.

    Opens its own transaction and tries it again on transient faults, or joins the one in force under
    a savepoint. The binding's `source`, `match` and `enabled` are not looked at: whoever calls this
    has decided. Raises `DeliveryError`, `KeyInvalid`, `ConfigError`, `MessageError`, `SchemaError`.

    >>> from datetime import datetime, UTC
    >>> from statifier_router import Delivery, deliver
    >>> from statifier_router.doctest_support import config
    >>> configured = config()
    >>> delivery = Delivery("m-1", "acme", datetime(2026, 1, 1, tzinfo=UTC), {"depot": "Lyon"})
    >>> deliver(configured, configured.bindings[0], "P7", delivery)
    CreatedAndDelivered(binding_id='scans', execution_id='ex_1')
    """
    check_config(config)
    task = tasks.of_binding(binding, key, delivery)
    refuse_inside_route()
    if config.around_delivery is None:
        return _perform(config, task, connection, savepoint=False)
    # Before anything of the host's runs.
    joinable(config, connection)
    return around(config, task.scope, "deliver", partial(_perform, config, task, connection, savepoint=False))


def deliver_event(
    config: Config, plan: Plan, key: str, envelope: Envelope, *, connection: Any = None
) -> Outcome:
    """Deliver an event of the caller's own making to the execution at `key`.

    For code that runs inside a step, and for a host's own jobs: it joins the transaction in force
    and brackets its work in a savepoint, so that a fault undoes this delivery and nothing of the
    caller's. An event that the execution does not react to counts as delivered. Raises as `deliver`
    does.

    >>> from datetime import datetime, UTC
    >>> from statifier_router import Envelope, Event, Plan, deliver_event
    >>> from statifier_router.doctest_support import config
    >>> envelope = Envelope(Event("lost"), "job-1", "acme", datetime(2026, 1, 1, tzinfo=UTC))
    >>> deliver_event(config(), Plan("audit", "parcel", create="never"), "P7", envelope)
    Dropped(binding_id='audit', reason='no_execution', execution_id=None)
    """
    check_config(config)
    task = tasks.of_plan(plan, key, envelope)
    joinable(config, connection)
    return around(
        config,
        task.scope,
        "deliver_event",
        partial(_perform, config, task, connection, savepoint=True),
    )


def _perform(config: Config, task: Task, connection: Any, *, savepoint: bool) -> Outcome:
    sending = Sending.of(config)
    outcome = _delivery.perform(
        config,
        task,
        executor=sending.executor,
        outgoing_for=sending.outgoing,
        settle=sending.settle,
        connection=connection,
        savepoint=savepoint,
    )
    if log.isEnabledFor(logging.DEBUG):
        log.debug(
            "delivered",
            extra={
                "statifier_router.binding_id": outcome.binding_id,
                "statifier_router.outcome": outcome.recorded,
            },
        )
    return outcome


def refuse_inside_route() -> None:
    """Raise `ReentrantRoute` where a host's route runs, here.

    A route that calls a door could deliver to its own sender, whose step is open.
    """
    running_for = route_running()
    if running_for is not None:
        raise ReentrantRoute(running_for)


def check_config(config: object) -> None:
    """Raise `ConfigError` for what is no `Config`."""
    if not isinstance(config, Config):
        raise ConfigError(f"config must be a Config, not {type(config).__name__}")
