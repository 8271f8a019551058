"""Timers: delayed sends are armed with the step, cancelled with a step, and fired once when due."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text, update
from sqlalchemy.pool import QueuePool

from statifier_router import (
    ChartRegistry,
    ConfigError,
    DatabaseFault,
    Event,
    OutboxRoute,
    Plan,
    RouteRefused,
    Send,
    Step,
    deliver_event,
    executions,
    ledger,
    timers,
)
from statifier_router.interpreters import function
from statifier_router.testing import Clock
from statifier_router.timers import Fired, Timer, firing
from tests.support.charts import NOW, envelope, registry
from tests.support.executors import OwnTables
from tests.support.racing import WritingPlainly
from tests.support.rows import everything, written
from tests.support.told import (
    Noting,
    at,
    handed_off,
    later,
    outcomes,
    position_of,
    timer_states,
    to,
    to_execution,
    told,
)

PLAN = Plan("jobs", "a")
SECOND = timedelta(seconds=1)
NOTHING = Fired(fired=0, discarded=0, failed=0)


@pytest.fixture
def configure(database, make_config):
    """`configure(**kw)`: documents `a` and `b` run on charts that their events tell what to do."""

    def make(**kw):
        charts = kw.pop("charts", None) or registry(a=told("a"), b=told("b"))
        return make_config(database, charts=charts, **kw)

    return make


def step(config, *effects, key="K1", name="go", message_id="e-1", now=NOW, scope="acme", **data):
    """One delivery to the execution `key` of document `a`, whose step has these effects."""
    sent = envelope(name, message_id, now=now, scope=scope, data={"effects": list(effects), **data})
    return deliver_event(config, PLAN, key, sent)


def fire(config, seconds=0.0, **kw):
    """Fire what is due so many seconds after NOW."""
    return timers.fire_due(config, now=NOW + timedelta(seconds=seconds), **kw)


def fired(count=1, **kw):
    return Fired(**({"fired": count, "discarded": 0, "failed": 0} | kw))


# --- arming -------------------------------------------------------------------------------------------


def test_a_delayed_send_is_a_timer(configure):
    """Its row: the send's key, who it is of, send id, target, event with its origin, and when it is due."""
    config = configure(routes={"bank": Noting()})
    outcome = step(config, later(90, "tick", send_id="s-1", data={"n": 1}), later(30.5, target="bank"))
    first, second = timers.pending(config)
    assert (first.target, first.send_id, first.due_at) == ("bank", None, NOW + 30.5 * SECOND)
    assert second == Timer(
        key=second.key,
        execution_id=outcome.execution_id,
        send_id="s-1",
        target=None,
        event=Event("tick", {"n": 1}, origin=outcome.execution_id, send_id="s-1"),
        due_at=NOW + 90 * SECOND,
        tries=0,
        next_try_at=NOW + 90 * SECOND,
        last_error=None,
    )
    assert second.key.startswith(f"{outcome.execution_id}:1:0:0:")


def test_pending_of_one_execution(configure):
    """`execution_id` narrows the list; the order is that in which they are due."""
    config = configure()
    one = step(config, later(60, "b"), later(30, "a"))
    step(config, later(45, "c"), key="K2", message_id="e-2")
    assert [timer.event.name for timer in timers.pending(config)] == ["a", "c", "b"]
    assert [timer.event.name for timer in timers.pending(config, execution_id=one.execution_id)] == ["a", "b"]
    assert timers.pending(config, execution_id="nobody") == []


def test_due_is_computed_once_from_the_steps_instant(configure):
    """From the delivery's `now`, not from the clock; and a restart goes by what is stored. Trap 6."""
    then = NOW - timedelta(days=30)
    clock = Clock(NOW)
    config = configure(clock=clock)
    step(config, later(3600), now=then)
    (timer,) = timers.pending(config)
    assert timer.due_at == then + timedelta(hours=1)
    config.engine.dispose()
    again = configure(clock=clock)
    assert timers.fire_due(again) == fired()
    assert at(again, "K1", "a")["seen"] == ["go", "tick"]


def test_microseconds(configure):
    """A timer is due at its very microsecond, on either database."""
    config = configure()
    step(config, later(1))
    due = NOW + SECOND
    assert timers.fire_due(config, now=due - timedelta(microseconds=1)) == NOTHING
    assert timers.fire_due(config, now=due) == fired()


