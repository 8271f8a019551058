"""Every trap of python-statemachine that was measured: our adapter holds the rule, a naive one breaks it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from statemachine.io import load
from statemachine.orderedset import OrderedSet

from statifier_router import NO_DATA, Cancel, Event, Send, Step
from statifier_router.errors import ConfigError, RouterError
from statifier_router.interpreters import statemachine

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DATA = {"execution": {"id": "e-1", "scope": "acme", "document": "parcel", "key": "P7"}}
PLANT = (Path(__file__).parent / "charts" / "plant.scxml").read_text()


class Model:
    state: Any = None


class NaiveChart:
    """What one would write first: a machine from the position, the payload as keyword arguments."""

    def __init__(self, text: str) -> None:
        self.chart_class: Any = load(text, format="scxml", trusted=True)

    def create(self, *, data: Any, now: datetime) -> Step:
        model = Model()
        model.execution = data.get("execution")
        return self._read(self.chart_class(model=model), "moved")

    def step(self, position: Any, event: Event, *, event_id: str, now: datetime) -> Step:
        model = Model()
        vars(model).update(position["data"])
        states = position["states"]
        model.state = OrderedSet(states) if len(states) > 1 else states[0]
        machine = self.chart_class(model=model)
        before = list(machine.configuration_values)
        machine.send(event.name, **event.data)
        moved = list(machine.configuration_values) != before
        return self._read(machine, "moved" if moved else "ignored")

    def _read(self, machine: Any, outcome: Any) -> Step:
        data = {name: value for name, value in vars(machine.model).items() if name != "state"}
        return Step(
            {"states": list(machine.configuration_values), "data": data},
            outcome=outcome,
            active=[state.id for state in machine.configuration if state.is_atomic],
            status="completed" if machine.is_terminated else "active",
        )


Make = Callable[[str], Any]
RULES: dict[str, Callable[[Make], None]] = {}


def rule(check: Callable[[Make], None]) -> Callable[[Make], None]:
    RULES[check.__name__] = check
    return check


def create(chart: Any) -> Step:
    return chart.create(data=DATA, now=NOW)


def step(chart: Any, position: Any, name: str, data: Any = None) -> Step:
    return chart.step(position, Event(name, {} if data is None else data), event_id="m-1", now=NOW)


def document(body: str, data: str = "") -> str:
    return f'<scxml name="parcel" version="1.0"><datamodel>{data}</datamodel>{body}</scxml>'


@rule
def second_execution_has_its_datamodel(make):
    """The library gives the datamodel to the first machine of a class only."""
    chart = make(document('<state id="a"/>', '<data id="scans" expr="[1]"/>'))
    assert create(chart).position["data"]["scans"] == [1]
    assert create(chart).position["data"]["scans"] == [1]


@rule
def delayed_send_is_handed_on(make):
    """The library keeps a delayed send, and blocks whoever sends next until it is due."""
    chart = make(
        document(
            """
            <state id="a"><onentry>
              <send event="late" delay="50ms" id="t1"><param name="n" expr="1"/></send></onentry>
              <transition event="late" target="b"/></state>
            <state id="b"/>"""
        )
    )
    created = create(chart)
    assert created.active == ("a",)
    assert created.effects == (Send("late", {"n": 1}, send_id="t1", delay=timedelta(milliseconds=50)),)


@rule
def external_send_is_handed_on(make):
    """The library makes an error of a send to a target outside, and nobody hears it."""
    chart = make(
        document(
            """<state id="a"><onentry><send event="bill" target="billing" type="x-outbox">
               <param name="sum" expr="40 + 2"/></send></onentry></state>"""
        )
    )
    created = create(chart)
    assert created.effects == (Send("bill", {"sum": 42}, target="billing", type="x-outbox"),)
    assert created.errors == ()


HOSTILE = (
    *("delay", "event", "name", "model", "state", "self", "items", "send_id", "machine", "source"),
    *("target", "kwargs", "internal", "transition", "event_data", "error", "data", "args", "now"),
    *("get", "keys", "__class__", "_event", "in"),
)


def payload_is_data(make: Make, key: str) -> None:
    """A payload's keys are data, whatever they are called."""
    chart = make(
        document(
            """<state id="a"><transition event="go" target="b">
               <assign location="seen" expr="_event.data.get(key)"/>
               <assign location="heard" expr="_event.name"/>
               </transition></state><state id="b"/>""",
            f"""<data id="seen"/><data id="heard"/><data id="key" expr="'{key}'"/>""",
        )
    )
    for value in (5, "x", {"a": [1]}, None):
        stepped = step(chart, create(chart).position, "go", {key: value, "plain": 1})
        assert stepped.active == ("b",)
        data = stepped.position["data"]
        assert (data["seen"], data["heard"]) == (value, "go")
        assert stepped.effects == ()
        assert stepped.errors == ()


