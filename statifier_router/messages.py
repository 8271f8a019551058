"""What comes in: the message of a source, the event a chart is handed, the arguments of the doors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from attrs import field, frozen

from statifier_router.clock import as_utc
from statifier_router.errors import MessageError
from statifier_router.jsontext import Json, NotJson, plain
from statifier_router.text import MESSAGE_ID_LIMIT, NAME_LIMIT, SEND_ID_LIMIT, checked


def _name(value: object, name: str) -> str:
    return checked(value, name, MessageError, limit=NAME_LIMIT)


def _json(value: object, name: str) -> Json:
    try:
        return plain(value)
    except NotJson as fault:
        raise MessageError(f"{name}{fault.path} {fault.problem}") from fault


def _json_object(value: object, name: str) -> dict[str, Json]:
    if not isinstance(value, Mapping):
        raise MessageError(f"{name} must be a mapping, not {type(value).__name__}")
    result = _json(value, name)
    assert isinstance(result, dict)
    return result


def _context(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise MessageError(f"context must be a mapping, not {type(value).__name__}")
    result = _json_object(value, "context")
    for name, item in result.items():
        if not isinstance(item, str):
            raise MessageError(f"context[{name!r}] must be text, not {type(item).__name__}")
    return MappingProxyType(result)  # type: ignore[arg-type]  # every value was just seen to be text


def _message_id(value: object) -> str:
    return checked(value, "message_id", MessageError, limit=MESSAGE_ID_LIMIT)


def _scope(value: object) -> str:
    # Empty is a scope like any other: a host with one tenant need not invent a name.
    return checked(value, "scope", MessageError, limit=NAME_LIMIT, empty=True)


def _now(value: object) -> datetime:
    return as_utc(value, "now", MessageError)


def _no_context() -> Mapping[str, str]:
    return MappingProxyType({})


@frozen(eq=True)
class Event:
    """What a chart is handed: a name and data.

    `origin` is the execution that sent it, `send_id` the id its sender gave it.
    The data is copied and checked here: JSON only, `MessageError` otherwise.

    >>> Event("arrived", {"depot": "Lyon"}).name
    'arrived'
    """

    name: str = field(converter=lambda value: _name(value, "event name"))
    data: Json = field(factory=dict, converter=lambda value: _json(value, "event data"), repr=False)
    origin: str | None = field(
        default=None,
        kw_only=True,
        converter=lambda value: None if value is None else _name(value, "origin"),
    )
    send_id: str | None = field(
        default=None,
        kw_only=True,
        converter=lambda value: (
            None if value is None else checked(value, "send_id", MessageError, limit=SEND_ID_LIMIT)
        ),
    )


@frozen
class Message:
    """One message of a source, as it was handed over.

    `message_id` is the source's own id of it: what makes a second hand-over a duplicate.
    `context` is opaque text carried beside the data (a trace context), never part of a key or digest.
    Raises `MessageError`, naming the field, where a part cannot be kept unchanged.

    >>> Message("carrier", "m-1", "acme", {"parcel": "P7"}).message_id
    'm-1'
    """

    source: str = field(converter=lambda value: _name(value, "source"))
    message_id: str = field(converter=_message_id)
    scope: str = field(converter=_scope)
    data: Mapping[str, Json] = field(
        converter=lambda value: _json_object(value, "data"), repr=False
    )
    context: Mapping[str, str] = field(
        factory=_no_context, kw_only=True, converter=_context, repr=False
    )


@frozen
class Delivery:
    """What `deliver` delivers: one message seen by one binding. `data` is the projection."""

    message_id: str = field(converter=_message_id)
    scope: str = field(converter=_scope)
    now: datetime = field(converter=_now)
    data: Json = field(converter=lambda value: _json(value, "data"), repr=False)
    context: Mapping[str, str] = field(
        factory=_no_context, kw_only=True, converter=_context, repr=False
    )


def _event(value: object) -> Event:
    if not isinstance(value, Event):
        raise MessageError(f"event must be an Event, not {type(value).__name__}")
    return value


@frozen
class Envelope:
    """What `deliver_event` delivers: an event, and the identity that makes it a duplicate later."""

    event: Event = field(converter=_event)
    message_id: str = field(converter=_message_id)
    scope: str = field(converter=_scope)
    now: datetime = field(converter=_now)
    context: Mapping[str, str] = field(
        factory=_no_context, kw_only=True, converter=_context, repr=False
    )
