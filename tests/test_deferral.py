"""Early events: kept with their message's transaction, offered after every step, dropped when too late."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from statifier_router import (
    ChartRegistry,
    Defer,
    Deferred,
    Dropped,
    Event,
    ExecutionSuspended,
    OnCompleteFailed,
    OutboxRoute,
    Plan,
    RouteRefused,
    Step,
    addresses,
    deferrals,
    deliver,
    deliver_event,
    executions,
    ledger,
    route,
    timers,
)
from statifier_router.deferrals import Swept
from statifier_router.interpreters import function
from tests.support.charts import NOW, delivery, envelope, message, registry, scans
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
    stored,
    to,
    to_execution,
    told,
)

HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
NOTHING = Swept(offered=0, landed=0, expired=0)
RULE = Defer(HOUR)
TOLD = ("after", "answer", "end", "effects", "on_error")


@pytest.fixture(params=["merged", "plain"])
def plan(request):
    """Both plans of statements; on SQLite they are the same."""
    return request.param


@pytest.fixture
def configure(database, make_config, plan):
    """`configure(**kw)`: documents `a` and `b` run on charts that their events tell what to do."""

    def make(**kw):
        charts = kw.pop("charts", None) or registry(a=told("a"), b=told("b"))
        if plan == "plain":
            kw.setdefault("executor", WritingPlainly())
        return make_config(database, charts=charts, **kw)

    return make


def put(config, event, *, after=None, key="K1", message_id=None, now=NOW, rule=RULE, **data):
    """Deliver an event that is refused until `after` was seen; kept by `rule`."""
    binding = scans(id=f"on-{event}", event=event, document="a", data=TOLD, unmatched=rule)
    needs = {} if after is None else {"after": after}
    return deliver(
        config, binding, key, delivery(message_id or f"m-{event}", now=now, data={**needs, **data})
    )


def early(config, event, *, key="K1", message_id=None, now=NOW, rule=RULE, missing=RULE, **data):
    """Deliver an event under a binding that creates nothing, and keeps it by its address."""
    binding = scans(
        id=f"on-{event}",
        event=event,
        document="a",
        data=TOLD,
        create="never",
        missing=missing,
        unmatched=rule,
    )
    return deliver(config, binding, key, delivery(message_id or f"m-{event}", now=now, data=data))


def seen(config, key="K1"):
    return at(config, key, "a")["seen"]


def count_of(config, key="K1"):
    """The counter on the execution's row."""
    (row,) = [row for row in everything(config).executions if row["key"] == key]
    return row["deferred"]


# --- kept for an execution ----------------------------------------------------------------------------


def test_an_event_that_came_early_is_kept(configure):
    """An event that its execution refuses is `Deferred`: a claim, a kept row, a ledger row; no input, and
    the execution stays as it was, its counter aside.
    """
    config = configure()
    put(config, "A")
    with written(config) as rows:
        outcome = put(config, "C", after="B", end=None)
    assert outcome == Deferred("on-C", outcome.execution_id)
    assert outcome.recorded == "deferred"
    assert rows.summary() == "+claims +ledger ~executions"
    (changed,) = rows.changed["executions"]
    assert (changed["deferred"], changed["revision"]) == (1, 1)
    row = rows.one("ledger")
    assert (row["outcome"], row["key"], row["execution_id"]) == ("deferred", "K1", outcome.execution_id)
    (kept,) = deferrals.pending(config)
    assert kept.event == Event("C", {"after": "B", "end": None})
    assert (kept.scope, kept.document, kept.key, kept.execution_id) == (
        "acme",
        "a",
        "K1",
        outcome.execution_id,
    )
    assert (kept.binding_id, kept.message_id) == ("on-C", "m-C")
    assert (kept.created_at, kept.until) == (NOW, NOW + HOUR)


@pytest.mark.parametrize("answer", ["refused", "ignored"])
def test_refused_or_ignored(configure, answer):
    """Both are kept: a guard that said no, and a state that does not know the event."""
    config = configure()
    put(config, "A")
    how = {"after": "Z"} if answer == "refused" else {"answer": "ignored"}
    assert put(config, "B", **how).recorded == "deferred"