@pytest.mark.parametrize("key", HOSTILE)
def test_the_adapter_takes_every_key_for_data(key):
    """No key of a payload is taken for an argument of the library."""
    payload_is_data(statemachine.scxml, key)


# Of a payload handed over as keyword arguments.
LOST = ("delay", "event", "model", "state", "self", "send_id", "machine", "source", "target", "internal")


@pytest.mark.parametrize("key", LOST)
def test_a_naive_adapter_loses_keys(key):
    """Handed over as keyword arguments, these delay the event, clash, or are left out."""
    with pytest.raises((Exception, pytest.fail.Exception)):
        payload_is_data(NaiveChart, key)


def test_the_naive_adapter_is_given_its_chance():
    """Where no trap lies, the naive adapter is right: it breaks for the reason that a rule names."""
    for chart in (NewEachTime, statemachine.scxml):
        payload_is_data(chart, "depot")


def NewEachTime(text: str) -> Any:  # noqa: N802 - a chart, made anew for each execution
    """The naive adapter without its first trap, the datamodel that only one machine is given."""
    chart = NaiveChart(text)
    created = chart.create

    def create_anew(*, data: Any, now: datetime) -> Step:
        chart.__init__(text)
        return created(data=data, now=now)

    chart.create = create_anew
    return chart


@rule
def donedata_of_the_end_is_told(make):
    """The library computes the donedata of an outermost final, and throws it away."""
    chart = make(
        document(
            """<state id="a"><transition event="go" target="z"/></state>
               <final id="z"><donedata><param name="who" expr="execution['id']"/></donedata></final>"""
        )
    )
    done = step(chart, create(chart).position, "go")
    assert (done.status, done.donedata) == ("completed", {"who": "e-1"})


@rule
def finished_position_stays_finished(make):
    """A machine restored on its final state looks as if it went on."""
    chart = make(
        document(
            """<state id="a"><transition event="go" target="z"/></state>
               <final id="z"><onentry><assign location="n" expr="n + 1"/></onentry></final>""",
            '<data id="n" expr="0"/>',
        )
    )
    done = step(chart, create(chart).position, "go")
    again = step(chart, done.position, "go")
    assert (again.outcome, again.status, again.active) == ("ignored", "completed", ("z",))
    assert again.position == done.position
    assert again.position["data"]["n"] == 1


@rule
def order_is_the_documents(make):
    """The library acts in the order in which states happen to stand in the restored configuration."""

    def log(name: str) -> str:
        return f"""<assign location="log" expr="log + ['{name}']"/>"""

    regions = "".join(
        f"""<state id="{name}"><onexit>{log(name)}</onexit>
            <state id="{name}1"><transition event="go" target="{name}2">{log(name)}</transition></state>
            <state id="{name}2"><onentry>{log(name)}</onentry></state></state>"""
        for name in "abc"
    )
    chart = make(document(f'<parallel id="p">{regions}</parallel>', '<data id="log" expr="[]"/>'))
    position = create(chart).position
    turned = {**position, "states": list(reversed(position["states"]))}
    one, two = step(chart, position, "go"), step(chart, turned, "go")
    assert one.active == two.active == ("a2", "b2", "c2")
    assert one.position["data"]["log"] == two.position["data"]["log"] == list("abcabc")