def test_a_delay_past_the_last_year(configure):
    """What no datetime can say is told to the chart as `error.execution`; the step stands."""
    config = configure()
    outcome = step(config, later(timedelta(days=365 * 9000).total_seconds()))
    assert position_of(config, outcome.execution_id)["heard"][0][0] == "error.execution"
    assert timers.pending(config) == []


def test_timers_go_with_their_step(configure):
    """A delivery that fails arms nothing and cancels nothing."""

    def fail(event, key, context):
        raise LookupError

    config = configure(routes={"fail": fail})
    step(config, later(60, send_id="s"))
    with pytest.raises(LookupError):
        step(config, {"cancel": "s"}, later(60), to("fail"), message_id="e-2")
    assert timer_states(config) == ["pending"]


# --- cancelling ---------------------------------------------------------------------------------------


def test_cancel_is_of_one_execution(configure):
    """Trap 1. Two executions with one send id; one cancels; the other's timer stands."""
    config = configure()
    one = step(config, later(60, send_id="s"))
    two = step(config, later(60, send_id="s"), key="K2", message_id="e-2")
    step(config, {"cancel": "s"}, message_id="e-3")
    (left,) = timers.pending(config)
    assert left.execution_id == two.execution_id != one.execution_id
    assert timer_states(config) == ["cancelled", "pending"]


def test_cancel_takes_all_of_one_id(configure):
    """Trap 2. Two delayed sends under one id, one cancel: both gone; a second cancel is no error, nor is
    one of an id that nobody has.
    """
    config = configure()
    outcome = step(config, later(60, send_id="s"), later(90, send_id="s"), later(60, send_id="t"), later(60))
    step(config, {"cancel": "s"}, message_id="e-2")
    step(config, {"cancel": "s"}, {"cancel": "nobody"}, message_id="e-3")
    assert {timer.send_id for timer in timers.pending(config)} == {None, "t"}
    assert position_of(config, outcome.execution_id)["heard"] == []


def test_cancel_within_one_step(configure):
    """Effects are handed on in order: what was armed before is cancelled, what is armed after stays."""
    config = configure()
    step(config, later(60, "old", send_id="s"), {"cancel": "s"}, later(60, "new", send_id="s"))
    assert [timer.event.name for timer in timers.pending(config)] == ["new"]
    assert timer_states(config) == ["cancelled", "pending"]


def test_a_timer_of_a_route_is_cancelled_too(configure):
    """Whatever its target."""
    config = configure(routes={"bank": Noting()})
    step(config, later(60, send_id="s", target="bank"))
    step(config, {"cancel": "s"}, message_id="e-2")
    assert fire(config, 60) == NOTHING


# --- firing -------------------------------------------------------------------------------------------


def test_a_timer_steps_its_execution(configure):
    """Under door `timer`, with the event as it was sent, at the call's instant; one ledger row
    `timer_fired` under the id `timer`. It fires once.
    """
    config = configure()
    outcome = step(config, later(60, "tick", send_id="s-1", data={"n": 1}))
    (timer,) = timers.pending(config)
    with written(config) as rows:
        assert fire(config, 75) == fired()
    late = NOW + 75 * SECOND
    (heard,) = rows.added["inputs"]
    assert (heard["door"], heard["message_id"], heard["at"]) == ("timer", timer.key, late)
    last = executions.inputs(config, outcome.execution_id)[-1]
    assert last.event == Event("tick", {"n": 1}, origin=outcome.execution_id, send_id="s-1")
    assert rows.one("ledger") | {"id": 0} == {
        "id": 0,
        "binding_id": "timer",
        "message_id": timer.key,
        "scope": "acme",
        "outcome": "timer_fired",
        "key": "K1",
        "execution_id": outcome.execution_id,
        "reason": None,
        "inserted_at": late,
    }
    assert rows.summary() == "+inputs +ledger ~executions"
    assert fire(config, 75) == NOTHING
    assert timer_states(config) == ["fired"]


def test_order(configure):
    """The longest due first."""
    config = configure()
    outcome = step(config, later(30, "c"), later(10, "a"), later(20, "b"))
    assert fire(config, 60) == fired(3)
    assert position_of(config, outcome.execution_id)["seen"] == ["go", "a", "b", "c"]


