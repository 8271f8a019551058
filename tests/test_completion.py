"""The completion hook: once, with the finish, whoever drove the execution there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from statifier_router import (
    Binding,
    Defer,
    Event,
    OnCompleteFailed,
    OutboxRoute,
    Plan,
    RouteRefused,
    Step,
    deliver,
    deliver_event,
    emit,
    executions,
    timers,
)
from statifier_router.interpreters import function
from tests.support.charts import NOW, delivery, envelope, registry, scans
from tests.support.executors import OwnTables
from tests.support.racing import WritingPlainly
from tests.support.rows import everything, written
from tests.support.told import (
    Noting,
    handed_off,
    later,
    outcomes,
    position_of,
    stored,
    to,
    to_execution,
    told,
)

PLAN = Plan("jobs", "a")


@pytest.fixture(params=["merged", "plain"])
def plan(request):
    """Both plans of statements; on SQLite they are the same."""
    return request.param


@pytest.fixture
def configure(database, make_config, plan):
    """`configure(**kw)`: two documents that their events tell what to do, and a hook that notes."""

    def make(**kw):
        charts = kw.pop("charts", None) or registry(a=told("a"), b=told("b"))
        done = kw.pop("done", None) or Noting()
        if plan == "plain":
            kw.setdefault("executor", WritingPlainly())
        config = make_config(
            database, charts=charts, routes={"done": done, **kw.pop("routes", {})}, on_complete="done", **kw
        )
        return config, done

    return make


def step(config, *effects, key="K1", name="go", message_id="e-1", now=NOW, scope="acme", **data):
    """One delivery to the execution `key` of document `a`, whose step has these effects."""
    sent = envelope(name, message_id, now=now, scope=scope, data={"effects": list(effects), **data})
    return deliver_event(config, PLAN, key, sent)


# --- who drove it (trap 12) ---------------------------------------------------------------------------


def test_finished_on_start(configure):
    """20-delivery trap 6. One that finishes when it is created: once, no step, and not again when the
    next message finds it finished.
    """
    config, done = configure(charts=registry(a=told("a", ends_on_create=True)))
    outcome = step(config)
    assert outcome.recorded == "dropped: finished"
    ((event, key, context),) = done.handed
    assert event == Event("done.execution", origin=outcome.execution_id)
    assert key.startswith(f"{outcome.execution_id}:0:complete:0:")
    assert (context.execution_id, context.document, context.key) == (outcome.execution_id, "a", "K1")
    assert step(config, message_id="e-2").recorded == "dropped: finished"
    assert len(done.handed) == 1


def test_finished_on_a_step(configure):
    """By a binding's message: with donedata verbatim, origin the execution, key of the wave `complete`."""
    config, done = configure()
    binding = scans(document="a", data=("end", "donedata"))
    donedata = {"sum": 1.0, "none": None, "list": [1, "é"]}
    outcome = deliver(config, binding, "K1", delivery(data={"end": True, "donedata": donedata}))
    ((event, key, context),) = done.handed
    assert event == Event("done.execution", donedata, origin=outcome.execution_id)
    assert key.startswith(f"{outcome.execution_id}:1:complete:0:")
    assert (context.route, context.now, context.send_id) == ("done", NOW, None)
    deliver(config, binding, "K1", delivery("m-2"))
    assert len(done.handed) == 1


def test_finished_on_a_timer(configure):
    """By its own delayed send."""
    config, done = configure()
    step(config, later(5, data={"end": True, "donedata": "late"}))
    timers.fire_due(config, now=NOW + timedelta(seconds=5))
    assert [event.data for event, _, _ in done.handed] == ["late"]
    assert done.handed[0][2].now == NOW + timedelta(seconds=5)


def test_finished_on_anothers_send(configure):
    """By a neighbour, and by a neighbour's queued answer."""
    config, done = configure()
    step(config, to_execution("K2", end=True, donedata=1))
    answer = to_execution("K1", "answer", document="a", end=True, donedata=2)
    step(config, to_execution("K3", effects=[answer]), message_id="e-2")
    assert [event.data for event, _, _ in done.handed] == [1, 2]


def test_finished_on_a_deferred_event(configure):
    """By an event that was kept."""
    config, done = configure()
    rule = Defer(timedelta(hours=1))
    early = scans(id="early", document="a", data=("after", "end"), unmatched=rule)
    deliver(config, early, "K1", delivery(data={"after": "go", "end": True}))
    assert done.handed == []
    step(config, message_id="e-2")
    assert done.names == ["done.execution"]


def test_finished_on_a_refusal(configure):
    """By what its chart makes of a refused send, in the same step."""

    def chart():
        def go(position, event, now):
            ends = event.name == "error.communication"
            if not ends:
                emit("x", target="nowhere")
            return Step(position, active=["s"], status="completed" if ends else "active", donedata="gave up")

        return function.chart("quitter", create=lambda data, now: Step({}, active=["s"]), step=go)

    config, done = configure(charts=registry(a=chart()))
    outcome = step(config)
    assert executions.fetch(config, outcome.execution_id).status == "completed"
    assert [event.data for event, _, _ in done.handed] == ["gave up"]


