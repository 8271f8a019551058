"""`timers` and `deferrals`, and what `execution` and `explain` tell of sends, timers and kept events."""

from __future__ import annotations

import sys
import types
from datetime import timedelta

import attrs
import pytest

from statifier_router import (
    Defer,
    OutboxRoute,
    Plan,
    RouteRefused,
    deferrals,
    deliver,
    deliver_event,
    executions,
    timers,
)
from tests.support.charts import HOUR, NOW, SECOND, delivery, envelope, registry, scans
from tests.support.command_line import run
from tests.support.told import later, to, to_execution, told

CONFIG = ("--config", "the_host:config")
EARLY = scans(
    id="early",
    event="B",
    document="a",
    data=("after",),
    create="never",
    missing=Defer(HOUR),
    unmatched=Defer(HOUR),
)


def refuse(event, key, context):
    """A route that hands nothing off."""
    raise RouteRefused("closed")


@pytest.fixture
def at(database, make_config, monkeypatch):
    """`at(later)`: the configuration of the commands, its clock that much later."""
    module = types.ModuleType("the_host")
    monkeypatch.setitem(sys.modules, "the_host", module)
    first = make_config(
        database,
        charts=registry(a=told("a"), b=told("b")),
        routes={"box": OutboxRoute("mail"), "bank": refuse},
        bindings=[EARLY],
    )

    def at(later=timedelta(0), **kw):
        module.config = attrs.evolve(first, clock=lambda: NOW + later, **kw)
        return module.config

    return at


def step(config, *effects, key="K1", name="go", message_id="e-1", **data):
    sent = envelope(name, message_id, data={"effects": list(effects), **data})
    return deliver_event(config, Plan("jobs", "a"), key, sent)


# --- timers -------------------------------------------------------------------------------------------


def test_pending_timers(at):
    """Those that are due first on top; alone, `timers` says the same."""
    config = at()
    one = step(config, later(60, "tick", send_id="s"), later(30, "notice", target="box"))
    step(config, later(45), key="K2", message_id="e-2")
    answer = run("timers", "pending", "--json", *CONFIG).json
    assert answer["pending"] == 3
    assert [(timer["event"]["name"], timer["target"]) for timer in answer["timers"]] == [
        ("notice", "box"),
        ("tick", None),
        ("tick", None),
    ]
    assert run("timers", "--json", *CONFIG).json == answer
    of_one = run("timers", "pending", "--execution", one.execution_id, "--json", *CONFIG).json
    assert of_one["pending"] == 2
    lines = run("timers", *CONFIG, "--limit", "1").out.splitlines()
    assert lines[0].split() == ["due", "(UTC)", "event", "to", "execution", "send", "id"]
    assert lines[2].split()[2:4] == ["notice", "box"]
    assert lines[-1] == "2 more: --limit"
    assert run("timers", "--limit", "0", *CONFIG).code != 0


def test_no_timers(at):
    at()
    assert run("timers", *CONFIG).out == "no timers\n"
    assert run("deferrals", *CONFIG).out == "no kept events\n"


def test_timers_are_fired(at):
    """All that are due, counted; what failed makes the exit code 1 and is shown with its error."""
    config = at()
    for number in range(3):
        step(config, later(60), key=f"K{number}", message_id=f"e-{number}")
    step(config, later(60, data={"answer": "failed"}), key="bad", message_id="e-bad")
    ended = step(config, later(60), key="ended", message_id="e-ended")
    executions.cancel(config, ended.execution_id)
    assert run("timers", "fire", *CONFIG).out == "timers: 0 fired, 0 discarded, 0 failed\n"
    at(60 * SECOND)
    ran = run("timers", "fire", "--json", *CONFIG)
    assert ran.json == {"fired": 3, "discarded": 1, "failed": 1}
    assert ran.code == 1
    again = run("timers", "fire", *CONFIG)
    assert (again.code, again.out) == (0, "timers: 0 fired, 0 discarded, 0 failed\n")
    (line,) = run("timers", *CONFIG).out.splitlines()[2:]
    assert "StepFailed" in line


def test_fire_in_batches(at, monkeypatch):
    """`--limit` bounds a run; without it all that are due are fired, a batch after the other."""
    from statifier_router.cli import waiting_commands

    monkeypatch.setattr(waiting_commands, "_BATCH", 2)
    config = at()
    for number in range(7):
        step(config, later(60), key=f"K{number}", message_id=f"e-{number}")
    at(60 * SECOND)
    assert run("timers", "fire", "--limit", "3", "--json", *CONFIG).json["fired"] == 3
    assert run("timers", "fire", "--json", *CONFIG).json["fired"] == 4


# --- deferrals ----------------------------------------------------------------------------------------


def test_kept_events(at):
    """Where each waits, and until when; one whose time is over is marked."""
    config = at()
    created = step(config)
    deliver(config, EARLY, "K1", delivery("m-1", data={"after": "A"}))
    deliver(config, EARLY, "K9", delivery("m-2"))
    answer = run("deferrals", "list", "--json", *CONFIG).json
    assert answer["kept"] == 2
    assert [(kept["message_id"], kept["execution_id"]) for kept in answer["events"]] == [
        ("m-1", created.execution_id),
        ("m-2", None),
    ]
    at(2 * HOUR)
    first, second = run("deferrals", *CONFIG).out.splitlines()[2:]
    assert created.execution_id in first
    assert "(over)" in first
    assert second.endswith("an execution of a at key K9, scope acme")
    assert "1 more" in run("deferrals", "list", "--limit", "1", *CONFIG).out


