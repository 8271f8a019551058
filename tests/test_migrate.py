"""`executions.migrate`: an execution moves to another revision whole and legal, or not at all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from statemachine import HistoryState, State, StateChart

from statifier_router import (
    ChartNotResolved,
    ChartRegistry,
    ConfigError,
    Delivered,
    ExecutionNotFound,
    ExecutionSuspended,
    Plan,
    ReentrantStep,
    Step,
    deliver_event,
    executions,
)
from statifier_router.interpreters import function, statemachine, transitions
from tests.support.charts import NOW, Calling, envelope, obedient
from tests.support.racing import TIMEOUT, blocked, open_transaction, threads
from tests.support.rows import written

PLAN = Plan("jobs", "parcel")
SECOND = timedelta(seconds=1)


# --- two revisions of one chart, by each interpreter --------------------------------------------------

SCXML = """
<scxml name="parcel" initial="{moving}">
  <datamodel><data id="scans" expr="0"/></datamodel>
  <state id="{moving}" initial="{road}">
    <history id="{back}" type="deep"><transition target="{road}"/></history>
    <transition event="scanned"><assign location="scans" expr="scans + {weight}"/></transition>
    <transition event="stop" target="held"/>
    <transition event="signed" target="delivered"/>
    <state id="{road}"><transition event="fly" target="{air}"/></state>
    <state id="{air}"/>
  </state>
  <state id="held"><transition event="go" target="{back}"/></state>
  <final id="delivered"/>
