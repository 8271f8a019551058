"""`ChartRegistry`, the `function` interpreter, and what is a chart at all."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from statifier_router import (
    Cancel,
    ChartRegistry,
    ConfigError,
    Event,
    RouterError,
    Send,
    Step,
    Unresolved,
    cancel,
    emit,
)
from statifier_router.interpreters import function
from tests.support.charts import NOW, Calling, obedient

# --- the registry -----------------------------------------------------------------------------------


def test_every_revision_stays_reachable():
    """Publishing a newer revision changes what new executions run on; every earlier one stays by hash."""
    registry = ChartRegistry()
    revisions = [obedient(version=str(number)) for number in range(3)]
    for chart in revisions:
        registry.publish("parcel", chart)
        assert registry.resolve("acme", "parcel") is chart
    assert len({chart.content_hash for chart in revisions}) == 3
    assert [registry.by_hash(chart.content_hash) for chart in revisions] == revisions
    registry.publish("parcel", revisions[0])
    assert registry.resolve("acme", "parcel") is revisions[0]


def test_a_scope_may_have_its_own():
    """A chart published in a scope goes before the one for every scope, whichever came first; the empty
    scope is a scope.
    """
    registry = ChartRegistry()
    everywhere, own, empty = (obedient(tag=tag) for tag in ("everywhere", "own", "empty"))
    registry.publish("parcel", own, scope="acme")
    with pytest.raises(Unresolved):
        registry.resolve("globex", "parcel")
    registry.publish("parcel", everywhere)
    registry.publish("parcel", empty, scope="")
    assert registry.resolve("acme", "parcel") is own
    assert registry.resolve("globex", "parcel") is everywhere
    assert registry.resolve("", "parcel") is empty


def test_what_was_never_published():
    """An unknown document is `Unresolved` with a reason, an unknown hash is None."""
    registry = ChartRegistry()
    with pytest.raises(Unresolved) as raised:
        registry.resolve("acme", "parcel")
    assert raised.value.reason
    assert registry.by_hash("nothing") is None


@pytest.mark.parametrize(
    ("document", "scope", "field"),
    [
        ("", None, "document"),
        (7, None, "document"),
        ("d" * 129, None, "document"),
        ("a\x00", None, "document"),
        ("parcel", 7, "scope"),
        ("parcel", "s" * 129, "scope"),
        ("parcel", "\ud800", "scope"),
    ],
)
def test_bad_names(document, scope, field):
    """Documents and scopes are text within their limits."""
    with pytest.raises(ConfigError, match=field) as raised:
        ChartRegistry().publish(document, obedient(), scope=scope)
    assert "\n" not in str(raised.value)


class _Almost(Calling):
    """A chart from which a test takes something away."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content_hash", None),
        ("content_hash", ""),
        ("content_hash", 7),
        ("interpreter", None),
        ("interpreter_version", 1),
        ("create", None),
        ("step", "step"),
    ],
)
def test_what_is_no_chart(name, value):
    """A chart has a text hash, interpreter and version, and the methods `create` and `step`."""
    chart = _Almost()
    setattr(chart, name, value)
    with pytest.raises(ConfigError, match=name):
        ChartRegistry().publish("parcel", chart)
    with pytest.raises(ConfigError, match="str"):
        ChartRegistry().publish("parcel", "chart")


def test_publishing_in_many_threads():
    """A publication is seen whole: every thread that resolves finds a chart that is there by its hash."""
    registry = ChartRegistry()
    registry.publish("parcel", obedient())
    charts = [obedient(version=str(number)) for number in range(50)]
    barrier, wrong = threading.Barrier(3), []

    def publish():
        barrier.wait(10)
        for chart in charts:
            registry.publish("parcel", chart)

    def resolve():
        barrier.wait(10)
        for _ in range(500):
            chart = registry.resolve("acme", "parcel")
            if registry.by_hash(chart.content_hash) is not chart:
                wrong.append(chart)

    threads = [threading.Thread(target=each) for each in (publish, resolve, resolve)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


# --- the function interpreter -----------------------------------------------------------------------


def _create(data, now):
    return Step({"n": 0})


def _step(position, event, now):
    return Step({"n": position["n"] + 1})


def test_the_content_hash():
    """It covers the name, the functions' names and the version, and nothing of the process."""
    first = function.chart("counter", create=_create, step=_step)
    assert first.content_hash == function.chart("counter", create=_create, step=_step).content_hash
    assert len(first.content_hash) == 64
    others = [
        function.chart("other", create=_create, step=_step),
        function.chart("counter", create=_create, step=_step, version="2"),
        function.chart("counter", create=_create, step=lambda *_: Step({})),
    ]
    assert len({first.content_hash, *(chart.content_hash for chart in others)}) == 4


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"version": None}, "version"),
        ({"version": "v" * 129}, "version"),
        ({"create": None}, "create"),
        ({"step": "step"}, "step"),
    ],
)
def test_bad_arguments(arguments, field):
    """A bad argument is a `ConfigError` that names it."""
    given = {"name": "counter", "create": _create, "step": _step} | arguments
    with pytest.raises(ConfigError, match=field):
        function.chart(given.pop("name"), **given)


