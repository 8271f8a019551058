"""What users' tests lean on: the clock, scripted charts, outcomes asserted, the plugin's fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from statifier_router import (
    Binding,
    ChartRegistry,
    ConfigError,
    CreatedAndDelivered,
    Delivered,
    Dropped,
    Duplicate,
    Event,
    KeyRefused,
    Message,
    NoMatch,
    Send,
    StepFailed,
    route,
)
from statifier_router.testing import (
    ANY,
    Clock,
    assert_outcomes,
    completes,
    fails,
    ignores,
    moves,
    raises,
    refuses,
    scripted,
)

ROOT = Path(__file__).parents[1]
NOW = datetime(2026, 5, 1, tzinfo=UTC)


# --- clock ------------------------------------------------------------------------------------------


def test_a_clock_stands_still_until_it_is_moved():
    """Two readings are one instant; `advance` and `set` answer the new one."""
    clock = Clock(NOW)
    assert clock() == clock() == NOW
    assert clock.advance(timedelta(hours=1)) == clock() == NOW + timedelta(hours=1)
    assert clock.set(NOW - timedelta(days=1)) == clock() == NOW - timedelta(days=1)
    assert clock().tzinfo is UTC


@pytest.mark.parametrize(
    ("act", "field"),
    [
        (lambda clock: clock.advance(timedelta(seconds=-1)), "by"),
        (lambda clock: clock.advance(3), "by"),
        (lambda clock: clock.set(datetime(2026, 1, 1)), "now"),  # noqa: DTZ001 - the naive time under test
        (lambda clock: Clock("noon"), "start"),
    ],
)
def test_a_clock_refuses_what_is_no_instant(act, field):
    """A slip is told by the argument's name, and moves nothing."""
    clock = Clock(NOW)
    with pytest.raises(ConfigError, match=rf"^{field} "):
        act(clock)
    assert clock() == NOW


def test_threads_move_one_clock_together():
    """No advance is lost between threads."""
    clock = Clock(NOW)

    def advance():
        for _ in range(500):
            clock.advance(timedelta(seconds=1))

    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock() == NOW + timedelta(seconds=2_000)


# --- assert_outcomes --------------------------------------------------------------------------------

ANSWERED = [
    CreatedAndDelivered("scans", "ex_1"),
    Dropped("alerts", "finished", "ex_2"),
    Duplicate("audit", content_differs=True),
    KeyRefused("keys", "key", "no parcel"),
]


def test_outcomes_are_met_in_every_spelling():
    """A spelling, a pair with the binding, a class and a whole outcome all say the same."""
    assert_outcomes(
        ANSWERED, "created_and_delivered", ("alerts", "dropped: finished"), Duplicate, ANSWERED[3]
    )
    assert_outcomes(NoMatch("scans"), "no_match")
    assert_outcomes([])
    failure = StepFailed("ex_1", "boom", binding_id="scans")
    assert_outcomes([Delivered("a", "ex_1"), failure], Delivered, StepFailed)


def test_a_difference_is_shown_beside_what_was_answered():
    """The message is a table: every outcome, and under each wrong one what was expected."""
    with pytest.raises(AssertionError) as caught:
        assert_outcomes(
            ANSWERED, "created_and_delivered", ("alerts", "delivered"), Duplicate, NoMatch("keys"), "no_match"
        )
    assert str(caught.value).splitlines() == [
        "the outcomes are not the expected ones:",
        "    1. scans: created_and_delivered (ex_1)",
        "  * 2. alerts: dropped: finished (ex_2)",
        "       expected: alerts: delivered",
        "    3. audit: duplicate (content differs)",
        "  * 4. keys: key_refused (key, no parcel)",
        "       expected: keys: no_match",
        "  * 5. nothing",
        "       expected: no_match",
    ]


def test_an_outcome_too_many_is_a_difference():
    """Nothing may be answered that nobody expected."""
    with pytest.raises(AssertionError, match="expected: nothing"):
        assert_outcomes(ANSWERED[:1])


def test_a_fault_among_the_outcomes_is_told_in_its_own_words():
    """`deliver_many` answers errors in the place of outcomes: their message is shown."""
    with pytest.raises(AssertionError, match=r"scans: StepFailed: .*boom"):
        assert_outcomes([StepFailed("ex_1", "boom", binding_id="scans")], "delivered")


@pytest.mark.parametrize("expected", ["dropped", "finished", 3, ("scans", "gone"), ("a", "b", "c")])
def test_an_expectation_that_nothing_meets_is_refused(expected):
    """A misspelt expectation is misuse, not a failed test."""
    with pytest.raises(ConfigError):
        assert_outcomes(ANSWERED[:1], expected)


@pytest.mark.parametrize("outcomes", ["delivered", 3, None])
def test_only_what_doors_answer_is_judged(outcomes):
    """The wrong thing handed in is said to be so."""
    with pytest.raises(ConfigError, match="outcomes must be what a door answered"):
        assert_outcomes(outcomes, "delivered")


# --- scripted charts --------------------------------------------------------------------------------

SCRIPT = {
    "start": {"scanned": moves("held", Send("told", target="probe"), errors=("handled",)), "lost": refuses()},
    "held": {"released": completes("gone", donedata=[1]), ANY: moves()},
    ANY: {"broken": fails("no ink"), "torn": raises(OSError("disk"))},
}


def ask(chart, position, name):
    return chart.step(position, Event(name), event_id="m-1", now=NOW)


