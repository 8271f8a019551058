"""`StateChart` classes: callbacks, models, what is kept, effects, errors, and what makes a revision."""

import contextlib
import json
import types
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from statemachine import HistoryState, State, StateChart, StateMachine

from statifier_router import NO_DATA, Cancel, Event, Send, Step
from statifier_router.errors import ConfigError, RouterError
from statifier_router.interpreters import statemachine
from statifier_router.interpreters.emitting import cancel, emit

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DATA = {"execution": {"id": "e-1", "scope": "acme", "document": "parcel", "key": "P7"}}


def create(chart: Any) -> Step:
    return chart.create(data=DATA, now=NOW)


def step(chart: Any, position: Any, name: str, data: Any = None, **event: Any) -> Step:
    return chart.step(position, Event(name, {} if data is None else data, **event), event_id="m-1", now=NOW)


def run(chart: Any, *names: str) -> Step:
    """The last step of a run, each position having been through JSON."""
    stepped = create(chart)
    for name in names:
        stepped = step(chart, json.loads(json.dumps(stepped.position)), name)
    return stepped


class Parcel(StateChart):
    moving = State(initial=True)
    held = State()
    delivered = State(final=True)

    scan = moving.to.itself(on="count")
    hold = moving.to(held, cond="is_odd")
    release = held.to(moving)
    hand_over = moving.to(delivered) | held.to(delivered)

    def count(self, data, now, event_id, origin, send_id):
        self.model.scans = getattr(self.model, "scans", 0) + 1
        self.model.seen = [data, now.isoformat(), event_id, origin, send_id]

    def is_odd(self, data):
        return data["weight"] % 2 == 1

    def on_enter_delivered(self):
        return {"scans": getattr(self.model, "scans", 0), "who": self.model.execution["id"]}


def test_a_class_is_a_chart():
    """Callbacks get the event's data as one mapping, the instant, and who sent it."""
    chart = statemachine.chart(Parcel, version="1")
    first = create(chart)
    assert (first.active, first.status, first.outcome) == (("moving",), "active", "moved")
    scanned = step(chart, first.position, "scan", {"depot": "Lyon"}, origin="e-2", send_id="s")
    assert scanned.position["data"]["seen"] == [{"depot": "Lyon"}, NOW.isoformat(), "m-1", "e-2", "s"]
    done = step(chart, scanned.position, "hand_over")
    assert (done.status, done.active) == ("completed", ("delivered",))
    assert done.donedata == {"scans": 1, "who": "e-1"}
    assert step(chart, done.position, "scan") == Step(
        done.position, outcome="ignored", active=("delivered",), status="completed"
    )


def test_outcomes():
    """Refused where a guard said no, or could not say; ignored where nothing names the event."""
    chart = statemachine.chart(Parcel, version="1")
    position = create(chart).position
    assert step(chart, position, "hold", {"weight": 2}).outcome == "refused"
    assert step(chart, position, "hold", {"weight": 2}).errors == ()
    absent = step(chart, position, "hold")
    assert (absent.outcome, absent.errors) == ("refused", ("KeyError: 'weight'",))
    assert step(chart, position, "release").outcome == "ignored"
    assert step(chart, position, "send").outcome == "ignored"
    assert step(chart, position, "hold", {"weight": 3}).active == ("held",)


HOSTILE = (
    *("delay", "event", "name", "model", "state", "self", "items", "send_id", "machine", "source", "target"),
    *("transition", "event_data", "internal", "data", "now", "error", "kwargs", "args"),
)


class Echo(StateChart):
    one = State(initial=True)
    two = State(final=True)
    go = one.to(two, on="keep")

    def keep(self, event, source, target, state, model, machine, data, now, error="none", **kwargs):
        assert machine is self
        assert model is self.model
        self.model.kept = [str(event), source.id, target.id, state.id, data, now.isoformat(), error]
        self.model.others = sorted(kwargs)


