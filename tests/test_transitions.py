"""Charts of the library `transitions`: what a definition may hold, and how a step answers."""

from __future__ import annotations

import enum
import functools
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from transitions import Machine, MachineError, State
from transitions.extensions import AsyncMachine, HierarchicalMachine, LockedMachine
from transitions.extensions.nesting import NestedState

from statifier_router import (
    Binding,
    ChartRegistry,
    ConfigError,
    Event,
    Message,
    Send,
    StepFailed,
    emit,
    executions,
    route,
)
from statifier_router.interpreters import transitions
from statifier_router.interpreters.answers import BadAnswer
from statifier_router.jsontext import decode, encode
from statifier_router.steps import NO_DATA

ROOT = Path(__file__).parents[1]
NOW = datetime(2026, 5, 1, tzinfo=UTC)
EXECUTION = {"id": "ex_1", "scope": "acme", "document": "parcel", "key": "P7"}


def make(states=("a", "b"), moves=(), model=None, *, initial=None, **options):
    options = {"version": "1", **options}
    first = states[0] if isinstance(states, (list, tuple)) and states and isinstance(states[0], str) else "a"
    return transitions.chart(
        "chart", states=states, transitions=moves, initial=initial or first, model=model, **options
    )


def begin(chart, **data):
    return chart.create(data={"execution": EXECUTION, **data}, now=NOW)


def ask(chart, position, name, data=None):
    return chart.step(position, Event(name, data or {}), event_id="m-1", now=NOW)


def walk(chart, *names):
    step = begin(chart)
    for name in names:
        step = ask(chart, step.position, name)
    return step


def sent(step):
    return [effect.event for effect in step.effects]


def teller(name):
    return lambda: emit(name)


# --- what a step answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("hierarchical", [False, True])
def test_moved_refused_and_ignored_are_told_apart(hierarchical):
    """A transition that names the event and is guarded is "refused"; where none names it, "ignored"."""
    moves = [
        {"trigger": "go", "source": "a", "dest": "b", "conditions": lambda event: event.data["fast"]},
        {"trigger": "go", "source": "a", "dest": "a", "unless": lambda event: event.data["slow"]},
        ["back", "b", "a"],
    ]
    chart = make(["a", "b"], moves, hierarchical=hierarchical)
    start = begin(chart).position
    assert ask(chart, start, "go", {"fast": True, "slow": True}).active == ("b",)
    refused = ask(chart, start, "go", {"fast": False, "slow": True})
    assert (refused.outcome, refused.position) == ("refused", start)
    assert ask(chart, start, "back").outcome == "ignored"
    assert ask(chart, start, "never_heard_of").outcome == "ignored"


def test_a_state_that_ignores_invalid_triggers_ignores():
    """The library's own setting changes no answer."""
    for hierarchical in (False, True):
        chart = make(
            [{"name": "a", "ignore_invalid_triggers": True}, "b"],
            [["back", "b", "a"]],
            initial="a",
            hierarchical=hierarchical,
        )
        start = begin(chart).position
        assert ask(chart, start, "back").outcome == ask(chart, start, "other").outcome == "ignored"


def test_the_true_answer_is_given_where_a_queued_machine_says_true():
    """The trap: the library's `queued=True` answers True whatever the guard says."""

    class Model:
        def never(self, event=None):
            return False

    moves = [{"trigger": "go", "source": "a", "dest": "b", "conditions": "never"}]
    naive = Model()
    Machine(naive, states=["a", "b"], transitions=moves, initial="a", queued=True)
    assert naive.go() is True
    chart = make(["a", "b"], moves, Model)
    assert ask(chart, begin(chart).position, "go").outcome == "refused"


def test_a_parent_state_answers_for_its_children():
    """In a hierarchical chart an event that the leaf does not name goes to the states around it."""
    states = [
        "idle",
        {"name": "on", "initial": "x", "children": ["x", "y"], "transitions": [["turn", "x", "y"]]},
    ]
    moves = [
        ["start", "idle", "on"],
        {"trigger": "stop", "source": "on", "dest": "idle", "conditions": "ready"},
    ]

    class Model:
        ready = False

    chart = make(states, moves, Model, hierarchical=True)
    on = walk(chart, "start")
    assert (on.active, on.position["state"]) == (("on_x",), "on_x")
    assert ask(chart, on.position, "stop").outcome == "refused"
    turned = ask(chart, on.position, "turn")
    assert turned.active == ("on_y",)
    assert ask(chart, turned.position, "turn").outcome == "ignored"


