"""Bindings, plans and their rules: what is refused when they are built, and the projection."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statifier_router.bindings import WHOLE, Binding, Dedupe, Defer, Plan
from statifier_router.errors import BindingError, ConfigError
from statifier_router.keys import join
from statifier_router.view import View


def binding(**changed):
    arguments = {
        "id": "scans",
        "source": "carrier",
        "match": {"kind": "scan"},
        "key": "parcel.id",
        "document": "parcel",
        "event": "scanned",
    }
    return Binding(**{**arguments, **changed})


def refused(build, **arguments):
    with pytest.raises(BindingError) as caught:
        build(**arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what a binding is --------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_specification():
    """What is not said is the careful choice."""
    plain = binding()
    assert plain.data == ()
    assert plain.create == "if_absent"
    assert plain.dedupe == Dedupe(timedelta(hours=72), per_scope=False)
    assert (plain.unmatched, plain.missing, plain.order, plain.enabled) == ("drop", "drop", "by_key", True)


def test_every_argument_is_by_name():
    """Six texts in a row would be told apart by nobody."""
    with pytest.raises(TypeError):
        Binding("scans", "carrier", {}, "k", "parcel", "scanned")


def test_a_binding_is_a_value():
    """Frozen, equal by what was given, and usable in a set."""
    assert binding() == binding()
    assert binding() != binding(event="held")
    assert len({binding(), binding(), binding(id="other")}) == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        binding().event = "held"


def test_a_binding_can_be_evolved():
    """`attrs.evolve` builds, and so judges and compiles, a whole new one."""
    changed = attrs.evolve(binding(), match={"kind": "held"}, data=WHOLE)
    assert changed.matches(View({"kind": "held"}))
    assert changed.project({"a": 1}) == {"a": 1}
    assert "mode" in refused(lambda **more: attrs.evolve(binding(), **more), mode="x")


def test_a_binding_judges_names_and_projects():
    """The three programs answer what was declared."""
    whole = binding(data=["parcel.id", "depot"], key=join("parcel.id", "parcel.part"))
    data = {"kind": "scan", "parcel": {"id": "P7", "part": 2, "secret": 1}, "depot": "Lyon"}
    assert whole.matches(View(data)) is True
    assert whole.key_of(View(data)) == "P7#2"
    assert whole.project(data) == {"parcel": {"id": "P7"}, "depot": "Lyon"}


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mode", "batch", "window"])
def test_reserved_names_are_refused_as_such(name):
    """A binding written for a later version says so, in place of a bare `TypeError`."""
    assert refused(binding, **{name: None}) == f"{name} is a name reserved for a later version; leave it out"


def test_an_unknown_argument_is_refused_by_name():
    """A misspelt argument is a faulty binding like any other."""
    assert refused(binding, evnt="x") == "evnt is not an argument of Binding"


@pytest.mark.parametrize("name", ["execution", "timer"])
def test_reserved_ids_are_refused(name):
    """The library delivers under these ids itself; a host's claims must not meet its own."""
    assert "reserved" in refused(binding, id=name)
    assert "reserved" in refused(Plan, id=name, document="parcel")
    assert Plan.reserved(name, "parcel", "never").id == name


@pytest.mark.parametrize("name", ["id", "source", "document", "event"])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "must not be empty"),
        ("x" * 129, "the limit is 128"),
        ("é" * 65, "the limit is 128"),
        ("a\x00", "NUL"),
        ("\ud800", "lone surrogate"),
        (None, "must be text"),
        (7, "must be text"),
        (b"x", "must be text"),
    ],
)
def test_texts_are_judged_by_name(name, value, says):
    """Limits in UTF-8 bytes; nothing is left for a database to refuse."""
    message = refused(binding, **{name: value})
    assert message.startswith(f"{name} ")
    assert says in message


@pytest.mark.parametrize("name", ["id", "source", "document", "event"])
def test_a_text_of_exactly_its_limit_is_taken(name):
    """The limit is inclusive."""
    assert getattr(binding(**{name: "é" * 64}), name) == "é" * 64


@pytest.mark.parametrize("name", ["create", "order"])
@pytest.mark.parametrize("value", ["", "IF_ABSENT", "always", None, True, ["never"], "x\n" * 1000])
def test_enumerations_are_judged_by_name(name, value):
    """The error lists what is allowed, in one line."""
    message = refused(binding, **{name: value})
    assert message.startswith(f"{name} must be one of ")
    assert len(message) < 300


