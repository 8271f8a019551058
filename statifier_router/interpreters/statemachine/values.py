"""Values as a document's expressions see them: event data by field name, stored data by item or name.

An event's payload comes from outside, so reading it by attribute always means a field, and only
`get` is a method. What a chart keeps is its own: dicts with every method, and fields by name beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statifier_router.interpreters.answers import BadAnswer
from statifier_router.jsontext import Json, NotJson, plain

SCXML_PROCESSOR = "http://www.w3.org/TR/scxml/#SCXMLEventProcessor"

# Of the module that a document's own classes belong to.
DOCUMENT = "an SCXML document"


class Record(dict[str, Any]):
    """A dict of the datamodel whose entries can be read and written as attributes too."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no field {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Fields:
    """A JSON object of an event: read-only, and an absent field is an error, never a None."""

    __slots__ = ("__fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        object.__setattr__(self, "_Fields__fields", fields)

    def __getattr__(self, name: str) -> Any:
        # A copy being made has no fields yet, and must not look for them here.
        if name == "_Fields__fields" or name not in self.__fields:
            raise AttributeError(f"the event has no field {name!r}")
        return seen(self.__fields[name])

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an event's data cannot be changed")

    def __getitem__(self, name: str) -> Any:
        return seen(self.__fields[name])

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where it is absent."""
        return seen(self.__fields[name]) if name in self.__fields else default

    def __contains__(self, name: object) -> bool:
        return name in self.__fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.__fields)

    def __len__(self) -> int:
        return len(self.__fields)

    def __eq__(self, other: object) -> bool:
        return bool(self.__fields == (other.__fields if isinstance(other, Fields) else other))

    def __hash__(self) -> int:
        raise TypeError("an event's data cannot be hashed")

    def __repr__(self) -> str:
        return repr(self.__fields)


class OriginType(str):
    """The type of processor that an event came through, equal to its short name and to its URI."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other in ("scxml", SCXML_PROCESSOR)

    __hash__ = str.__hash__


class SystemEvent:
    """The system variable `_event`: what SCXML says of the event being handled."""

    __slots__ = ("data", "invokeid", "name", "origin", "origintype", "sendid", "type")

    def __init__(
        self, name: str, data: Json, *, kind: str, origin: str, origintype: str, sendid: str | None
    ) -> None:
        self.name = name
        self.data = seen(data)
        self.type = kind
        self.origin = origin
        self.origintype = origintype
        self.sendid = sendid
        self.invokeid = ""

    def kept(self) -> Record:
        """The event as a chart may keep it."""
        return Record((name, kept(getattr(self, name))) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return self.kept() == (other.kept() if isinstance(other, SystemEvent) else other)

    def __hash__(self) -> int:
        raise TypeError("_event cannot be hashed")


def seen(value: Any) -> Any:
    """A value of an event's data as an expression sees it."""
    kind = type(value)
    if kind is dict:
        return Fields(value)
    if kind is list:
        return [seen(item) for item in value]
    return value


def kept(value: Any) -> Any:
    """A copy of `value` as the datamodel keeps it; what is not JSON stays what it is."""
    kind = type(value)
    if kind is dict or kind is Record:
        return Record((name, kept(item)) for name, item in value.items())
    if kind is list:
        return [kept(item) for item in value]
    if kind is Fields:
        return Record((name, kept(value[name])) for name in value)
    if kind is SystemEvent:
        return value.kept()
    if kind.__module__ == DOCUMENT and not isinstance(value, type):
        return _fields_of(value)
    return value


def _fields_of(value: Any) -> Record:
    """An object of a document's own class: bound to a variable, it is a record of its fields."""
    fields: dict[str, Any] = {}
    for owner in reversed(type(value).__mro__):
        if owner.__module__ == DOCUMENT:
            fields.update(vars(owner))
    fields.update(getattr(value, "__dict__", {}))
    return Record(
        (name, kept(item))
        for name, item in fields.items()
        if not name.startswith("__") and not callable(item)
    )


def copied(value: Any) -> Any:
    """A copy of a JSON value, in plain dicts and lists."""
    kind = type(value)
    if kind is dict:
        return {name: copied(item) for name, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    return value


def as_json(value: Any, what: str) -> Json:
    """`value` as plain JSON; raises `BadAnswer`, naming `what` and the place in it."""
    try:
        return plain(value)
    except NotJson:
        # Something of an event may stand inside what a chart built by hand.
        try:
            return plain(kept(value))
        except NotJson as fault:
            raise BadAnswer(
                f"{what}{fault.path} {fault.problem}; a position keeps JSON only: texts, numbers, "
                "booleans, None, and lists and dicts of them"
            ) from None