def test_nothing_reacts_within_parallel_regions_of_a_region():
    """The trap: the library raises over such a configuration where an event finds nothing."""
    states = [{"name": "p", "parallel": ["x", {"name": "y", "parallel": ["u", "v"]}]}, "other"]
    moves = [["back", "other", "p"], {"trigger": "on", "source": "p", "dest": None, "after": "back"}]
    chart = make(states, moves, initial="p", hierarchical=True)
    start = begin(chart)
    assert start.position["state"] == ["p_x", ["p_y_u", "p_y_v"]]
    assert start.active == ("p_x", "p_y_u", "p_y_v")
    for name in ("back", "never_heard_of"):
        assert ask(chart, start.position, name).outcome == "ignored"
    with pytest.raises(MachineError, match="back"):
        ask(chart, start.position, "on")


def test_what_a_callback_raises_comes_out_and_spoils_nothing():
    """An error fails the step as it is; the next step is that of a chart that never failed."""

    class Model:
        def half_way(self, event):
            self.data["dirty"] = True
            raise LookupError("boom")

    states = ["a", {"name": "p", "initial": "x", "children": [{"name": "x", "on_enter": "half_way"}]}]
    chart = make(states, [["go", "a", "p"], ["stay", "a", "="]], Model, hierarchical=True)
    start = begin(chart).position
    for _ in range(3):
        with pytest.raises(LookupError, match="boom"):
            ask(chart, start, "go")
    assert ask(chart, start, "stay").position == start


def test_a_callback_that_is_asynchronous_after_all_fails_the_step():
    """A lambda that answers a coroutine would be taken for true, and its action never run."""

    async def later():
        raise AssertionError("nobody waits for it")

    def hidden():
        return later()

    chart = make(["a", "b"], [{"trigger": "go", "source": "a", "dest": "b", "conditions": hidden}])
    with pytest.raises(TypeError, match="asynchronous"):
        ask(chart, begin(chart).position, "go")


def test_a_position_of_another_chart_is_refused():
    """A position names states of this chart, and has the parts that it answered."""
    flat, nested = make(), make(hierarchical=True)
    for chart, position in [
        (flat, {"state": "gone", "data": {}}),
        (flat, {"state": ["a"], "data": {}}),
        (nested, {"state": ["a", "gone"], "data": {}}),
        (nested, {"state": [], "data": {}}),
        (nested, {"state": {}, "data": {}}),
        (flat, {"state": "a"}),
        (flat, {"state": "a", "data": []}),
        (flat, "a"),
        (flat, None),
    ]:
        with pytest.raises(ConfigError, match=r"^position"):
            ask(chart, position, "go")


PAIR = [{"name": "x", "initial": "u", "children": ["u", "v"]}, "y"]


@pytest.mark.parametrize(
    ("state", "active"),
    [
        ("a", ("a",)),
        (["p_y", "p_x_v"], ("p_x_v", "p_y")),
        ("p_y", ("p_y",)),
        ("q", ("q",)),
        ("q_m", ("q_m",)),
        ("gone", None),
        (["a", "p_y"], None),
        ("p", None),
        ("p_x", None),
        (["p_x_u", "p_x_v"], None),
        (["q_m", "q_n"], None),
        ([], None),
        (3, None),
    ],
)
def test_a_configuration_is_judged_before_an_execution_stands_in_it(state, active):
    """For `executions.migrate`: one state of each that is not parallel, and a child where one is entered."""
    chart = make(
        ["a", {"name": "p", "parallel": PAIR}, {"name": "q", "children": ["m", "n"]}], hierarchical=True
    )
    position = {"state": state, "data": {}}
    if active is None:
        with pytest.raises(ConfigError, match="position"):
            chart.configuration(position)
    else:
        assert chart.configuration(position) == active


def test_a_flat_configuration_is_one_state():
    """A list of states, or a state of another chart, is refused."""
    chart = make(["a", "b"])
    assert chart.configuration({"state": "b", "data": {}}) == ("b",)
    for state in ("gone", ["a"], None):
        with pytest.raises(ConfigError, match="position"):
            chart.configuration({"state": state, "data": {}})


def test_states_are_renamed_with_what_is_within_them():
    """A mapping names states; the nearest one around a state that it does not name counts."""
    chart = make(["a", {"name": "p", "parallel": PAIR}], hierarchical=True)
    before = {"state": [["p_x_u"], "p_y", "a"], "data": {"n": 1}, "execution": None}
    renamed = chart.rename(before, {"p": "q", "p_y": "z", "u": "never"})
    assert renamed == {"state": [["q_x_u"], "z", "a"], "data": {"n": 1}, "execution": None}
    flat = make(["a_b", "a"])
    assert flat.rename({"state": "a_b", "data": {}}, {"a": "c"})["state"] == "a_b"