def test_what_moves_is_not_kept(configure):
    """Nor is what the execution cannot know: `unknown` counts as delivered."""
    config = configure()
    assert put(config, "A").recorded == "created_and_delivered"
    assert put(config, "B", answer="unknown").recorded == "delivered"
    assert deferrals.pending(config) == []


def test_b_before_a(configure):
    """B came before A: it lands in the transaction of A, as an input of its own under door `deferred`,
    at A's instant, and writes its ledger row.
    """
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    then = NOW + timedelta(minutes=5)
    with written(config) as rows:
        outcome = put(config, "A", now=then)
    assert seen(config) == ["first", "A", "B"]
    log = executions.inputs(config, outcome.execution_id)
    assert [(row.door, row.message_id, row.at) for row in log[2:]] == [
        ("deliver", "m-A", then),
        ("deferred", "m-B", then),
    ]
    assert [(row["outcome"], row["message_id"], row["binding_id"]) for row in rows.added["ledger"]] == [
        ("delivered", "m-A", "on-A"),
        ("delivered", "m-B", "on-B"),
    ]
    assert deferrals.pending(config) == []
    assert count_of(config) == 0


def test_c_before_b_before_a(configure):
    """One that lands lets the next one land: offered again in order until none moves."""
    config = configure()
    put(config, "first")
    put(config, "D", after="C")
    put(config, "C", after="B")
    put(config, "B", after="A")
    put(config, "Z", after="never")
    put(config, "A")
    assert seen(config) == ["first", "A", "B", "C", "D"]
    (left,) = deferrals.pending(config)
    assert left.event.name == "Z"
    assert count_of(config) == 1


def test_order_of_arrival(configure):
    """Two that the same step lets land: the older one first."""
    config = configure()
    put(config, "first")
    put(config, "X", after="A")
    put(config, "Y", after="A")
    put(config, "A")
    assert seen(config) == ["first", "A", "X", "Y"]


def test_two_kept_for_one_transition(configure):
    """The first one takes it; the second stays kept."""

    def step(position, event, now):
        if event.name == "open":
            return Step("open", active=["open"])
        if position == "open":
            return Step("taken", active=["taken"])
        return Step(position, outcome="refused", active=["s"])

    chart = function.chart("door", create=lambda data, now: Step("shut", active=["shut"]), step=step)
    config = configure(charts=registry(a=chart))
    put(config, "one")
    put(config, "two")
    created = put(config, "open")
    assert executions.fetch(config, created.execution_id).position == "taken"
    (left,) = deferrals.pending(config)
    assert left.event.name == "two"
    put(config, "open", message_id="m-again")
    assert deferrals.pending(config) == []


def test_the_event_that_creates_may_be_kept(configure):
    """An event that a new execution does not take is kept for it: `Deferred` with the new id."""
    config = configure()
    outcome = put(config, "B", after="A")
    assert isinstance(outcome, Deferred)
    execution = executions.fetch(config, outcome.execution_id)
    assert (execution.revision, execution.status) == (0, "active")
    assert [row.door for row in executions.inputs(config, outcome.execution_id)] == ["create"]
    put(config, "A")
    assert seen(config) == ["A", "B"]


def test_the_limit(configure):
    """Above `limit` the newest is dropped: `deferral_full`; room again, and the next one is kept."""
    config = configure()
    rule = Defer(HOUR, limit=2)
    put(config, "first")
    for name in ("X", "Y"):
        assert put(config, name, after="A", rule=rule).recorded == "deferred"
    outcome = put(config, "Z", after="A", rule=rule)
    assert outcome == Dropped("on-Z", "deferral_full", outcome.execution_id)
    assert outcomes(config)[-1] == "dropped: deferral_full"
    put(config, "A")
    assert seen(config) == ["first", "A", "X", "Y"]
    # It was claimed: handed over again it is a duplicate.
    assert put(config, "Z", after="A", rule=rule).recorded == "duplicate"
    assert put(config, "Q", after="B", rule=rule).recorded == "deferred"


