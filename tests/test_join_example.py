"""`examples/join`: impressions and clicks in every order, held against a model of what was asked for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statifier_router import Message, executions, ledger, route, timers
from statifier_router.testing import Clock
from tests.support.charts import NOW
from tests.support.rows import everything
from tests.support.told import handed_off

JOIN = Path(__file__).parents[1] / "examples" / "join"
HOUR = timedelta(hours=1)
DAY = timedelta(hours=24)
MICROSECOND = timedelta(microseconds=1)


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("joining", JOIN / "joining.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


joining = _module()


@attrs.define
class Play:
    """One service over the example, by a clock that a test moves."""

    config: object
    clock: Clock
    told: int = 0

    def hear(self, kind, impression_id="I1", *, message_id=None, scope="acme"):
        """Route one message, of a new id unless one is given; answers what its binding made of it."""
        self.told += 1
        data = {"kind": kind, "impression_id": impression_id, "campaign": f"c{self.told}", "link": "/l"}
        outcomes = route(self.config, Message("ads", message_id or f"m-{self.told}", scope, data))
        (became,) = [each.recorded for each in outcomes if each.recorded != "no_match"]
        return became

    def fire(self):
        """Fire what is due; answers how many."""
        fired = timers.fire_due(self.config)
        assert (fired.discarded, fired.failed) == (0, 0)
        return fired.fired

    def pass_(self, by):
        """Move the clock on, and fire what is due then."""
        self.clock.advance(by)
        return self.fire()

    @property
    def handed(self):
        """What was handed off: queue and event, in order."""
        return [(queue, name) for queue, name, _ in handed_off(self.config)]

    @property
    def pending(self):
        """The names of pending timers, and how long until each is due."""
        return [(timer.event.name, timer.due_at - self.clock()) for timer in timers.pending(self.config)]

    def state(self):
        """The active state and the status of the one execution."""
        (row,) = everything(self.config).executions
        execution = executions.fetch(self.config, row["id"])
        return execution.active, execution.status


@pytest.fixture
def make_play(database, make_config, _configs):
    """A fresh play; its executions are folded at the end."""

    def make():
        clock = Clock(NOW)
        config = joining.configure(database.engine(), clock=clock)
        return Play(_configs.watch(config), clock)

    return make


@pytest.fixture
def play(make_play):
    return make_play()


JOINED = ("joined_records", "joined")
EXPIRED = ("dead_letter", "expired")
ORPHANED = ("dead_letter", "orphaned")
LATE = ("dead_letter", "late_click")


# --- the partner comes in time --------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("impression", "click"), ("click", "impression")])
def test_joined_in_either_order(play, order):
    """Exactly one `joined`, with both halves; no timer is left, and the execution has ended."""
    first, second = order
    assert play.hear(first) == "created_and_delivered"
    assert play.pending == [("window.ended", DAY if first == "impression" else HOUR)]
    play.clock.advance(timedelta(minutes=59))
    assert play.hear(second) == "delivered"
    ((queue, name, data),) = handed_off(play.config)
    assert (queue, name) == JOINED
    assert data["impression_id"] == "I1"
    halves = {"impression": data["impression"], "click": data["click"]}
    assert halves["impression"] == {"campaign": f"c{1 + order.index('impression')}"}
    assert halves["click"] == {"link": "/l"}
    assert play.pending == []
    assert play.state() == (("joined",), "completed")
    assert play.pass_(DAY) == 0


@pytest.mark.parametrize(
    ("first", "second", "window"), [("impression", "click", DAY), ("click", "impression", HOUR)]
)
def test_the_last_moment_of_the_window(play, first, second, window):
    """A partner at exactly the window's end is in time, where its timer has not fired yet."""
    play.hear(first)
    play.clock.advance(window)
    assert play.hear(second) == "delivered"
    assert play.handed == [JOINED]