@pytest.mark.parametrize("key", HOSTILE)
def test_no_key_of_a_payload_is_an_argument(key):
    """A payload is one mapping: none of its keys reaches a callback, or the library, by name."""
    chart = statemachine.chart(Echo, version="1")
    position = create(chart).position
    plain = step(chart, position, "go", {"x": 1}).position["data"]
    hostile = step(chart, position, "go", {"x": 1, key: 9}).position["data"]
    assert hostile["others"] == plain["others"]
    assert hostile["kept"] == [*plain["kept"][:4], {"x": 1, key: 9}, *plain["kept"][5:]]


class Whole(StateChart):
    """A chart that keeps everything it is called with but what the library always gives."""

    one = State(initial=True)
    go = one.to.itself(on="keep")

    def keep(
        self, machine, model, event, event_data, transition, state, source, target,
        previous_configuration, new_configuration, **kwargs,
    ):  # fmt: skip
        self.model.kept = kwargs


# Of a payload handed over as keyword arguments.
LOST = (
    *("delay", "event", "model", "state", "self", "send_id", "machine", "source", "target"),
    *("transition", "event_data", "internal"),
)


@pytest.mark.parametrize("key", LOST)
def test_a_naive_call_loses_keys(key):
    """Handed over as keyword arguments, these delay the event, clash, or are left out."""
    for payload, whole in (({"x": 1, "depot": 9}, True), ({"x": 1, key: 9}, False)):
        machine = Whole()
        with contextlib.suppress(TypeError):
            machine.send("go", **payload)
        assert (getattr(machine.model, "kept", None) == payload) is whole


# -- What is kept --------------------------------------------------------------------------------------


class Address:
    """A model of the user's own."""

    def __init__(self):
        self.lines: list[str] = []
        self.render = ", ".join

    @property
    def is_full(self):
        return len(self.lines) >= 2


class Letter(StateChart[Address]):
    draft = State(initial=True)
    ready = State()
    add = draft.to(ready, cond="is_full") | draft.to.itself(on="append")
    show = ready.to.itself(on="shown")

    def append(self, data):
        self.model.lines.append(data["line"])

    def shown(self):
        self.model.text = self.model.render(self.model.lines)


def test_a_model_of_the_users_own():
    """The class named in `StateChart[...]` is the model; its functions come anew, its data is kept."""
    chart = statemachine.chart(Letter, version="1")
    one = step(chart, create(chart).position, "add", {"line": "a"})
    two = step(chart, one.position, "add", {"line": "b"})
    full = step(chart, two.position, "add", {"line": "c"})
    assert full.active == ("ready",)
    assert full.position["data"] == {**DATA, "lines": ["a", "b"]}
    assert one.position["data"]["lines"] == ["a"]
    assert step(chart, full.position, "show").position["data"]["text"] == "a, b"
    assert create(chart).position["data"]["lines"] == []


class OnItself(StateChart):
    on = State(initial=True)
    press = on.to.itself(on="count")

    def __init__(self, *args, **kwargs):
        self.presses = 0
        super().__init__(*args, **kwargs)

    def count(self):
        self.presses += 1
        self.pressed = True


def test_attributes_of_the_machine_are_kept():
    """Many charts keep their data on the machine itself: it belongs to the execution all the same."""
    chart = statemachine.chart(OnItself, version="1")
    one, other = run(chart, "press", "press", "press"), run(chart, "press")
    assert one.position["self"] == {"presses": 3, "pressed": True}
    assert other.position["self"] == {"presses": 1, "pressed": True}
    assert create(chart).position["self"] == {"presses": 0}


def test_what_a_naive_machine_keeps_leaks():
    """On one machine for all, what one execution left on it is found by the next."""
    machine = OnItself()
    machine.send("press")
    machine.current_state_value = "on"
    assert machine.presses == 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1}, "set"),
        ((1, 2), "tuple"),
        ({1: 2}, "not text"),
        (float("nan"), "nan"),
        (object(), "object"),
        (NOW, "datetime"),
    ],
)
@pytest.mark.parametrize("where", ["model", "machine"])
def test_what_is_not_json_is_refused(value, says, where):
    """A position keeps JSON, unaltered, or the step is refused by the name of what is not."""

    class Odd(StateChart):
        a = State(initial=True)
        go = a.to.itself(on="act")

        def act(self):
            vars(self.model if where == "model" else self)["odd"] = value

    chart = statemachine.chart(Odd, version="1")
    with pytest.raises(RouterError, match="odd") as caught:
        step(chart, create(chart).position, "go")
    assert says in str(caught.value)
    assert "odd" not in json.dumps(create(chart).position)


