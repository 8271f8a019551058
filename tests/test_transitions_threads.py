"""Threads, and what runs beside a step: the traps that were measured, on the library and on our charts."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from transitions import Machine
from transitions.extensions import HierarchicalMachine
from transitions.extensions.states import Timeout, add_state_features

from statifier_router import Event, emit
from statifier_router.interpreters import transitions
from statifier_router.testing.probing import at_once

NOW = datetime(2026, 5, 1, tzinfo=UTC)
THREADS = 8
STEPS = 300
STATES = [
    "idle",
    {
        "name": "p",
        "parallel": [
            {
                "name": "one",
                "initial": "x",
                "children": ["x", "y"],
                "transitions": [["turn", "x", "y"], ["turn", "y", "x"]],
            },
            {
                "name": "two",
                "initial": "u",
                "children": ["u", "v"],
                "transitions": [["turn", "u", "v"], ["turn", "v", "u"]],
            },
        ],
    },
]
MOVES = [["start", "idle", "p"], ["stop", "p", "idle"]]
COURSE = ("start", "turn", "turn", "stop")
EXPECTED = ["p_one_x p_two_u", "p_one_y p_two_v", "p_one_x p_two_u", "idle"]


class Model:
    """A model that the library and our charts can both have."""


def wrong_steps(step):
    """How many of the steps of all threads answered something else than they do alone."""

    def work(number):
        wrong = 0
        for _ in range(STEPS // len(COURSE)):
            wrong += sum(found != expected for found, expected in zip(step(number), EXPECTED, strict=True))
        return wrong

    return sum(at_once(work, threads=THREADS))


def test_threads_do_not_step_into_each_other():
    """The trap: one hierarchical machine for all threads answers wrongly; 2,400 steps of ours do not."""
    shared = HierarchicalMachine(
        None, states=STATES, transitions=MOVES, initial="idle", auto_transitions=False
    )
    models = [Model() for _ in range(THREADS)]
    shared.add_model(models)

    def naive(number):
        model = models[number]
        model.state = "idle"
        found = []
        for name in COURSE:
            try:
                shared.trigger_event(model, name)
                found.append(model.state if isinstance(model.state, str) else " ".join(model.state))
            except Exception as error:
                found.append(repr(error))
        return found

    chart = transitions.chart(
        "shared", states=STATES, transitions=MOVES, initial="idle", version="1", hierarchical=True
    )

    def ours(number):
        position = chart.create(data={}, now=NOW).position
        found = []
        for name in COURSE:
            step = chart.step(position, Event(name), event_id=f"m-{number}", now=NOW)
            position = step.position
            found.append(" ".join(step.active))
        return found

    assert ours(0) == naive(0) == EXPECTED
    assert wrong_steps(naive) > 0
    assert wrong_steps(ours) == 0


def test_a_step_waits_inside_while_another_thread_steps():
    """One thread is held in the middle of a step; another goes through the same chart meanwhile."""
    inside, go_on = threading.Event(), threading.Event()

    class Held:
        def hold(self, event):
            if event.data.get("held"):
                inside.set()
                assert go_on.wait(60)
            emit(event.data["who"])

    moves = [{"trigger": "start", "source": "idle", "dest": "p", "before": "hold"}]
    chart = transitions.chart(
        "held", states=STATES, transitions=moves, initial="idle", model=Held, version="1", hierarchical=True
    )
    position = chart.create(data={}, now=NOW).position
    answers = []

    def held():
        event = Event("start", {"held": True, "who": "first"})
        answers.append(chart.step(position, event, event_id="m-1", now=NOW))

    thread = threading.Thread(target=held)
    thread.start()
    try:
        assert inside.wait(60)
        other = chart.step(position, Event("start", {"who": "second"}), event_id="m-2", now=NOW)
    finally:
        go_on.set()
        thread.join()
    assert [each.effects[0].event for each in (*answers, other)] == ["first", "second"]
    assert answers[0].active == other.active == ("p_one_x", "p_two_u")


def test_a_timeout_state_starts_a_thread_where_the_library_has_its_way():
    """The trap that the refusal at load stands for."""

    @add_state_features(Timeout)
    class Naive(Machine):
        pass

    model = Model()
    Naive(
        model,
        states=["a", {"name": "b", "timeout": 3_600, "on_timeout": list}],
        initial="a",
        transitions=[["go", "a", "b"], ["back", "b", "a"]],
    )
    before = threading.active_count()
    model.go()
    try:
        assert threading.active_count() == before + 1
    finally:
        model.back()
