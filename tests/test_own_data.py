"""A chart may change what it is handed: the message, the log and whoever comes after see nothing of it."""

from __future__ import annotations

from typing import Any

import pytest
from statemachine import State, StateChart

from statifier_router import (
    WHOLE,
    Delivered,
    SQLExecutor,
    Step,
    deliver_many,
    executions,
    route,
    route_many,
)
from statifier_router.interpreters import function, statemachine, transitions
from tests.support.charts import Calling, delivery, message, registry, scans

GIVEN = {"scanner": {"id": "S-1", "seen": [1, 2]}, "weight": 3}


def _spoil(data: Any) -> None:
    data["scanner"]["id"] = "spoilt"
    data["scanner"]["seen"].append("spoilt")
    data.pop("weight", None)


class Spoiling(StateChart):
    """A class whose callback spoils the event."""

    moving = State(initial=True)
    scanned = moving.to.itself(on="spoil")

    def spoil(self, data: Any) -> None:
        _spoil(data)


class Spoilt:
    """A model whose callback does."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}

    def spoil(self, event: Any) -> None:
        _spoil(event.data)


def _by_function(position: Any, event: Any, now: Any) -> Step:
    _spoil(event.data)
    return Step(position, active=["open"])


def _a_hosts_own() -> Any:
    calling = Calling()
    calling.hook = lambda position, event, now: _spoil(event.data)  # type: ignore[assignment]  # it answers nothing
    return calling


CHARTS = {
    "two functions": lambda: function.chart(
        "parcel", create=lambda data, now: Step({}, active=["open"]), step=_by_function
    ),
    "a StateChart class": lambda: statemachine.chart(Spoiling, version="1"),
    "transitions": lambda: transitions.chart(
        "parcel",
        states=["open"],
        transitions=[{"trigger": "scanned", "source": "open", "dest": "open", "after": "spoil"}],
        initial="open",
        model=Spoilt,
        version="1",
    ),
    "a host's own": _a_hosts_own,
}
TWICE = [scans(data=WHOLE), scans(id="again", data=WHOLE)]


@pytest.mark.parametrize("kind", CHARTS)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_chart_may_change_what_it_is_handed(database: Any, make_config: Any, kind: str, many: bool) -> None:
    """Two bindings see one message, whose event each logs as it came; and the message stays what it was."""
    config = make_config(database, charts=registry(parcel=CHARTS[kind]()), bindings=TWICE)
    first = message("m-1", **GIVEN)
    second = message("m-2", **GIVEN)
    for each in (first, second):
        if many:
            (routed,) = route_many(config, [each])
            assert routed.error is None
            outcomes = list(routed.outcomes)
        else:
            outcomes = route(config, each)
    assert isinstance(outcomes[0], Delivered)
    assert first.data == second.data == {"parcel": "P7", **GIVEN}
    log = executions.inputs(config, outcomes[0].execution_id)
    assert [row.event.data for row in log if row.event] == [{"parcel": "P7", **GIVEN}] * 4


@pytest.mark.parametrize("kind", CHARTS)
def test_a_delivery_stays_what_it_was(database: Any, make_config: Any, kind: str) -> None:
    """Of a batch too, in which one delivery goes to two executions."""
    config = make_config(database, charts=registry(parcel=CHARTS[kind]()))
    one = delivery("m-1", data=GIVEN)
    outcomes = deliver_many(config, [(scans(), "P7", one), (scans(id="again"), "P8", one)])
    assert one.data == GIVEN
    for outcome in outcomes:
        log = executions.inputs(config, outcome.execution_id)
        assert [row.event.data for row in log if row.event] == [GIVEN]


class Wrapping:
    """A host's executor that spoils the event once it was stepped."""

    def __init__(self) -> None:
        self._inner = SQLExecutor()
        self.fetch, self.create = self._inner.fetch, self._inner.create

    def step(self, context: Any, execution: Any, chart: Any, event: Any) -> Any:
        stepped = self._inner.step(context, execution, chart, event)
        _spoil(event.data)
        return stepped


class Derived(SQLExecutor):
    """One that does it before."""

    def step(self, context: Any, execution: Any, chart: Any, event: Any) -> Any:
        _spoil(event.data)
        return super().step(context, execution, chart, event)


@pytest.mark.parametrize("executor", [Wrapping, Derived])
def test_an_executor_may_change_what_it_is_handed(database: Any, make_config: Any, executor: Any) -> None:
    """Message and delivery stay what they were, so that handed over again they are duplicates alike."""
    config = make_config(
        database, charts=registry(parcel=CHARTS["two functions"]()), bindings=TWICE, executor=executor()
    )
    given, one = message("m-1", **GIVEN), delivery("d-1", data=GIVEN)
    route(config, given)
    deliver_many(config, [(scans(), "P8", one)])
    assert given.data == {"parcel": "P7", **GIVEN}
    assert one.data == GIVEN
    assert [outcome.content_differs for outcome in route(config, given)] == [False, False]
    log = executions.inputs(config, route(config, message("m-2", **GIVEN))[0].execution_id)
    heard = [row.event.data for row in log if row.event]
    # What one spoils before it is stepped is what was stepped, and what the log says; of each step anew.
    spoilt = {"parcel": "P7", "scanner": {"id": "spoilt", "seen": [1, 2, "spoilt"]}}
    assert heard == [spoilt if executor is Derived else {"parcel": "P7", **GIVEN}] * 4