@rule
def states_inside_are_entered_before_the_next_region(make):
    """The library numbers states level by level, so deep regions are entered interleaved."""

    def state(name: str, inner: str = "") -> str:
        return f"""<state id="{name}"><onentry><assign location="log" expr="log + ['{name}']"/></onentry>
                   {inner}</state>"""

    regions = "".join(state(f"{n}1", state(f"{n}2", state(f"{n}3"))) for n in "ab")
    chart = make(document(f'<parallel id="p">{regions}</parallel>', '<data id="log" expr="[]"/>'))
    assert create(chart).position["data"]["log"] == ["a1", "a2", "a3", "b1", "b2", "b3"]


@rule
def first_child_is_entered_by_default(make):
    """The library reads states, finals and parallels in three passes: the first state comes first."""
    chart = make(
        document(
            """<state id="s"><parallel id="first"><state id="x"/><state id="y"/></parallel>
               <state id="second"/></state>"""
        )
    )
    assert create(chart).active == ("x", "y")


@rule
def invoke_is_refused(make):
    """An <invoke> runs a thread."""
    with pytest.raises(ConfigError, match=r"<invoke> in state 'deep'"):
        make(document('<state id="a"><state id="deep"><invoke type="scxml" id="i"/></state></state>'))


@rule
def target_that_is_computed_is_refused(make):
    """The library ignores a targetexpr, and sends to the chart itself instead."""
    for data, expr in (
        ("", "'billing'"),
        ('<data id="to"/>', "to"),
        ('<data id="to" expr="\'billing\'"/>', "to"),
        ('<data id="to" expr="\'#_internal\'"/>', "to if 1 else 'billing'"),
        ("", "_event.data.target"),
        ("", "execution.key"),
        ("", "not an expression"),
    ):
        with pytest.raises(ConfigError, match="targetexpr"):
            make(
                document(
                    f'<state id="a"><onentry><send event="e" targetexpr="{expr}"/></onentry></state>', data
                )
            )


@rule
def final_with_events_waiting_completes(make):
    """What is still queued inside when the outermost final is reached does not keep it from ending."""
    chart = make(
        document(
            """<state id="a"><transition event="go" target="z"><raise event="x"/><raise event="y"/>
               <send event="w"/></transition></state>
               <final id="z"><donedata><param name="n" expr="1"/></donedata></final>"""
        )
    )
    done = step(chart, create(chart).position, "go")
    assert (done.status, done.active, done.donedata) == ("completed", ("z",), {"n": 1})


@rule
def loop_without_end_fails(make):
    """1,000 microsteps are enough for one step. From a real loop, the naive adapter would not return."""
    chart = make(
        document(
            """<state id="a"><transition event="go" target="b"/></state>
               <state id="b"><transition cond="n &lt; 1500" target="c">
                 <assign location="n" expr="n + 1"/></transition></state>
               <state id="c"><transition target="b"/></state>""",
            '<data id="n" expr="0"/>',
        )
    )
    position = create(chart).position
    stepped = step(chart, position, "go")
    assert stepped.outcome == "failed"
    assert "1,000 microsteps" in stepped.errors[0]
    assert stepped.position == position


@rule
def guard_on_an_absent_field_says_no(make):
    """The library reads an absent field as None, and lets `!=` and `not` pass."""
    for cond in (
        "_event.data.kind != 'gone'",
        "not _event.data.kind",
        "_event.data.kind is None",
        "_event.data.items",
        "absent != 1",
        "_event.data['kind'] != 1",
        "_event.data.parcel.kind != 1",
    ):
        chart = make(
            document(
                f'<state id="a"><transition event="go" cond="{cond}" target="b"/></state><state id="b"/>'
            )
        )
        stepped = step(chart, create(chart).position, "go", {"parcel": {}})
        assert (stepped.outcome, stepped.active) == ("refused", ("a",)), cond
        assert len(stepped.errors) == 1