@pytest.mark.parametrize("create", ["if_absent", "never", "always_new"])
@pytest.mark.parametrize("order", ["by_key", "none"])
def test_every_value_of_the_enumerations_is_taken(create, order):
    """What the specification lists."""
    assert binding(create=create, order=order).create == Plan("p", "parcel", create).create == create


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_enabled_is_a_real_bool(value):
    """A text out of an environment variable is not a switch."""
    assert refused(binding, enabled=value).startswith("enabled must be True or False")


@pytest.mark.parametrize("value", [None, timedelta(1), 72, True])
def test_dedupe_is_a_dedupe(value):
    """A bare duration does not say whose ids are meant."""
    assert refused(binding, dedupe=value).startswith("dedupe must be a Dedupe")
    assert refused(Plan, id="p", document="parcel", dedupe=value).startswith("dedupe must be a Dedupe")


@pytest.mark.parametrize("value", [True, 72, 1.5, None, "72h"])
def test_a_horizon_is_a_timedelta(value):
    """A horizon of True is refused, and so is every other unit that has to be guessed (trap 23)."""
    assert refused(Dedupe, horizon=value).startswith("horizon must be a timedelta")


def test_a_horizon_lies_between_zero_and_a_century():
    """A longer one would leave the years a timestamp knows."""
    assert Dedupe(timedelta(0)).horizon == timedelta(0)
    assert Dedupe(timedelta(days=36_500)).horizon.days == 36_500
    assert "negative" in refused(Dedupe, horizon=timedelta(microseconds=-1))
    assert "36500 days" in refused(Dedupe, horizon=timedelta.max)


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_per_scope_is_a_real_bool(value):
    """It decides which messages are duplicates."""
    assert refused(Dedupe, per_scope=value).startswith("per_scope must be True or False")


@pytest.mark.parametrize("value", [timedelta(0), timedelta(-1), 5, True, None, timedelta.max])
def test_within_is_a_time_longer_than_zero(value):
    """An event cannot be kept for no time."""
    assert refused(Defer, within=value).startswith("within must be")


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "5", None])
def test_limit_is_a_positive_integer(value):
    """A count, not a truth value."""
    assert refused(Defer, within=timedelta(1), limit=value).startswith("limit must be")


def test_rules_are_positional_where_that_reads_well():
    """`Dedupe(horizon, per_scope)`, `Defer(within, limit)`."""
    assert Dedupe(timedelta(1), True).per_scope is True
    assert Defer(timedelta(1), 5).limit == 5


@pytest.mark.parametrize("name", ["unmatched", "missing"])
@pytest.mark.parametrize("value", ["defer", "DROP", None, timedelta(1), Defer])
def test_deferral_is_drop_or_a_defer(name, value):
    """Anything else is told by name."""
    assert refused(binding, create="never", **{name: value}).startswith(f"{name} must be 'drop' or a Defer")


def test_only_a_binding_that_never_creates_may_defer_missing_ones():
    """Any other binding creates the execution, so nothing is missing."""
    assert "create='never'" in refused(binding, missing=Defer(timedelta(hours=1)))


@pytest.mark.parametrize("name", ["unmatched", "missing"])
def test_within_may_not_outlast_the_horizon(name):
    """A duplicate could otherwise be kept beside the first."""
    message = refused(
        binding, create="never", dedupe=Dedupe(timedelta(hours=1)), **{name: Defer(timedelta(hours=2))}
    )
    assert message.startswith(f"{name}: within")


@pytest.mark.parametrize("name", ["unmatched", "missing"])
def test_a_deferral_is_kept_on_the_binding(name):
    """A rule that keeps early events may last as long as the dedupe horizon, and not a moment longer."""
    rule = Defer(timedelta(hours=72))
    assert getattr(binding(create="never", **{name: rule}), name) == rule


def test_a_faulty_binding_is_a_faulty_configuration():
    """One class catches both."""
    with pytest.raises(ConfigError):
        binding(id="")


def test_a_plan_is_positional_and_judged_like_a_binding():
    """`Plan(id, document, create, dedupe)`; every fault names its argument."""
    plan = Plan("p", "parcel", "never", Dedupe(timedelta(1)))
    assert (plan.id, plan.document, plan.create, plan.dedupe.horizon) == (
        "p",
        "parcel",
        "never",
        timedelta(1),
    )
    assert Plan("p", "parcel") == Plan(id="p", document="parcel", create="if_absent", dedupe=Dedupe())
    assert refused(Plan, id="", document="d").startswith("id ")
    assert refused(Plan, id="p", document="\x00").startswith("document ")
    assert refused(Plan, id="p", document="d", create="maybe").startswith("create ")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.id = "q"