def test_a_failed_execution_is_told_too(configure):
    """One that ends in failure ends all the same: `Execution.status` says how."""

    def chart():
        def go(position, event, now):
            return Step(position, active=["wreck"], status="failed", errors=["it broke"])

        return function.chart("wreck", create=lambda data, now: Step({}, active=["s"]), step=go)

    config, done = configure(charts=registry(a=chart()))
    step(config)
    assert done.names == ["done.execution"]


def test_an_operators_end_is_not(configure):
    """No chart is asked, and no hook runs, where an operator ends an execution."""
    config, done = configure()
    outcome = step(config)
    executions.cancel(config, outcome.execution_id)
    assert done.handed == []


# --- donedata -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("donedata", [None, 0, "", [], {"a": None}, "text", [1, {"b": 2}]])
def test_donedata_is_verbatim(configure, donedata):
    """Whatever JSON it is, a null included."""
    config, done = configure()
    step(config, end=True, donedata=donedata)
    ((event, _, _),) = done.handed
    assert event.data == donedata
    assert type(event.data) is type(donedata)


def test_no_donedata(configure):
    """Where there is none the event's data is what an event has when it has none."""
    config, done = configure()
    step(config, end=True)
    ((event, _, _),) = done.handed
    assert event == Event("done.execution", origin=event.origin)


# --- in its transaction -------------------------------------------------------------------------------


def test_it_goes_with_the_finish(configure):
    """To an outbox: one row, in the delivery's transaction, after what the last step sent."""
    config, _ = configure(routes={"box": OutboxRoute("box")}, done=OutboxRoute("box"))
    with config.engine.connect() as connection:
        sent = envelope("go", data={"effects": [to("box", "bye")], "end": True, "donedata": 7})
        deliver_event(config, PLAN, "K1", sent, connection=connection)
        assert stored(config, "outbox") == []
        connection.rollback()
    assert stored(config, "outbox") == []
    step(config, to("box", "bye"), end=True, donedata=7)
    assert handed_off(config) == [("box", "bye", None), ("box", "done.execution", 7)]


@pytest.mark.parametrize("how", ["create", "step"])
def test_a_refusal_undoes_the_finish(configure, how):
    """`OnCompleteFailed`, a fault of the execution, with route and reason; nothing of the delivery remains,
    and once the route is mended the same message finishes it.
    """
    refusals = [RouteRefused("not now")]

    def act(event, key, context):
        if refusals:
            raise refusals.pop()

    done = Noting(act)
    charts = registry(a=told("a", ends_on_create=how == "create"))
    config, _ = configure(charts=charts, done=done)
    with written(config) as rows, pytest.raises(OnCompleteFailed) as raised:
        step(config, end=True)
    assert rows.nothing
    error = raised.value
    assert (error.route, error.reason, error.fault, error.binding_id) == (
        "done",
        "not now",
        "execution",
        "jobs",
    )
    assert not error.retryable
    step(config, end=True)
    assert len(done.handed) == 2


def test_a_refusal_of_a_targets_finish(configure):
    """The finish of a neighbour is the neighbour's delivery: undone, and its sender hears the reason."""

    def act(event, key, context):
        if context.document == "b":
            raise RouteRefused("not now")

    config, _ = configure(done=Noting(act))
    outcome = step(config, to_execution("K2", end=True))
    ((_, _, reason, _),) = position_of(config, outcome.execution_id)["heard"]
    assert "not now" in reason
    assert len(everything(config).executions) == 1
    assert outcomes(config) == ["created_and_delivered"]


def test_a_hook_that_breaks_takes_the_delivery_with_it(configure):
    """Any other exception comes out as it was raised."""

    def act(event, key, context):
        raise LookupError("who?")

    config, _ = configure(done=Noting(act))
    with pytest.raises(LookupError):
        step(config, end=True)
    assert everything(config).empty


def test_the_override_of_a_scope(configure):
    """The hook is that instance of the route which the execution's scope has."""
    theirs = Noting()
    config, done = configure(route_overrides={"other": {"done": theirs}})
    step(config, end=True)
    step(config, end=True, scope="other", message_id="e-2")
    assert (len(done.handed), len(theirs.handed)) == (1, 1)


def test_the_hook_is_a_route_like_any_other(configure):
    """A chart may send to it too, and it runs marked."""
    config, done = configure()
    step(config, to("done", "by hand"), end=True)
    assert done.names == ["by hand", "done.execution"]


def test_no_hook(database, make_config):
    """Without `on_complete` nobody is told."""
    config = make_config(database, charts=registry(a=told("a")))
    assert step(config, end=True).recorded == "created_and_delivered"


def test_a_hosts_own_executor(database, make_config):
    """Its answers finish executions like anybody's: once."""
    OwnTables.create_tables(database.engine())
    done = Noting()
    config = make_config(
        database,
        charts=registry(a=told("a")),
        executor=OwnTables(),
        routes={"done": done},
        on_complete="done",
    )
    step(config, end=True, donedata=3)
    assert step(config, message_id="e-2").recorded == "dropped: finished"
    assert [event.data for event, _, _ in done.handed] == [3]


def test_a_binding_that_always_makes_a_new_one(configure):
    """Each of them is told once."""
    config, done = configure()
    binding = Binding(
        id="each",
        source="carrier",
        match={},
        key="parcel",
        document="a",
        event="go",
        data=("end",),
        create="always_new",
    )
    for number in range(3):
        deliver(config, binding, "K1", delivery(f"m-{number}", data={"end": True}))
    assert len({event.origin for event, _, _ in done.handed}) == 3
