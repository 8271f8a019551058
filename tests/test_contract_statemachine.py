"""SCXML documents and `StateChart` classes of python-statemachine pass the contract of interpreters."""

from __future__ import annotations

from datetime import timedelta

from statemachine import State, StateChart

from statifier_router import cancel, emit
from statifier_router.interpreters import statemachine
from statifier_router.testing import InterpreterContract

REGIONS = ("zulu", "alpha", "mike")


def scxml(name, body, *, initial=None, data=""):
    first = f' initial="{initial}"' if initial else ""
    variables = f"<datamodel>{data}</datamodel>" if data else ""
    opening = f'<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="{name}"{first}>'
    return statemachine.scxml(f"{opening}{variables}{body}</scxml>")


COUNTER = """
  <state id="counting">
    <transition event="add">
      <assign location="total" expr="total + _event.data.by"/>
      <send event="counted" target="probe"><param name="total" expr="total"/></send>
    </transition>
  </state>
"""
GUARDED = """
  <state id="waiting"><transition event="open" cond="_event.data.amount &gt;= 10" target="open"/></state>
  <state id="open">
    <onentry><send event="entered" target="probe"/></onentry>
    <transition event="poke"><send event="poked" target="probe"/></transition>
  </state>
"""
FINISHING = """
  <state id="waiting">
    <transition event="wait" target="waiting"/>
    <transition event="finish" target="done">{raised}</transition>
  </state>
  <final id="done"><donedata><param name="result" expr="7"/></donedata></final>
"""
LOOPING = """
  <state id="a"><transition event="spin" target="x"/><transition event="rest" target="b"/></state>
  <state id="b"/>
  <state id="x"><transition target="y"/></state>
  <state id="y"><transition target="x"/></state>
"""
FAILING = """
  <state id="a">
    <transition event="guard_fails" cond="1 / 0" target="b"/>
    <transition event="action_fails" target="b"><script>1 / 0</script></transition>
    <transition event="fine" target="a"/>
  </state>
  <state id="b"/>
"""
KEEPING = """
  <state id="a">
    <transition event="keep"><assign location="kept" expr="_event.data.what"/></transition>
    <transition event="keep_tuple"><assign location="kept" expr="(1, 2)"/></transition>
    <transition event="keep_infinity"><assign location="kept" expr="1e999"/></transition>
    <transition event="keep_numeric_key"><assign location="kept" expr="{1: 2}"/></transition>
  </state>
"""
DELAYED = """
  <state id="a">
    <transition event="later"><send event="reminder" target="probe" id="r-1" delay="172800s"/></transition>
    <transition event="forget"><cancel sendid="r-1"/></transition>
  </state>
"""
REGION = """
  <state id="{name}">
    <state id="{name}1"><transition event="advance" target="{name}2"/></state>
    <state id="{name}2">
      <onentry><send event="entered" target="probe"><param name="region" expr="'{name}'"/></send></onentry>
    </state>
  </state>
"""


class TestSCXML(InterpreterContract):
    def counter(self):
        return scxml("counter", COUNTER, data='<data id="total" expr="0"/>')

    def counter_edited(self):
        return scxml("counter", COUNTER, data='<data id="total" expr="1"/>')

    def guarded(self):
        return scxml("guarded", GUARDED)

    def finishing(self):
        return scxml("finishing", FINISHING.format(raised=""))

    def finishing_with_pending(self):
        raised = '<raise event="wait"/><raise event="finish"/><send event="wait"/>'
        return scxml("finishing_with_pending", FINISHING.format(raised=raised))

    def parallel(self):
        regions = "".join(REGION.format(name=name) for name in REGIONS)
        return scxml("parallel", f'<parallel id="p">{regions}</parallel>')

    def looping(self):
        return scxml("looping", LOOPING)

    def failing(self):
        return scxml("failing", FAILING)

    def keeping(self):
        return scxml("keeping", KEEPING, data='<data id="kept" expr="None"/>')

    def delayed(self):
        return scxml("delayed", DELAYED)

    def refused_definitions(self):
        invoke = '<state id="a"><invoke type="scxml" id="child"/></state>'
        send = "<send event=\"x\" targetexpr=\"'pro' + 'be'\"/>"
        return {
            "invoke": lambda: scxml("invokes", invoke),
            "targetexpr": lambda: scxml("aims", f'<state id="a"><onentry>{send}</onentry></state>'),
        }


class Total:
    total = 0


class Counter(StateChart):
    counting = State(initial=True)
    add = counting.to(None, on="count")

    def __init__(self):
        super().__init__(Total())

    def count(self, data):
        self.model.total += data["by"]
        emit("counted", target="probe", data={"total": self.model.total})


