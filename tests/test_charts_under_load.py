"""Hard charts of every library through the doors: threads and hostile payloads, and no wrong result."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy.pool import NullPool

from statifier_router import (
    WHOLE,
    Binding,
    ChartStore,
    Config,
    Event,
    Message,
    addresses,
    executions,
    route,
    timers,
)
from statifier_router.interpreters import statemachine
from tests.support import nasty, processes
from tests.support.charts import NOW
from tests.support.racing import TIMEOUT

THREADS, STEPS = 8, 100
SECOND = timedelta(seconds=1)
MANY = timedelta(minutes=5)


def bindings():
    """For each kind one binding an event: the message's kind is the event, the payload is everything."""
    return [
        Binding(
            id=f"{kind} {name}",
            source=kind,
            match=lambda data, name=name: data["called"] == name,
            key="who",
            document=kind,
            event=name,
            data=WHOLE,
        )
        for kind, names in nasty.NAMES.items()
        for name in dict.fromkeys(names)
    ]


def message(kind, who, number, event):
    return Message(kind, f"{who} {number}", "acme", {**event.data, "called": event.name, "who": who})


@pytest.fixture
def config(database, make_config) -> Config:
    store = ChartStore(database.engine(poolclass=NullPool))
    for kind, chart in nasty.EVERY.items():
        store.save(chart, document=kind)
    engine = database.engine(pool_size=THREADS)
    return make_config(database, engine=engine, charts=store, bindings=bindings(), lock_timeout=MANY)


def alone(chart, kind, who, id, run):
    """The position that the same events lead to, in one go and with nobody beside."""
    facts = {"id": id, "scope": "acme", "document": kind, "key": who}
    step = chart.create(data={"execution": facts}, now=NOW)
    for number, event in enumerate(run):
        data = {**event.data, "called": event.name, "who": who}
        at = NOW + number * SECOND
        step = chart.step(step.position, Event(event.name, data), event_id=f"{who} {number}", now=at)
    return step


def test_2400_steps_from_8_threads(config):
    """Every thread steps executions of every library, on charts that all threads share."""

    def work(thread):
        runs = {kind: nasty.events(kind, STEPS, thread) for kind in nasty.EVERY}
        left = [kind for kind in runs for _ in range(STEPS)]
        random.Random(thread).shuffle(left)
        numbers = dict.fromkeys(runs, 0)
        for kind in left:
            number = numbers[kind]
            numbers[kind] += 1
            route(
                config,
                message(kind, f"{kind}-{thread}", number, runs[kind][number]),
                now=NOW + number * SECOND,
            )
        return runs

    with ThreadPoolExecutor(THREADS) as pool:
        of_threads = list(pool.map(work, range(THREADS), timeout=10 * TIMEOUT))
    wrong, steps, errors = [], 0, 0
    fresh = {"yard": statemachine.scxml(nasty.YARD), "crane": statemachine.chart(nasty.Crane, version="1")}
    for thread, runs in enumerate(of_threads):
        for kind, run in runs.items():
            who = f"{kind}-{thread}"
            id = addresses.find(config, "acme", kind, who).execution_id
            execution = executions.fetch(config, id)
            expected = alone(fresh.get(kind, nasty.EVERY[kind]), kind, who, id, run)
            steps += execution.revision
            errors += sum(len(row.errors) for row in executions.inputs(config, id))
            if (
                json.dumps(execution.position) != json.dumps(expected.position)
                or execution.active != expected.active
            ):
                wrong.append(who)
    assert wrong == []
    assert steps == THREADS * len(nasty.EVERY) * STEPS == 2_400
    # The one event whose action fails was told, and nothing else was an error.
    faults = sum(event.name == "fault" for runs in of_threads for event in runs["yard"])
    assert 0 < errors <= faults


def test_one_hot_execution_of_each_kind(config):
    """Eight threads at one execution: each step is there once, in some order."""
    payload = {**nasty.events("yard", 1, 1)[0].data, "sum": 2}

    def work(thread):
        for number in range(10):
            for kind in nasty.EVERY:
                event = Event("keep", {**payload, "items": [thread, number]})
                route(config, message(kind, "hot", f"{thread} {number}", event), now=NOW)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS), timeout=10 * TIMEOUT))
    for kind in nasty.EVERY:
        execution = executions.fetch(config, addresses.find(config, "acme", kind, "hot").execution_id)
        assert execution.revision == 80
        data = execution.position["data"]
        if kind == "yard":
            assert data["seen"] == {payload["state"]: 80}
            assert data["echo"] == [data["kept"]["items"], payload["self"], payload["delay"], "keep"]
        else:
            assert data["count"] == 80
        assert data["kept"].keys() == {*payload, "called", "who"}


def test_what_is_kept_of_a_hostile_payload_is_the_payload(config):
    """Key by key and value by value, on either database, by every library."""
    for kind in nasty.EVERY:
        for number, event in enumerate(nasty.events(kind, 20, seed=99)):
            kept = Event("keep", event.data)
            route(config, message(kind, "one", number, kept), now=NOW)
            execution = executions.fetch(config, addresses.find(config, "acme", kind, "one").execution_id)
            wanted = {**event.data, "called": "keep", "who": "one"}
            assert execution.position["data"]["kept"] == wanted
            (*_, row) = executions.inputs(config, execution.id)
            assert row.event.data == wanted
            assert (row.errors, row.event.name) == ((), "keep")


def test_what_is_delayed_fires_into_the_right_region(config):
    """A region that was left rings later; what was cancelled by then does not."""
    plain = {**dict.fromkeys(nasty.HOSTILE, 0), "sum": 4, "state": "a"}
    for number, name in enumerate(["off.2", "off.3", "on.3"]):
        route(config, message("yard", "late", number, Event(name, plain)), now=NOW)
    id = addresses.find(config, "acme", "yard", "late").execution_id
    assert "r2.off" in executions.fetch(config, id).active
    assert [timer.send_id for timer in timers.pending(config, execution_id=id)] == ["alarm.2"]
    assert timers.fire_due(config, now=NOW + SECOND).fired == 0
    assert timers.fire_due(config, now=NOW + 2 * SECOND).fired == 1
    assert not {"r2.off", "r3.off"} & set(executions.fetch(config, id).active)
    assert timers.pending(config, execution_id=id) == []


@pytest.mark.parametrize("kind", nasty.EVERY)
def test_a_fresh_process_at_every_step_equals_the_unbroken_run(kind):
    """200 steps, each restored from text in a process that has stepped nothing before it."""
    expected, position = [], None
    for number, event in enumerate([None, *nasty.events(kind, 200, seed=5)]):
        answer = nasty.one_step(kind, position, event, number)
        position = answer[2]
        expected.append(answer)
    found = processes.run("tests.support.nasty:forked", kind, 200, 5)
    assert [json.dumps(answer) for answer in found] == [json.dumps(answer) for answer in expected]
    assert {"moved", "ignored"} <= {outcome for outcome, _, _ in expected}
