"""A binding's `match`: three answers, from a callable, a pattern or CEL text."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from fractions import Fraction

import cel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statifier_router.bindings import Binding
from statifier_router.errors import BindingError, MissingExtra
from statifier_router.refusals import MatchRefused
from statifier_router.view import View, same

SCAN = {
    "kind": "scan",
    "parcel": {"state": "new", "weight": 1, "fragile": True, "note": None},
    "tags": ["a"],
    "ratio": 1.0,
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, 1.0, -1.5])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=2)
)


def matches(match, data=SCAN):
    binding = Binding(id="b", source="carrier", match=match, key="k", document="parcel", event="scanned")
    return binding.matches(View(data))


def refusal(match, data=SCAN):
    with pytest.raises(MatchRefused) as caught:
        matches(match, data)
    return caught.value.detail


# --- a callable ---------------------------------------------------------------------------------


def test_exactly_true_holds():
    """True, and nothing that merely counts as true, takes the message."""
    assert matches(lambda m: m.kind == "scan") is True


@pytest.mark.parametrize("answer", [False, None])
def test_false_and_none_mean_not_for_this_binding(answer):
    """A function that ends without an answer has not said yes."""
    assert matches(lambda _: answer) is False


@pytest.mark.parametrize("read", [lambda m: m.nope, lambda m: m["nope"], lambda m: m.parcel.nope == 1])
def test_a_missing_field_means_not_for_this_binding(read):
    """A message without the field is another kind of message."""
    assert matches(read) is False


@pytest.mark.parametrize(
    "answer", [1, 0, "true", "", float("nan"), [], [True], {}, object(), Fraction(1), 1.0]
)
def test_any_other_answer_is_refused(answer):
    """An answer that is not a truth value is a faulty program, never a guess (trap 23)."""
    assert type(answer).__name__ in refusal(lambda _: answer)


def test_a_view_as_the_answer_is_refused():
    """`lambda m: m.parcel` forgot its question."""
    assert "View" in refusal(lambda m: m.parcel)


def test_an_exception_is_refused_and_named():
    """An evaluation error says nothing about whom the message is for."""
    assert refusal(lambda _: 1 / 0) == "match raised ZeroDivisionError: division by zero"
    assert "AttributeError" in refusal(lambda m: m.kind.state)
    assert "TypeError" in refusal(lambda: True)


def test_the_cause_of_a_refusal_is_chained():
    """A debugger finds the program's own exception."""
    with pytest.raises(MatchRefused) as caught:
        matches(lambda _: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_detail_is_one_short_line():
    """What a program raises may quote a whole payload; its beginning is enough, and can be stored."""

    def match(view):
        raise ValueError("line one\nline\u2028two \x00 \ud800 " + "x" * 100_000)

    detail = refusal(match)
    assert len(detail) < 300
    assert len(detail.splitlines()) == 1
    assert detail.startswith("match raised ValueError: line one line two")
    assert "\x00" not in detail
    detail.encode()


def test_an_exception_that_cannot_be_spelt_is_refused_by_its_class():
    """A failing `__str__` does not hide the refusal."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    def match(view):
        raise Mute

    assert refusal(match) == "match raised Mute"


def test_a_coroutine_is_refused_and_closed():
    """An `async` match is refused, and nothing warns later of a coroutine that was never awaited."""

    async def match(view):
        return True

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert "not async" in refusal(match)
        gc.collect()
    assert not seen


def test_a_future_is_refused():
    """Any awaitable is an answer that never came."""

    class Later:
        def __await__(self):
            yield

    assert "awaitable" in refusal(lambda _: Later())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_is_no_exception_propagates(kind):
    """An interrupt or a cancellation is not an answer about the message."""

    def match(view):
        raise kind

    with pytest.raises(kind):
        matches(match)


# --- a pattern ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "holds"),
    [
        ({}, True),
        ({"kind": "scan"}, True),
        ({"kind": "Scan"}, False),
        ({"kind": "scan", "parcel.state": ["new", "held"]}, True),
        ({"kind": "scan", "parcel.state": ("gone", "held")}, False),
        ({("parcel", "state"): "new"}, True),
        ({"parcel.weight": 1}, True),
        ({"parcel.weight": 1.0}, True),
        ({"ratio": 1}, True),
        ({"parcel.weight": True}, False),
        ({"parcel.fragile": True}, True),
        ({"parcel.fragile": 1}, False),
        ({"parcel.weight": "1"}, False),
        ({"parcel.note": None}, True),
        ({"parcel.nope": None}, False),
        ({"parcel.note": [None, "x"]}, True),
        ({"kind": []}, False),
        ({"kind": ()}, False),
        ({"kind.deeper": "scan"}, False),
        ({"tags": "a"}, False),
        ({"tags.0": "a"}, False),
        ({"parcel": "new"}, False),
    ],
)
def test_a_pattern_holds_where_all_its_fields_do(pattern, holds):
    """Equality is JSON's; an empty pattern takes everything, an empty list nothing."""
    assert matches(pattern) is holds


def test_names_with_dots_are_tuples():
    """A tuple of names reaches a field whose name holds a dot."""
    assert matches({("a.b",): 1}, {"a.b": 1})
    assert not matches({"a.b": 1}, {"a.b": 1})


@pytest.mark.parametrize(
    "wanted",
    [
        {"state": "new"},
        [{"state": "new"}],
        [["a"]],
        {"new"},
        float("nan"),
        [float("inf")],
        b"x",
        object(),
        "\ud800",
        len,
    ],
)
def test_a_wanted_value_that_is_no_scalar_is_refused(wanted):
    """A mapping, a set, a nested list: refused when the binding is built, with the path."""
    with pytest.raises(BindingError, match=r"^match\['parcel.state'\] [^\n]*$"):
        matches({"parcel.state": wanted})


@pytest.mark.parametrize("path", ["", "a..b", (), ("a", ""), 3, None])
def test_a_faulty_path_is_refused(path):
    """The paths of a pattern are judged when the binding is built."""
    with pytest.raises(BindingError, match="match path"):
        matches({path: 1})


def test_a_pattern_is_compiled_once():
    """What its owner does to the mapping later changes nothing."""
    allowed = ["scan"]
    pattern = {"kind": allowed}
    binding = Binding(id="b", source="s", match=pattern, key="k", document="d", event="e")
    allowed[0] = "other"
    pattern["kind"] = "other"
    assert binding.matches(View(SCAN)) is True
    assert binding.match == {"kind": ["scan"]}


@given(SCALARS, SCALARS)
def test_a_pattern_compares_as_json_does(wanted, found):
    """One wanted value holds exactly where JSON equality does."""
    assert matches({"a.b": wanted}, {"a": {"b": found}}) is same(wanted, found)


@given(st.lists(SCALARS, max_size=4), SCALARS)
def test_a_list_holds_where_one_of_its_values_does(wanted, found):
    """A list of allowed values is an "or", a tuple the same."""
    expected = any(same(item, found) for item in wanted)
    assert matches({"a": wanted}, {"a": found}) is expected
    assert matches({"a": tuple(wanted)}, {"a": found}) is expected


@given(st.dictionaries(st.sampled_from("abcd"), SCALARS), st.dictionaries(st.sampled_from("abcd"), SCALARS))
def test_all_fields_of_a_pattern_must_hold(pattern, data):
    """A pattern is an "and" over its paths."""
    expected = all(name in data and same(wanted, data[name]) for name, wanted in pattern.items())
    assert matches(pattern, data) is expected


# --- CEL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("message.kind == 'scan' && message.parcel.weight > 0", True),
        ("message.parcel.state in ['gone', 'held']", False),
        ("has(message.parcel.nope)", False),
        ("message.parcel.nope == 1", False),
        ("message['nope'] == 1", False),
        ("message.parcel.weight == true", False),
        ("message.parcel.note == null", True),
        ("message.parcel.note", False),
        ("message.tags.exists(tag, tag == 'a')", True),
        ("true", True),
    ],
)
def test_cel_text_is_evaluated_over_the_message(text, holds):
    """True holds; False, null and an absent field mean "not for this binding"."""
    assert matches(text) is holds


