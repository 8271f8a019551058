"""Long runs over python-statemachine: fresh processes, threads, hash seeds, and the library's own machine."""

import json
import os
import random
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from statemachine import State, StateChart
from statemachine.io import load
from statemachine.orderedset import OrderedSet

from statifier_router import Event
from statifier_router.interpreters import statemachine

START = datetime(2026, 1, 2, tzinfo=UTC)
PLANT = Path(__file__).parent / "charts" / "plant.scxml"
NAMES = ("turn", "tick", "swap", "parcel", "pause", "resume", "resume", "restart", "unheard")


def events(count, seed):
    """A random run, the same at every call."""
    chance = random.Random(seed)
    return [
        (chance.choice(NAMES), {"weight": chance.randrange(10), "deep": chance.random() < 0.5})
        for _ in range(count)
    ]


def unbroken(chart, run):
    """The positions of one run, each with the outcome that led to it."""
    stepped = chart.create(data={"execution": {"id": "e-1"}}, now=START)
    found = []
    for count, (name, data) in enumerate(run):
        stepped = chart.step(
            stepped.position, Event(name, data), event_id=f"m-{count}", now=START + timedelta(seconds=count)
        )
        assert not stepped.errors
        found.append([stepped.outcome, list(stepped.active), stepped.position])
    return found


CHILD = """
import json, os, sys
from datetime import UTC, datetime, timedelta
from statifier_router import Event
from statifier_router.interpreters import statemachine

START = datetime(2026, 1, 2, tzinfo=UTC)
text = open(sys.argv[1]).read()
statemachine.scxml(text)  # so that what is forked has imported everything, and stepped nothing
position = json.dumps(statemachine.scxml(text).create(data={"execution": {"id": "e-1"}}, now=START).position)
for count, (name, data) in enumerate(json.load(sys.stdin)):
    reader, writer = os.pipe()
    if os.fork() == 0:
        now = START + timedelta(seconds=count)
        chart = statemachine.scxml(text)
        step = chart.step(json.loads(position), Event(name, data), event_id=f"m-{count}", now=now)
        with os.fdopen(writer, "w") as out:
            json.dump([step.outcome, list(step.active), step.position], out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found:
        line = found.read()
    os.wait()
    print(line)
    position = json.dumps(json.loads(line)[2])
"""


def run_child(script, *arguments, given="", seed="0"):
    """What a Python process of its own prints, under this hash seed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_process_at_every_step_equals_the_unbroken_run():
    """A position steps the same in a process that compiled the chart anew and has stepped nothing else."""
    run = events(200, seed=11)
    expected = [json.dumps(found) for found in unbroken(statemachine.scxml(PLANT.read_text()), run)]
    for seed, count in (("1", len(run)), ("2", 30)):
        lines = run_child(CHILD, PLANT, given=json.dumps(run[:count]), seed=seed).splitlines()
        assert lines == expected[:count]
    assert {json.loads(line)[0] for line in expected} == {"moved", "refused", "ignored"}


def test_configurations_equal_the_library_own():
    """Over a random run with nested regions and history, the library's own machine is in the same states."""
    run = events(200, seed=12)
    machine = load(PLANT.read_text(), format="scxml", trusted=True)()
    for (name, data), (_, active, position) in zip(
        run, unbroken(statemachine.scxml(PLANT.read_text()), run), strict=True
    ):
        machine.send(name, **data)
        assert sorted(active) == sorted(state.id for state in machine.configuration if state.is_atomic)
        assert position["data"]["parcels"] == machine.model.parcels
        assert position["data"]["weight"] == machine.model.weight


