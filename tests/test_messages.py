"""What comes in: messages, events, deliveries and envelopes, and the text and JSON they are made of."""

from __future__ import annotations

import copy
import enum
import json
import math
import pickle
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statifier_router.errors import MessageError
from statifier_router.jsontext import NotJson, canonical, decode, digest, encode, plain
from statifier_router.messages import Delivery, Envelope, Event, Message
from statifier_router.text import ERROR_LIMIT, error_text

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def message(**changed):
    return Message(**{"source": "carrier", "message_id": "m-1", "scope": "acme", "data": {}, **changed})


def delivery(**changed):
    return Delivery(**{"message_id": "m-1", "scope": "acme", "now": NOON, "data": {}, **changed})


def envelope(**changed):
    return Envelope(**{"event": Event("e"), "message_id": "m-1", "scope": "acme", "now": NOON, **changed})


def event(**changed):
    return Event(**{"name": "scanned", **changed})


def refused(build, **arguments):
    with pytest.raises(MessageError) as caught:
        build(**arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- texts --------------------------------------------------------------------------------------

TEXTS = [
    (message, "source", 128, "source"),
    (message, "message_id", 255, "message_id"),
    (message, "scope", 128, "scope"),
    (delivery, "message_id", 255, "message_id"),
    (delivery, "scope", 128, "scope"),
    (envelope, "message_id", 255, "message_id"),
    (envelope, "scope", 128, "scope"),
    (event, "name", 128, "event name"),
    (event, "origin", 128, "origin"),
    (event, "send_id", 255, "send_id"),
]


@pytest.mark.parametrize(("build", "name", "limit", "called"), TEXTS)
def test_texts_are_judged_at_the_edge(build, name, limit, called):
    """NUL, lone surrogates, length in UTF-8 bytes and type: each error names its field."""
    for value, says in [
        ("a\x00b", "NUL"),
        ("\udfff", "lone surrogate"),
        ("x" * (limit + 1), f"the limit is {limit}"),
        ("é" * (limit // 2 + 1), f"the limit is {limit}"),
        (7, "must be text, not int"),
        (b"x", "must be text, not bytes"),
    ]:
        said = refused(build, **{name: value})
        assert said.startswith(called)
        assert says in said
    longest = "é" * (limit // 2)
    assert getattr(build(**{name: longest}), name) == longest


@pytest.mark.parametrize(("build", "name"), [(build, name) for build, name, _, _ in TEXTS if name != "scope"])
def test_an_empty_text_is_refused(build, name):
    """An empty id would make every message a duplicate of every other."""
    assert "must not be empty" in refused(build, **{name: ""})


@pytest.mark.parametrize("build", [message, delivery, envelope])
def test_an_empty_scope_is_a_scope(build):
    """A host with one tenant need not invent a name."""
    assert build(scope="").scope == ""


@pytest.mark.parametrize("build", [message, delivery, envelope])
def test_texts_are_never_trimmed_or_normalised(build):
    """Case, spaces and Unicode form are part of an id (trap 18)."""
    for text in (" m ", "M", "e\u0301", "\u00e9", "a\nb"):
        assert build(message_id=text).message_id == text


def test_a_text_enum_is_reduced_to_its_text():
    """What is stored is what was compared."""

    class Source(enum.StrEnum):
        CARRIER = "carrier"

    assert type(message(source=Source.CARRIER).source) is str


# --- data ---------------------------------------------------------------------------------------


class Unlisted:
    pass


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1}, "set is not JSON"),
        ((1,), "tuple is not JSON"),
        (NOON, "datetime is not JSON"),
        (b"x", "bytes is not JSON"),
        (Unlisted(), "Unlisted is not JSON"),
        (math.nan, "nan is not a number that JSON can carry"),
        (math.inf, "inf is not a number that JSON can carry"),
        ("\ud800", "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ({1: 1}, "key that is not text"),
        ({None: 1}, "key that is not text"),
        pytest.param(10**5000, "digits", id="long integer"),
        (1j, "complex is not JSON"),
    ],
)
def test_data_that_is_not_json_is_refused_with_its_place(value, says):
    """Never altered, never lost: the error names the field, where in it, and what is wrong."""
    for build, called in [(message, "data"), (delivery, "data"), (event, "event data")]:
        said = refused(build, data={"a": [0, {"b.c": value}]})
        assert said.startswith(called + "['a'][1]['b.c']")
        assert says in said


def test_data_that_contains_itself_is_refused():
    """An endless value ends in an error that names the field."""
    endless = {}
    endless["self"] = [endless]
    assert refused(message, data=endless) == "data is nested too deeply, or contains itself"


@pytest.mark.parametrize("value", [None, [], "text", 7, [("a", 1)]])
def test_the_data_of_a_message_is_a_mapping(value):
    """A message has fields; an event or a projection may be any JSON."""
    assert refused(message, data=value).startswith("data must be a mapping")


def test_an_event_and_a_delivery_carry_any_json():
    """A list, a text or a null is data too."""
    for value in ([1], "text", None, 7, True):
        assert event(data=value).data == value
        assert delivery(data=value).data == value


def test_nul_inside_data_is_kept():
    """Only texts that are columns of their own refuse it."""
    assert message(data={"a\x00": "b\x00"}).data == {"a\x00": "b\x00"}


def test_data_is_copied():
    """What the host does to its own value later changes no message."""
    mine = {"a": [1], "m": MappingProxyType({"x": 1}), "o": OrderedDict(y=2)}
    theirs = message(data=mine)
    mine["a"].append(2)
    mine["new"] = 1
    assert theirs.data == {"a": [1], "m": {"x": 1}, "o": {"y": 2}}
    assert {type(theirs.data[name]) for name in "mo"} == {dict}


def test_numbers_keep_their_kind():
    """An integer stays an integer of any size, a float a float, a bool a bool."""
    data = message(data={"i": 10**4000, "f": 1.0, "b": True, "z": -0.0}).data
    assert [type(data[name]) for name in "ifbz"] == [int, float, bool, float]
    assert decode(encode(data)) == data


def test_a_long_name_does_not_fill_the_error():
    """The place of a fault is shown, not a page of it."""
    assert len(refused(message, data={"n" * 10_000: {1}})) < 300


# --- context, time, event -----------------------------------------------------------------------


@pytest.mark.parametrize("build", [message, delivery, envelope])
def test_context_is_text_by_text(build):
    """Opaque text beside the data, copied."""
    mine = {"traceparent": "00-1"}
    built = build(context=mine)
    mine["other"] = "x"
    assert built.context == {"traceparent": "00-1"}
    assert build().context == {}
    assert refused(build, context={"a": 1}) == "context['a'] must be text, not int"
    assert refused(build, context="x") == "context must be a mapping, not str"
    assert refused(build, context=None) == "context must be a mapping, not NoneType"
    assert refused(build, context={"a": "\ud800"}).startswith("context['a'] holds a lone surrogate")


@pytest.mark.parametrize("build", [delivery, envelope])
def test_now_is_an_aware_instant_in_utc(build):
    """A naive time is refused, another zone converted; microseconds are kept."""
    paris = datetime(2026, 3, 1, 13, 0, 0, 7, tzinfo=timezone(timedelta(hours=1)))
    assert build(now=paris).now == NOON + timedelta(microseconds=7)
    assert build(now=paris).now.tzinfo is UTC
    naive = NOON.replace(tzinfo=None)
    assert refused(build, now=naive).startswith("now must be an aware datetime")
    for value in (NOON.date(), NOON.timestamp(), NOON.isoformat(), None):
        assert refused(build, now=value).startswith("now must be an aware datetime")
    edge = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
    assert refused(build, now=edge).startswith("now is outside the years")


@pytest.mark.parametrize("value", ["scanned", None, {"name": "scanned"}, Event])
def test_an_envelope_holds_an_event(value):
    """Its name alone would lose the data."""
    assert refused(envelope, event=value).startswith("event must be an Event")


def test_an_event_has_empty_data_by_default():
    """A chart reads one shape, whether or not the sender had something to say."""
    assert event().data == {}
    assert (event().origin, event().send_id) == (None, None)
    assert Event("a", [1]) == Event(name="a", data=[1])


@pytest.mark.parametrize(
    "built",
    [
        message(data={"a": [1]}, context={"t": "1"}),
        delivery(data=[1], context={"t": "1"}),
        envelope(event=Event("e", {"a": 1}, origin="ex_1"), context={"t": "1"}),
        event(data={"a": 1}, send_id="s"),
    ],
    ids=lambda built: type(built).__name__,
)
def test_values_travel_between_processes(built):
    """Equal after pickling and copying; frozen; the payload is not in the repr."""
    assert pickle.loads(pickle.dumps(built)) == built
    assert copy.deepcopy(built) == built
    assert attrs.evolve(built) == built
    assert "[1]" not in repr(built)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        built.scope = "other"


def test_what_is_positional():
    """As the specification shows it; `context` by name only."""
    assert Message("carrier", "m", "s", {"a": 1}).data == {"a": 1}
    assert Delivery("m", "s", NOON, {"a": 1}).data == {"a": 1}
    assert Envelope(Event("e"), "m", "s", NOON).scope == "s"
    with pytest.raises(TypeError):
        Message("carrier", "m", "s", {}, {})
    with pytest.raises(TypeError):
        Event("e", {}, "origin")


# --- JSON text ----------------------------------------------------------------------------------


@given(JSON)
def test_json_survives_storage(value):
    """What is written comes back equal, with its kinds, every Unicode plane and NUL included."""
    copied = plain(value)
    assert repr(copied) == repr(value)
    assert repr(decode(encode(copied))) == repr(value)
    assert json.loads(encode(value)) == value


@given(st.dictionaries(TEXT, JSON, max_size=5), st.randoms())
def test_the_digest_ignores_the_order_of_names(value, random):
    """Equal values have one canonical text, however a source orders its fields."""
    names = list(value)
    random.shuffle(names)
    shuffled = {name: value[name] for name in names}
    assert canonical(shuffled) == canonical(value)
    assert digest(shuffled) == digest(value)
    assert decode(canonical(value)) == value


def test_the_digest_tells_kinds_apart():
    """`1`, `True`, `"1"`, `[1]` and null are five contents."""
    values = [1, True, "1", [1], None, {"a": 1}, {"a": [1]}, ""]
    assert len({digest(value) for value in values}) == len(values)
    assert len(digest(None)) == 64


def test_stored_text_is_compact_and_keeps_the_order():
    """No spaces, no escapes that Unicode does not need, names as they came."""
    assert encode({"b": 1, "a": [1.5, "é", None]}) == '{"b":1,"a":[1.5,"é",null]}'
    assert canonical({"b": 1, "a": 2}) == '{"a":2,"b":1}'


def test_a_fault_in_json_says_its_place():
    """The path is that of the innermost fault."""
    with pytest.raises(NotJson) as caught:
        plain([{"a": [1, {2}]}])
    assert caught.value.path == "[0]['a'][1]"
    assert str(caught.value) == "[0]['a'][1]: set is not JSON"


@given(st.text(), st.integers(0, 3))
def test_an_error_text_can_be_stored(text, times):
    """No NUL, no lone surrogate, at most 2,000 characters, whatever an exception says."""
    stored = error_text(text * 10**times)
    stored.encode()
    assert "\x00" not in stored
    assert len(stored) <= ERROR_LIMIT