@pytest.mark.parametrize(
    "text",
    [
        "message.parcel.weight",
        "message.kind",
        "message.parcel",
        "1 / 0 == 1 || message.nope == 1 && false || 1 / 0 == 1",
        "message.kind.deeper == 1",
        "message.kind + 1 == 2",
        "message.tags[5] == 'a'",
        "message.kind == other",
    ],
)
def test_every_other_outcome_of_cel_is_refused(text):
    """A value that is no truth value, or an error of the evaluation, judges nothing."""
    assert refusal(text).startswith("match ")


@pytest.mark.parametrize("text", ["", "message.kind ==", "message.kind = 'scan'", "\ud800", "((("])
def test_text_that_is_no_cel_is_refused_when_the_binding_is_built(text):
    """The fault is told in one line that names `match`."""
    with pytest.raises(BindingError, match=r"^match is not a CEL expression: [^\n]*$"):
        matches(text)


def test_cel_that_never_reads_the_message_is_refused():
    """The usual slip, a field without `message.` before it, shows when the binding is built."""
    with pytest.raises(BindingError, match="match reads kind"):
        matches("kind == 'scan'")


def test_one_activation_serves_every_binding_of_a_message(monkeypatch):
    """The message is handed to the evaluator once, however many bindings ask."""
    built = []

    def context(variables):
        built.append(variables)
        return original(variables)

    original = cel.Context
    monkeypatch.setattr(cel, "Context", context)
    bindings = [
        Binding(id=f"b{n}", source="s", match=f"message.n == {n}", key="k", document="d", event="e")
        for n in range(5)
    ]
    view = View({"n": 3})
    assert [binding.matches(view) for binding in bindings] == [False, False, False, True, False]
    assert len(built) == 1
    assert bindings[4].matches(View({"n": 4}))
    assert len(built) == 2


def test_one_compiled_expression_serves_several_threads():
    """A binding is shared by the threads of a process."""
    binding = Binding(id="b", source="s", match="message.n == 3", key="k", document="d", event="e")
    start = threading.Barrier(4)
    wrong = []

    def work(number):
        start.wait()
        wrong.extend(1 for _ in range(500) if binding.matches(View({"n": number})) is not (number == 3))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cel_without_its_extra_is_told_when_the_binding_is_built(monkeypatch):
    """The error names the extra and how to install it; patterns and callables need nothing."""
    monkeypatch.setitem(sys.modules, "cel", None)
    with pytest.raises(MissingExtra, match=r"statifier-router\[cel\]") as caught:
        matches("message.kind == 'scan'")
    assert caught.value.extra == "cel"
    assert matches({"kind": "scan"})


@pytest.mark.parametrize("match", [None, 1, ["kind"], {"kind"}, b"true"])
def test_what_is_no_match_is_refused(match):
    """A callable, a mapping or text; everything else is told when the binding is built."""
    with pytest.raises(BindingError, match="match must be"):
        matches(match)