</scxml>
"""
OLD_NAMES = {"moving": "moving", "road": "road", "air": "air", "back": "back"}
NEW_NAMES = {"moving": "underway", "road": "wheels", "air": "wings", "back": "again"}
# What the states of the old revision are called in the new one.
RENAMED = dict(zip(OLD_NAMES.values(), NEW_NAMES.values(), strict=True))


class Old(StateChart):
    class moving(State.Compound):  # noqa: D106, N801 - states are written so
        road = State(initial=True)
        air = State()
        back = HistoryState(type="deep")
        fly = road.to(air)
        _ = back.to(road)

    held = State()
    delivered = State(final=True)
    scanned = moving.to.itself(internal=True, on="count")
    stop = moving.to(held)
    go = held.to(moving.back)
    signed = moving.to(delivered)

    def count(self):
        self.model.scans = getattr(self.model, "scans", 0) + 1


class New(StateChart):
    class underway(State.Compound):  # noqa: D106, N801 - as above
        wheels = State(initial=True)
        wings = State()
        again = HistoryState(type="deep")
        fly = wheels.to(wings)
        _ = again.to(wheels)

    held = State()
    delivered = State(final=True)
    scanned = underway.to.itself(internal=True, on="count")
    stop = underway.to(held)
    go = held.to(underway.again)
    signed = underway.to(delivered)

    def count(self):
        self.model.scans = getattr(self.model, "scans", 0) + 10


class Counting:
    weight = 1

    def __init__(self):
        self.data = {"scans": 0}

    def count(self):
        self.data["scans"] += self.weight


class CountingMore(Counting):
    weight = 10


def machine(names: dict[str, str], model: type, version: str) -> Any:
    moving, road, air = names["moving"], names["road"], names["air"]
    return transitions.chart(
        "parcel",
        states=[
            {"name": moving, "initial": road, "children": [road, air]},
            "held",
            {"name": "delivered", "final": True},
        ],
        transitions=[
            {"trigger": "scanned", "source": moving, "dest": None, "after": "count"},
            ["fly", f"{moving}_{road}", f"{moving}_{air}"],
            ["stop", moving, "held"],
            ["go", "held", moving],
            ["signed", moving, "delivered"],
        ],
        initial=moving,
        model=model,
        hierarchical=True,
        version=version,
    )


PAIRS = {
    "scxml": (
        statemachine.scxml(SCXML.format(weight=1, **OLD_NAMES)),
        statemachine.scxml(SCXML.format(weight=10, **NEW_NAMES)),
        RENAMED,
    ),
    "class": (statemachine.chart(Old, version="1"), statemachine.chart(New, version="2"), RENAMED),
    "transitions": (
        machine(OLD_NAMES, Counting, "1"),
        machine(NEW_NAMES, CountingMore, "2"),
        {"moving_road": "underway_wheels", "moving_air": "underway_wings"},
    ),
}


@pytest.fixture
def configure(database, make_config):
    """`configure(*charts)`: a configuration that knows them all; the first is for new executions."""

    def make(*charts, **kw):
        registry = ChartRegistry()
        for chart in reversed(charts):
            registry.publish("parcel", chart)
        return make_config(database, charts=registry, clock=lambda: NOW + SECOND, **kw)

    return make


def put(config, name="scanned", message_id=None, key="P7"):
    return deliver_event(config, PLAN, key, envelope(name, message_id or f"e {name}"))


def scans(execution) -> int:
    return execution.position["data"]["scans"]


# --- moved --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PAIRS)
def test_an_execution_goes_on_under_the_new_names(configure, kind):
    """States are renamed, data is kept, nothing is entered; the next event meets the new chart."""
    old, new, names = PAIRS[kind]
    config = configure(old, new)
    id = put(config).execution_id
    put(config, "fly")
    with written(config) as rows:
        moved = executions.migrate(config, id, new.content_hash, mapping=names, actor="ada")
    assert rows.summary() == "+inputs ~executions"
    assert moved == executions.fetch(config, id)
    assert (moved.content_hash, moved.interpreter) == (new.content_hash, new.interpreter)
    assert (moved.status, moved.revision, scans(moved)) == ("active", 3, 1)
    (leaf,) = moved.active
    assert leaf.endswith("wings")
    row = executions.inputs(config, id)[-1]
    assert (row.door, row.actor, row.event, row.at) == ("migrate", "ada", None, NOW + SECOND)
    assert isinstance(put(config, "scanned", "e-2"), Delivered)
    assert scans(executions.fetch(config, id)) == 11
    put(config, "signed")
    ended = executions.fetch(config, id)
    assert (ended.status, ended.active) == ("completed", ("delivered",))
    assert executions.replay(config, id).agrees


@pytest.mark.parametrize("kind", ["scxml", "class"])
def test_what_a_history_remembers_is_renamed_too(configure, kind):
    """A state that is only remembered is a state of the position like any other."""
    old, new, names = PAIRS[kind]
    config = configure(old, new)
    id = put(config, "fly").execution_id
    put(config, "stop")
    with pytest.raises(ConfigError, match=r"not a legal configuration.*back"):
        executions.migrate(config, id, new, mapping={})
    executions.migrate(config, id, new, mapping=names)
    put(config, "go")
    assert executions.fetch(config, id).active == ("wings",)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_function_may_make_the_new_position(configure, kind):
    """It is handed a copy, and its answer is judged as the renaming's is."""
    old, new, names = PAIRS[kind]
    config = configure(old, new)
    id = put(config).execution_id
    before = executions.fetch(config, id).position

    def mapping(position):
        assert position == before
        made = new.rename(position, names)
        made["data"]["scans"] = 100
        position.clear()
        return made

    moved = executions.migrate(config, id, new, mapping=mapping)
    assert scans(moved) == 100
    put(config, "scanned", "e-2")
    assert scans(executions.fetch(config, id)) == 110


def test_functions_take_any_position(configure):
    """A chart of two functions cannot judge: the mapping's word is taken, the active states stay."""
    new = function.chart(
        "parcel", create=lambda *_: Step({}), step=lambda position, *_: Step({"n": position["n"] + 1})
    )
    config = configure(obedient(), new)
    id = put(config).execution_id
    with pytest.raises(ConfigError, match="mapping must be a function: charts of 'function' cannot rename"):
        executions.migrate(config, id, new, mapping={"open": "closed"})
    moved = executions.migrate(config, id, new, mapping=lambda position: {"n": len(position["seen"])})
    assert (moved.position, moved.active) == ({"n": 1}, ("open",))
    put(config, "scanned", "e-2")
    assert executions.fetch(config, id).position == {"n": 2}