# --- internal events --------------------------------------------------------------------------------


def test_an_event_triggered_inside_a_callback_waits_for_its_transition():
    """Run to completion: the actions of one transition are never in the middle of another's."""

    class Model:
        def on_enter_b(self):
            self.next()
            emit("entered b")

        def after(self):
            emit("after")

        def on_enter_c(self):
            emit("entered c")

    for hierarchical in (False, True):
        moves = [{"trigger": "go", "source": "a", "dest": "b", "after": "after"}, ["next", "b", "c"]]
        chart = make(["a", "b", "c"], moves, Model, hierarchical=hierarchical)
        step = ask(chart, begin(chart).position, "go")
        assert sent(step) == ["entered b", "after", "entered c"]
        assert step.active == ("c",)


@pytest.mark.parametrize(("rounds", "outcome"), [(1_000, "moved"), (1_001, "failed")])
def test_a_thousand_internal_events_are_the_limit(rounds, outcome):
    """Exactly a thousand may follow one event, however deep the stack that asks."""

    class Model:
        def again(self):
            self.data["left"] -= 1
            if self.data["left"] >= 0:
                self.trigger("spin")

    chart = make(["a"], [{"trigger": "spin", "source": "a", "dest": None, "after": "again"}], Model)
    step = ask(chart, begin(chart, left=rounds).position, "spin")
    assert step.outcome == outcome


def test_an_internal_event_that_nothing_takes_fails_as_in_the_library():
    """A chart that triggers what cannot happen is wrong, and hears so."""
    chart = make(["a", "b"], [{"trigger": "go", "source": "a", "dest": "b", "after": "go"}])
    with pytest.raises(MachineError, match="from state b"):
        ask(chart, begin(chart).position, "go")


def test_a_chart_may_step_another_execution_of_itself():
    """A callback that comes back to the same chart in the same thread meets no half-done step."""
    asked = []

    class Model:
        def nested(self, event):
            if event.data.get("outer"):
                asked.append(ask(chart, begin(chart).position, "go"))

    states = ["a", {"name": "p", "parallel": ["x", "y"]}]
    chart = make(
        states, [{"trigger": "go", "source": "a", "dest": "p", "before": "nested"}], Model, hierarchical=True
    )
    step = ask(chart, begin(chart).position, "go", {"outer": True})
    assert asked[0].active == step.active == ("p_x", "p_y")


# --- callbacks --------------------------------------------------------------------------------------


def told(event):
    emit("told", data={"name": event.name, "amount": event.data["amount"]})


def test_callbacks_take_the_event_or_nothing():
    """By name on the model, by path, as functions and partials, as the value of a property."""

    class Model:
        def __init__(self):
            self.data = {"heard": []}

        def with_event(self, event):
            self.data["heard"].append([event.name, event.data, event.origin, event.send_id, event.event_id])
            self.data["now"] = event.now.isoformat()
            self.data["from"] = [event.transition.source, event.transition.dest, event.model is self]

        def without(self):
            self.data["heard"].append("nothing")

        def with_default(self, event=None):
            self.data["heard"].append(event is not None)

        @property
        def ready(self):
            return self.data["heard"] == []

    def hear(prefix, event):
        emit(f"{prefix} {event.name}")

    before = ["with_event", "without", "with_default", f"{__name__}.told", functools.partial(hear, "partial")]
    chart = make(
        ["a", "b"],
        [{"trigger": "go", "source": "a", "dest": "b", "conditions": "ready", "before": before}],
        Model,
    )
    event = Event("go", {"amount": 3}, origin="ex_0", send_id="s-1")
    step = chart.step(begin(chart).position, event, event_id="m-9", now=NOW)
    assert step.position["data"] == {
        "heard": [["go", {"amount": 3}, "ex_0", "s-1", "m-9"], "nothing", True],
        "now": NOW.isoformat(),
        "from": ["a", "b", True],
    }
    assert step.effects == (Send("told", {"name": "go", "amount": 3}), Send("partial go"))
    assert ask(chart, {**step.position, "state": "a"}, "go").outcome == "refused"