def test_halves_that_come_twice(play):
    """A second impression, or a second click, while the partner is awaited is absorbed: the first one counts,
    and the window is not moved.
    """
    play.hear("impression")
    play.clock.advance(HOUR)
    assert play.hear("impression") == "delivered"
    assert play.pending == [("window.ended", DAY - HOUR)]
    play.hear("click")
    ((_, _, data),) = handed_off(play.config)
    assert data["impression"] == {"campaign": "c1"}
    play.hear("click", "I2")
    assert play.hear("click", "I2") == "delivered"
    play.hear("impression", "I2")
    assert play.handed == [JOINED, JOINED]


def test_redelivered(play):
    """A message that is handed over again is a duplicate, whenever; nothing is handed off twice."""
    for kind in ("impression", "click"):
        first = play.hear(kind, message_id=kind)
        assert first != "duplicate"
        assert play.hear(kind, message_id=kind) == "duplicate"
    for kind in ("impression", "click"):
        assert play.hear(kind, message_id=kind) == "duplicate"
    assert play.handed == [JOINED]


def test_after_the_join(play):
    """It has ended: whatever comes later is dropped as `finished`, and handed off nowhere."""
    play.hear("impression")
    play.hear("click")
    assert [play.hear("click"), play.hear("impression")] == ["dropped: finished"] * 2
    assert play.handed == [JOINED]


# --- the window ends --------------------------------------------------------------------------------------


def test_an_impression_alone(play):
    """After 24 hours `expired`; an hour of grace in which a late click is handed to the dead letters and a
    late impression is absorbed; then it ends.
    """
    play.hear("impression")
    assert play.pass_(DAY - MICROSECOND) == 0
    assert play.pass_(MICROSECOND) == 1
    assert play.handed == [EXPIRED]
    assert play.state() == (("grace",), "active")
    assert play.pending == [("grace.ended", HOUR)]
    play.clock.advance(timedelta(minutes=30))
    assert play.hear("click") == "delivered"
    assert play.hear("impression") == "delivered"
    assert play.hear("click") == "delivered"
    assert play.handed == [EXPIRED, LATE, LATE]
    assert play.pending == [("grace.ended", HOUR / 2)]
    assert play.pass_(HOUR / 2) == 1
    assert play.state() == (("ended",), "completed")
    assert play.hear("click") == "dropped: finished"
    assert play.handed == [EXPIRED, LATE, LATE]
    assert play.pending == []


def test_a_click_alone(play):
    """After one hour `orphaned`; then the same grace."""
    play.hear("click")
    assert play.pass_(HOUR) == 1
    assert play.handed == [ORPHANED]
    assert play.hear("impression") == "delivered"
    assert play.hear("click") == "delivered"
    assert play.handed == [ORPHANED, LATE]
    assert play.pass_(HOUR) == 1
    assert play.state() == (("ended",), "completed")


def test_timers_that_fire_late(play):
    """A partner past the window's end is late, though the timer has not fired: each is handed off once."""
    play.hear("impression")
    play.clock.advance(DAY + MICROSECOND)
    assert play.hear("click") == "delivered"
    assert play.handed == [LATE]
    assert play.fire() == 1
    assert play.handed == [LATE, EXPIRED]
    play.hear("click", "I2")
    play.clock.advance(HOUR + MICROSECOND)
    assert play.hear("impression", "I2") == "delivered"
    assert play.fire() == 2
    assert play.handed == [LATE, EXPIRED, ORPHANED]


def test_everything_is_in_the_ledger(play):
    """Every message and every timer has its row, in order."""
    play.hear("impression", message_id="i")
    play.hear("impression", message_id="i")
    play.pass_(DAY)
    play.hear("click")
    play.pass_(HOUR)
    play.hear("click")
    assert [(row.binding_id, row.outcome) for row in ledger.rows(play.config)] == [
        ("impressions", "created_and_delivered"),
        ("impressions", "duplicate"),
        ("timer", "timer_fired"),
        ("clicks", "delivered"),
        ("timer", "timer_fired"),
        ("clicks", "dropped: finished"),
    ]


