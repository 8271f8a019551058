"""What comes in: the message of a source, the event a chart is handed, the arguments of the doors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import field, frozen

from statifier_router.clock import as_utc
from statifier_router.errors import MessageError
from statifier_router.jsontext import Json, NotJson, copied, encode, plain, quoted
from statifier_router.text import MESSAGE_ID_LIMIT, NAME_LIMIT, SEND_ID_LIMIT, checked
from statifier_router.values import quick, unchecked

# Converters, typed as what a caller may hand over, so that a type checker sees a slip before they do.


def _json(value: object, name: str) -> Json:
    try:
        return plain(value)
    except NotJson as fault:
        raise _not_json(name, fault) from fault


def _not_json(name: str, fault: NotJson) -> MessageError:
    return MessageError(f"{name}{fault.path} {fault.problem}")


def _json_object(value: object, name: str) -> dict[str, Json]:
    if not isinstance(value, Mapping):
        raise MessageError(f"{name} must be a mapping, not {type(value).__name__}")
    result = _json(value, name)
    assert isinstance(result, dict)
    return result


def _event_name(value: str) -> str:
    return checked(value, "event name", MessageError, limit=NAME_LIMIT)


def _event_data(value: Json) -> Json:
    return _json(value, "event data")


def _origin(value: str | None) -> str | None:
    return None if value is None else checked(value, "origin", MessageError, limit=NAME_LIMIT)


def _send_id(value: str | None) -> str | None:
    return None if value is None else checked(value, "send_id", MessageError, limit=SEND_ID_LIMIT)


def _source(value: str) -> str:
    if type(value) is str and value.isascii() and 0 < len(value) <= NAME_LIMIT and "\x00" not in value:
        return value
    return checked(value, "source", MessageError, limit=NAME_LIMIT)


def _message_id(value: str) -> str:
    if type(value) is str and value.isascii() and 0 < len(value) <= MESSAGE_ID_LIMIT and "\x00" not in value:
        # As `checked` begins; it is asked of every message.
        return value
    return checked(value, "message_id", MessageError, limit=MESSAGE_ID_LIMIT)


def _scope(value: str) -> str:
    if type(value) is str and value.isascii() and 0 < len(value) <= NAME_LIMIT and "\x00" not in value:
        return value
    # Empty is a scope like any other: a host with one tenant need not invent a name.
    return checked(value, "scope", MessageError, limit=NAME_LIMIT, empty=True)


def _message_data(value: Mapping[str, Json]) -> Mapping[str, Json]:
    return _json(value, "data") if type(value) is dict else _json_object(value, "data")  # type: ignore[return-value]  # of a dict it is one


def _projection(value: Json) -> Json:
    try:
        return plain(value)
    except NotJson as fault:
        raise _not_json("data", fault) from fault


def _now(value: datetime) -> datetime:
    return as_utc(value, "now", MessageError)


def _context(value: Mapping[str, str]) -> Mapping[str, str]:
    if type(value) is dict and not value:
        return {}
    # A plain dict, for a message must survive pickling on its way to another process.
    return {name: _context_text(name, item) for name, item in _json_object(value, "context").items()}


def _context_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise MessageError(f"context[{name!a}] must be text, not {type(value).__name__}")
    return value


@quick
@frozen(weakref_slot=False)
class Event:
    """What a chart is handed: a name and data.

    `origin` is the execution that sent it, `send_id` the id its sender gave it.
    The data is copied and checked here: JSON only, `MessageError` otherwise.

    >>> Event("arrived", {"depot": "Lyon"}).name
    'arrived'
    """

    name: str = field(converter=_event_name)
    data: Json = field(factory=dict, converter=_event_data, repr=False)
    origin: str | None = field(default=None, kw_only=True, converter=_origin)
    send_id: str | None = field(default=None, kw_only=True, converter=_send_id)


_known_event = unchecked(Event)


def known_event(name: str, data: Json, *, origin: str | None = None, send_id: str | None = None) -> Event:
    """An event of parts that were checked before. The data is taken as it is: no copy is made."""
    return _known_event(name, data, origin, send_id)


def copied_event(event: Event) -> Event:
    """The same event with data of its own, for whoever may change it."""
    return _known_event(event.name, copied(event.data), event.origin, event.send_id)


@quick
@frozen(weakref_slot=False)
class Message:
    """One message of a source, as it was handed over.

    `message_id` is the source's own id of it: what makes a second hand-over a duplicate.
    `context` is opaque text carried beside the data (a trace context), never part of a key or digest.
    Raises `MessageError`, naming the field, where a part cannot be kept unchanged.

    >>> Message("carrier", "m-1", "acme", {"parcel": "P7"}).message_id
    'm-1'
    """

    source: str = field(converter=_source)
    message_id: str = field(converter=_message_id)
    scope: str = field(converter=_scope)
    data: Mapping[str, Json] = field(converter=_message_data, repr=False)
    context: Mapping[str, str] = field(factory=dict, kw_only=True, converter=_context, repr=False)


@quick
@frozen(weakref_slot=False)
class Delivery:
    """What `deliver` delivers: one message seen by one binding. `data` is the projection."""

    message_id: str = field(converter=_message_id)
    scope: str = field(converter=_scope)
    now: datetime = field(converter=_now)
    data: Json = field(converter=_projection, repr=False)
    context: Mapping[str, str] = field(factory=dict, kw_only=True, converter=_context, repr=False)


def _event(value: Event) -> Event:
    return _an_event(value)


def _an_event(value: object) -> Event:
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
    context: Mapping[str, str] = field(factory=dict, kw_only=True, converter=_context, repr=False)


def event_as_json(event: Event) -> Json:
    """An event as it is stored; what is absent is left out."""
    stored: dict[str, Json] = {"name": event.name, "data": event.data}
    if event.origin is not None:
        stored["origin"] = event.origin
    if event.send_id is not None:
        stored["send_id"] = event.send_id
    return stored


def event_text(event: Event) -> str:
    """The text of an event as it is stored."""
    if event.origin is None and event.send_id is None:
        return f'{{"name":{quoted(event.name)},"data":{encode(event.data)}}}'
    return encode(event_as_json(event))


def event_from_json(stored: Any) -> Event:
    """The event that was stored."""
    return Event(
        stored["name"],
        stored["data"],
        origin=stored.get("origin"),
        send_id=stored.get("send_id"),
    )
