"""What a step costs over python-statemachine: restore, take one event, serialise.

    python bench/statemachine_step.py [steps]

Three ways over the same document, in one run, taking turns: a fresh machine for each step, one
machine that is seated anew for each step (both as bare as they can be, and wrong in every way that
`docs` and the tests of the adapter tell), and `interpreters.statemachine`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import UTC, datetime
from typing import Any

from statemachine import State, StateChart
from statemachine.io import load
from statemachine.orderedset import OrderedSet

from statifier_router import Event
from statifier_router.interpreters import statemachine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FLAT = """
<scxml name="parcel" initial="moving">
  <datamodel><data id="scans" expr="0"/><data id="depot" expr="''"/></datamodel>
  <state id="moving">
    <transition event="scan" cond="scans &lt; 1000000" target="held">
      <assign location="scans" expr="scans + 1"/>
      <assign location="depot" expr="_event.data.depot"/>
    </transition>
  </state>
  <state id="held"><transition event="scan" target="moving"/></state>
</scxml>
"""
REGION = """
<state id="r{n}">
  <state id="a{n}">
    <transition event="scan" cond="scans &gt;= 0" target="b{n}">
      <assign location="scans" expr="scans + 1"/>
    </transition>
  </state>
  <state id="b{n}"><transition event="scan" target="a{n}"/></state>
</state>
"""
PARALLEL = f"""
<scxml name="regions" initial="p">
  <datamodel><data id="scans" expr="0"/><data id="depot" expr="''"/></datamodel>
  <parallel id="p">
    {"".join(REGION.format(n=n) for n in range(4))}
  </parallel>
</scxml>
"""


def naive(text: str) -> Any:
    """The library's class, with the datamodel of its first machine as the start."""
    chart_class = load(text, format="scxml", trusted=True)
    first = chart_class()
    return chart_class, {"states": list(first.configuration_values), "data": data_of(first)}


def data_of(machine: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(machine.model).items() if name != "state"}


class Model:
    state: Any = None


class Parcel(StateChart):
    """The flat document again, as a class."""

    moving = State(initial=True)
    held = State()
    scan = moving.to(held, cond="may", on="count") | held.to(moving)

    def may(self) -> bool:
        return getattr(self.model, "scans", 0) < 1_000_000

    def count(self, depot: Any = None, data: Any = None) -> None:
        self.model.scans = getattr(self.model, "scans", 0) + 1
        self.model.depot = data["depot"] if data else depot


def seat(model: Any, position: dict[str, Any]) -> None:
    vars(model).update(position["data"])
    states = position["states"]
    model.state = OrderedSet(states) if len(states) > 1 else states[0]


def fresh(chart_class: Any, text: str) -> str:
    position = json.loads(text)
    model = Model()
    seat(model, position)
    machine = chart_class(model=model)
    machine.send("scan", depot="Lyon")
    return json.dumps({"states": list(machine.configuration_values), "data": data_of(machine)})


def reseated(machine: Any, text: str) -> str:
    position = json.loads(text)
    seat(machine.model, position)
    machine.send("scan", depot="Lyon")
    return json.dumps({"states": list(machine.configuration_values), "data": data_of(machine)})


def ours(chart: Any, text: str) -> str:
    step = chart.step(json.loads(text), Event("scan", {"depot": "Lyon"}), event_id="m", now=NOW)
    return json.dumps(step.position)


def measure(text: str | None, steps: int) -> dict[str, float]:
    if text is None:
        chart_class, position = Parcel, {"states": ["moving"], "data": {}}
        chart: Any = statemachine.chart(Parcel, version="1")
    else:
        chart_class, position = naive(text)
        chart = statemachine.scxml(text)
    model = Model()
    seat(model, position)
    machine = chart_class(model=model)
    start = json.dumps(position)
    ways = {
        "fresh": (lambda text: fresh(chart_class, text), start),
        "re-seated": (lambda text: reseated(machine, text), start),
        "ours": (
            lambda text: ours(chart, text),
            json.dumps(chart.create(data={"execution": {"id": "e"}}, now=NOW).position),
        ),
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    texts = {name: text for name, (_, text) in ways.items()}
    for _ in range(9):
        for name, (step, _) in ways.items():
            text = texts[name]
            began = time.perf_counter()
            for _ in range(steps):
                text = step(text)
            samples[name].append((time.perf_counter() - began) / steps * 1e6)
            texts[name] = text
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    worst = 0.0
    charts = (("SCXML, 2 states", FLAT), ("SCXML, 4 regions", PARALLEL), ("a class, 2 states", None))
    for name, text in charts:
        figures = measure(text, steps)
        ratio = figures["ours"] / figures["re-seated"]
        worst = max(worst, ratio)
        print(
            f"{name}: fresh {figures['fresh']:.0f} µs, re-seated {figures['re-seated']:.0f} µs, "
            f"ours {figures['ours']:.0f} µs: {ratio:.2f} of re-seated"
        )
    print("within 1.5 of re-seated" if worst <= 1.5 else "MORE than 1.5 of re-seated")
    return 0 if worst <= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