class Client:
    """Something that a model is given, and that is no data."""

    def __init__(self):
        self.calls = 0


class WithClient:
    def __init__(self):
        self.client = Client()


class Caller(StateChart[WithClient]):
    a = State(initial=True)
    call = a.to.itself(on="act")

    def act(self):
        self.model.client.calls += 1
        self.model.calls = self.model.client.calls


def test_an_object_of_a_model_is_not_shared():
    """An object that could carry data from one execution into another is made anew for each step."""
    chart = statemachine.chart(Caller, version="1")
    assert run(chart, "call", "call").position["data"] == {**DATA, "calls": 1}


def test_a_listener_of_a_class_is_not_shared():
    """A listener that is made per machine is made per step."""

    class Counting:
        def __init__(self):
            self.count = 0

        def after_transition(self, model):
            self.count += 1
            model.count = self.count

    class Listened(StateChart):
        listeners = [Counting]  # noqa: RUF012 - the library's own spelling
        a = State(initial=True)
        go = a.to.itself()

    chart = statemachine.chart(Listened, version="1")
    assert run(chart, "go", "go", "go").position["data"]["count"] == 1


# -- Restoring ------------------------------------------------------------------------------------------

ENTERED: list[str] = []


class Deep(StateChart):
    class work(State.Compound):  # noqa: N801, D106 - a state
        h = HistoryState(type="deep")

        class left(State.Compound):  # noqa: N801, D106 - a state
            l1 = State(initial=True)
            l2 = State()
            next = l1.to(l2)

        right = State()
        swap = left.to(right) | right.to(left)

    pause = State()
    stop = work.to(pause)
    again = pause.to(work.h)

    def on_enter_state(self, state):
        ENTERED.append(state.id)


def test_restoring_enters_nothing():
    """No entry action runs because a machine was seated, not even on a machine made for the step."""
    created = create(statemachine.chart(Deep, version="1"))
    chart = statemachine.chart(Deep, version="1")
    ENTERED.clear()
    assert step(chart, created.position, "unheard").outcome == "ignored"
    assert ENTERED == []
    assert step(chart, created.position, "next").active == ("l2",)
    assert ENTERED == ["l2"]
    ENTERED.clear()
    naive = Deep()
    naive.current_state_value = "pause"
    assert ENTERED != []


def test_history_of_a_class():
    """What a history state remembers is part of the position."""
    chart = statemachine.chart(Deep, version="1")
    stopped = run(chart, "next", "stop")
    assert stopped.position["history"] == {"h": ["left", "l2"]}
    assert run(chart, "next", "stop", "again").active == ("l2",)


class Values(StateChart):
    """States whose values are no texts: a position has their names."""

    low = State(initial=True, value=1)
    high = State(value=(2, 3))
    up = low.to(high)
    down = high.to(low)


def test_states_with_values():
    """Values may be anything hashable; positions name states by id."""
    chart = statemachine.chart(Values, version="1")
    up = run(chart, "up")
    assert up.position["states"] == ["high"]
    assert run(chart, "up", "down", "up", "down").active == ("low",)


# -- Effects --------------------------------------------------------------------------------------------


class Sender(StateChart):
    a = State(initial=True)
    b = State()
    c = State(final=True)
    go = a.to(b)
    tick = b.to(c) | a.to.itself(on="ticked")
    own = a.to.itself(on="to_itself")
    heard = a.to.itself(on="hear")
    stop = a.to.itself(on="cancels")
    nag = a.to.itself(on="late_args")

    def on_go(self):
        emit("bill", target="billing", data={"sum": 1}, send_id="b")
        self.send("tick", delay=1500, send_id="t", amount=5)
        emit("remind", delay=timedelta(hours=1))
        cancel("old")

    def ticked(self, data):
        self.model.amount = data["amount"]

    def to_itself(self):
        emit("heard", data={"by": "emit"})
        self.send("heard", by="send")
        self.heard(by="call")

    def hear(self, data, by=None):
        self.model.heard = [*getattr(self.model, "heard", []), [data, by]]

    def cancels(self):
        self.cancel_event("t")

    def late_args(self):
        self.send("tick", 5, delay=10)


