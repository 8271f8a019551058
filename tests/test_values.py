"""Values that are made past their converters are the same values."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from statifier_router import CreatedAndDelivered, Delivered, Delivery, Event, Message, MessageError, Step
from statifier_router.executions.rows import StoredExecution
from statifier_router.executor import StepContext, Stepped
from statifier_router.values import quick, unchecked
from tests.support.charts import NOW

EXECUTION: tuple[Any, ...] = (
    "ex_1", "parcel", "acme", "P7", "hash", "function", "active", {"n": 1}, ("open",), 3, None, NOW, None,
)  # fmt: skip
STORED = StoredExecution(*EXECUTION, deferred=2)


@pytest.mark.parametrize(
    ("cls", "parts", "made"),
    [
        (StoredExecution, (*EXECUTION, 2), STORED),
        (
            Event,
            ("scanned", {"a": 1}, "ex_1", "s-1"),
            Event("scanned", {"a": 1}, origin="ex_1", send_id="s-1"),
        ),
        (Delivery, ("m-1", "acme", NOW, {"a": 1}, {}), Delivery("m-1", "acme", NOW, {"a": 1})),
        (
            Step,
            ({"n": 1}, "ignored", ("open",), "active"),
            Step({"n": 1}, outcome="ignored", active=["open"]),
        ),
        (Stepped, (STORED, Step(0)), Stepped(STORED, Step(0))),
        (Delivered, ("scans", "ex_1"), Delivered("scans", "ex_1")),
        (CreatedAndDelivered, ("scans", "ex_1"), CreatedAndDelivered("scans", "ex_1")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_value_made_unchecked_is_the_value(
    cls: Callable[..., Any], parts: tuple[Any, ...], made: Any
) -> None:
    """It is of the same class, equal, as frozen, and travels and evolves as the other does."""
    found = unchecked(cls)(*parts)
    assert type(found) is cls
    assert found == made
    assert repr(found) == repr(made)
    name = attrs.fields(type(found))[0].name
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(found, name, None)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        delattr(found, name)
    assert pickle.loads(pickle.dumps(found)) == made
    assert attrs.evolve(found) == made


def test_parts_are_taken_as_they_are() -> None:
    """No converter runs, no copy is made; what is left out has its default."""
    data: dict[str, Any] = {"a": [1]}
    event = unchecked(Event)("scanned", data)
    assert event.data is data
    assert (event.origin, event.send_id) == (None, None)
    assert unchecked(Event)("scanned").data == {}


def test_a_context_resolves_its_connection_when_asked() -> None:
    """`connection` names the field, although what is kept may be less than that."""
    names = {field.alias: field.name for field in attrs.fields(StepContext)}
    assert names["connection"] == "link"


@pytest.mark.parametrize("cls", [Delivery, Event, Message, Step])
def test_a_quick_class_shows_the_signature_that_attrs_made(cls: type[Any]) -> None:
    """Names, order, kinds, defaults and annotations."""
    derived = attrs.make_class("Derived", [], bases=(cls,), frozen=True)
    shown = inspect.signature(cls).parameters
    assert list(shown.values()) == list(inspect.signature(derived).parameters.values())
    told: Any = cls.__init__
    assert told.__annotations__.keys() == {"return", *shown}
    assert (told.__name__, told.__qualname__) == ("__init__", f"{cls.__name__}.__init__")


@pytest.mark.parametrize("base", [Delivery, Event, Message, Step])
def test_whatever_derives_from_a_quick_class_is_of_its_own_class(base: type[Any]) -> None:
    """A plain subclass and one of attrs' are made as attrs makes them, converters and all."""
    parts: dict[type, tuple[Any, ...]] = {
        Delivery: ("m-1", "acme", NOW, {"a": 1}),
        Event: ("scanned", {"a": 1}),
        Message: ("carrier", "m-1", "acme", {"a": 1}),
        Step: ({"a": 1},),
    }

    class Plain(base):
        pass

    @attrs.frozen
    class Wider(base):
        more: int = attrs.field(default=1, kw_only=True)

    made = base(*parts[base])
    for cls in (Plain, Wider):
        found = cls(*parts[base])
        assert type(found) is cls
        assert attrs.asdict(found) == attrs.asdict(made) | ({"more": 1} if cls is Wider else {})
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            found.data = None


def test_a_quick_class_converts_defaults_and_refuses_as_before() -> None:
    """Each instance has a default of its own; what a converter raises comes out; too much is a TypeError."""
    one, other = Event("scanned"), Event("scanned")
    assert one.data == {}
    assert one.data is not other.data
    assert Step({}, active=["open"]).active == ("open",)
    with pytest.raises(MessageError, match="event name must not be empty"):
        Event("")
    with pytest.raises(MessageError, match=r"event data\['a'\] set is not JSON"):
        Event("scanned", {"a": set()})
    with pytest.raises(TypeError, match="positional"):
        Step({}, "moved")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'data'"):
        Delivery("m-1", "acme", NOW)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nme'"):
        Event(nme="scanned")


def test_what_quick_would_leave_out_it_refuses() -> None:
    """A validator, and a default made of the instance."""

    @attrs.frozen(weakref_slot=False)
    class Validated:
        size: int = attrs.field(validator=attrs.validators.instance_of(int))

    @attrs.frozen(weakref_slot=False)
    class Derived:
        size: int = attrs.field(default=attrs.Factory(lambda self: 1, takes_self=True))

    for cls in (Validated, Derived):
        with pytest.raises(TypeError, match="size: neither validators nor factories"):
            quick(cls)


def test_what_a_converter_raises_leaves_a_value_as_it_was() -> None:
    """Made again by hand, and in vain: still of its class, and frozen."""
    event = Event("scanned", {})
    with pytest.raises(MessageError):
        event.__init__("other", object())  # type: ignore[misc,arg-type]  # what nobody should do
    assert type(event) is Event
    assert event == Event("scanned", {})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.name = "changed"  # type: ignore[misc]  # refused