def test_an_event_named_as_a_callback_is_handed_the_data():
    """`after="next"` triggers `next` with what its cause was given; by hand, with what is handed over."""

    class Model:
        def by_hand(self):
            self.other({"amount": 7})
            self.plain()

    moves = [
        {"trigger": "go", "source": "a", "dest": "b", "after": ["next", "by_hand"]},
        {"trigger": "next", "source": "b", "dest": None, "after": told},
        {"trigger": "other", "source": "b", "dest": None, "after": told},
        {
            "trigger": "plain",
            "source": "b",
            "dest": None,
            "after": lambda event: emit("plain", data=event.data),
        },
    ]
    chart = make(["a", "b"], moves, Model)
    step = ask(chart, begin(chart).position, "go", {"amount": 5})
    assert [effect.data for effect in step.effects] == [
        {"name": "next", "amount": 5},
        {"name": "other", "amount": 7},
        {},
    ]


def test_payload_keys_are_never_arguments():
    """The trap: a payload spread over keyword arguments reaches whatever parameter it names."""

    class Model:
        def keep(self, event=None, limit=10):
            self.kept = limit

    payload = {"limit": 99}
    naive = Model()
    Machine(
        naive,
        states=["a"],
        initial="a",
        transitions=[{"trigger": "go", "source": "a", "dest": None, "after": "keep"}],
    )
    naive.trigger("go", **payload)
    assert naive.kept == 99

    class Ours:
        def keep(self, event=None, limit=10):
            self.data["kept"] = limit

    chart = make(["a"], [{"trigger": "go", "source": "a", "dest": None, "after": "keep"}], Ours)
    hostile = {"limit": 99, "trigger_name": "x", "self": 1, "model": 2, "event": 3}
    assert ask(chart, begin(chart).position, "go", hostile).position["data"] == {"kept": 10}


@pytest.mark.parametrize(
    "name",
    ["trigger", "state", "data", "execution", "to_b", "may_go", "is_a", "add_model", "__init__", "*", "to"],
)
@pytest.mark.parametrize("hierarchical", [False, True])
def test_only_triggers_of_the_definition_are_events(name, hierarchical):
    """A name of the library's own, or of the model's, moves nothing: a host's events come from outside."""
    chart = make(["a", "b"], [["go", "a", "b"]], hierarchical=hierarchical)
    start = begin(chart)
    step = ask(chart, start.position, name, {"state": "b"})
    assert (step.outcome, step.position) == ("ignored", start.position)


@pytest.mark.parametrize("hierarchical", [False, True])
def test_an_event_may_have_the_name_of_an_attribute_of_the_model(hierarchical):
    """Events are found by the definition, not on the model."""
    moves = [["data", "a", "b"], ["execution", "b", "c"], ["trigger", "c", "a"], ["ship", "a", "c"]]

    class Model:
        def ship(self):
            raise AssertionError("a method of the same name is not the event")

    chart = make(["a", "b", "c"], moves, Model, hierarchical=hierarchical)
    assert walk(chart, "data", "execution", "trigger", "ship").active == ("c",)


# --- completion -------------------------------------------------------------------------------------


def test_a_final_state_completes_with_the_models_donedata():
    """`donedata` is a method or an attribute of the model; without one there is none."""

    class Method:
        def donedata(self):
            return dict(self.data)

    class Attribute:
        def on_enter_done(self):
            self.donedata = ["set"]

    states = ["a", {"name": "done", "final": True}]
    for model, donedata in [(None, NO_DATA), (Method, {"n": 1}), (Attribute, ["set"])]:
        chart = make(states, [["end", "a", "done"]], model)
        step = ask(chart, begin(chart, n=1).position, "end")
        assert (step.status, step.outcome, step.donedata) == ("completed", "moved", donedata)


def test_a_chart_may_be_created_finished():
    """An initial state that is final completes at once."""
    assert begin(make([{"name": "done", "final": True}], initial="done")).status == "completed"


def test_all_active_states_must_be_final():
    """The library's own rule: one region that is not finished keeps the whole chart open."""
    region = {"initial": "x", "children": ["x", {"name": "y", "final": True}]}
    states = [
        {
            "name": "p",
            "parallel": [
                {"name": "one", **region, "transitions": [["first", "x", "y"]]},
                {"name": "two", **region, "transitions": [["second", "x", "y"]]},
            ],
        }
    ]
    chart = make(states, initial="p", hierarchical=True)
    half = walk(chart, "second")
    assert (half.status, half.active) == ("active", ("p_one_x", "p_two_y"))
    assert ask(chart, half.position, "first").status == "completed"


# --- the model --------------------------------------------------------------------------------------


