"""`Task`: what both doors reduce their arguments to, so that one body serves them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from attrs import field

from statifier_router.bindings import Binding, Create, Dedupe, Defer, Plan
from statifier_router.claims import Claim
from statifier_router.errors import ConfigError, MessageError
from statifier_router.jsontext import Json, digest_of_parts
from statifier_router.keys import check_key
from statifier_router.messages import Delivery, Envelope, Event, Message, known_event
from statifier_router.values import made_often

_LAST = datetime.max.replace(tzinfo=UTC)


@made_often
class Task:
    """One delivery to make.

    `drops_unmatched` is whether an event that its execution does not react to is dropped (`deliver`)
    or counts as delivered all the same (`deliver_event`).
    """

    door: Literal["deliver", "deliver_event"]
    binding_id: str
    document: str
    create: Create
    scope: str
    key: str = field(repr=False)
    message_id: str
    now: datetime
    event: Event
    context: Mapping[str, str] = field(repr=False)
    claim: Claim
    drops_unmatched: bool
    unmatched: Defer | None = None
    missing: Defer | None = None

    def keeps_until(self, defer: Defer) -> datetime:
        """The last instant at which an event that is kept may still land."""
        return _later(self.now, defer.within)

    @property
    def digest(self) -> str:
        """Of the event's name, the key and the data: what makes two messages the same content."""
        return self.claim.digest


def of_binding(binding: object, key: object, delivery: object) -> Task:
    """The task of `deliver`. Raises `ConfigError`, `KeyInvalid` or `MessageError` for a bad argument."""
    if not isinstance(binding, Binding):
        raise ConfigError(f"binding must be a Binding, not {type(binding).__name__}")
    if not isinstance(delivery, Delivery):
        raise MessageError(f"delivery must be a Delivery, not {type(delivery).__name__}")
    return of_message(binding, check_key(key), delivery, delivery.now, delivery.data)


def of_message(binding: Binding, key: str, message: Message | Delivery, now: datetime, data: Json) -> Task:
    """The task of a message that this binding takes, with a key that was judged."""
    # The message's own data: a chart that may change what it is handed is given a copy.
    event = known_event(binding.event, data)
    unmatched, missing = binding.unmatched, binding.missing
    return Task(
        "deliver",
        binding.id,
        binding.document,
        binding.create,
        message.scope,
        key,
        message.message_id,
        now,
        event,
        message.context,
        _claim(binding.id, binding.dedupe, message, now, event, key),
        True,  # noqa: FBT003 - `drops_unmatched`, by its place
        unmatched if type(unmatched) is Defer else None,
        missing if type(missing) is Defer else None,
    )


def of_plan(plan: object, key: object, envelope: object) -> Task:
    """The task of `deliver_event`. Raises as `of_binding` does."""
    if not isinstance(plan, Plan):
        raise ConfigError(f"plan must be a Plan, not {type(plan).__name__}")
    if not isinstance(envelope, Envelope):
        raise MessageError(f"envelope must be an Envelope, not {type(envelope).__name__}")
    checked_key = check_key(key)
    return Task(
        door="deliver_event",
        binding_id=plan.id,
        document=plan.document,
        create=plan.create,
        scope=envelope.scope,
        key=checked_key,
        message_id=envelope.message_id,
        now=envelope.now,
        event=envelope.event,
        context=envelope.context,
        claim=_claim(plan.id, plan.dedupe, envelope, envelope.now, envelope.event, checked_key),
        drops_unmatched=False,
    )


def _claim(
    id: str, dedupe: Dedupe, message: Message | Delivery | Envelope, now: datetime, event: Event, key: str
) -> Claim:
    return Claim(
        id,
        message.scope if dedupe.per_scope else "",
        message.message_id,
        digest_of_parts(data=event.data, event=event.name, key=key),
        _later(now, dedupe.horizon),
    )


def _later(now: datetime, span: timedelta) -> datetime:
    try:
        return now + span
    except OverflowError:
        # Past the last year a datetime knows: for as long as can be said.
        return _LAST