def test_effects_of_callbacks():
    """`emit`, `cancel`, and what the library would have waited for, in the order they were made."""
    chart = statemachine.chart(Sender, version="1")
    position = create(chart).position
    stepped = step(chart, position, "go")
    assert stepped.active == ("b",)
    assert stepped.effects == (
        Send("bill", {"sum": 1}, target="billing", send_id="b"),
        Send("tick", {"amount": 5}, send_id="t", delay=timedelta(seconds=1.5)),
        Send("remind", delay=timedelta(hours=1)),
        Cancel("old"),
    )
    back = step(chart, position, "tick", stepped.effects[1].data)
    assert back.position["data"]["amount"] == 5
    assert step(chart, position, "stop").effects == (Cancel("t"),)
    told = step(chart, position, "nag")
    assert told.effects == ()
    assert "positional" in told.errors[0]


def test_an_event_for_itself_is_taken_in_the_same_step():
    """Without a target and a delay, an event is the chart's own, however it was sent."""
    chart = statemachine.chart(Sender, version="1")
    stepped = step(chart, create(chart).position, "own")
    assert stepped.effects == ()
    heard = stepped.position["data"]["heard"]
    assert sorted(heard, key=str) == sorted(
        [[{"by": "send"}, "send"], [{"by": "call"}, "call"], [{"by": "emit"}, None]], key=str
    )
    assert step(chart, create(chart).position, "own").position == stepped.position


def test_emit_outside_a_step():
    """There is nothing to add an effect to."""
    with pytest.raises(ConfigError, match="outside a step"):
        emit("x")


# -- Errors ---------------------------------------------------------------------------------------------


class Failing(StateChart):
    a = State(initial=True)
    b = State()
    wrong = State(final=True)
    go = a.to(b, on="fail")
    entry = a.to(b)
    guarded = a.to(b, cond="cannot")
    error_execution = b.to(wrong, cond="is_serious")
    valid = a.to(b, validators="check")

    def fail(self):
        raise ValueError("no such depot")

    def on_enter_b(self, event):
        if event == "entry":
            raise RuntimeError("serious")

    def cannot(self):
        raise LookupError("nothing there")

    def is_serious(self, error):
        return isinstance(error, RuntimeError)

    def check(self, data):
        if not data:
            raise ValueError("data is missing")


def test_errors_are_told():
    """What a callback raises is told, whether the chart handles it or not."""
    chart = statemachine.chart(Failing, version="1")
    position = create(chart).position
    unhandled = step(chart, position, "go")
    assert (unhandled.outcome, unhandled.active) == ("moved", ("b",))
    assert unhandled.errors == ("ValueError: no such depot",)
    handled = step(chart, position, "entry")
    assert (handled.outcome, handled.active) == ("moved", ("wrong",))
    assert handled.errors == ("RuntimeError: serious",)
    guarded = step(chart, position, "guarded")
    assert (guarded.outcome, guarded.errors) == ("refused", ("LookupError: nothing there",))
    refused = step(chart, position, "valid")
    assert (refused.outcome, refused.errors) == ("refused", ("ValueError: data is missing",))
    assert step(chart, position, "valid", {"x": 1}).active == ("b",)


class Strict(StateMachine):
    """The library's older kind: what a callback raises comes out of the machine."""

    a = State(initial=True)
    b = State(final=True)
    go = a.to(b)
    maybe = a.to(b, cond="cannot")

    def on_go(self, data):
        self.model.weight = data["weight"]

    def cannot(self, data):
        return data["weight"] > 1