@rule
def error_in_an_action_is_told(make):
    """An action's error that the chart does not handle is swallowed by the library."""
    chart = make(
        document(
            '<state id="a"><transition event="go" target="b"><assign location="n" expr="1 / 0"/></transition>'
            '</state><state id="b"/>',
            '<data id="n"/>',
        )
    )
    stepped = step(chart, create(chart).position, "go")
    assert (stepped.outcome, stepped.active) == ("moved", ("b",))
    assert stepped.errors == ("ZeroDivisionError: division by zero",)


@rule
def error_that_the_chart_handles_is_told(make):
    """An error in a guard moves a chart that handles it, and is told all the same."""
    chart = make(
        document(
            """<state id="a"><transition event="go" cond="missing" target="b"/>
               <transition event="error.execution" target="c">
                 <assign location="why" expr="_event.data.reason"/></transition></state>
               <state id="b"/><state id="c"/>""",
            '<data id="why"/>',
        )
    )
    stepped = step(chart, create(chart).position, "go")
    assert (stepped.outcome, stepped.active) == ("moved", ("c",))
    assert stepped.errors == ("NameError: name 'missing' is not defined",)
    assert stepped.position["data"]["why"] == stepped.errors[0]


@rule
def guard_that_always_fails_ends(make):
    """Asked again after each error that it makes, a guard of the library's keeps its chart from settling."""
    chart = make(
        document(
            """<state id="a"><transition event="go" target="b"/></state>
               <state id="b">
                 <transition cond="asked.append(1) or (len(asked) &lt; 3000 and missing)" target="c"/></state>
               <state id="c"/>""",
            '<data id="asked" expr="[]"/>',
        )
    )
    stepped = step(chart, create(chart).position, "go")
    assert (stepped.active, len(stepped.errors)) == (("b",), 1)


@rule
def history_runs_a_transition_once(make):
    """The library runs the actions of a transition into a history state a second time."""
    chart = make(
        document(
            """<state id="c"><history id="h"><transition target="c1"/></history>
                 <state id="c1"><transition event="next" target="c2"/></state><state id="c2"/>
                 <transition event="out" target="b"/></state>
               <state id="b"><transition event="back" target="h">
                 <assign location="n" expr="n + 1"/></transition></state>""",
            '<data id="n" expr="0"/>',
        )
    )
    at = create(chart).position
    for name in ("next", "out", "back"):
        stepped = step(chart, at, name)
        at = json.loads(json.dumps(stepped.position))
    assert stepped.active == ("c2",)
    assert at["data"]["n"] == 1


@rule
def history_is_part_of_the_position(make):
    """Remembered states belong to the machine in the library, not to what its model keeps."""
    chart = make(PLANT)
    at = create(chart).position
    for name in ("swap", "turn", "pause"):
        at = json.loads(json.dumps(step(chart, at, name).position))
    back = step(chart, at, "resume", {"deep": True})
    assert back.active == (
        "north.cell.left.a",
        "north.cell.right.b",
        "south.cell.left.a",
        "south.cell.right.a",
        "count.even",
    )


@rule
def position_is_json(make):
    """What JSON would lose or alter is refused, by name."""
    for value in ("(1, 2)", "{1}", "{1: 2}", "float('nan')", "len", "_event", "b''"):
        chart = make(
            document(
                f"""<state id="a"><transition event="go" target="b"><assign location="odd" expr="{value}"/>
                    <assign location="odd" expr="[odd]"/></transition></state><state id="b"/>""",
                '<data id="odd"/>',
            )
        )
        position = create(chart).position
        if value == "_event":
            assert step(chart, position, "go").position["data"]["odd"][0]["name"] == "go"
        else:
            with pytest.raises(RouterError, match="odd"):
                step(chart, position, "go")


