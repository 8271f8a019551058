"""Values that are made past their converters are the same values."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from statifier_router import CreatedAndDelivered, Delivered, Delivery, Event, Step
from statifier_router.executions.rows import StoredExecution
from statifier_router.executor import StepContext, Stepped
from statifier_router.values import unchecked
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
