"""Sends of charts as people write them: SCXML documents, and classes of python-statemachine."""

from __future__ import annotations

from datetime import timedelta

import pytest
from statemachine import State, StateChart

from statifier_router import (
    Binding,
    Defer,
    Delivery,
    Event,
    OutboxRoute,
    RouteRefused,
    addresses,
    cancel,
    deliver,
    emit,
    executions,
    timers,
)
from statifier_router.interpreters import statemachine
from tests.support.charts import HOUR, NOW, registry
from tests.support.told import Noting, handed_off, outcomes

ORDER = """
<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" datamodel="python" name="order" initial="open">
  <datamodel>
    <data id="execution"/>
    <data id="refusals" expr="[]"/>
  </datamodel>
  <state id="open">
    <onentry><send id="reminder" event="remind" delay="172800s"/></onentry>
    <transition event="remind">
      <send target="mail" event="reminder"><param name="order" expr="execution.key"/></send>
    </transition>
    <transition event="paid" target="paid">
      <send id="charge" target="bank" event="charge"><param name="sum" expr="_event.data.sum"/></send>
    </transition>
    <transition event="odd">
      <send id="s-odd" type="smoke.signal" target="mail" event="puff"/>
      <send id="s-lost" target="nowhere" event="lost"/>
    </transition>
    <transition event="error.*">
      <assign location="refusals" expr="refusals + [[_event.name, _event.sendid, _event.data.event]]"/>
    </transition>
  </state>
  <state id="paid">
    <onentry><cancel sendid="reminder"/></onentry>
    <transition event="error.communication" target="open"/>
    <transition event="shipped" target="shipped">
      <send target="execution" event="parcel.sent">
        <param name="document" expr="'customer'"/>
        <param name="key" expr="_event.data.customer"/>
        <param name="order" expr="execution.key"/>
      </send>
    </transition>
  </state>
  <final id="shipped"><donedata><param name="order" expr="execution.key"/></donedata></final>
</scxml>"""

CUSTOMER = """
<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="customer" initial="known">
  <datamodel><data id="orders" expr="[]"/></datamodel>
  <state id="known">
    <transition event="parcel.sent">
      <assign location="orders" expr="orders + [[_event.data.order, _event.origin]]"/>
    </transition>
  </state>
</scxml>"""


class Order(StateChart):
    """The same order as a class."""

    placed = State(initial=True)
    paid = State()
    shipped = State(final=True)
    payment = placed.to(paid)
    shipment = paid.to(shipped)
    back = paid.to(placed)

    def on_enter_placed(self):
        emit("remind", delay=timedelta(days=2), send_id="reminder")

    def on_payment(self, data):
        emit("charge", target="bank", data={"sum": data["sum"]}, send_id="charge")

    def on_enter_paid(self):
        cancel("reminder")

    def on_shipment(self, data):
        emit("parcel.sent", target="execution", data={"document": "customer", "key": data["customer"]})


def binding(event, document="order", **kw):
    return Binding(
        id=f"on-{event}",
        source="shop",
        match={},
        key="order",
        document=document,
        event=event,
        data=("sum", "customer"),
        **kw,
    )


def hear(config, event, *, message_id=None, now=NOW, document="order", rule=None, **data):
    kw = {} if rule is None else {"unmatched": rule}
    given = Delivery(message_id or f"m-{event}", "acme", now, data)
    return deliver(config, binding(event, document, **kw), "O1", given)


@pytest.fixture
def bank():
    return Noting()


@pytest.fixture
def config(database, make_config, bank):
    charts = registry(order=statemachine.scxml(ORDER), customer=statemachine.scxml(CUSTOMER))
    return make_config(
        database,
        charts=charts,
        routes={"bank": bank, "mail": OutboxRoute("mail"), "done": OutboxRoute("done")},
        on_complete="done",
    )


def order(config, document="order"):
    address = addresses.find(config, "acme", document, "O1" if document == "order" else "C1")
    return executions.fetch(config, address.execution_id)


def test_an_order_from_end_to_end(config, bank):
    """SCXML's `<send>`, `delay`, `<cancel>`, the target `execution` and `<donedata>` are what they say."""
    created = hear(config, "noticed", rule=Defer(HOUR))
    assert created.recorded == "deferred"
    (reminder,) = timers.pending(config)
    assert (reminder.send_id, reminder.due_at) == ("reminder", NOW + timedelta(days=2))
    hear(config, "paid", sum=7)
    assert timers.pending(config) == []
    ((event, _, context),) = bank.handed
    assert event == Event("charge", {"sum": 7}, origin=created.execution_id, send_id="charge")
    assert context.send_id == "charge"
    hear(config, "shipped", customer="C1")
    assert order(config).status == "completed"
    assert order(config, "customer").position["data"]["orders"] == [["O1", created.execution_id]]
    assert handed_off(config) == [("done", "done.execution", {"order": "O1"})]


def test_a_reminder(config):
    """The delayed send comes back as an event of its own chart, once."""
    hear(config, "odd")
    assert timers.fire_due(config, now=NOW + timedelta(days=2)).fired == 1
    assert timers.fire_due(config, now=NOW + timedelta(days=9)).fired == 0
    assert handed_off(config) == [("mail", "reminder", {"order": "O1"})]


def test_what_a_document_hears_of_refusals(config):
    """`error.execution` for a type that nobody registered, `error.communication` for a target that nobody
    has: with the send's id, in the order of the sends, in the same step.
    """
    hear(config, "odd")
    assert order(config).position["data"]["refusals"] == [
        ["error.execution", "s-odd", "puff"],
        ["error.communication", "s-lost", "lost"],
    ]
    assert outcomes(config) == ["send_refused (route)", "created_and_delivered"]


def test_a_refusal_that_moves_the_chart(config, bank):
    """What the chart makes of it counts with the step: it is back where it was, its reminder armed anew."""

    def refuse(event, key, context):
        raise RouteRefused("no cover")

    bank.act = refuse
    hear(config, "paid", sum=7)
    assert order(config).active == ("open",)
    (reminder,) = timers.pending(config)
    assert reminder.key.split(":")[2] == "1"
    assert [row.door for row in executions.inputs(config, order(config).id)] == [
        "create",
        "deliver",
        "reentry",
    ]


def test_an_early_event(config):
    """The shipment before the payment is kept, and lands with it; its sends go with it."""
    hear(config, "odd")
    assert hear(config, "shipped", customer="C1", rule=Defer(HOUR)).recorded == "deferred"
    hear(config, "paid", sum=7)
    assert order(config).status == "completed"
    assert order(config, "customer").position["data"]["orders"][0][0] == "O1"
    assert outcomes(config)[-3:] == ["delivered", "created_and_delivered", "delivered"]


def test_a_class_sends_by_emit(database, make_config):
    """`emit` and `cancel` in the callbacks of a `StateChart` do what `<send>` and `<cancel>` do."""
    bank = Noting()
    charts = registry(order=statemachine.chart(Order, version="1"), customer=statemachine.scxml(CUSTOMER))
    config = make_config(database, charts=charts, routes={"bank": bank})
    hear(config, "noticed")
    assert len(timers.pending(config)) == 1
    hear(config, "payment", sum=7)
    assert timers.pending(config) == []
    assert bank.names == ["charge"]
    hear(config, "shipment", customer="C1")
    assert order(config, "customer").active == ("known",)
