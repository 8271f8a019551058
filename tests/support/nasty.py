"""Charts that are hard on an interpreter, one of each library: nested regions, deep history, and payloads
whose keys are the names of whatever a library might mistake them for.
"""

from __future__ import annotations

import json
import os
import random
from datetime import timedelta
from typing import Any, NoReturn

from statemachine import HistoryState, State, StateChart

from statifier_router import Chart, Event, Json
from statifier_router.interpreters import statemachine, transitions
from tests.support.charts import NOW

HOSTILE = (
    "delay", "event", "name", "model", "state", "self", "items", "send_id", "machine", "source", "target",
    "type", "data", "args", "kwargs", "key", "keys", "values", "get", "update", "pop", "_event", "In", "now",
    "execution", "origin", "trigger", "trigger_data", "event_data", "__class__", "__dict__", "__init__", "",
    "état", "a.b", "\N{SNOWMAN}\x00",
)  # fmt: skip

# --- SCXML: four regions, each with two regions inside, deep history in each --------------------------

_LEAF = """
          <state id="r{r}.{i}.{name}">
            <onentry><assign location="log" expr="(log + ['{r}{i}{name}'])[-9:]"/></onentry>
            <transition event="turn.{i}" cond="_event.data.sum % 5 != {r}" target="r{r}.{i}.{following}"/>
          </state>"""
_INNER = """
        <state id="r{r}.{i}">{leaves}
        </state>"""
_REGION = """
    <state id="r{r}">
      <history id="r{r}.deep" type="deep"><transition target="r{r}.p"/></history>
      <parallel id="r{r}.p">{inner}
        <transition event="off.{r}" target="r{r}.off"/>
      </parallel>
      <state id="r{r}.off">
        <onentry>
          <raise event="counted"/>
          <send event="on.{r}" delay="{r}s" id="alarm.{r}"/>
        </onentry>
        <transition event="on.{r}" target="r{r}.deep"><cancel sendid="alarm.{r}"/></transition>
      </state>
    </state>"""
_YARD = """
<scxml name="yard" initial="yard" xmlns="http://www.w3.org/2005/07/scxml" version="1.0">
  <datamodel>
    <data id="log" expr="[]"/><data id="kept"/><data id="echo"/>
    <data id="counted" expr="0"/><data id="seen" expr="{{}}"/>
  </datamodel>
  <parallel id="yard">{regions}
    <state id="clerk">
      <transition event="counted"><assign location="counted" expr="counted + 1"/></transition>
      <transition event="keep">
        <assign location="kept" expr="_event.data"/>
        <assign location="echo" expr="[_event.data.items, _event.data.self, _event.data.delay, _event.name]"/>
        <script>seen[_event.data.state] = seen.get(_event.data.state, 0) + 1</script>
      </transition>
      <transition event="fault"><assign location="kept" expr="1 / 0"/></transition>
      <transition event="error.execution"><assign location="counted" expr="counted + 1000"/></transition>
    </state>
    <transition event="hold" target="held"/>
  </parallel>
  <state id="held">
    <transition event="resume" target="r0.deep r1.deep r2.deep r3.deep"/>
    <transition event="restart" target="yard"/>
  </state>
  <final id="closed"/>
</scxml>
"""


def _leaves(region: int, inner: int) -> str:
    names = "abc"
    return "".join(
        _LEAF.format(r=region, i=inner, name=name, following=names[(place + 1) % 3])
        for place, name in enumerate(names)
    )


def _inner(region: int) -> str:
    return "".join(_INNER.format(r=region, i=inner, leaves=_leaves(region, inner)) for inner in range(2))


YARD = _YARD.format(regions="".join(_REGION.format(r=region, inner=_inner(region)) for region in range(4)))
yard = statemachine.scxml(YARD)

# --- a class of python-statemachine -------------------------------------------------------------------


class Crane(StateChart[Any]):
    """A crane: two regions, one of them with two inside, deep history around them."""

    class working(State.Compound):  # noqa: N801 - states are written so
        """What it remembers."""

        class both(State.Parallel):  # noqa: N801 - as above
            """Arm and wheels at once."""

            class arm(State.Compound):  # noqa: N801 - as above
                """Up and down."""

                up = State(initial=True)
                down = State()
                turn = up.to(down, cond="allowed") | down.to(up)

            class wheels(State.Compound):  # noqa: N801 - as above
                """Left and right."""

                left = State(initial=True)
                right = State()
                turn = left.to(right) | right.to(left, cond="allowed")

        back = HistoryState(type="deep")
        keep = both.to(both, internal=True, on="on_kept")

    held = State()
    hold = working.to(held)
    resume = held.to(working.back)

    def allowed(self, data: Any) -> bool:
        """Only with an even sum."""
        return bool(data["sum"] % 2 == 0)

    def on_kept(self, data: Any) -> None:
        """Keep the whole payload."""
        self.model.kept = data
        self.model.count = getattr(self.model, "count", 0) + 1