def test_the_sweep(at):
    """It goes on until nothing is left to offer or to drop."""
    config = at()
    for number in range(3):
        deliver(config, EARLY, f"K{number}", delivery(f"m-{number}"))
    assert run("deferrals", "sweep", *CONFIG).out == "kept events: 0 offered, 0 landed, 0 expired\n"
    at(2 * HOUR)
    swept = run("deferrals", "sweep", "--json", *CONFIG).json
    assert swept == {"offered": 0, "landed": 0, "expired": 3}
    assert deferrals.pending(config) == []


# --- execution ----------------------------------------------------------------------------------------


def test_what_an_execution_sent(at):
    """Every send with the step that made it and what became of it; timers and kept events after that."""
    config = at()
    outcome = step(
        config,
        to("box", "mailed"),
        later(60, "tick", send_id="s"),
        later(90, "stopped", send_id="t"),
        {"cancel": "t"},
        to_execution("K2"),
        to("nowhere", "lost"),
    )
    step(config, to("box", "again"), message_id="e-2")
    deliver(config, EARLY, "K1", delivery("m-1", data={"after": "A"}))
    answer = run("execution", outcome.execution_id, "--json", *CONFIG).json
    assert [(sent["revision"], sent["kind"], sent["event"], sent["to"]) for sent in answer["sends"]] == [
        (1, "outbox", "mailed", "outbox mail"),
        (1, "timer", "tick", "itself"),
        (1, "timer", "stopped", "itself"),
        (1, "execution", None, "execution at key K2"),
        (1, "refused", None, None),
        (2, "outbox", "again", "outbox mail"),
    ]
    became = [sent["became"] for sent in answer["sends"]]
    assert became[1].startswith("pending, due 2026-03-01 12:01:00")
    assert became[2].startswith("cancelled")
    assert became[3:5] == ["created_and_delivered", "send_refused (route)"]
    assert [timer["event"]["name"] for timer in answer["timers"]] == ["tick"]
    assert [kept["message_id"] for kept in answer["kept"]] == ["m-1"]
    shown = run("execution", outcome.execution_id, *CONFIG).out
    assert "timer: tick, due 2026-03-01 12:01:00" in shown
    assert "kept: B of message m-1, until 2026-03-01 13:00:00" in shown
    assert "send_refused (route)" in shown


def test_a_timer_that_failed(at):
    config = at()
    outcome = step(config, later(60, "tick", data={"answer": "failed"}))
    timers.fire_due(config, now=NOW + 60 * SECOND)
    shown = run("execution", outcome.execution_id, *CONFIG).out
    assert "tried 1 times, again 2026-03-01 12:01:10: StepFailed" in shown


# --- explain ------------------------------------------------------------------------------------------


def test_what_a_message_sent(at):
    """Only what the steps of this message sent, what its chart heard of refusals included."""
    config = at()
    step(config, to("box", "before"))
    step(config, to("bank", "paid"), message_id="e-2", on_error=[to("box", "told")])
    step(config, to("box", "after"), message_id="e-3")
    ran = run("explain", "e-2", "--json", *CONFIG)
    (part,) = [part for part in ran.json["bindings"] if part["ledger"]]
    (reached,) = part["executions"]
    assert [row["input"]["door"] for row in reached["inputs"]] == ["deliver_event", "reentry"]
    assert [sent["event"] for sent in reached["sends"]] == ["told"]
    assert "told to outbox mail: in the outbox" in run("explain", "e-2", *CONFIG).out


def test_the_story_of_a_kept_message(at):
    """While it is kept: until when, and for whom; then, when it landed, and what that did."""
    config = at()
    deliver(config, EARLY, "K1", delivery("m-1", data={"after": "A"}))
    shown = run("explain", "m-1", *CONFIG).out
    assert "deferred: its execution does not take the event now" in shown
    assert "until 2026-03-01 13:00:00, for an execution of a at key K1, scope acme" in shown
    created = step(config)
    assert f"until 2026-03-01 13:00:00, for {created.execution_id}" in run("explain", "m-1", *CONFIG).out
    step(config, name="A", message_id="e-2")
    ran = run("explain", "m-1", "--json", *CONFIG).json
    (part,) = [part for part in ran["bindings"] if part["binding_id"] == "early"]
    assert [row["outcome"] for row in part["ledger"]] == ["deferred", "delivered"]
    assert part["kept"] == []
    (reached,) = part["executions"]
    assert [(row["input"]["door"], row["answer"]) for row in reached["inputs"]] == [("deferred", "moved")]


def test_a_timer_by_its_key(at):
    """The id under which a timer stands in the ledger is explained like any message."""
    config = at()
    step(config, later(60, data={"effects": [to("box", "fired")]}))
    (timer,) = timers.pending(config)
    timers.fire_due(config, now=NOW + 60 * SECOND)
    shown = run("explain", timer.key, *CONFIG).out
    assert "timer: the library's own" in shown
    assert "timer_fired: a delayed send came due and was delivered" in shown
    assert "fired to outbox mail" in shown
