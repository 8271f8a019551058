"""Keys: what may be one, and how a binding makes one of a message."""

from __future__ import annotations

import enum
import gc
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statifier_router.bindings import Binding
from statifier_router.errors import BindingError, KeyInvalid
from statifier_router.keys import check_key, join
from statifier_router.refusals import KeyRefusal
from statifier_router.view import View

PULL = {
    "repository": {"full_name": "octo/repo"},
    "pull_request": {"number": 12},
    "empty": "",
    "note": None,
    "draft": False,
    "ratio": 1.5,
    "list": ["x"],
    "big": 10**600,
    "a.b": "dotted",
}
PARTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text("#%23a\\", max_size=6)


def key_of(key, data=PULL):
    binding = Binding(id="b", source="github", match={}, key=key, document="d", event="e")
    return binding.key_of(View(data))


def refusal(key, data=PULL):
    with pytest.raises(KeyRefusal) as caught:
        key_of(key, data)
    assert "\n" not in caught.value.detail
    return caught.value.detail


# --- what may be a key --------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["P7", " P7 ", "é", "e\u0301", "K" * 512, "é" * 256, "a\nb", "\U0001f600"])
def test_a_key_is_taken_as_it_is(key):
    """Never trimmed, folded or normalised (trap 18)."""
    assert check_key(key) == key
    assert key_of(lambda _: key) == key


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "key must not be empty"),
        ("K" * 513, "key is 513 bytes long in UTF-8, the limit is 512"),
        ("é" * 257, "key is 514 bytes long in UTF-8, the limit is 512"),
        ("a\x00b", "NUL"),
        ("\ud800", "lone surrogate"),
        (7, "join"),
        (True, "join"),
        (None, "join"),
        (b"P7", "join"),
        (["P7"], "join"),
    ],
)
def test_what_cannot_be_a_key_is_refused(key, says):
    """At a door it is `KeyInvalid`, out of a binding a refusal; both say why, in one line."""
    with pytest.raises(KeyInvalid, match=says):
        check_key(key)
    assert says in refusal(lambda _: key)


def test_a_text_enum_is_reduced_to_its_text():
    """What is stored is what was compared."""

    class Depot(enum.StrEnum):
        LYON = "lyon"

    assert type(check_key(Depot.LYON)) is str
    assert key_of(lambda _: Depot.LYON) == "lyon"


# --- a path -------------------------------------------------------------------------------------


def test_a_path_reads_the_field():
    """Dotted text, or a tuple where a name holds a dot."""
    assert key_of("repository.full_name") == "octo/repo"
    assert key_of(("repository", "full_name")) == "octo/repo"
    assert key_of(("a.b",)) == "dotted"


@pytest.mark.parametrize("path", ["repository.nope", "nope.full_name", "repository.full_name.more", "list.0"])
def test_a_path_to_nothing_is_refused_and_named(path):
    """A message without the field belongs to no execution that could be named."""
    assert refusal(path) == f"the message has no field {path!r}"


@pytest.mark.parametrize("path", ["pull_request.number", "draft", "note", "list", "repository", "ratio"])
def test_a_field_that_is_not_text_is_refused_with_the_way_out(path):
    """Never cast; the detail names the field and `join`."""
    detail = refusal(path)
    assert path in detail
    assert "join" in detail


def test_an_empty_field_is_refused():
    """Nothing is invented in place of an empty key."""
    assert refusal("empty") == "key must not be empty"


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", (), ("a", ""), ("a", 1), "\ud800"])
def test_a_faulty_path_is_refused_when_the_binding_is_built(path):
    """A path that can name no field names `key` in its error."""
    with pytest.raises(BindingError, match=r"^key "):
        key_of(path)


@pytest.mark.parametrize("key", [None, 3, ["a"], {"a": 1}])
def test_what_is_no_key_program_is_refused(key):
    """A callable, a path or `join(...)`; everything else is told when the binding is built."""
    with pytest.raises(BindingError, match="key must be"):
        key_of(key)


# --- a callable ---------------------------------------------------------------------------------


def test_a_callable_reads_the_view():
    """The host's own function names the execution."""
    assert key_of(lambda m: f"{m.repository.full_name}!{m.pull_request.number}") == "octo/repo!12"