@rule
def generated_ids_are_the_same_everywhere(make):
    """The library's send ids and ids of nameless states are random, and its session id an address."""
    text = document(
        """<state><state><onentry><send event="late" delay="50ms" idlocation="id"/>
           <assign location="session" expr="_sessionid"/></onentry></state></state>""",
        '<data id="id"/><data id="session"/>',
    )
    one, two = create(make(text)), create(make(text))
    assert one == two
    assert one.position == two.position
    assert one.position["data"]["session"] == "e-1"


@rule
def names_of_the_library_are_free(make):
    """States and events become attributes of the library's class, over its own."""
    for name in ("send", "prepare", "configuration", "events", "model", "current_state_value"):
        chart = make(
            document(f'<state id="a"><transition event="{name}" target="b"/></state><state id="b"/>')
            if name != "events"
            else document('<state id="events"><transition event="send" target="b"/></state><state id="b"/>')
        )
        assert step(chart, create(chart).position, "send" if name == "events" else name).active == ("b",)


@rule
def cancel_is_handed_on(make):
    """A cancel reaches sends of earlier steps, which no machine holds any more."""
    chart = make(
        document(
            """<state id="a"><transition event="stop">
               <cancel sendid="t1"/><cancel sendidexpr="'t' + '2'"/></transition></state>"""
        )
    )
    stepped = step(chart, create(chart).position, "stop")
    assert stepped.effects == (Cancel("t1"), Cancel("t2"))


@rule
def an_event_that_only_acts_has_moved(make):
    """A transition without a target changes the data: a step like any other."""
    chart = make(
        document(
            '<state id="a"><transition event="scan"><assign location="n" expr="n + 1"/></transition></state>',
            '<data id="n" expr="0"/>',
        )
    )
    stepped = step(chart, create(chart).position, "scan")
    assert (stepped.outcome, stepped.position["data"]["n"]) == ("moved", 1)


@rule
def refused_and_ignored_are_told_apart(make):
    """Refused: a transition of an active state or of one around it names the event. Ignored: none does."""
    chart = make(
        document(
            """<state id="out"><transition event="big.one" cond="False" target="b"/>
                 <state id="a"><transition event="x.*" cond="False" target="b"/></state></state>
               <state id="b"><transition event="other" target="a"/></state>"""
        )
    )
    position = create(chart).position
    outcomes = {name: step(chart, position, name).outcome for name in ("big.one", "x.y", "x", "big", "other")}
    assert outcomes == {
        "big.one": "refused",
        "x.y": "refused",
        "x": "refused",
        "big": "ignored",
        "other": "ignored",
    }
    assert step(chart, position, "x.y").position is position


@rule
def donedata_that_is_absent_is_not_null(make):
    """No donedata, an empty one, a null: three things."""
    ends = {"": NO_DATA, "<donedata/>": NO_DATA, '<donedata><content expr="None"/></donedata>': None}
    ends['<donedata><content expr="0"/></donedata>'] = 0
    for donedata, expected in ends.items():
        chart = make(
            document(
                f"""<state id="a"><transition event="go" target="z"/></state><final id="z">{donedata}
                    <onentry><raise event="x"/></onentry></final>"""
            )
        )
        assert step(chart, create(chart).position, "go").donedata is expected


@pytest.mark.parametrize("name", RULES)
def test_the_adapter_holds(name):
    """The rule named by the test's parameter; its docstring says what the library does."""
    RULES[name](statemachine.scxml)


# Where an adapter as simple as the naive one is right by luck, or by what it leaves out.
NAIVELY_RIGHT = {"final_with_events_waiting_completes"}


@pytest.mark.parametrize("name", [name for name in RULES if name not in NAIVELY_RIGHT])
def test_a_naive_adapter_breaks(name):
    """Each rule can be broken, so that holding it says something."""
    with pytest.raises((Exception, pytest.fail.Exception)):
        RULES[name](NaiveChart)