def test_a_timer_armed_due_within_the_call(configure):
    """It fires in it: a chain of delays that is overdue runs to its end; `limit` bounds a call."""
    config = configure()
    chain = {"effects": [later(0, "three", data={"effects": [later(60, "four")]})]}
    outcome = step(config, later(1, "one", data={"effects": [later(0, "two", data=chain)]}))
    assert fire(config, 10) == fired(3)
    assert position_of(config, outcome.execution_id)["seen"] == ["go", "one", "two", "three"]
    assert len(timers.pending(config)) == 1


def test_an_endless_chain_ends_with_the_limit(database, make_config):
    """A chart that arms a timer of no delay whenever one fires: a call handles `limit` of them."""

    def again(position, event, now):
        return Step(position + 1, active=["open"], effects=[Send("again", delay=timedelta(0))])

    chart = function.chart("clockwork", create=lambda data, now: Step(0, active=["open"]), step=again)
    config = make_config(database, charts=registry(a=chart))
    outcome = step(config)
    assert fire(config, limit=7) == fired(7)
    assert executions.fetch(config, outcome.execution_id).position == 8


@pytest.mark.parametrize("limit", [1, 3])
def test_limit(configure, limit):
    """The most that one call handles: call until it answers zeros."""
    config = configure()
    for number in range(4):
        step(config, later(1), key=f"K{number}", message_id=f"e-{number}")
    counts = []
    while (answer := fire(config, 5, limit=limit)) != NOTHING:
        counts.append(answer.fired)
    assert counts == ([1] * 4 if limit == 1 else [3, 1])


def test_the_instant_is_the_clocks(configure):
    """Without `now` it is the configuration's clock that says what is due."""
    clock = Clock(NOW)
    config = configure(clock=clock)
    step(config, later(60))
    assert timers.fire_due(config) == NOTHING
    clock.advance(timedelta(minutes=1))
    assert timers.fire_due(config) == fired()


@pytest.mark.parametrize("bad", [{"now": datetime(2026, 1, 1)}, {"limit": 0}, {"limit": True}])  # noqa: DTZ001 - naive on purpose
def test_bad_arguments(configure, bad):
    """A naive instant, or a limit that is no number of timers, is refused by name."""
    with pytest.raises(ConfigError, match=next(iter(bad))):
        timers.fire_due(configure(), **bad)


def test_what_a_timer_does(configure):
    """Trap 12. A timer's step runs with the same routes, timers, neighbours and completion hook."""
    done = Noting()
    config = configure(routes={"bank": OutboxRoute("bank"), "done": done}, on_complete="done")
    effects = [to("bank", "paid"), to_execution("K2"), to("nowhere"), later(5, "never")]
    outcome = step(config, later(1, "tick", data={"effects": effects, "end": True, "donedata": {"n": 1}}))
    assert fire(config, 1) == fired()
    assert handed_off(config) == [("bank", "paid", None)]
    assert at(config, "K2")["seen"] == ["hello"]
    ((event, key, _),) = done.handed
    assert event == Event("done.execution", {"n": 1}, origin=outcome.execution_id)
    assert ":complete:" in key
    assert outcomes(config)[1:] == ["created_and_delivered", "send_refused (route)", "timer_fired"]
    assert fire(config, 60) == Fired(fired=0, discarded=1, failed=0)


def test_an_event_that_nobody_takes(configure):
    """A timer whose event its execution ignores has fired: its input row says what came."""
    config = configure()
    outcome = step(config, later(1, "tick", data={"answer": "ignored"}))
    assert fire(config, 1) == fired()
    assert executions.inputs(config, outcome.execution_id)[-1].door == "timer"
    assert position_of(config, outcome.execution_id)["seen"] == ["go"]


# --- timers to routes ---------------------------------------------------------------------------------


def test_a_timer_to_a_route(configure):
    """It hands off, with the key it was armed under; its execution is not stepped."""
    bank = Noting()
    config = configure(routes={"bank": bank})
    outcome = step(config, later(60, "late", target="bank", send_id="s-1"))
    (timer,) = timers.pending(config)
    with written(config) as rows:
        assert fire(config, 60) == fired()
    ((event, key, context),) = bank.handed
    assert event == Event("late", None, origin=outcome.execution_id, send_id="s-1")
    assert key == timer.key
    assert (context.now, context.key, context.send_id) == (NOW + 60 * SECOND, "K1", "s-1")
    assert rows.summary() == "+ledger"