def test_every_step_has_a_model_of_its_own_with_what_was_kept():
    """A class or a function makes it; `data` comes from the position, `execution` from the creation."""
    made = []

    class Model:
        def __init__(self, start):
            self.data = {"n": start}
            made.append(self)

        def count(self):
            self.data["n"] += 1
            emit("who", data=self.execution["key"])
            self.execution["id"] = "forged"

    chart = make(["a"], [{"trigger": "go", "source": "a", "dest": None, "after": "count"}], lambda: Model(5))
    made.clear()
    start = begin(chart, more=[1])
    assert start.position == {"state": "a", "data": {"n": 5, "more": [1]}, "execution": EXECUTION}
    first = ask(chart, start.position, "go")
    second = ask(chart, decode(encode(first.position)), "go")
    assert second.position["data"]["n"] == 7
    assert second.position["execution"] == EXECUTION
    assert second.effects == (Send("who", "P7"),)
    assert len({id(model) for model in made}) == len(made) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model: setattr(model, "count", 1),
        lambda model: setattr(model, "started", 1),
        lambda model: model.seen.append(1),
        lambda model: model.table.update(x=1),
        lambda model: model.names.add("x"),
    ],
)
def test_what_a_step_puts_elsewhere_on_the_model_is_refused(spoil):
    """It would be lost with the model: the step fails, and says where to keep it."""

    class Model:
        def __init__(self):
            self.started = 0
            self.seen = []
            self.table = {}
            self.names = set()

        def act(self):
            spoil(self)

    chart = make(["a"], [{"trigger": "go", "source": "a", "dest": None, "after": "act"}], Model)
    with pytest.raises(BadAnswer, match=r"would be lost: keep it in self\.data"):
        ask(chart, begin(chart).position, "go")


def test_a_cached_property_may_be_cached():
    """What the model can work out again is not lost."""

    class Model:
        @functools.cached_property
        def limit(self):
            return 3

        def act(self):
            self.data["limit"] = self.limit

    chart = make(["a"], [{"trigger": "go", "source": "a", "dest": None, "after": "act"}], Model)
    assert walk(chart, "go", "go").position["data"] == {"limit": 3}


@pytest.mark.parametrize("data", [[], None, {1: 2}, {"x": (1,)}, {"x": float("nan")}, {"x": NOW}])
def test_data_is_a_json_object_or_the_step_fails(data):
    """Never altered on its way: a tuple does not become a list, nor a number text."""

    class Model:
        def act(self):
            self.data = data

    chart = make(["a"], [{"trigger": "go", "source": "a", "dest": None, "after": "act"}], Model)
    with pytest.raises((ConfigError, BadAnswer), match="data"):
        ask(chart, begin(chart).position, "go")


# --- definitions ------------------------------------------------------------------------------------


class Light(enum.Enum):
    RED = 1
    GREEN = 2


class Inner(enum.Enum):
    X = 1
    Y = 2


class Outer(enum.Enum):
    IDLE = 1
    ON = Inner


def test_enums_are_states_by_their_names():
    """A position holds names; callbacks see the members, as in the library."""

    class Model:
        def on_enter_GREEN(self):  # noqa: N802 - the library builds the name
            emit("green", data=self.state is Light.GREEN)

    chart = make(
        Light, [["go", Light.RED, Light.GREEN], ["go", Light.GREEN, Light.RED]], Model, initial=Light.RED
    )
    step = walk(chart, "go")
    assert (step.position["state"], step.effects) == ("GREEN", (Send("green", True),))
    assert ask(chart, step.position, "go").position["state"] == "RED"
    moves = [["go", Outer.IDLE, Inner.Y], ["back", Outer.ON, Outer.IDLE]]
    nested = make(Outer, moves, initial=Outer.IDLE, hierarchical=True)
    step = walk(nested, "go")
    assert (step.position["state"], step.active) == ("ON_Y", ("ON_Y",))
    assert ask(nested, step.position, "back").active == ("IDLE",)


def test_plain_state_objects_are_states():
    """The library's own `State` and `NestedState`, as its documentation shows them."""
    chart = make(
        [State("a", on_exit=[teller("left")]), State("b", final=True)], [["go", "a", "b"]], initial="a"
    )
    step = walk(chart, "go")
    assert (step.status, sent(step)) == ("completed", ["left"])
    parent = NestedState("p", initial="x")
    parent.add_substates([NestedState("x"), NestedState("y")])
    nested = make(["a", parent], [["go", "a", "p"], ["on", "p_x", "p_y"]], hierarchical=True)
    assert walk(nested, "go", "on").active == ("p_y",)


def test_the_definition_handed_in_is_left_alone():
    """The library writes into the dicts of its states: it is given copies, and later edits change nothing."""
    states = [{"name": "a"}, {"name": "b"}]
    moves = [{"trigger": "go", "source": ["a"], "dest": "b"}]
    chart = make(states, moves, initial="a")
    walk(chart, "go")
    assert (states, moves) == (
        [{"name": "a"}, {"name": "b"}],
        [{"trigger": "go", "source": ["a"], "dest": "b"}],
    )
    moves[0]["source"].clear()
    states.clear()
    for _ in range(2):
        assert walk(chart, "go").active == ("b",)