def test_expiry_at_an_offer(configure):
    """At exactly `within` it still lands; a microsecond later it is dropped as `unmatched_event`."""
    for after, wanted in ((HOUR, ["first", "A", "B"]), (HOUR + MICROSECOND, ["first", "A"])):
        config = configure()
        key = f"K{after.microseconds}"
        put(config, "first", key=key, message_id=f"{key}-0")
        put(config, "B", after="A", key=key, message_id=f"{key}-1")
        put(config, "A", key=key, message_id=f"{key}-2", now=NOW + after)
        assert seen(config, key) == wanted
        assert deferrals.pending(config) == []
        assert count_of(config, key) == 0
    last = ledger.rows(config)[-1]
    assert (last.outcome, last.reason, last.message_id) == ("dropped: unmatched_event", "expired", "K1-1")


def test_a_kept_event_that_finishes_the_execution(configure):
    """What is kept behind it is dropped as `finished`."""
    config = configure()
    put(config, "first")
    put(config, "end", after="A", end=True)
    put(config, "X", after="A")
    outcome = put(config, "A")
    execution = executions.fetch(config, outcome.execution_id)
    assert (execution.status, execution.position["seen"]) == ("completed", ["first", "A", "end"])
    assert deferrals.pending(config) == []
    assert outcomes(config)[-3:] == ["delivered", "delivered", "dropped: finished"]


def test_an_execution_that_finishes_drops_what_is_kept(configure):
    """Kept events go with the step that ends it, each with its ledger row."""
    config = configure()
    put(config, "first")
    put(config, "X", after="Z")
    put(config, "end", end=True)
    assert deferrals.pending(config) == []
    assert outcomes(config)[-2:] == ["delivered", "dropped: finished"]


def test_a_duplicate_of_a_kept_one(configure):
    """It is a duplicate, before and after the event has landed."""
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    assert put(config, "B", after="A").recorded == "duplicate"
    put(config, "A")
    assert put(config, "B", after="A").recorded == "duplicate"
    assert seen(config) == ["first", "A", "B"]


def test_no_rule_no_keeping(configure):
    """A binding that says nothing drops what is not taken; `deliver_event` counts it as delivered."""
    config = configure()
    put(config, "first")
    binding = scans(event="X", document="a", data=TOLD)
    assert deliver(config, binding, "K1", delivery("m-X", data={"after": "Z"})).recorded == (
        "dropped: unmatched_event"
    )
    plan = Plan("jobs", "a")
    assert deliver_event(config, plan, "K1", envelope("X", data={"after": "Z"})).recorded == "delivered"
    assert deferrals.pending(config) == []


# --- offered after every step ---------------------------------------------------------------------------


def _opens(config, how):
    """Have the execution see A, by this way of being driven."""
    if how == "deliver_event":
        deliver_event(config, Plan("jobs", "a"), "K1", envelope("A", "e-A"))
    elif how == "a timer":
        timers.fire_due(config, now=NOW + timedelta(minutes=1))
    elif how == "another's send":
        sent = envelope("go", "e-go", data={"effects": [to_execution("K1", "A", document="a")]})
        deliver_event(config, Plan("jobs", "b"), "K9", sent)
    elif how == "a queued answer":
        answer = to_execution("K1", "A", document="a")
        put(config, "ask", effects=[to_execution("K9", effects=[answer])])
    elif how == "a batch of one transaction":
        with config.engine.begin() as connection:
            deliver_event(config, Plan("jobs", "a"), "K1", envelope("A", "e-A"), connection=connection)


@pytest.mark.parametrize(
    "how",
    ["deliver_event", "a timer", "another's send", "a queued answer", "a batch of one transaction"],
)
def test_whoever_drives_it(configure, how):
    """Kept events are offered after every step: a message, a timer, a neighbour, a queued answer."""
    config = configure()
    put(config, "first", effects=[later(60, "A")])
    put(config, "B", after="A")
    _opens(config, how)
    assert seen(config)[-2:] == ["A", "B"]
    assert deferrals.pending(config) == []


