"""The view of a message, `Missing`, and `get`."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statifier_router.errors import ConfigError, RouterError
from statifier_router.view import Missing, View, get, same

SCAN = {
    "kind": "scan",
    "parcel": {"id": "P7", "state": {"name": "held"}},
    "tags": ["a", {"b": [1]}],
    "note": None,
    "items": 3,
    "_private": 4,
    "a.b": 5,
}

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def test_items_and_attributes_read_alike():
    """`view["a"]["b"]` and `view.a.b` are the same reading."""
    view = View(SCAN)
    assert view["parcel"]["state"]["name"] == view.parcel.state.name == "held"
    assert view.kind == "scan"
    assert view.note is None


@pytest.mark.parametrize("name", ["items", "_private"])
def test_an_attribute_always_means_a_field(name):
    """No method and no private name of the class stands in the way of a field."""
    assert getattr(View(SCAN), name) == SCAN[name]


@pytest.mark.parametrize("name", ["keys", "values", "get", "path", "data", "_data", "copy", "mro"])
def test_a_view_has_no_names_of_its_own(name):
    """A name that the message has not is absent, whatever mappings usually offer."""
    view = View({})
    assert not hasattr(view, name)
    with pytest.raises(Missing):
        getattr(view, name)


def test_an_absent_field_is_missing_with_its_whole_path():
    """`Missing` carries the path from the top of the message, and says it."""
    view = View(SCAN)
    with pytest.raises(Missing) as caught:
        _ = view.parcel.state.colour
    assert caught.value.path == ("parcel", "state", "colour")
    assert str(caught.value) == "the message has no field 'parcel.state.colour'"
    with pytest.raises(Missing, match="no field"):
        _ = view["weight"]


def test_missing_is_a_router_error_and_what_python_expects_of_attributes_and_items():
    """`hasattr`, `getattr` with a default, and `except KeyError` work on a view."""
    view = View(SCAN)
    assert hasattr(view, "kind")
    assert not hasattr(view, "weight")
    assert getattr(view, "weight", 7) == 7
    for kind in (RouterError, AttributeError, KeyError):
        with pytest.raises(kind):
            _ = view.weight


def test_missing_spells_names_with_dots_as_a_tuple():
    """A dotted spelling would mislead where a name holds a dot."""
    assert str(Missing(("a.b", "c"))).endswith("""field "('a.b', 'c')\"""")


def test_missing_survives_pickling():
    """The fault can travel between processes with its facts."""
    assert pickle.loads(pickle.dumps(Missing(("a", "b")))).path == ("a", "b")


def test_an_item_name_is_one_name_and_no_path():
    """A dot in brackets is part of the name."""
    view = View(SCAN)
    assert view["a.b"] == 5
    with pytest.raises(Missing):
        _ = view["parcel.id"]


def test_names_of_the_language_are_fields_in_brackets_only():
    """`view.__x__` belongs to Python, `view["__x__"]` to the message."""
    view = View({"__secret__": 1})
    assert view["__secret__"] == 1
    with pytest.raises(AttributeError) as caught:
        _ = view.__secret__
    assert not isinstance(caught.value, Missing)


def test_in_len_and_iteration_are_over_the_names():
    """A view answers what a mapping answers to the three."""
    view = View(SCAN)
    assert "kind" in view
    assert "weight" not in view
    assert len(view) == len(SCAN)
    assert list(view) == list(SCAN)
    assert not View({})


def test_lists_come_as_copies_all_the_way_down():
    """Changing what the view gave changes nothing of the message; what is inside a list is plain."""
    data = copy.deepcopy(SCAN)
    tags = View(data).tags
    assert tags == ["a", {"b": [1]}]
    assert type(tags) is list
    assert type(tags[1]) is dict
    tags[1]["b"].append(2)
    tags.clear()
    get(View(data), "tags").clear()
    assert data == SCAN


def test_a_view_cannot_be_changed():
    """Setting and deleting raise, by attribute and by item, and nothing changes."""
    data = copy.deepcopy(SCAN)
    view = View(data)
    for name in ("kind", "new", "__data__"):
        with pytest.raises(AttributeError, match="read-only"):
            setattr(view, name, 1)
        with pytest.raises(AttributeError, match="read-only"):
            delattr(view, name)
        with pytest.raises(TypeError, match="read-only"):
            view[name] = 1
        with pytest.raises(TypeError, match="read-only"):
            del view[name]
    assert data == SCAN


def test_views_are_equal_as_json_is():
    """A view equals a view or a dict of equal JSON; 1 equals 1.0 and not True."""
    view = View({"a": {"n": 1, "l": [True, {"x": None}]}})
    assert view.a == {"n": 1.0, "l": [True, {"x": None}]}
    assert view == View({"a": {"n": 1, "l": [True, {"x": None}]}})
    assert view.a != {"n": True, "l": [True, {"x": None}]}
    assert view.a != {"n": 1, "l": [1, {"x": None}]}
    assert view.a != {"n": 1, "l": [True]}
    assert view.a != {"n": 1}
    assert view.a != "text"
    with pytest.raises(TypeError):
        hash(view)


def test_the_repr_shows_nothing_of_the_message():
    """A view may land in a log line; its payload may not."""
    assert repr(View({"secret": "value"})) == "<view of 1 fields>"


def test_get_reads_a_path_or_answers_the_default():
    """A missing field, or something on the way that is no mapping, is the default."""
    view = View(SCAN)
    assert get(view, "parcel.id") == "P7"
    assert get(view, "parcel.weight") is None
    assert get(view, "parcel.weight", 0) == 0
    assert get(view, "kind.id", "x") == "x"
    assert get(view, "tags.0", "x") == "x"
    assert get(view, ("a.b",)) == 5
    assert get(view.parcel, "state.name") == "held"


def test_get_answers_a_null_that_is_there():
    """A present null is no missing field."""
    assert get(View(SCAN), "note", "default") is None


def test_get_answers_mappings_as_views():
    """What comes out of `get` reads like the view it came from, and knows its place."""
    inner = get(View(SCAN), "parcel.state")
    assert inner.name == "held"
    with pytest.raises(Missing) as caught:
        _ = inner.colour
    assert caught.value.path == ("parcel", "state", "colour")


@pytest.mark.parametrize("path", ["", ".", "a..b", "a.", (), ("a", ""), ("a", 1), ["a"], None, 3, "\ud800"])
def test_get_refuses_a_faulty_path(path):
    """A path that can name no field is a slip of the program, told as `ConfigError`."""
    with pytest.raises(ConfigError, match="path"):
        get(View(SCAN), path)


def test_get_refuses_what_is_no_view():
    """`get` reads the views that bindings are handed, and says so."""
    with pytest.raises(ConfigError, match="view must be the view of a message, not dict"):
        get({"a": 1}, "a")


@given(VALUES)
def test_every_value_equals_itself_and_its_copy(value):
    """JSON equality is reflexive, whatever the nesting."""
    assert same(value, copy.deepcopy(value))


@given(VALUES, VALUES)
def test_json_equality_is_symmetric_and_never_wider_than_pythons(one, other):
    """Only bools among numbers are told apart; nothing else becomes equal."""
    assert same(one, other) == same(other, one)
    if same(one, other):
        assert one == other


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_a_view_shows_what_is_there(data):
    """Each name reads as its value: mappings as equal views, the rest as equal values."""
    view = View(data)
    for name, value in data.items():
        assert view[name] == value
        assert isinstance(view[name], View) == isinstance(value, dict)
