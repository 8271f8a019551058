"""Charts that a store can keep: one of each kind, and what other processes find of them."""

from __future__ import annotations

import sys
from typing import Any

from statemachine import State, StateChart

from statifier_router import (
    Binding,
    ChartStore,
    Config,
    Event,
    Message,
    Step,
    create_engine,
    route,
)
from statifier_router.interpreters import function, statemachine, transitions
from tests.support.charts import NOW

SCXML = """
<scxml name="parcel" initial="moving">
  <datamodel><data id="scans" expr="0"/></datamodel>
  <state id="moving">
    <transition event="scanned"><assign location="scans" expr="scans + 1"/></transition>
    <transition event="signed" target="delivered"/>
  </state>
  <final id="delivered"/>
</scxml>
"""


class Parcel(StateChart[Any]):
    """A parcel, as a class of python-statemachine."""

    moving = State(initial=True)
    delivered = State(final=True)
    scanned = moving.to(moving, internal=True, on="count")
    signed = moving.to(delivered)

    def count(self) -> None:
        """One scan more."""
        self.model.scans = getattr(self.model, "scans", 0) + 1


def create(data: Any, now: Any) -> Step:
    """No scan yet."""
    return Step({"scans": 0}, active=["moving"])


def step(position: Any, event: Event, now: Any) -> Step:
    """Count the scans."""
    if event.name == "signed":
        return Step(position, active=["delivered"], status="completed")
    return Step({"scans": position["scans"] + 1}, active=["moving"])


class Scans:
    """The model of the machines of transitions."""

    def __init__(self) -> None:
        self.data = {"scans": 0}

    def count(self) -> None:
        """One scan more."""
        self.data["scans"] += 1


_MOVES: list[Any] = [
    {"trigger": "scanned", "source": "moving", "dest": None, "after": "count"},
    ["signed", "moving", "delivered"],
]
_STATES: list[Any] = ["moving", {"name": "delivered", "final": True}]

scxml = statemachine.scxml(SCXML)
of_class = statemachine.chart(Parcel, version="7")
of_functions = function.chart("parcel", create=create, step=step, version="3")
flat = transitions.chart(
    "parcel", states=_STATES, transitions=_MOVES, initial="moving", model=Scans, version="1"
)
nested = transitions.chart(
    "parcel",
    states=_STATES,
    transitions=_MOVES,
    initial="moving",
    model=Scans,
    version="1",
    hierarchical=True,
)

EVERY = {"scxml": scxml, "class": of_class, "function": of_functions, "flat": flat, "nested": nested}


def bindings() -> list[Binding]:
    """Scans and signatures for a parcel of each kind; the document is the kind."""
    return [
        Binding(
            id=f"{kind} {event}",
            source=kind,
            match={"kind": event},
            key="parcel",
            document=kind,
            event=event,
        )
        for kind in EVERY
        for event in ("scanned", "signed")
    ]


def message(kind: str, message_id: str, event: str = "scanned", parcel: str = "P7") -> Message:
    """A message that one of the bindings takes."""
    return Message(kind, message_id, "acme", {"kind": event, "parcel": parcel})


def shipped(revision: str) -> str:
    """The text of a module with one chart, `parcel`, whose version is `revision`."""
    return (
        "from tests.support.stored import create, step\n"
        "from statifier_router.interpreters import function\n"
        f"parcel = function.chart('shipped', create=create, step=step, version={revision!r})\n"
    )


# --- in a child process -------------------------------------------------------------------------------


def told(url: str, hashes: list[str], directory: str | None = None) -> dict[str, Any]:
    """What a process that was just started gets for each hash: how it answers, or why there is none."""
    if directory is not None:
        sys.path.insert(0, directory)
    store = ChartStore(create_engine(url))
    answers: dict[str, Any] = {}
    for content_hash in hashes:
        chart = store.by_hash(content_hash)
        answers[content_hash] = store.why_not(content_hash) if chart is None else course(chart)
    return answers


def course(chart: Any) -> list[Any]:
    """What a chart answers to a create, two scans and a signature."""
    answer = chart.create(data={"execution": {"id": "ex_1"}}, now=NOW)
    answers = [[answer.outcome, answer.status, list(answer.active), answer.position]]
    for number, event in enumerate(("scanned", "scanned", "signed")):
        answer = chart.step(answer.position, Event(event), event_id=f"m-{number}", now=NOW)
        answers.append([answer.outcome, answer.status, list(answer.active), answer.position])
    return answers


def routed(url: str) -> dict[str, list[str]]:
    """Route a scan and a signature for a parcel of each kind in this process, and tell the outcomes."""
    engine = create_engine(url)
    config = Config(engine, charts=ChartStore(engine), bindings=bindings())
    answers = {}
    for kind in EVERY:
        outcomes = [
            *route(config, message(kind, "m-2", "scanned"), now=NOW),
            *route(config, message(kind, "m-3", "signed"), now=NOW),
        ]
        answers[kind] = [each.recorded for each in outcomes if each.recorded != "no_match"]
    engine.dispose()
    return answers