def test_after_a_step_that_moves_nothing(configure):
    """A guard may ask for the time: what is kept is offered after every step, also one that was ignored,
    and its expiry is judged there.
    """
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    binding = scans(event="nothing", document="a", data=TOLD)
    late = delivery("m-late", now=NOW + 2 * HOUR, data={"answer": "ignored"})
    assert deliver(config, binding, "K1", late).recorded == "dropped: unmatched_event"
    assert deferrals.pending(config) == []


def test_a_kept_event_sends(configure):
    """When it lands it sends, arms and reaches neighbours like any other, and an answer to its own open
    step is queued.
    """
    config = configure(routes={"box": OutboxRoute("box")})
    answer = to_execution("K1", "answer", document="a")
    effects = [to("box", "kept"), later(5), to_execution("K2", effects=[answer]), to("nowhere")]
    put(config, "first")
    put(config, "B", after="A", effects=effects)
    put(config, "A")
    assert seen(config) == ["first", "A", "B", "answer"]
    assert handed_off(config) == [("box", "kept", None)]
    assert len(timers.pending(config)) == 1
    assert len(at(config, "K1", "a")["heard"]) == 1


def test_a_kept_event_whose_step_fails(configure):
    """It harms nobody: the message that let it be offered is delivered, and it stays kept till its time."""
    config = configure(routes={"box": OutboxRoute("box")})
    put(config, "first")
    put(config, "bad", after="A", answer="raised", effects=[to("box")])
    put(config, "good", after="A")
    assert put(config, "A").recorded == "delivered"
    assert seen(config) == ["first", "A", "good"]
    (left,) = deferrals.pending(config)
    assert left.event.name == "bad"
    assert handed_off(config) == []
    assert count_of(config) == 1
    assert deferrals.sweep(config, now=NOW + HOUR + MICROSECOND) == Swept(0, 0, 1)


def test_a_completion_hook_that_refuses(configure):
    """Where a kept event would finish its execution and the hook refuses, operators see it: the delivery
    that offered it fails whole, and works once the hook is mended.
    """
    refusals = [RouteRefused("not now")]

    def act(event, key, context):
        if refusals:
            raise refusals.pop()

    config = configure(routes={"done": Noting(act)}, on_complete="done")
    put(config, "first")
    put(config, "end", after="A", end=True)
    with written(config) as rows, pytest.raises(OnCompleteFailed):
        put(config, "A")
    assert rows.nothing
    put(config, "A")
    assert executions.fetch(config, at_id(config)).status == "completed"


def at_id(config, key="K1"):
    return addresses.find(config, "acme", "a", key).execution_id


def test_a_delivery_that_fails_leaves_what_is_kept(configure):
    """What landed in a transaction that rolls back is kept as before."""
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    with config.engine.connect() as connection:
        deliver_event(config, Plan("jobs", "a"), "K1", envelope("A", "e-A"), connection=connection)
        assert deferrals.pending(config, connection=connection) == []
        connection.rollback()
    assert len(deferrals.pending(config)) == 1
    assert count_of(config) == 1
    put(config, "A")
    assert seen(config) == ["first", "A", "B"]


def test_a_suspended_execution_keeps_nothing_new(configure):
    """An event for it is the retryable `ExecutionSuspended`, whatever the rule; what was kept waits."""
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    executions.suspend(config, at_id(config))
    with pytest.raises(ExecutionSuspended):
        put(config, "C", after="A")
    assert deferrals.sweep(config, now=NOW) == NOTHING
    executions.resume(config, at_id(config))
    put(config, "A")
    assert seen(config) == ["first", "A", "B"]


def test_an_execution_that_always_is_new(configure):
    """What `always_new` makes keeps its own events, and adopts nothing of an address that is not its own."""
    config = configure()
    assert early(config, "B").recorded == "deferred"
    fresh = scans(id="fresh", event="X", document="a", data=TOLD, create="always_new", unmatched=RULE)
    outcome = deliver(config, fresh, "K1", delivery("m-X", data={"after": "Z"}))
    assert isinstance(outcome, Deferred)
    assert position_of(config, outcome.execution_id)["seen"] == []
    assert {kept.execution_id for kept in deferrals.pending(config)} == {None, outcome.execution_id}
    put(config, "A")
    assert seen(config) == ["A", "B"]