class Timed(State):
    """Stands for any state class that does more than the library's own."""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"states": [{"name": "a", "timeout": 3, "on_timeout": "x"}]}, "Timeout state starts threads"),
        ({"states": [Timed("a")], "initial": "a"}, "is a Timed"),
        ({"states": [NestedState("a")], "initial": "a"}, "is a NestedState"),
        ({"states": [Machine(states=["a"], initial="a")], "initial": "a"}, "is a Machine"),
        (
            {"states": [HierarchicalMachine(states=["a"], initial="a")], "initial": "a"},
            "is a HierarchicalMachine",
        ),
        ({"states": []}, "states must not be empty"),
        ({"states": 3}, "states must be a list"),
        ({"states": [3]}, r"states\[0\]"),
        ({"states": [{"name": "a", "colour": 1}]}, "unknown key 'colour'"),
        ({"states": [{"name": "a", "final": 1}]}, r"states\[0\]\[final\]"),
        ({"states": [{"name": "a", "children": ["x"]}]}, "needs hierarchical=True"),
        ({"states": [{"on_enter": "x"}]}, r"states\[0\]\[name\]"),
        ({"moves": [["go", "a"]]}, r"transitions\[0\]"),
        ({"moves": ["go"]}, r"transitions\[0\]"),
        ({"moves": {"go": 1}}, "transitions must be a list"),
        ({"moves": [{"trigger": "go", "source": "a"}]}, "has no dest"),
        ({"moves": [{"trigger": "go", "source": "a", "dest": "b", "queued": 1}]}, "unknown key 'queued'"),
        ({"moves": [["", "a", "b"]]}, "trigger"),
        ({"moves": [["state", "a", "b"]]}, "refuses the definition"),
        ({"moves": [["go", "a", "gone"]]}, "destination of 'go' is 'gone'"),
        ({"moves": [["go", "gone", "a"]]}, "source of 'go' is 'gone'"),
        ({"moves": [{"trigger": "go", "source": "a", "dest": "b", "after": "gone"}]}, "calls 'gone'"),
        ({"moves": [{"trigger": "go", "source": "a", "dest": "b", "after": 3}]}, "not callable"),
        ({"initial": 3}, "initial must name a state"),
        ({"model": object()}, "model must be a class"),
        ({"model": Machine}, "model is a Machine"),
        ({"model": AsyncMachine}, "model is a Machine"),
        ({"model": LockedMachine(states=["a"], initial="a")}, "model is a Machine"),
        ({"version": ""}, "version"),
        ({"hierarchical": 1}, "hierarchical must be True or False"),
    ],
)
def test_a_definition_that_cannot_be_stepped_is_refused_at_load(options, told):
    """The message is one line and names the place."""
    with pytest.raises(ConfigError, match=told) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"states": ["a", {"name": "p", "initial": "x", "children": ["y"]}]}, "initial state 'x' of 'p'"),
        ({"states": ["a", {"name": "in_transit"}]}, "holds '_'"),
        ({"states": ["a", {"name": "p", "children": [{"name": "x", "timeout": 1}]}]}, "Timeout"),
        (
            {"states": ["a", {"name": "p", "children": ["x"], "transitions": [["go", "x", "z"]]}]},
            "destination of 'go'",
        ),
        ({"states": ["a", {"name": "p", "on_final": "gone"}]}, "calls 'gone'"),
        ({"states": ["a", {"name": "p", "remap": {}}]}, "unknown key 'remap'"),
    ],
)
def test_a_hierarchical_definition_is_refused_by_the_same_measure(options, told):
    """Also inside the states of states."""
    with pytest.raises(ConfigError, match=told):
        make(**options, hierarchical=True)


def test_an_initial_state_that_is_not_there_is_refused():
    """The trap: the library adds a state of that name."""
    with pytest.raises(ConfigError, match="initial"):
        make(["a"], initial="b")


async def waits():
    """A callback that no step can wait for."""


class Waiting:
    async def waits(self):
        """The same, on a model."""

    async def on_enter_b(self):
        """The same, found by its name."""