class Guarded(StateChart):
    waiting = State(initial=True)
    opened = State("open")
    open = waiting.to(opened, cond="enough")
    poke = opened.to(None, on="tell")

    def enough(self, data):
        return data["amount"] >= 10

    def on_enter_opened(self):
        emit("entered", target="probe")

    def tell(self):
        emit("poked", target="probe")


class Finishing(StateChart):
    waiting = State(initial=True)
    done = State(final=True)
    wait = waiting.to.itself()
    finish = waiting.to(done)


class FinishingWithPending(StateChart):
    waiting = State(initial=True)
    done = State(final=True)
    wait = waiting.to.itself()
    finish = waiting.to(done, on="raise_more")

    def raise_more(self):
        self.raise_("wait")
        self.send("finish")


class Parallel(StateChart):
    class p(State.Parallel):  # noqa: D106, N801 - a state is named in lower case
        class zulu(State.Compound):  # noqa: D106, N801
            zulu1 = State(initial=True)
            zulu2 = State()
            advance = zulu1.to(zulu2)

        class alpha(State.Compound):  # noqa: D106, N801
            alpha1 = State(initial=True)
            alpha2 = State()
            advance = alpha1.to(alpha2)

        class mike(State.Compound):  # noqa: D106, N801
            mike1 = State(initial=True)
            mike2 = State()
            advance = mike1.to(mike2)

    def on_enter_zulu2(self):
        emit("entered", target="probe", data={"region": "zulu"})

    def on_enter_alpha2(self):
        emit("entered", target="probe", data={"region": "alpha"})

    def on_enter_mike2(self):
        emit("entered", target="probe", data={"region": "mike"})


class Looping(StateChart):
    a = State(initial=True)
    b = State()
    x = State()
    y = State()
    spin = a.to(x)
    rest = a.to(b)
    x.to(y)
    y.to(x)
    back = b.to(a)


class Failing(StateChart):
    a = State(initial=True)
    b = State()
    guard_fails = a.to(b, cond="boom")
    action_fails = a.to(b, on="boom")
    fine = a.to.itself()
    back = b.to(a)

    def boom(self):
        raise LookupError("boom")


class Kept:
    kept = None


class Keeping(StateChart):
    a = State(initial=True)
    keep = a.to(None, on="keep_what")
    keep_tuple = a.to(None, on="keep_a_tuple")
    keep_infinity = a.to(None, on="keep_an_infinity")
    keep_numeric_key = a.to(None, on="keep_a_numeric_key")

    def __init__(self):
        super().__init__(Kept())

    def keep_what(self, data):
        self.model.kept = data["what"]

    def keep_a_tuple(self):
        self.model.kept = (1, 2)

    def keep_an_infinity(self):
        self.model.kept = float("inf")

    def keep_a_numeric_key(self):
        self.model.kept = {1: 2}


class Delayed(StateChart):
    a = State(initial=True)
    later = a.to(None, on="remind")
    forget = a.to(None, on="give_up")

    def remind(self):
        emit("reminder", target="probe", send_id="r-1", delay=timedelta(days=2))

    def give_up(self):
        cancel("r-1")


class Waiting(StateChart):
    a = State(initial=True)
    go = a.to.itself(on="wait_for_it")

    async def wait_for_it(self):
        """A coroutine, which no step waits for."""


class Invoking(StateChart):
    a = State(initial=True, invoke="work")
    go = a.to.itself()

    def work(self):
        """What the library would run on a thread."""


class TestClass(InterpreterContract):
    def counter(self):
        return statemachine.chart(Counter, version="1")

    def counter_edited(self):
        return statemachine.chart(Counter, version="2")

    def guarded(self):
        return statemachine.chart(Guarded, version="1")

    def finishing(self):
        return statemachine.chart(Finishing, version="1")

    def finishing_with_pending(self):
        return statemachine.chart(FinishingWithPending, version="1")

    def parallel(self):
        return statemachine.chart(Parallel, version="1")

    def looping(self):
        return statemachine.chart(Looping, version="1")

    def failing(self):
        return statemachine.chart(Failing, version="1")

    def keeping(self):
        return statemachine.chart(Keeping, version="1")

    def delayed(self):
        return statemachine.chart(Delayed, version="1")

    def refused_definitions(self):
        return {
            "coroutine": lambda: statemachine.chart(Waiting, version="1"),
            "invoke": lambda: statemachine.chart(Invoking, version="1"),
        }