# --- kept by address ------------------------------------------------------------------------------------


def test_no_execution_yet(configure):
    """A binding that creates none keeps the event by its address: `Deferred` without an execution; nothing
    is created.
    """
    config = configure()
    with written(config) as rows:
        outcome = early(config, "B")
    assert outcome == Deferred("on-B", None)
    assert rows.summary() == "+claims +ledger"
    assert rows.one("ledger")["execution_id"] is None
    (kept,) = deferrals.pending(config)
    assert (kept.execution_id, kept.key, kept.until) == (None, "K1", NOW + HOUR)


@pytest.mark.parametrize("how", ["deliver", "deliver_event", "another's send"])
def test_offered_when_it_is_created(configure, how):
    """In the transaction that creates it, after the creating event, in order; by whichever door."""
    config = configure()
    early(config, "B", after="A")
    early(config, "C")
    if how == "deliver":
        put(config, "A")
    elif how == "deliver_event":
        deliver_event(config, Plan("jobs", "a"), "K1", envelope("A", "e-A"))
    else:
        sent = envelope("go", "e-go", data={"effects": [to_execution("K1", "A", document="a")]})
        deliver_event(config, Plan("jobs", "b"), "K9", sent)
    assert seen(config) == ["A", "B", "C"]
    assert deferrals.pending(config) == []
    assert count_of(config) == 0


def test_created_by_another_configuration(configure):
    """The bindings of a configuration say which documents keep early events: one that has the binding
    adopts at once, in any process.
    """
    binding = scans(
        id="on-B", event="B", document="a", data=TOLD, create="never", missing=RULE, unmatched=RULE
    )
    early(configure(), "B")
    fresh = configure(bindings=[binding])
    put(fresh, "A")
    assert seen(fresh) == ["A", "B"]


def test_by_route_and_a_resolver(configure):
    """The same through `route`, with bindings that a resolver answers."""
    arrives = scans(id="arrives", event="A", document="a", match={"kind": "arrives"})
    leaves = scans(
        id="leaves",
        event="B",
        document="a",
        match={"kind": "leaves"},
        create="never",
        missing=RULE,
        unmatched=RULE,
    )
    config = configure(bindings_resolver=lambda scope: [arrives, leaves])
    assert [o.recorded for o in route(config, message("m-1", kind="leaves"))] == ["no_match", "deferred"]
    assert [o.recorded for o in route(config, message("m-2", kind="arrives"))] == [
        "created_and_delivered",
        "no_match",
    ]
    assert at(config, "P7", "a")["seen"] == ["A", "B"]


def test_kept_on_by_the_execution(configure):
    """What a new execution does not take yet it keeps, and its limit counts it."""
    config = configure()
    rule = Defer(HOUR, limit=2)
    early(config, "B", after="Z")
    early(config, "C", after="Z")
    put(config, "A")
    assert count_of(config) == 2
    assert put(config, "D", after="Z", rule=rule).recorded == "dropped: deferral_full"
    put(config, "Z")
    assert seen(config) == ["A", "Z", "B", "C"]


def test_the_limit_of_an_address(configure):
    """Above it the newest is dropped, with no execution to name."""
    config = configure()
    one = Defer(HOUR, limit=1)
    early(config, "B", missing=one)
    assert early(config, "C", missing=one) == Dropped("on-C", "deferral_full", None)
    assert early(config, "C", missing=one, key="K2", message_id="m-2").recorded == "deferred"


def test_expired_by_its_address(configure):
    """Dropped with the creation that finds it too old."""
    config = configure()
    early(config, "B")
    put(config, "A", now=NOW + HOUR + MICROSECOND)
    assert seen(config) == ["A"]
    assert outcomes(config)[-1] == "dropped: unmatched_event (expired)"