def test_a_timer_whose_route_refuses(configure):
    """The chart hears it in a step of its own, logged as `reentry`; the timer has fired."""

    def refuse(event, key, context):
        raise RouteRefused("closed")

    config = configure(routes={"bank": refuse})
    outcome = step(config, later(60, "late", target="bank", send_id="s-1"))
    assert fire(config, 60) == fired()
    assert position_of(config, outcome.execution_id)["heard"] == [
        ["error.communication", "late", "closed", "s-1"]
    ]
    assert executions.inputs(config, outcome.execution_id)[-1].door == "reentry"


def test_a_timer_whose_route_is_gone(configure):
    """A name that nobody registers any more: a ledger row, and the chart hears it."""
    config = configure(routes={"bank": Noting()})
    outcome = step(config, later(60, "late", target="bank"))
    without = configure()
    assert fire(without, 60) == fired()
    assert len(position_of(without, outcome.execution_id)["heard"]) == 1
    assert outcomes(without)[1:] == ["send_refused (route)", "timer_fired"]


def test_a_timer_to_an_outbox(configure):
    """One row, however often the firing is driven again."""
    failures = [LookupError("the power is out")]

    def fail_once(event, key, context):
        OutboxRoute("box").hand_off(event, key, context)
        if failures:
            raise failures.pop()

    config = configure(routes={"bank": fail_once})
    step(config, later(60, "late", target="bank"))
    assert fire(config, 60) == Fired(fired=0, discarded=0, failed=1)
    assert handed_off(config) == []
    assert fire(config, 3600) == fired()
    assert handed_off(config) == [("box", "late", None)]


# --- executions that are not there to take it -----------------------------------------------------------


@pytest.mark.parametrize("how", ["finished", "cancelled", "failed"])
def test_a_finished_execution(configure, how):
    """Its timers are discarded when they come due, each with its ledger row."""
    config = configure(routes={"bank": Noting()})
    outcome = step(config, later(60), later(60, target="bank"))
    if how == "finished":
        step(config, end=True, message_id="e-2")
    elif how == "cancelled":
        executions.cancel(config, outcome.execution_id)
    else:
        executions.fail(config, outcome.execution_id, reason="lost")
    assert len(timers.pending(config)) == 2
    assert fire(config, 60) == Fired(fired=0, discarded=2, failed=0)
    assert timer_states(config) == ["discarded"] * 2
    assert outcomes(config)[-2:] == ["timer_discarded"] * 2
    assert fire(config, 3600) == NOTHING


def test_an_execution_that_is_gone(database, configure):
    """So is the timer of an execution that nobody has any more."""
    config = configure()
    step(config, later(60))
    with config.engine.begin() as connection:
        for table in (config.schema.executions, config.schema.inputs):
            connection.execute(table.delete())
    assert fire(config, 60) == Fired(fired=0, discarded=1, failed=0)
    (row,) = ledger.rows(config, outcome="timer_discarded")
    assert (row.scope, row.key) == ("", None)


def test_a_suspended_execution(configure):
    """Its timer is left pending, counts for nothing, and fires once it is resumed, however late."""
    config = configure()
    outcome = step(config, later(60))
    executions.suspend(config, outcome.execution_id)
    for seconds in (60, 3600, 86400):
        assert fire(config, seconds) == NOTHING
    (timer,) = timers.pending(config)
    assert (timer.tries, timer.last_error, timer.due_at) == (0, None, NOW + 60 * SECOND)
    executions.resume(config, outcome.execution_id)
    assert fire(config, 86401) == fired()
    assert position_of(config, outcome.execution_id)["seen"] == ["go", "tick"]


# --- failures -----------------------------------------------------------------------------------------