# --- the projection -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["parcel.id", b"parcel", None, {"a"}, {"a": 1}, 3, iter(["a"])])
def test_data_is_a_sequence_of_paths(value):
    """A lone text is the classic slip: it would be read letter by letter."""
    assert refused(binding, data=value).startswith("data must be a sequence of paths or WHOLE")


@pytest.mark.parametrize("path", ["", "a..b", (), ("a", ""), 3, None, WHOLE, ["a"]])
def test_a_faulty_path_is_told_with_its_place(path):
    """The error names which of the paths it is."""
    assert refused(binding, data=["fine", path]).startswith("data[1] ")


@pytest.mark.parametrize(
    ("paths", "data", "expected"),
    [
        ((), {"a": 1}, {}),
        (("a",), {"a": 1, "b": 2}, {"a": 1}),
        (("a.b", "a.c"), {"a": {"b": 1, "c": 2, "d": 3}}, {"a": {"b": 1, "c": 2}}),
        (("a.b",), {"a": {}}, {}),
        (("a.b",), {}, {}),
        (("a.b",), {"a": 7}, {}),
        (("a.b",), {"a": [{"b": 1}]}, {}),
        (("a.b",), {"a": None}, {}),
        (("a.b", "a.c"), {"a": {"c": 2}}, {"a": {"c": 2}}),
        (("a.b",), {"a": {"b": None}}, {"a": {"b": None}}),
        (("a",), {"a": {}}, {"a": {}}),
        (("a", "a.b"), {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}}),
        (("a.b", "a"), {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}}),
        (("a.b", "a"), {"a": 7}, {"a": 7}),
        (("a.b", "a", "a.b.c"), {"a": {"b": 1}}, {"a": {"b": 1}}),
        (("a", "a"), {"a": 1}, {"a": 1}),
        ((("a.b", "c"),), {"a.b": {"c": 1}, "a": {"b": {"c": 2}}}, {"a.b": {"c": 1}}),
        (WHOLE, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_the_projection_is_what_the_paths_name(paths, data, expected):
    """Read through nested mappings, written back nested; what is absent is left out, a null is carried."""
    assert binding(data=paths).project(data) == expected


def test_the_projection_keeps_the_order_of_the_paths():
    """The chart sees fields in the order in which the binding names them."""
    projected = binding(data=("c", "a.y", "b", "a.x")).project({"a": {"x": 1, "y": 2}, "b": 3, "c": 4})
    assert list(projected) == ["c", "a", "b"]
    assert list(projected["a"]) == ["y", "x"]


def test_data_may_be_given_as_a_list():
    """It is kept as a tuple, so that a later change of the list changes nothing."""
    paths = ["a"]
    built = binding(data=paths)
    paths.append("b")
    assert built.data == ("a",)
    assert built.project({"a": 1, "b": 2}) == {"a": 1}


NAMES = st.sampled_from(["a", "b", "c", "a.b"])
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=5)
DATA = st.dictionaries(
    NAMES,
    st.recursive(
        st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
        lambda inner: st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
NOTHING = object()


def leaves(data, way=()):
    """Every place of the data that holds something other than a filled mapping."""
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*way, name))
        else:
            yield (*way, name), value


@given(PATHS, DATA)
def test_a_leaf_is_projected_exactly_where_a_path_begins_its_place(paths, data):
    """Nothing else of the message reaches the chart, and nothing that was named is lost."""
    expected = {
        place: value for place, value in leaves(data) if any(place[: len(path)] == path for path in paths)
    }
    assert dict(leaves(binding(data=paths).project(data))) == expected


@given(PATHS, DATA)
def test_projecting_twice_is_projecting_once(paths, data):
    """The projection of a projection is itself; the order of the paths and repeats change no value."""
    built = binding(data=paths)
    once = built.project(data)
    assert built.project(once) == once
    assert binding(data=[*reversed(paths), *paths]).project(data) == once


@given(PATHS, DATA)
def test_the_projection_leaves_the_message_alone(paths, data):
    """The data handed in is read, never changed."""
    before = repr(data)
    binding(data=paths).project(data)
    assert repr(data) == before
