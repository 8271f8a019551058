"""Charts of python-statemachine under the durable executor: what is told, on which row, and replayed."""

from datetime import UTC, datetime, timedelta

import pytest

from statifier_router import (
    Binding,
    ChartRegistry,
    CreatedAndDelivered,
    Delivered,
    Message,
    NoMatch,
    StepFailed,
    addresses,
    executions,
    route,
)
from statifier_router.interpreters import statemachine

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARCEL = """
<scxml name="parcel" initial="moving">
  <datamodel><data id="scans" expr="0"/><data id="at"/></datamodel>
  <state id="moving">
    <transition event="scan" cond="_event.data.weight &gt; 0">
      <assign location="scans" expr="scans + 1"/><assign location="at" expr="now"/>
    </transition>
    <transition event="break"><assign location="scans" expr="1 / 0"/></transition>
    <transition event="finish" target="done"/>
  </state>
  <final id="done"><donedata><param name="who" expr="execution.key"/></donedata></final>
</scxml>
"""


def binding(event):
    return Binding(
        id=event,
        source="carrier",
        match={"kind": event},
        key="parcel",
        document="parcel",
        event=event,
        data=["weight"],
    )


@pytest.fixture
def config(database, make_config):
    charts = ChartRegistry()
    charts.publish("parcel", statemachine.scxml(PARCEL))
    return make_config(
        database, charts=charts, bindings=[binding(event) for event in ("scan", "break", "finish")]
    )


def send(config, message_id, kind, **data):
    message = Message("carrier", message_id, "acme", {"kind": kind, "parcel": "P7", "weight": 1, **data})
    outcomes = route(config, message, now=NOW + timedelta(minutes=1))
    (found,) = [outcome for outcome in outcomes if not isinstance(outcome, NoMatch)]
    return found


def test_an_error_is_told_on_the_input_row(config):
    """An action raises inside the library: the step stands, and its row says what went wrong."""
    created = send(config, "m-1", "break")
    assert isinstance(created, CreatedAndDelivered)
    assert isinstance(send(config, "m-2", "scan"), Delivered)
    rows = executions.inputs(config, created.execution_id)
    assert ["ZeroDivisionError: division by zero"] in [list(row.errors) for row in rows]
    execution = executions.fetch(config, created.execution_id)
    assert execution.position["data"]["scans"] == 1
    assert execution.position["data"]["at"] == "2026-03-01T12:01:00.000000+00:00"
    assert executions.replay(config, created.execution_id).agrees


def test_on_chart_error_decides(database, make_config):
    """With `on_chart_error="reject"` an error that is told fails the delivery instead."""
    charts = ChartRegistry()
    charts.publish("parcel", statemachine.scxml(PARCEL))
    strict = make_config(database, charts=charts, bindings=[binding("break")], on_chart_error="reject")
    with pytest.raises(StepFailed, match="division by zero"):
        send(strict, "m-1", "break")
    assert addresses.find(strict, "acme", "parcel", "P7") is None


def test_the_end_of_a_chart_ends_its_execution(config):
    """The outermost final completes the execution; what comes later is dropped."""
    created = send(config, "m-1", "scan")
    assert isinstance(send(config, "m-2", "finish"), Delivered)
    execution = executions.fetch(config, created.execution_id)
    assert (execution.status, execution.active) == ("completed", ("done",))
    assert send(config, "m-3", "scan").recorded == "dropped: finished"