def test_a_script_answers_by_state_and_event():
    """The line of a state goes before the lines for any; what no line names is ignored."""
    chart = scripted("parcel", SCRIPT)
    start = chart.create(data={}, now=NOW)
    assert start.active == ("start",)
    moved = ask(chart, start.position, "scanned")
    assert (moved.outcome, moved.active, moved.errors) == ("moved", ("held",), ("handled",))
    assert moved.effects == (Send("told", target="probe"),)
    assert ask(chart, start.position, "lost").outcome == "refused"
    assert ask(chart, start.position, "unheard").outcome == "ignored"
    assert ask(chart, start.position, "broken").outcome == "failed"
    with pytest.raises(OSError, match="disk"):
        ask(chart, start.position, "torn")
    stayed = ask(chart, moved.position, "anything")
    assert stayed.position == {"state": "held", "steps": 2}
    ended = ask(chart, stayed.position, "released")
    assert (ended.status, ended.donedata, ended.active) == ("completed", [1], ("gone",))


def test_a_script_tells_what_it_heard():
    """Every event is kept with its id and instant, in order."""
    chart = scripted("parcel", SCRIPT)
    ask(chart, chart.create(data={}, now=NOW).position, "lost")
    assert [(each.event.name, each.event_id, each.now) for each in chart.heard] == [("lost", "m-1", NOW)]


def test_a_script_may_fail_to_be_created():
    """The event `create` of the initial state is the answer to the creation."""
    chart = scripted("parcel", {"begin": {"create": raises(OSError("no"))}}, initial="begin")
    with pytest.raises(OSError, match="no"):
        chart.create(data={}, now=NOW)


def test_the_hash_of_a_script_names_it():
    """One script, one hash; another version or another line, another hash."""
    found = {
        scripted("parcel", SCRIPT).content_hash,
        scripted("parcel", dict(SCRIPT)).content_hash,
        scripted("parcel", SCRIPT, version="2").content_hash,
        scripted("parcel", {**SCRIPT, "more": {"x": ignores()}}).content_hash,
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "", "script": {}},
        {"name": "a", "script": {"start": "moves"}},
        {"name": "a", "script": {"start": {"x": "moved"}}},
        {"name": "a", "script": {}, "initial": 3},
        {"name": "a", "script": {}, "version": ""},
    ],
)
def test_a_faulty_script_is_refused(arguments):
    """A slip is told when the script is written."""
    with pytest.raises(ConfigError):
        scripted(**arguments)


def test_a_script_works_over_a_real_database(database, make_config):
    """The doors step it like any chart, and its failure is a fault of the message."""
    charts = ChartRegistry()
    charts.publish("parcel", scripted("parcel", {"start": {"scanned": moves(), "broken": fails("no ink")}}))
    binding = {"source": "carrier", "match": {}, "key": "parcel", "document": "parcel"}
    config = make_config(
        database, charts=charts, bindings=[Binding(id="scans", event="scanned", **binding)], clock=Clock()
    )
    message = Message("carrier", "m-1", "acme", {"parcel": "P7"})
    assert_outcomes(route(config, message), "created_and_delivered")
    assert_outcomes(route(config, message), ("scans", "duplicate"))
    bad = make_config(
        database, charts=charts, bindings=[Binding(id="broken", event="broken", **binding)], clock=Clock()
    )
    with pytest.raises(StepFailed, match="no ink"):
        route(bad, message)


# --- the plugin -------------------------------------------------------------------------------------

CHILD = """
from datetime import timedelta

import pytest

from statifier_router import Binding, Message, executions, route
from statifier_router.testing import assert_outcomes, completes, moves

BINDING = Binding(id="scans", source="carrier", match={}, key="parcel", document="parcel", event="scanned")


def test_a_day(router_config, router_scripted, router_clock, tmp_path):
    chart = router_scripted("parcel", {"start": {"scanned": moves("held")}, "held": {"scanned": completes()}})
    config = router_config(bindings=[BINDING])
    (first,) = route(config, Message("carrier", "m-1", "acme", {"parcel": "P7"}))
    router_clock.advance(timedelta(days=1))
    assert_outcomes(route(config, Message("carrier", "m-2", "acme", {"parcel": "P7"})), "delivered")
    assert [heard.now.day for heard in chart.heard] == [1, 2]
    assert executions.fetch(config, first.execution_id).status == "completed"
    assert (tmp_path / "statifier_router.db").exists()


def test_another_day_begins_empty(router_config, router_charts, router_engine):
    config = router_config(resolver=router_charts.resolve, chart_resolver=router_charts.by_hash)
    assert config.engine is router_engine
    with router_engine.connect() as connection:
        assert executions.fetch(config, "ex_1", connection=connection) is None


def test_nothing_was_started(router_config, monkeypatch):
    import subprocess
    import threading

    def refuse(*args, **kwargs):
        raise AssertionError("started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = threading.active_count()
    router_config()
    assert threading.active_count() == before
"""


def test_pytest_finds_the_plugin_by_itself():
    """The distribution declares it, so that installing the library is enough."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"statifier_router": "statifier_router.testing.plugin"}


def test_the_plugin_gives_a_migrated_file_and_starts_nothing(tmp_path):
    """A project that names the plugin has a database, charts and a clock a test, and no server runs."""
    (tmp_path / "test_child.py").write_text(CHILD)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "statifier_router.testing.plugin",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "",
            "PYTEST_PLUGINS": "",
            # Where the package is installed, pytest would find the plugin a second time.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