def test_a_fire_that_fails(configure):
    """It leaves nothing but its error, and when it is tried again: after a pause that grows."""
    config = configure()
    outcome = step(config, later(60, "bad", data={"answer": "raised"}))
    waits, at_seconds = [], 60.0
    for tries in range(1, 5):
        with written(config) as rows:
            assert fire(config, at_seconds) == Fired(fired=0, discarded=0, failed=1)
        assert rows.nothing
        (timer,) = timers.pending(config)
        assert (timer.tries, timer.due_at) == (tries, NOW + 60 * SECOND)
        assert timer.last_error.startswith("StepFailed: ")
        assert "bad raised" in timer.last_error
        waits.append((timer.next_try_at - NOW).total_seconds() - at_seconds)
        assert fire(config, at_seconds) == NOTHING
        at_seconds = (timer.next_try_at - NOW).total_seconds()
    assert waits == sorted(set(waits))
    assert waits[0] > 0
    assert position_of(config, outcome.execution_id)["seen"] == ["go"]


def test_the_pause_is_bounded(configure):
    """A timer that fails for ever is tried at least every hour."""
    config = configure()
    step(config, later(60, "bad", data={"answer": "failed"}))
    with config.engine.begin() as connection:
        connection.execute(update(config.schema.timers).values(tries=100_000))
    fire(config, 60)
    (timer,) = timers.pending(config)
    assert timer.next_try_at - NOW <= 60 * SECOND + timedelta(hours=1)


def test_those_behind_fire_on_time(configure):
    """Trap 7. 200 timers that fail or wait on suspended executions: those behind them fire in the call."""
    config = configure()
    for number in range(100):
        held = step(config, later(1), key=f"S{number}", message_id=f"s-{number}")
        executions.suspend(config, held.execution_id)
        step(config, later(1, data={"answer": "failed"}), key=f"F{number}", message_id=f"f-{number}")
    good = step(config, later(2), key="G", message_id="g-1")
    last = Fired(fired=0, discarded=0, failed=0)
    for _ in range(3):
        last = fire(config, 5, limit=100)
        if last == NOTHING:
            break
    assert position_of(config, good.execution_id)["seen"] == ["go", "tick"]
    assert len(timers.pending(config)) == 200


def test_a_chart_that_is_gone(configure):
    """A timer whose chart cannot be had fails, loudly on its row, and fires once it is published again."""
    config = configure()
    step(config, later(60))
    nothing = type(config)(config.engine, charts=ChartRegistry())
    assert fire(nothing, 60) == Fired(fired=0, discarded=0, failed=1)
    assert "ChartNotResolved" in timers.pending(config)[0].last_error
    assert fire(config, 3600) == fired()


def test_a_completion_hook_that_refuses(configure):
    """The finish rolls back with the firing, which is tried again."""
    refusals = [RouteRefused("not now")]

    def done(event, key, context):
        if refusals:
            raise refusals.pop()

    config = configure(routes={"done": done}, on_complete="done")
    outcome = step(config, later(1, data={"end": True}))
    assert fire(config, 1) == Fired(fired=0, discarded=0, failed=1)
    assert executions.fetch(config, outcome.execution_id).status == "active"
    assert "OnCompleteFailed" in timers.pending(config)[0].last_error
    assert fire(config, 3600) == fired()
    assert executions.fetch(config, outcome.execution_id).status == "completed"


def test_misuse_by_the_host_bars_nobody(configure):
    """A `ConfigError` is raised, not counted; the timer is put off, so that the next call gets on."""
    calls = []

    def mint(scope, document, key):
        calls.append(key)
        return 7 if key == "K9" else f"run-{document}-{key}"

    config = configure(mint_execution_id=mint)
    step(config, later(1, data={"effects": [to_execution("K9")]}))
    step(config, later(2), key="K2", message_id="e-2")
    with pytest.raises(ConfigError, match="mint_execution_id"):
        fire(config, 5)
    assert fire(config, 5) == fired()
    assert "ConfigError" in timers.pending(config)[0].last_error


# --- around, connections, other executors ---------------------------------------------------------------


def test_around_delivery(configure):
    """Called once around each timer, with the execution's scope and the door's name."""
    seen = []

    def around(scope, door, work):
        seen.append((scope, door))
        return work()

    config = configure(around_delivery=around)
    step(config, later(1))
    step(config, later(1), scope="other", message_id="e-2")
    seen.clear()
    fire(config, 5)
    assert sorted(seen) == [("acme", "timer"), ("other", "timer")]