def test_impressions_are_apart(play):
    """Each impression id, and each scope, has an execution of its own."""
    play.hear("impression", "I1")
    play.hear("click", "I2")
    play.hear("click", "I1", scope="other")
    assert play.handed == []
    assert len(everything(play.config).executions) == 3


def test_the_program():
    """It plays a day that shows every end."""
    done = subprocess.run(
        [sys.executable, JOIN / "run.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(JOIN.parents[1])},
    )
    assert done.returncode == 0, done.stderr
    handed = done.stdout.split("\n\n")[1].splitlines()
    assert Counter(line.split()[1] for line in handed) == {
        "joined": 2,
        "orphaned": 1,
        "expired": 1,
        "late_click": 1,
    }


# --- every order ------------------------------------------------------------------------------------------


@attrs.define
class Model:
    """What was asked for, in memory: one impression id."""

    state: str = "absent"
    until: object = None
    timer: tuple[str, object] | None = None
    claims: dict[tuple[str, str], object] = attrs.field(factory=dict)
    handed: list[tuple[str, str]] = attrs.field(factory=list)

    def hear(self, kind, message_id, now):
        """What a message becomes."""
        claim = (kind, message_id)
        if claim in self.claims and self.claims[claim] >= now:
            return "duplicate"
        self.claims[claim] = now + timedelta(hours=72)
        if self.state in ("joined", "ended"):
            return "dropped: finished"
        if self.state == "absent":
            self._await(kind, now)
            return "created_and_delivered"
        if self.state == "grace":
            if kind == "click":
                self.handed.append(LATE)
        elif kind != self.state:
            if now <= self.until:
                self.state, self.timer = "joined", None
                self.handed.append(JOINED)
            elif kind == "click":
                self.handed.append(LATE)
        return "delivered"

    def _await(self, kind, now):
        self.state = kind
        self.until = now + (DAY if kind == "impression" else HOUR)
        self.timer = ("window.ended", self.until)

    def fire(self, now):
        """How many timers fire."""
        if self.timer is None or self.timer[1] > now:
            return 0
        if self.timer[0] == "grace.ended":
            self.state, self.timer = "ended", None
        else:
            self.handed.append(EXPIRED if self.state == "impression" else ORPHANED)
            self.state, self.timer = "grace", ("grace.ended", now + HOUR)
        return 1


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hear"), st.sampled_from(["impression", "click"]), st.integers(0, 3)),
        st.tuples(
            st.just("pass"),
            st.sampled_from([MICROSECOND, HOUR / 2, HOUR, HOUR + MICROSECOND, DAY - HOUR, DAY, 3 * DAY]),
        ),
        st.just(("fire",)),
    ),
    min_size=1,
    max_size=14,
)


def _compare(play, model, steps):
    outcomes = []
    for step in steps:
        now = play.clock()
        if step[0] == "pass":
            play.clock.advance(step[1])
        elif step[0] == "fire":
            fired = model.fire(now)
            assert play.fire() == fired
            outcomes += ["timer_fired"] * fired
        else:
            _, kind, number = step
            message_id = f"{kind}-{number}"
            outcomes.append(model.hear(kind, message_id, now))
            assert play.hear(kind, message_id=message_id) == outcomes[-1]
        assert play.handed == model.handed
        wanted = [] if model.timer is None else [(model.timer[0], model.timer[1] - play.clock())]
        assert play.pending == wanted
    assert [row.outcome for row in ledger.rows(play.config, limit=1000)] == outcomes
    assert play.handed.count(JOINED) <= 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
def test_any_order(database, make_play, steps):
    """Messages new, doubled, redelivered and late, timers on time and late, in whatever order: outcomes,
    pending timers, handed-off sends and ledger are those of the model after every step.
    """
    database.clear()
    _compare(make_play(), Model(), steps)