@pytest.mark.parametrize("from_kind", PAIRS)
@pytest.mark.parametrize("to_kind", PAIRS)
def test_from_any_interpreter_to_any(configure, from_kind, to_kind):
    """A mapping that knows both positions moves an execution between libraries."""
    old, new = PAIRS[from_kind][0], PAIRS[to_kind][1]
    config = configure(old, new)
    id = put(config).execution_id
    fresh = new.create(data={"execution": {"id": id}}, now=NOW).position

    def mapping(position):
        return {**fresh, "data": {**fresh["data"], "scans": position["data"]["scans"]}}

    executions.migrate(config, id, new, mapping=mapping)
    put(config, "scanned", "e-2")
    assert scans(executions.fetch(config, id)) == 11


def test_back_and_forth(configure):
    """Each migration is one row; the log folds through all of them."""
    old, new, names = PAIRS["scxml"]
    config = configure(old, new)
    id = put(config).execution_id
    back = {new_name: old_name for old_name, new_name in names.items()}
    for turn in range(3):
        executions.migrate(config, id, new, mapping=names)
        put(config, "scanned", f"there {turn}")
        executions.migrate(config, id, old, mapping=back)
        put(config, "scanned", f"back {turn}")
    execution = executions.fetch(config, id)
    assert (scans(execution), execution.active) == (34, ("road",))
    assert [row.door for row in executions.inputs(config, id)].count("migrate") == 6


# --- held, ended, unknown -----------------------------------------------------------------------------


def test_a_suspended_execution_stays_suspended(configure):
    """A hold, the migration, a resume: nothing comes in between."""
    old, new, names = PAIRS["scxml"]
    config = configure(old, new)
    id = put(config).execution_id
    executions.suspend(config, id)
    moved = executions.migrate(config, id, new, mapping=names)
    assert (moved.status, moved.active) == ("suspended", ("wheels",))
    with pytest.raises(ExecutionSuspended):
        put(config, "scanned", "e-2")
    executions.resume(config, id)
    put(config, "scanned", "e-2")
    assert scans(executions.fetch(config, id)) == 11


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed"])
def test_an_ended_execution_is_answered_false(configure, end):
    """Nothing is written, nothing is asked."""
    old, new, _ = PAIRS["scxml"]
    config = configure(old, new)
    id = put(config).execution_id
    if end == "completed":
        put(config, "signed")
    else:
        {"cancelled": executions.cancel, "failed": executions.fail}[end](
            config, id, **({"reason": "lost"} if end == "failed" else {})
        )
    with written(config) as rows:
        assert executions.migrate(config, id, new, mapping=lambda position: 1 / 0) is False
    assert rows.nothing


def test_an_unknown_chart_or_execution(configure):
    """The hash that is not there is named, and what to do about it."""
    old, new, names = PAIRS["scxml"]
    config = configure(old)
    id = put(config).execution_id
    with written(config) as rows:
        for to in (new, new.content_hash):
            with pytest.raises(ChartNotResolved, match="publish it, then migrate execution") as raised:
                executions.migrate(config, id, to, mapping=names)
            assert (raised.value.content_hash, raised.value.execution_id) == (new.content_hash, id)
        with pytest.raises(ExecutionNotFound):
            executions.migrate(config, "ex_none", old, mapping={})
    assert rows.nothing


# --- refused ------------------------------------------------------------------------------------------


def _ended(position):
    where = {"states": ["delivered"]} if "states" in position else {"state": "delivered"}
    return {name: value for name, value in position.items() if name != "history"} | where