def test_functions_work_on_copies():
    """What the functions change of what they are handed stays with them."""

    def step(position, event, now):
        position["spoilt"] = True
        event.data["spoilt"] = True
        return Step(position, outcome="refused")

    chart = function.chart("spoiling", create=lambda data, now: Step(data.pop("a")), step=step)
    data, position, event = {"a": {"b": 1}}, {"n": 1}, Event("e", {"x": 1})
    chart.create(data=data, now=NOW)
    answer = chart.step(position, event, event_id="m", now=NOW)
    assert (data, position, event.data) == ({"a": {"b": 1}}, {"n": 1}, {"x": 1})
    assert answer.position == {"n": 1}


def test_the_answer_is_no_alias():
    """Changing what a step answered changes no later answer."""
    kept = {"list": []}
    chart = function.chart("keeping", create=lambda data, now: Step(kept), step=lambda *_: Step(kept))
    chart.create(data={}, now=NOW).position["list"].append(1)
    chart.step({}, Event("e"), event_id="m", now=NOW).position["list"].append(1)
    assert kept == {"list": []}


@pytest.mark.parametrize("answer", [None, {}, Step({1}), Step({}, outcome="odd"), Step({}, effects=[1])])
def test_a_malformed_answer(answer):
    """An answer that is no well-formed step is refused by name, never altered."""
    chart = function.chart("odd", create=lambda *_: answer, step=lambda *_: answer)
    with pytest.raises(RouterError):
        chart.create(data={}, now=NOW)
    with pytest.raises(RouterError):
        chart.step({}, Event("e"), event_id="m", now=NOW)


# --- emit and cancel --------------------------------------------------------------------------------


def test_emit_and_cancel_add_effects():
    """Inside a chart they add to the step's effects, in order, before those that the step names."""

    def step(position, event, now):
        emit("paid", target="bank", type="http", data={"n": 1}, send_id="s-1", delay=timedelta(hours=1))
        cancel("s-0")
        return Step({}, effects=[Send("last")])

    chart = function.chart("sending", create=lambda *_: Step({}), step=step)
    answer = chart.step({}, Event("e"), event_id="m", now=NOW)
    assert answer.effects == (
        Send(
            "paid",
            {"n": 1},
            target="bank",
            type="http",
            send_id="s-1",
            delay=timedelta(hours=1),
        ),
        Cancel("s-0"),
        Send("last"),
    )
    assert chart.step({}, Event("e"), event_id="m", now=NOW).effects == answer.effects


def test_effects_at_creation():
    """A create may send too."""

    def create(data, now):
        emit("hello")
        return Step({})

    chart = function.chart("greeting", create=create, step=_step)
    assert chart.create(data={}, now=NOW).effects == (Send("hello"),)


def test_outside_a_step_they_raise():
    """Outside a step there is nobody to send for."""
    with pytest.raises(ConfigError, match="emit"):
        emit("paid")
    with pytest.raises(ConfigError, match="cancel"):
        cancel("s-1")


def test_after_a_step_they_raise_again():
    """The effects of a step end with it, also where it raised."""

    def step(position, event, now):
        emit("paid")
        raise ValueError

    chart = function.chart("breaking", create=lambda *_: Step({}), step=step)
    with pytest.raises(ValueError):
        chart.step({}, Event("e"), event_id="m", now=NOW)
    with pytest.raises(ConfigError):
        emit("paid")


def test_effects_of_a_step_within_a_step_stay_apart():
    """A chart that steps another chart gets none of its effects."""

    def inner_step(position, event, now):
        emit("inner")
        return Step({})

    inner = function.chart("inner", create=lambda *_: Step({}), step=inner_step)

    def outer_step(position, event, now):
        emit("before")
        assert inner.step({}, event, event_id="m", now=now).effects == (Send("inner"),)
        emit("after")
        return Step({})

    outer = function.chart("outer", create=lambda *_: Step({}), step=outer_step)
    answer = outer.step({}, Event("e"), event_id="m", now=NOW)
    assert answer.effects == (Send("before"), Send("after"))


@pytest.mark.parametrize(
    "send",
    [
        {"event": ""},
        {"event": "e" * 129},
        {"event": "a", "target": ""},
        {"event": "a", "target": "t" * 129},
        {"event": "a", "send_id": "s" * 256},
        {"event": "a", "data": {1, 2}},
        {"event": "a", "data": {"x": NOW}},
        {"event": "a", "delay": 5},
        {"event": "a", "delay": -timedelta(seconds=1)},
    ],
)
def test_a_bad_send_is_refused(send):
    """What could not be handed on is refused in the chart's own step."""

    def step(position, event, now):
        emit(**send)
        return Step({})

    chart = function.chart("odd", create=lambda *_: Step({}), step=step)
    with pytest.raises(RouterError):
        chart.step({}, Event("e"), event_id="m", now=NOW)


def test_two_threads_on_one_chart():
    """Two threads that step one chart at once get each its own effects."""
    barrier, wrong = threading.Barrier(2), []

    def step(position, event, now):
        emit(event.name)
        if position["wait"]:
            barrier.wait(10)
        emit(event.name)
        return Step(position)

    chart = function.chart("shared", create=lambda *_: Step({}), step=step)

    def run(name):
        for number in range(50):
            answer = chart.step({"wait": number == 0}, Event(name), event_id="m", now=NOW)
            if [send.event for send in answer.effects] != [name, name]:
                wrong.append(answer)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