@pytest.mark.parametrize("callback", [waits, "waits", f"{__name__}.waits"])
def test_asynchronous_callbacks_are_refused_at_load(callback):
    """A coroutine is true: a guard would always pass, an action never run."""
    moves = [{"trigger": "go", "source": "a", "dest": "b", "conditions": callback}]
    with pytest.raises(ConfigError, match="async"):
        make(["a", "b"], moves, type("Model", (), {"waits": Waiting.waits}))
    with pytest.raises(ConfigError, match="async"):
        make(["a", "b"], [], type("Model", (), {"on_enter_b": Waiting.on_enter_b}))


def test_the_hash_names_the_definition():
    """Every part of it counts; made again it is the same."""

    def guard():
        return True

    def other():
        return True

    variants = [
        {},
        {"version": "2"},
        {"hierarchical": True},
        {"states": ["a", "b", "c"]},
        {"states": ["a", {"name": "b", "final": True}]},
        {"states": [Light.RED, "a"], "initial": "a"},
        {"states": ["RED", "a"], "initial": "a"},
        {"moves": [["go", "a", "b"]]},
        {"moves": [["go", "b", "a"]]},
        {"moves": [["go", "a", "b", guard]]},
        {"moves": [["go", "a", "b", other]]},
        {"moves": [["go", "a", "b", None, guard]]},
        {"moves": [["go", "a", "b", "__class__"]]},
        {"model": Waiting} | {"states": ["a", "c"]},
    ]
    hashes = [make(**variant).content_hash for variant in variants]
    assert hashes == [make(**variant).content_hash for variant in variants]
    assert len(set(hashes)) == len(variants)


def test_the_separator_is_that_of_the_definition():
    """A program may set the library's separator: a chart keeps the one it was made with."""
    states = ["a", {"name": "p", "initial": "x", "children": ["x"]}]
    chart = make(states, [["go", "a", "p"]], hierarchical=True)
    start = begin(chart).position
    NestedState.separator = "."
    try:
        dotted = make(states, [["go", "a", "p"]], hierarchical=True)
        assert walk(dotted, "go").active == walk(dotted, "go").active == ("p.x",)
        assert dotted.content_hash != chart.content_hash
        assert ask(chart, start, "go").active == ("p_x",)
    finally:
        NestedState.separator = "_"