def test_a_step_neither_changes_nor_keeps_its_position():
    """The position handed in stays what it was, and shares nothing with the one answered."""
    chart = statemachine.scxml(PLANT.read_text())
    position = chart.create(data={"execution": {"id": "e-1"}}, now=START).position
    for count, (name, data) in enumerate(events(60, seed=13)):
        before = json.dumps(position)
        stepped = chart.step(position, Event(name, data), event_id="m", now=START)
        assert json.dumps(position) == before
        if stepped.outcome == "moved":
            assert stepped.position is not position
            assert stepped.position["data"]["entered"] is not position["data"]["entered"]
            assert stepped.position["states"] is not position["states"]
        else:
            assert stepped.position is position
        again = chart.step(position, Event(name, data), event_id="m", now=START)
        assert json.dumps(again.position) == json.dumps(stepped.position), count
        position = stepped.position


def test_eight_threads_share_one_chart():
    """2,400 steps from 8 threads, each thread with a run of its own: not one wrong result."""
    chart = statemachine.scxml(PLANT.read_text())
    runs = [events(300, seed=100 + number) for number in range(8)]
    expected = [unbroken(statemachine.scxml(PLANT.read_text()), run) for run in runs]
    together = threading.Barrier(8)
    interval = sys.getswitchinterval()

    def work(run):
        together.wait()
        return unbroken(chart, run)

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(work, runs))
    finally:
        sys.setswitchinterval(interval)
    assert found == expected


class Meeting(StateChart):
    """A chart that stands still in the middle of a step for as long as a test likes."""

    waiting = State(initial=True)
    done = State(final=True)
    go = waiting.to(done)

    def on_go(self, data):
        GATES[data["gate"]]()
        self.model.seen = data["n"]


GATES = {}


class SharedMachine:
    """A naive chart: one machine for all, seated anew for each step."""

    def __init__(self):
        self.machine = Meeting()

    def step(self, position, event, *, event_id, now):
        model = self.machine.model
        vars(model).update(position["data"])
        model.state = OrderedSet(position["states"])
        self.machine.send(event.name, data=event.data)
        return {"states": [str(model.state)], "data": {"seen": getattr(model, "seen", None)}}


def meet(step, position):
    """Two steps, the second in the middle of the first: what each ends with."""
    inside, other_done = threading.Event(), threading.Event()

    def hold():
        inside.set()
        assert other_done.wait(30)

    GATES.update(hold=hold, open=lambda: None)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(step, position, Event("go", {"gate": "hold", "n": 1}), event_id="m", now=START)
        assert inside.wait(30)
        try:
            second = step(position, Event("go", {"gate": "open", "n": 2}), event_id="m", now=START)
        finally:
            other_done.set()
        return first.result(), second


def test_a_step_in_the_middle_of_another():
    """Two steps of one chart at once know nothing of each other; on one machine, the second is lost."""
    chart = statemachine.chart(Meeting, version="1")
    position = chart.create(data={}, now=START).position
    first, second = meet(chart.step, position)
    assert (first.position["data"]["seen"], first.active) == (1, ("done",))
    assert (second.position["data"]["seen"], second.active) == (2, ("done",))
    naive_first, naive_second = meet(SharedMachine().step, {"states": ["waiting"], "data": {}})
    assert (naive_first["data"]["seen"], naive_second["data"]["seen"]) != (1, 2)


def test_no_thread_is_started_and_nothing_sleeps(monkeypatch):
    """A chart with delays, sends and errors starts no thread and never waits."""

    def forbidden(*args, **kwargs):
        raise AssertionError("a step must not wait")

    monkeypatch.setattr("time.sleep", forbidden)
    monkeypatch.setattr("statemachine.engines.sync.sleep", forbidden)
    monkeypatch.setattr(threading.Thread, "start", forbidden)
    chart = statemachine.scxml(
        """<scxml><state id="a"><onentry><send event="x" delay="2s"/></onentry>
           <transition event="go" target="b"/><transition event="x" target="c"/></state>
           <state id="b"><onentry><send event="y" delay="1h" target="out"/></onentry></state>
           <state id="c"/></scxml>""".replace("1h", "3600s")
    )
    created = chart.create(data={}, now=START)
    stepped = chart.step(created.position, Event("go"), event_id="m", now=START)
    assert stepped.effects[0].delay == timedelta(hours=1)
    assert chart.step(created.position, Event("x"), event_id="m", now=START).active == ("c",)