crane = statemachine.chart(Crane, version="1")

# --- a hierarchical machine of transitions ------------------------------------------------------------


class Belt:
    """The model: what it keeps is its data."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {"kept": None, "count": 0}

    def allowed(self, event: Any) -> bool:
        """Only with an even sum."""
        return bool(event.data["sum"] % 2 == 0)

    def keep_it(self, event: Any) -> None:
        """Keep the whole payload."""
        self.data["kept"] = event.data
        self.data["count"] += 1


def _turning(name: str, first: str, last: str) -> dict[str, Any]:
    moves: list[Any] = [
        {"trigger": "turn", "source": "x", "dest": "y", first: "allowed"},
        ["turn", "y", "z"],
        {"trigger": "turn", "source": "z", "dest": "x", last: "allowed"},
    ]
    return {"name": name, "initial": "x", "children": ["x", "y", "z"], "transitions": moves}


belt = transitions.chart(
    "belt",
    states=[
        {
            "name": "on",
            "parallel": [_turning("one", "conditions", "unless"), _turning("two", "unless", "unless")],
        },
        "held",
    ],
    transitions=[
        ["hold", "on", "held"],
        ["resume", "held", "on"],
        {"trigger": "keep", "source": "on", "dest": None, "after": "keep_it"},
    ],
    initial="on",
    model=Belt,
    version="1",
    hierarchical=True,
)

EVERY: dict[str, Chart] = {"yard": yard, "crane": crane, "belt": belt}
NAMES = {
    "yard": (
        "turn.0", "turn.1", "turn.0", "turn.1", "off.0", "off.2", "on.0", "on.2", "off.3", "on.3", "keep",
        "fault", "hold", "resume", "resume", "resume", "restart", "unheard",
    ),
    "crane": ("turn", "turn", "turn", "turn", "keep", "hold", "resume", "resume", "resume", "unheard"),
    "belt": ("turn", "turn", "turn", "turn", "keep", "hold", "resume", "resume", "resume", "unheard"),
}  # fmt: skip


def events(kind: str, count: int, seed: int) -> list[Event]:
    """A random run for one execution, the same at every call; every payload is hostile."""
    chance = random.Random(f"{kind} {seed}")
    return [Event(chance.choice(NAMES[kind]), _payload(chance, kind, number)) for number in range(count)]


def _payload(chance: random.Random, kind: str, number: int) -> Json:
    values: list[Json] = [0, -1.5, None, "x" * 30, [], {"self": {"delay": [1]}}, True, kind, number]
    payload: dict[str, Json] = {key: chance.choice(values) for key in HOSTILE}
    payload["state"] = chance.choice("abc")
    payload["sum"] = chance.randrange(10)
    return payload


# --- in a child process -------------------------------------------------------------------------------


def forked(kind: str, count: int, seed: int) -> list[Any]:
    """Each step of a run in a process of its own, from the position's text; this one steps nothing.

    Answers outcome, active states and position after each.
    """
    found: list[Any] = []
    position = "null"
    for number, event in enumerate([None, *events(kind, count, seed)]):
        reader, writer = os.pipe()
        if os.fork() == 0:
            _step_and_exit(kind, json.loads(position), event, number, writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            answer = json.load(pipe)
        os.wait()
        found.append(answer)
        position = json.dumps(answer[2])
    return found


def _step_and_exit(kind: str, position: Json, event: Event | None, number: int, writer: int) -> NoReturn:
    try:
        answer = one_step(kind, position, event, number)
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
    finally:
        os._exit(0)


def one_step(kind: str, position: Json, event: Event | None, number: int) -> list[Any]:
    """The create (no event) or one step of a run."""
    chart = EVERY[kind]
    if event is None:
        step = chart.create(data={"execution": {"id": "ex_1"}}, now=NOW)
    else:
        step = chart.step(position, event, event_id=f"m {number}", now=NOW + number * timedelta(seconds=1))
    return [step.outcome, list(step.active), step.position]