def test_without_the_library_the_extra_is_named():
    """Importing the adapter is free; making a chart says which extra is missing."""
    code = (
        "import sys; sys.modules['transitions'] = None\n"
        "from statifier_router import MissingExtra\n"
        "from statifier_router.interpreters import transitions\n"
        "try:\n"
        "    transitions.chart('c', states=['a'], transitions=[], initial='a', version='1')\n"
        "except MissingExtra as missing:\n"
        "    print(missing.extra)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("transitions\n", "")


# --- order, and long runs ---------------------------------------------------------------------------


def test_a_region_that_joins_late_stands_in_document_order():
    """Active states are told as they are declared, not as they were entered."""
    states = [{"name": "p", "initial": ["second", "third"], "children": ["first", "second", "third"]}]
    chart = make(states, [["join", "p_third", "p_first"]], initial="p", hierarchical=True)
    assert begin(chart).active == ("p_second", "p_third")
    assert walk(chart, "join").active == ("p_first", "p_second", "p_third")


EVENTS = ("both", "left", "right", "out", "in", "deep", "odd", "nothing")
NESTED = [
    {"name": "idle"},
    {
        "name": "p",
        "parallel": [
            {
                "name": "left",
                "initial": "l1",
                "children": ["l1", "l2", {"name": "l3", "initial": "x", "children": ["x", "y"]}],
                "transitions": [
                    ["left", "l1", "l2"],
                    ["left", "l2", "l3"],
                    ["both", "l3", "l1"],
                    ["deep", "l3_x", "l3_y"],
                ],
            },
            {
                "name": "right",
                "initial": "r1",
                "children": [
                    "r1",
                    {
                        "name": "r2",
                        "parallel": [{"name": "u", "initial": "u1", "children": ["u1", "u2"]}, "v"],
                    },
                ],
                "transitions": [["right", "r1", "r2"], ["both", "r2", "r1"], ["deep", "r2_u_u1", "r2_u_u2"]],
            },
        ],
    },
]
MOVES = [
    ["in", "idle", "p"],
    ["out", "p", "idle"],
    {"trigger": "both", "source": "p_left_l1", "dest": "=", "before": "note"},
    {"trigger": "odd", "source": "*", "dest": None, "conditions": "is_odd", "after": "note"},
]


class Noting:
    """Notes every entry and exit; the same for the library's own machine and for the chart."""

    def __init__(self):
        self.data = {"n": 0}
        self.notes = None

    def is_odd(self):
        return self.data["n"] % 2 == 1

    def note(self, *_):
        self.data["n"] += 1

    def tell(self, what):
        if self.notes is None:
            emit(what)
        else:
            self.notes.append(what)


def noted(states, above=""):
    result = []
    for each in states:
        state = {"name": each} if isinstance(each, str) else dict(each)
        name = f"{above}{state['name']}"
        for key in ("parallel", "children"):
            if key in state:
                state[key] = noted(state[key], f"{name}_")
        state["on_enter"] = f"enter_{name}"
        state["on_exit"] = f"exit_{name}"
        setattr(Noting, f"enter_{name}", functools.partialmethod(Noting.tell, f"enter {name}"))
        setattr(Noting, f"exit_{name}", functools.partialmethod(Noting.tell, f"exit {name}"))
        result.append(state)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_restored_at_every_step_equals_the_unbroken_one(seed):
    """200 random events: states, order of actions and data are those of the library's own living machine."""
    states = noted(NESTED)
    chart = make(states, MOVES, Noting, initial="idle", hierarchical=True)
    living = Noting()
    machine = HierarchicalMachine(
        living, states=noted(NESTED), transitions=MOVES, initial="idle", ignore_invalid_triggers=True
    )
    position = begin(chart).position
    events = random.Random(seed).choices(EVENTS, k=200)
    moved = 0
    for name in events:
        living.notes = []
        try:
            answer = machine.trigger_event(living, name)
        except ValueError:
            # The library cannot say "nothing reacts" of parallel regions within a region.
            answer = False
        step = ask(chart, decode(encode(position)), name)
        assert (step.outcome == "moved") == bool(answer), name
        assert sent(step) == living.notes, name
        position = step.position
        assert position["state"] == living.state
        assert position["data"] == living.data
        moved += step.outcome == "moved"
    assert moved > 40


# --- through the doors ------------------------------------------------------------------------------


def test_a_chart_lives_in_the_database(database, make_config):
    """Created, stepped, refused, failed and completed by messages; its log folds to its position."""

    class Model:
        def __init__(self):
            self.data = {"scans": 0}

        def count(self, event):
            self.data["scans"] += event.data["weight"]

    charts = ChartRegistry()
    chart = make(
        ["moving", {"name": "delivered", "final": True}],
        [
            {"trigger": "scanned", "source": "moving", "dest": "=", "after": "count"},
            ["handed", "moving", "delivered"],
        ],
        Model,
    )
    charts.publish("parcel", chart)

    def config(event):
        binding = Binding(
            id=event,
            source="carrier",
            match={},
            key="parcel",
            document="parcel",
            event=event,
            data=["weight"],
        )
        return make_config(database, charts=charts, bindings=[binding])

    (created,) = route(config("scanned"), Message("carrier", "m-1", "acme", {"parcel": "P7", "weight": 3}))
    with pytest.raises(StepFailed) as caught:
        route(config("scanned"), Message("carrier", "m-2", "acme", {"parcel": "P7"}))
    assert isinstance(caught.value.__cause__, KeyError)
    (ended,) = route(config("handed"), Message("carrier", "m-3", "acme", {"parcel": "P7"}))
    execution = executions.fetch(config("handed"), ended.execution_id)
    assert created.execution_id == ended.execution_id
    assert (execution.status, execution.interpreter) == ("completed", "transitions")
    assert execution.position["data"] == {"scans": 3}
    assert execution.position["execution"]["key"] == "P7"


def test_an_execution_is_migrated_to_a_chart_that_renames_its_states(database, make_config):
    """A mapping of names moves it over; a state that the new chart does not have is refused."""
    moves = [{"trigger": "scanned", "source": "*", "dest": None}]
    old, new = make(["moving", "b"], moves), make(["on_its_way", "b"], moves, version="2")
    charts = ChartRegistry()
    charts.publish("parcel", new)
    charts.publish("parcel", old)
    binding = Binding(
        id="scans", source="carrier", match={}, key="parcel", document="parcel", event="scanned"
    )
    config = make_config(database, charts=charts, bindings=[binding])
    (created,) = route(config, Message("carrier", "m-1", "acme", {"parcel": "P7"}))
    with pytest.raises(ConfigError, match="'moving', which this chart does not have"):
        executions.migrate(config, created.execution_id, new.content_hash, mapping={})
    executions.migrate(config, created.execution_id, new.content_hash, mapping={"moving": "on_its_way"})
    execution = executions.fetch(config, created.execution_id)
    assert (execution.active, execution.content_hash) == (("on_its_way",), new.content_hash)
    route(config, Message("carrier", "m-2", "acme", {"parcel": "P7"}))
    assert executions.fetch(config, created.execution_id).revision == 3