def test_created_finished(database, make_config):
    """An execution that is finished when it is created drops what was kept for it."""
    config = make_config(database, charts=registry(a=told("a", ends_on_create=True)))
    early(config, "B")
    outcome = put(config, "A")
    assert outcome.recorded == "dropped: finished"
    assert deferrals.pending(config) == []
    assert outcomes(config)[-1] == "dropped: finished"


def test_an_execution_that_is_there(configure):
    """A binding that keeps by address steps one that is there, and keeps for it by the other rule."""
    config = configure()
    put(config, "A")
    assert early(config, "B").recorded == "delivered"
    assert early(config, "C", after="Z").recorded == "deferred"
    assert deferrals.pending(config)[0].execution_id == at_id(config)
    put(config, "end", end=True)
    assert early(config, "D").recorded == "dropped: finished"


def test_other_places_stay(configure):
    """Scope, document and key all count: a creation takes what is kept at its own address alone."""
    config = configure()
    binding = scans(
        id="on-B", event="B", document="a", data=TOLD, create="never", missing=RULE, unmatched=RULE
    )
    elsewhere = scans(
        id="on-B2", event="B", document="b", data=TOLD, create="never", missing=RULE, unmatched=RULE
    )
    deliver(config, binding, "K1", delivery("m-1", scope="other"))
    deliver(config, binding, "k1", delivery("m-2"))
    deliver(config, elsewhere, "K1", delivery("m-3"))
    put(config, "A")
    assert seen(config) == ["A"]
    assert len(deferrals.pending(config)) == 3


# --- the sweep ------------------------------------------------------------------------------------------


def test_the_sweep_drops_what_is_too_old(configure):
    """At exactly its time it stays; past it, it is dropped, wherever it is kept."""
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    early(config, "C", key="K2")
    assert deferrals.sweep(config, now=NOW + HOUR) == NOTHING
    assert deferrals.sweep(config, now=NOW + HOUR + MICROSECOND) == Swept(offered=0, landed=0, expired=2)
    assert deferrals.pending(config) == []
    assert count_of(config) == 0
    assert outcomes(config)[-2:] == ["dropped: unmatched_event (expired)"] * 2
    assert {row.execution_id for row in ledger.rows(config)[-2:]} == {at_id(config), None}


def _missed(config):
    """An event that is kept by an address although there is an execution: as after a race that a
    configuration without the binding took part in.
    """
    put(config, "A")
    early(config, "B", key="other")
    with config.engine.begin() as connection:
        connection.execute(update(config.schema.deferred).values(key="K1"))


@pytest.mark.parametrize("late", [False, True])
def test_the_sweep_offers_what_was_missed(configure, late):
    """It is offered before anything is expired: it came in time, and nobody had offered it."""
    config = configure()
    _missed(config)
    now = NOW + (2 * HOUR if late else HOUR)
    assert deferrals.sweep(config, now=now) == Swept(offered=1, landed=1, expired=0)
    assert seen(config) == ["A", "B"]
    assert deferrals.sweep(config, now=now) == NOTHING


def test_what_was_missed_for_a_suspended_one(configure):
    """It waits by its address until the execution is resumed, or its time is up."""
    config = configure()
    _missed(config)
    executions.suspend(config, at_id(config))
    assert deferrals.sweep(config, now=NOW) == NOTHING
    executions.resume(config, at_id(config))
    assert deferrals.sweep(config, now=NOW) == Swept(offered=1, landed=1, expired=0)
    assert seen(config) == ["A", "B"]


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_what_is_kept_for_one_that_an_operator_ended(configure, how):
    """The sweep drops it as `finished`, without waiting for its time."""
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    if how == "cancel":
        executions.cancel(config, at_id(config))
    else:
        executions.fail(config, at_id(config), reason="lost")
    assert deferrals.sweep(config, now=NOW) == Swept(offered=0, landed=0, expired=1)
    assert outcomes(config)[-1] == "dropped: finished"


def test_the_sweep_asks_no_chart_for_what_is_too_old(configure):
    """A chart that is gone does not keep the sweep from dropping, nor others from being offered."""
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    nothing = type(config)(config.engine, charts=ChartRegistry())
    assert deferrals.sweep(nothing, now=NOW + 2 * HOUR) == Swept(0, 0, 1)


