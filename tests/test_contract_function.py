"""The reference adapter passes the contract of interpreters."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from statifier_router import Cancel, Send, Step, emit
from statifier_router.interpreters import function
from statifier_router.testing import InterpreterContract

REGIONS = ("zulu", "alpha", "mike")


def stay(position):
    return Step(position, outcome="ignored")


def begin(position, *active):
    return lambda data, now: Step(position, active=active)


def count(position, event, now):
    if event.name != "add":
        return stay(position)
    position["total"] += event.data["by"]
    return Step(
        position, active=["counting"], effects=[Send("counted", {"total": position["total"]}, target="probe")]
    )


def guard(position, event, now):
    if position == "waiting" and event.name == "open":
        if event.data["amount"] < 10:
            return Step(position, outcome="refused")
        emit("entered", target="probe")
        return Step("open", active=["open"])
    if position == "open" and event.name == "poke":
        return Step("open", active=["open"], effects=[Send("poked", target="probe")])
    return stay(position)


def finish(position, event, now):
    # The executor never steps what has ended; a function that is asked all the same decides itself.
    if position["ended"] or event.name not in ("finish", "wait"):
        return stay(position)
    ended = event.name == "finish"
    return Step(
        {"ended": ended}, status="completed" if ended else "active", donedata=["done"] if ended else None
    )


def advance(position, event, now):
    if event.name != "advance" or position["at"] == 2:
        return stay(position)
    effects = [Send("entered", {"region": region}, target="probe") for region in REGIONS]
    return Step({"at": 2}, active=[f"{region}2" for region in REGIONS], effects=effects)


def fail(position, event, now):
    if event.name != "fine":
        raise LookupError(event.name)
    return Step(position)


def keep(position, event, now):
    kept = {
        "keep": lambda: event.data["what"],
        "keep_tuple": lambda: (1, 2),
        "keep_infinity": lambda: float("inf"),
        "keep_numeric_key": lambda: {1: 2},
    }
    return Step({"kept": kept[event.name]()})


def delay(position, event, now):
    if event.name == "later":
        return Step(
            position,
            effects=[Send("reminder", target="probe", send_id="r-1", delay=timedelta(days=2))],
        )
    return Step(position, effects=[Cancel("r-1")])


class TestFunction(InterpreterContract):
    not_applicable: ClassVar = {
        "looping": "a step is one call of the host's function: there are no microsteps to count",
        "finishing_with_pending": "a function has no internal events",
    }

    def counter(self):
        return function.chart("counter", create=begin({"total": 0}, "counting"), step=count)

    def counter_edited(self):
        return function.chart("counter", create=begin({"total": 0}, "counting"), step=count, version="2")

    def guarded(self):
        return function.chart("guarded", create=begin("waiting", "waiting"), step=guard)

    def finishing(self):
        return function.chart("finishing", create=begin({"ended": False}), step=finish)

    def parallel(self):
        first = [f"{region}1" for region in REGIONS]
        return function.chart("parallel", create=begin({"at": 1}, *first), step=advance)

    def failing(self):
        return function.chart("failing", create=begin({}), step=fail)

    def keeping(self):
        return function.chart("keeping", create=begin({}), step=keep)

    def delayed(self):
        return function.chart("delayed", create=begin({}), step=delay)

    def refused_definitions(self):
        def load_without_step():
            function.chart("nothing", create=begin({}), step=None)

        return {"step": load_without_step}


def test_what_does_not_apply_is_in_the_report():
    """A point that an adapter cannot be asked about is a test of that name, never a silent gap."""
    assert TestFunction.test_point_06_an_endless_loop_ends_failed is None
    assert callable(TestFunction.test_point_06_looping_does_not_apply)
