"""Flat and hierarchical machines of the library `transitions` pass the contract of interpreters."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from statifier_router import cancel, emit
from statifier_router.interpreters import transitions
from statifier_router.testing import InterpreterContract

REGIONS = ("zulu", "alpha", "mike")


class Counter:
    def __init__(self):
        self.data = {"total": 0}

    def count(self, event):
        self.data["total"] += event.data["by"]
        emit("counted", target="probe", data={"total": self.data["total"]})


class Door:
    def enough(self, event):
        return event.data["amount"] >= 10

    def on_enter_open(self):
        emit("entered", target="probe")

    def poked(self):
        emit("poked", target="probe")


class Finisher:
    def raise_more(self):
        self.trigger("wait")
        self.trigger("finish")

    def donedata(self):
        return {"result": 7}


class Regions:
    def on_enter_p_zulu_zulu2(self):
        emit("entered", target="probe", data={"region": "zulu"})

    def on_enter_p_alpha_alpha2(self):
        emit("entered", target="probe", data={"region": "alpha"})

    def on_enter_p_mike_mike2(self):
        emit("entered", target="probe", data={"region": "mike"})


class Looper:
    def again(self):
        self.trigger("spin")


class Failing:
    def raises(self):
        raise LookupError("boom")


class Keeper:
    def keep(self, event):
        self.data["kept"] = event.data["what"]

    def keep_tuple(self):
        self.data["kept"] = (1, 2)

    def keep_infinity(self):
        self.data["kept"] = float("inf")

    def keep_numeric_key(self):
        self.data["kept"] = {1: 2}


class Delayer:
    def later(self):
        emit("reminder", target="probe", send_id="r-1", delay=timedelta(days=2))

    def forget(self):
        cancel("r-1")


async def asynchronously():
    """A callback that no step can wait for."""


class Charts(InterpreterContract):
    """The scenarios that both kinds of machine share."""

    hierarchical = False

    def make(self, name, model=None, *, states, moves, version="1"):
        return transitions.chart(
            name,
            states=states,
            transitions=moves,
            initial=states[0] if isinstance(states[0], str) else states[0]["name"],
            model=model,
            version=version,
            hierarchical=self.hierarchical,
        )

    def counter(self, version="1"):
        moves = [{"trigger": "add", "source": "counting", "dest": None, "after": "count"}]
        return self.make("counter", Counter, states=["counting"], moves=moves, version=version)

    def counter_edited(self):
        return self.counter(version="2")

    def guarded(self):
        moves = [
            {"trigger": "open", "source": "waiting", "dest": "open", "conditions": "enough"},
            {"trigger": "poke", "source": "open", "dest": None, "before": "poked"},
        ]
        return self.make("guarded", Door, states=["waiting", "open"], moves=moves)

    def finishing(self):
        return self.make(
            "finishing",
            Finisher,
            states=["waiting", {"name": "done", "final": True}],
            moves=[["wait", "*", "waiting"], ["finish", "*", "done"]],
        )

    def finishing_with_pending(self):
        return self.make(
            "finishing_with_pending",
            Finisher,
            states=["waiting", {"name": "done", "final": True}],
            moves=[
                ["wait", "*", "waiting"],
                {"trigger": "finish", "source": "*", "dest": "done", "before": "raise_more"},
            ],
        )

    def looping(self):
        moves = [
            {"trigger": "spin", "source": "*", "dest": "=", "after": "again"},
            ["rest", "a", "b"],
        ]
        return self.make("looping", Looper, states=["a", "b"], moves=moves)

    def failing(self):
        moves = [
            {"trigger": "guard_fails", "source": "a", "dest": "b", "conditions": "raises"},
            {"trigger": "action_fails", "source": "a", "dest": "b", "after": "raises"},
            ["fine", "a", "a"],
        ]
        return self.make("failing", Failing, states=["a", "b"], moves=moves)

    def keeping(self):
        names = ("keep", "keep_tuple", "keep_infinity", "keep_numeric_key")
        moves = [{"trigger": name, "source": "a", "dest": "=", "before": name} for name in names]
        return self.make("keeping", Keeper, states=["a"], moves=moves)

    def delayed(self):
        moves = [
            {"trigger": name, "source": "a", "dest": None, "after": name} for name in ("later", "forget")
        ]
        return self.make("delayed", Delayer, states=["a"], moves=moves)

    def refused_definitions(self):
        timed = {"name": "b", "timeout": 3, "on_timeout": "x"}
        waits = {"trigger": "go", "source": "a", "dest": "a", "after": asynchronously}
        return {
            "timeout": lambda: self.make("timed", states=["a", timed], moves=[]),
            "async": lambda: self.make("waits", states=["a"], moves=[waits]),
        }


class TestFlat(Charts):
    not_applicable: ClassVar = {"parallel": "a flat machine is in one state at a time"}


class TestHierarchical(Charts):
    hierarchical = True

    def parallel(self):
        regions = [
            {
                "name": name,
                "initial": f"{name}1",
                "children": [f"{name}1", f"{name}2"],
                "transitions": [["advance", f"{name}1", f"{name}2"]],
            }
            for name in REGIONS
        ]
        return self.make("parallel", Regions, states=[{"name": "p", "parallel": regions}], moves=[])