def test_a_sweep_that_fails_for_one_goes_on_with_the_rest(configure):
    """What one execution's completion hook refuses is left as it was; the others are offered."""

    def act(event, key, context):
        if context.key == "K1":
            raise RouteRefused("not now")

    config = configure(routes={"done": Noting(act)}, on_complete="done")
    for key in ("K1", "K2"):
        put(config, "A", key=key, message_id=f"m-A-{key}")
        early(config, "end", key=f"{key}-other", message_id=f"m-{key}", end=True)
    with config.engine.begin() as connection:
        deferred = config.schema.deferred
        for key in ("K1", "K2"):
            connection.execute(update(deferred).where(deferred.c.key == f"{key}-other").values(key=key))
    assert deferrals.sweep(config, now=NOW, limit=1) == Swept(offered=1, landed=1, expired=0)
    assert executions.fetch(config, at_id(config, "K2")).status == "completed"
    assert [kept.key for kept in deferrals.pending(config)] == ["K1"]
    # Past its time it is dropped, whatever the hook says.
    assert deferrals.sweep(config, now=NOW + 2 * HOUR) == Swept(offered=0, landed=0, expired=1)
    assert executions.fetch(config, at_id(config, "K1")).status == "active"


def test_the_limit_of_a_sweep(configure):
    """At most `limit` addresses and `limit` expired events a call: call until it answers zeros."""
    config = configure()
    for number in range(5):
        early(config, "B", key=f"K{number}", message_id=f"m-{number}")
    counts = []
    while (did := deferrals.sweep(config, now=NOW + 2 * HOUR, limit=2)) != NOTHING:
        counts.append(did.expired)
    assert counts == [2, 2, 1]


def test_a_sweep_on_a_borrowed_connection(configure):
    """It joins the caller's transaction, and goes with its rollback."""
    config = configure()
    early(config, "B")
    with config.engine.connect() as connection:
        assert deferrals.sweep(config, now=NOW + 2 * HOUR, connection=connection).expired == 1
        connection.rollback()
    assert len(deferrals.pending(config)) == 1


def test_a_sweep_lands_what_sends(configure):
    """What lands in a sweep sends like anything else, and queued answers are delivered before it commits."""
    config = configure()
    put(config, "A")
    answer = to_execution("K1", "answer", document="a")
    early(config, "B", key="other", effects=[to_execution("K2", effects=[answer])])
    with config.engine.begin() as connection:
        connection.execute(update(config.schema.deferred).values(key="K1"))
    assert deferrals.sweep(config, now=NOW).landed == 1
    assert seen(config) == ["A", "B", "answer"]


# --- other executors ------------------------------------------------------------------------------------


def test_a_hosts_own_executor(database, make_config):
    """It knows nothing of kept events, and what it wrote for one that was not taken leaves no trace."""
    OwnTables.create_tables(database.engine())
    config = make_config(database, charts=registry(a=told("a")), executor=OwnTables())
    early(config, "B", after="A")
    put(config, "first")
    with written(config) as rows:
        assert put(config, "C", after="B").recorded == "deferred"
    assert rows.summary() == "+claims +ledger"
    put(config, "A")
    (row,) = everything(config).executions
    assert deferrals.pending(config) == []
    assert row["revision"] == 4
    assert outcomes(config)[-3:] == ["delivered"] * 3
    one = Defer(HOUR, limit=1)
    assert put(config, "X", after="Z", rule=one).recorded == "deferred"
    assert put(config, "Y", after="Z", rule=one).recorded == "dropped: deferral_full"
    put(config, "end", end=True)
    assert deferrals.pending(config) == []


def test_a_claim_outlives_its_kept_event(configure):
    """`within` is at most the dedupe horizon, so what is kept is never kept twice."""
    config = configure()
    put(config, "first")
    put(config, "B", after="A")
    assert put(config, "B", after="A", now=NOW + HOUR).recorded == "duplicate"
    assert len(stored(config, "deferred")) == 1