def test_a_missing_field_in_a_callable_is_a_refusal_that_names_it():
    """`Missing` out of a `key` is not "not for this binding"."""
    assert refusal(lambda m: m.repository.nope) == "the message has no field 'repository.nope'"


def test_an_exception_in_a_callable_is_refused():
    """The class and the beginning of what it says, in one line."""
    assert refusal(lambda _: 1 / 0) == "key raised ZeroDivisionError: division by zero"


def test_a_coroutine_is_refused_and_closed():
    """An `async` key is refused without a warning later."""

    async def key(view):
        return "P7"

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert "not async" in refusal(key)
        gc.collect()
    assert not seen


def test_an_interrupt_propagates():
    """What is no `Exception` is not an answer."""

    def key(view):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        key_of(key)


# --- join ---------------------------------------------------------------------------------------


def test_join_renders_text_and_integers():
    """The common case stays readable."""
    assert key_of(join("repository.full_name", "pull_request.number")) == "octo/repo#12"
    assert key_of(join("pull_request.number")) == "12"
    assert key_of(join(("a.b",), "empty")) == "dotted#"


def test_join_may_be_called_by_a_hosts_own_function():
    """What `join` answers is a callable over the view; its refusals keep their detail."""
    number = join("repository.full_name", "pull_request.number")
    assert key_of(lambda m: "pull:" + number(m)) == "pull:octo/repo#12"
    missing = join("nope")
    assert "'nope'" in refusal(lambda m: "pull:" + missing(m))


@pytest.mark.parametrize("path", ["draft", "note", "ratio", "list", "repository"])
def test_join_refuses_what_is_neither_text_nor_an_integer(path):
    """A bool, a null or a float has no one spelling; the detail names the field."""
    assert f"'{path}'" in refusal(join("repository.full_name", path))


def test_join_refuses_an_absent_field():
    """A key with a hole in it would gather strangers."""
    assert refusal(join("repository.full_name", "issue.number")) == "the message has no field 'issue.number'"


def test_join_refuses_a_key_past_its_limit():
    """The rendered key is judged like any other."""
    assert "the limit is 512" in refusal(join("repository.full_name", "big"))


def test_join_refuses_an_empty_key():
    """One empty field alone renders nothing."""
    assert refusal(join("empty")) == "key must not be empty"


@pytest.mark.parametrize("paths", [(), ("",), ("a", "b..c"), (3,), (None,), (["a"],)])
def test_join_refuses_faulty_paths(paths):
    """At the call, with an error that names the key."""
    with pytest.raises(BindingError, match=r"^key: .*join"):
        join(*paths)


def test_join_keeps_neighbours_apart():
    """`ab`+`c` and `a`+`bc` are two keys."""
    key = join("x", "y")
    assert key_of(key, {"x": "ab", "y": "c"}) != key_of(key, {"x": "a", "y": "bc"})
    assert key_of(key, {"x": "a#b", "y": "c"}) != key_of(key, {"x": "a", "y": "b#c"})


@given(st.lists(PARTS, min_size=2, max_size=4))
def test_the_parts_can_be_read_back_out_of_a_joined_key(parts):
    """The rendering loses nothing, so that no two lists of fields give one key."""
    names = [f"f{index}" for index in range(len(parts))]
    key = join(*names)(View(dict(zip(names, parts, strict=True))))
    assert [part.replace("%23", "#").replace("%25", "%") for part in key.split("#")] == parts


@given(st.lists(PARTS, min_size=2, max_size=2), st.lists(PARTS, min_size=2, max_size=2))
def test_joined_keys_are_equal_only_for_equal_parts(one, other):
    """Injective, whatever the values hold, the separator included."""
    key = join("a", "b")
    keys = [key(View(dict(zip("ab", parts, strict=True)))) for parts in (one, other)]
    assert (keys[0] == keys[1]) is (one == other)


@given(st.integers(-(10**20), 10**20))
def test_an_integer_is_rendered_as_its_digits(number):
    """An integer and its text give the same key: sources differ in how they send numbers."""
    key = join("a", "b")
    assert key(View({"a": "x", "b": number})) == key(View({"a": "x", "b": str(number)})) == f"x#{number}"