def test_a_pool_of_one_connection(database, configure):
    """Reading what is due and firing it takes one connection after the other, never two."""
    engine = database.engine(poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    config = configure(engine=engine, around_delivery=lambda scope, door, work: work())
    step(config, later(1, data={"effects": [to_execution("K2", effects=[later(0)])]}))
    step(config, later(1, data={"answer": "failed"}), key="K3", message_id="e-3")
    assert fire(config, 5) == Fired(fired=2, discarded=0, failed=1)


def test_a_borrowed_connection(configure):
    """It joins the caller's transaction: nothing is there before its commit, a failure undoes its own
    timer and no other, and a rollback takes all of it.
    """
    config = configure()
    step(config, later(1), later(2, data={"answer": "failed"}), later(3, "third"))
    with config.engine.connect() as connection:
        assert fire(config, 5, connection=connection) == Fired(fired=2, discarded=0, failed=1)
        assert at(config, "K1", "a")["seen"] == ["go"]
        connection.rollback()
    assert timer_states(config) == ["pending"] * 3
    with config.engine.begin() as connection:
        assert fire(config, 5, connection=connection) == Fired(fired=2, discarded=0, failed=1)
    assert at(config, "K1", "a")["seen"] == ["go", "tick", "third"]
    assert timer_states(config) == ["fired", "fired", "pending"]


def test_a_fault_of_a_borrowed_transaction_is_raised(postgresql, make_config):
    """A borrowed transaction whose connection is gone is not written to: its caller has to begin again."""
    config = make_config(postgresql, charts=registry(a=told("a")), retries=0)
    step(config, later(1))
    with config.engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with config.engine.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
        with pytest.raises(DatabaseFault):
            fire(config, 5, connection=connection)
    assert timer_states(config) == ["pending"]


def test_inside_a_step(configure):
    """A timer of an execution whose step is open cannot fire in it: it fails, and is tried again."""
    answers = []

    def tick(event, key, context):
        answers.append(fire(config, 5))

    config = configure(routes={"tick": tick})
    step(config, later(1), key="K2", message_id="e-2")
    step(config, later(1))
    step(config, to("tick"), message_id="e-3")
    assert answers == [Fired(fired=1, discarded=0, failed=1)]
    assert fire(config, 3600) == fired()
    for key in ("K1", "K2"):
        assert at(config, key, "a")["seen"].count("tick") == 1


@pytest.mark.parametrize("executor", [WritingPlainly, OwnTables])
def test_other_executors(database, make_config, executor):
    """A host's executor, derived or its own, has its timers fired the same way."""
    OwnTables.create_tables(database.engine())
    done = Noting()
    config = make_config(
        database,
        charts=registry(a=told("a")),
        executor=executor(),
        routes={"done": done},
        on_complete="done",
    )
    step(config, later(1), later(2, "end", data={"end": True}), later(3))
    assert fire(config, 1) == fired()
    assert fire(config, 5) == Fired(fired=1, discarded=1, failed=0)
    (row,) = everything(config).executions
    assert row["status"] == "completed"
    assert done.names == ["done.execution"]


def test_a_lost_race_is_nobodys_failure(configure):
    """Two workers see one timer due; the second finds it fired and counts nothing."""
    config = configure()
    step(config, later(1))
    (timer,) = timers.pending(config)
    assert firing._fire(config, timer.key, timer.execution_id, NOW + 5 * SECOND, None) == "fired"
    assert firing._fire(config, timer.key, timer.execution_id, NOW + 5 * SECOND, None) == "gone"
    assert outcomes(config).count("timer_fired") == 1


def test_a_charts_clock(database, make_config):
    """30-executions trap 7. A chart that asks for the time gets the call's instant."""

    def note(position, event, now):
        effects = [Send("tick", delay=SECOND)] if event.name == "go" else []
        return Step([*position, now.isoformat()], active=["open"], effects=effects)

    chart = function.chart("timely", create=lambda data, now: Step([], active=["open"]), step=note)
    config = make_config(database, charts=registry(a=chart))
    outcome = step(config)
    fire(config, 5)
    wanted = [NOW.isoformat(), (NOW + 5 * SECOND).isoformat()]
    assert executions.fetch(config, outcome.execution_id).position == wanted