def test_errors_of_a_state_machine():
    """They fail the step; an event that it does not allow is ignored, or refused, all the same."""
    chart = statemachine.chart(Strict, version="1")
    position = create(chart).position
    failed = step(chart, position, "go")
    assert (failed.outcome, failed.errors) == ("failed", ("KeyError: 'weight'",))
    assert failed.position is position
    assert step(chart, position, "unheard").outcome == "ignored"
    assert step(chart, position, "maybe", {"weight": 1}).outcome == "refused"
    assert step(chart, position, "maybe").outcome == "failed"
    done = step(chart, position, "go", {"weight": 1})
    assert (done.status, done.donedata) == ("completed", NO_DATA)


def test_a_loop_without_end():
    """1,000 microsteps end a step of a class too."""

    class Loop(StateChart):
        a = State(initial=True)
        b = State()
        c = State()
        go = a.to(b)
        b.to(c)
        c.to(b)

    chart = statemachine.chart(Loop, version="1")
    stepped = step(chart, create(chart).position, "go")
    assert stepped.outcome == "failed"
    assert "1,000" in stepped.errors[0]


# -- Refusals, and what makes a revision -----------------------------------------------------------------


class Waiting(StateChart):
    a = State(initial=True)
    go = a.to.itself()

    async def on_go(self): ...


class Invoking(StateChart):
    a = State(initial=True, invoke=lambda: 1)
    go = a.to.itself()


class InvokingByName(StateChart):
    a = State(initial=True)
    go = a.to.itself()

    def on_invoke_a(self): ...


class Particular(StateChart):
    a = State(initial=True)
    go = a.to.itself()

    def __init__(self, warehouse):
        super().__init__()


class SetOnItself(StateChart):
    a = State(initial=True)
    go = a.to.itself()

    def __init__(self):
        self.tags = {1}
        super().__init__()


@pytest.mark.parametrize(
    ("chart_class", "says"),
    [
        (object, "StateChart class"),
        (Parcel(), "StateChart class"),
        (StateChart, "no states"),
        (Waiting, "coroutines"),
        (Invoking, "invoke"),
        (InvokingByName, "'a'"),
        (Particular, "warehouse"),
        (SetOnItself, "tags"),
    ],
)
def test_a_class_that_cannot_be_stepped_is_refused(chart_class, says):
    """The error names what is in the way."""
    with pytest.raises(ConfigError, match=says):
        statemachine.chart(chart_class, version="1")


@pytest.mark.parametrize("version", ["", "x" * 129, None])
def test_the_version_is_text(version):
    """It is part of the content hash."""
    with pytest.raises(ConfigError, match="version"):
        statemachine.chart(Parcel, version=version)


def define(*, target="a", guard="is_ready", final=False, version="1"):
    """One class, with one thing about it changed."""

    def body(namespace):
        a, b, c = State(initial=True), State(), State(final=True)
        namespace.update(
            a=a,
            b=b,
            c=c,
            go=a.to(b, cond=guard),
            on_to=b.to(c),
            back=b.to(a if target == "a" else b),
            is_ready=lambda self: True,
            is_other=lambda self: True,
        )
        if final:
            namespace["on_enter_b"] = lambda self: None

    return statemachine.chart(types.new_class("Defined", (StateChart,), exec_body=body), version=version)


def test_the_hash_is_that_of_the_definition():
    """States, transitions, names of callbacks and the version make a revision; nothing else does."""
    hashes = {
        define().content_hash,
        define(version="2").content_hash,
        define(target="b").content_hash,
        define(guard="is_other").content_hash,
        define(final=True).content_hash,
    }
    assert len(hashes) == 5
    assert define().content_hash == define().content_hash
    chart = define()
    assert (chart.interpreter, chart.version) == ("statemachine", "1")
    assert len(chart.content_hash) == 64


def test_the_class_is_left_as_it_was():
    """A chart takes nothing from its class: the library's own machine of it works as before."""
    statemachine.chart(OnItself, version="1")
    machine = OnItself()
    machine.send("press")
    assert machine.presses == 1
    assert type(machine)._get_engine is StateChart._get_engine