REFUSED = {
    "a state that is not there": ({}, "not a legal configuration of chart .*which this chart does not have"),
    "one of two names": ({"road": "nowhere", "moving_road": "nowhere"}, "'nowhere'"),
    "no text": ({"road": 7, "moving_road": 7}, "not a legal configuration"),
    "an end": (_ended, "stands at the end of chart"),
    "no position": (lambda position: None, "not a legal configuration|must be what this chart answered"),
    "a tuple": (lambda position: {"states": (1, 2)}, "mapping's answer.*tuple"),
    "no JSON": (lambda position: {"states": {1, 2}}, "mapping's answer.*set"),
    "NaN": (lambda position: {**position, "data": {"scans": float("nan")}}, "mapping's answer.*nan"),
    "a raise": (lambda position: position["gone"], "mapping raised KeyError: 'gone'"),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("how", REFUSED)
def test_what_is_not_legal_is_refused_and_nothing_written(configure, kind, how):
    """The error is one line and names the mapping's fault; the execution goes on as it was."""
    mapping, told = REFUSED[how]
    old, new, _ = PAIRS[kind]
    config = configure(old, new)
    id = put(config).execution_id
    with written(config) as rows, pytest.raises(ConfigError, match=f"(?i){told}") as raised:
        executions.migrate(config, id, new, mapping=mapping)
    assert rows.nothing
    assert "\n" not in str(raised.value)
    assert isinstance(put(config, "scanned", "e-2"), Delivered)
    assert scans(executions.fetch(config, id)) == 2


@pytest.mark.parametrize("states", [["n"], ["n", "s", "n"], ["n", "s2", "closed"], [], ["north"]])
def test_regions_that_do_not_stand_together(configure, states):
    """Each region of a parallel state has one active state, and nothing beside it is active."""
    old = statemachine.scxml('<scxml><state id="a"><transition event="scanned"/></state></scxml>')
    new = statemachine.scxml(
        """<scxml><parallel id="p">
             <state id="north"><state id="n"/></state>
             <state id="south"><state id="s"/><state id="s2"/></state>
           </parallel><state id="closed"/></scxml>"""
    )
    config = configure(old, new)
    id = put(config).execution_id

    def mapping(position):
        return {"states": states, "data": {}}

    if states == ["n", "s", "n"]:
        # A leaf named twice is the same configuration.
        assert executions.migrate(config, id, new, mapping=mapping).active == ("n", "s")
        return
    with pytest.raises(ConfigError, match="not a legal configuration"):
        executions.migrate(config, id, new, mapping=mapping)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"to": 7}, "to must be a Chart"),
        ({"to": None}, "to must be a Chart"),
        ({"mapping": None}, "mapping"),
        ({"mapping": ["a", "b"]}, "mapping"),
        ({"actor": ""}, "actor"),
        ({"actor": 7}, "actor"),
    ],
)
def test_bad_arguments(configure, arguments, field):
    """A bad argument is named before anything is read."""
    old, new, names = PAIRS["scxml"]
    config = configure(old, new)
    with pytest.raises(ConfigError, match=field):
        executions.migrate(config, "ex_1", **({"to": new, "mapping": names} | arguments))


# --- transactions -------------------------------------------------------------------------------------


def test_it_is_part_of_the_caller_s_transaction(configure):
    """Undone with it."""
    old, new, names = PAIRS["scxml"]
    config = configure(old, new)
    id = put(config).execution_id
    with config.engine.connect() as connection:
        assert executions.migrate(config, id, new, mapping=names, connection=connection).revision == 2
        connection.rollback()
    assert executions.fetch(config, id).content_hash == old.content_hash


def test_within_its_own_step_it_is_refused(configure):
    """A chart's step cannot move its own execution away from under itself."""
    calling, other = Calling(), obedient()
    config = configure(calling, other)
    id = put(config, key="P8", message_id="first").execution_id

    def hook(position, event, now):
        with pytest.raises(ReentrantStep):
            executions.migrate(config, id, other, mapping={})

    with calling.calling(hook):
        put(config, key="P8", message_id="second")


def test_a_step_and_a_migration_take_turns(postgresql, make_config):
    """A migration waits for the open step, and maps the position that the step left."""
    old, new, names = PAIRS["scxml"]
    registry = ChartRegistry()
    registry.publish("parcel", new)
    registry.publish("parcel", old)
    config = make_config(postgresql, charts=registry, lock_timeout=timedelta(minutes=1))
    id = put(config).execution_id
    with threads() as beside, open_transaction(config) as (connection, pid):
        deliver_event(config, PLAN, "P7", envelope("scanned", "e-2"), connection=connection)
        moving = beside(executions.migrate, config, id, new, mapping=names)
        blocked(postgresql, pid, moving)
        connection.commit()
        moved = moving.result(TIMEOUT)
    assert (scans(moved), moved.active) == (2, ("wheels",))
