"""Sends to routes: what travels where, what is refused, and what a route may and may not do."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from sqlalchemy import column, insert, select, table, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from statifier_router import (
    Binding,
    Config,
    ConfigError,
    Delivery,
    Event,
    Message,
    OnCompleteFailed,
    OutboxRoute,
    Plan,
    ReentrantRoute,
    ReentrantStep,
    Route,
    RouteRefused,
    Send,
    SQLExecutor,
    Step,
    StepFailed,
    create_engine,
    deliver,
    deliver_event,
    executions,
    ledger,
    route,
    timers,
)
from tests.support.charts import NOW, Calling, delivery, envelope, message, obedient, registry, scans
from tests.support.executors import OwnTables
from tests.support.proxy import Proxy
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

PLAN = Plan("jobs", "a")
SECOND = timedelta(seconds=1)


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


def step(config, *effects, key="K1", name="go", message_id="e-1", now=NOW, scope="acme", **data):
    """One delivery to the execution `key` of document `a`, whose step has these effects."""
    sent = envelope(name, message_id, now=now, scope=scope, data={"effects": list(effects), **data})
    return deliver_event(config, PLAN, key, sent)


# --- where a send goes --------------------------------------------------------------------------------


def test_a_send_reaches_its_route(configure):
    """A send with a target is handed, in the step's transaction, to the route of that name: the event
    with its data, send id and origin, the key, and who sends, when, and with which context.
    """
    bank = Noting()
    config = configure(routes={"bank": bank})
    sent = envelope("go", "e-1", data={"effects": [to("bank", "paid", {"sum": 7}, send_id="s-1")]})
    binding = scans(document="a", data=("effects",))
    given = Delivery("m-1", "acme", NOW, sent.event.data, context={"trace": "t-1"})
    outcome = deliver(config, binding, "K1", given)
    ((event, key, context),) = bank.handed
    assert event == Event("paid", {"sum": 7}, origin=outcome.execution_id, send_id="s-1")
    assert (context.execution_id, context.scope, context.document, context.key, context.now) == (
        outcome.execution_id,
        "acme",
        "a",
        "K1",
        NOW,
    )
    assert (context.send_id, context.route, context.context) == ("s-1", "bank", {"trace": "t-1"})
    assert key.startswith(f"{outcome.execution_id}:1:0:0:")


def test_effects_are_handed_on_in_order(configure):
    """In the order of the effect list, whatever their targets."""
    bank, notices = Noting(), Noting()
    order = []
    bank.act = notices.act = lambda event, key, context: order.append(event.name)
    config = configure(routes={"bank": bank, "notices": notices})
    step(config, to("bank", "one"), to("notices", "two"), to("bank", "three"))
    assert order == ["one", "two", "three"]


def test_a_plain_callable_is_a_route(configure):
    """Whatever takes an event, a key and a context."""
    seen = []
    config = configure(routes={"bank": lambda event, key, context: seen.append(event.name)})
    step(config, to("bank"))
    assert seen == ["notice"]
    assert isinstance(OutboxRoute("q"), Route)


def test_the_send_type(configure):
    """`Config.send_type` is a type like none; SCXML's own name for no type too; any other is nobody's:
    `error.execution`, and no ledger row for a target that was never looked for.
    """
    bank = Noting()
    config = configure(routes={"bank": bank}, send_type="http")
    scxml = "http://www.w3.org/TR/scxml/#SCXMLEventProcessor"
    outcome = step(
        config,
        to("bank", "plain"),
        to("bank", "typed", type="http"),
        to("bank", "scxml", type=scxml),
        to("bank", "strange", type="smtp", send_id="s-9"),
    )
    assert bank.names == ["plain", "typed", "scxml"]
    ((error, event, reason, send_id),) = position_of(config, outcome.execution_id)["heard"]
    assert (error, event, send_id) == ("error.execution", "strange", "s-9")
    assert "smtp" in reason
    assert outcomes(config) == ["created_and_delivered"]


def test_an_unknown_target(configure):
    """It is `error.communication` to the chart, with the send's id, and one ledger row `send_refused`
    (`route`) under the id `execution`; the step stands, and what else it sent is handed off.
    """
    bank = Noting()
    config = configure(routes={"bank": bank})
    outcome = step(config, to("nowhere", "lost", send_id="s-1"), to("bank", "found"))
    assert position_of(config, outcome.execution_id)["heard"] == [
        ["error.communication", "lost", "no route is named 'nowhere'", "s-1"]
    ]
    assert bank.names == ["found"]
    refused, done = ledger.rows(config)
    assert (refused.outcome, refused.reason, refused.binding_id) == ("send_refused", "route", "execution")
    assert (refused.execution_id, refused.scope, refused.inserted_at) == (outcome.execution_id, "acme", NOW)
    assert refused.message_id.startswith(outcome.execution_id)
    assert done.outcome == "created_and_delivered"


def test_a_delayed_send_to_nobody(configure):
    """A target that nobody registered is refused at once, before any timer."""
    config = configure()
    outcome = step(config, later(60, target="nowhere"))
    assert stored(config, "timers") == []
    assert outcomes(config) == ["send_refused (route)", "created_and_delivered"]
    assert len(position_of(config, outcome.execution_id)["heard"]) == 1


def test_a_send_to_itself_without_a_delay(configure):
    """That is the interpreter's own business: one that comes out of a chart all the same is told."""
    config = configure()
    outcome = step(config, to(None, "now"))
    ((error, event, _, _),) = position_of(config, outcome.execution_id)["heard"]
    assert (error, event) == ("error.execution", "now")


# --- refusals -----------------------------------------------------------------------------------------


def refusing(event, key, context):
    """A route that hands nothing off."""
    raise RouteRefused(f"no {event.name} today")


def test_a_refusal_re_enters_in_the_same_step(configure):
    """The chart hears it at once, in the same transaction, and the input row of that says `reentry`."""
    config = configure(routes={"bank": refusing})
    outcome = step(config, to("bank", "paid", send_id="s-1"))
    assert position_of(config, outcome.execution_id)["heard"] == [
        ["error.communication", "paid", "no paid today", "s-1"]
    ]
    log = executions.inputs(config, outcome.execution_id)
    assert [row.door for row in log] == ["create", "deliver_event", "reentry"]
    assert executions.fetch(config, outcome.execution_id).revision == 1
    assert outcomes(config) == ["created_and_delivered"]


def test_one_wave(configure):
    """Trap 10. Every send is refused and the chart answers each error with another send: it ends after
    one wave, whose refusals stand on the row and are not heard.
    """
    bank = Noting(refusing)
    config = configure(routes={"bank": bank})
    outcome = step(config, to("bank", "one"), to("bank", "two"), on_error=[to("bank", "again")])
    assert bank.names == ["one", "two", "again", "again"]
    assert len({key for _, key, _ in bank.handed}) == 4
    log = executions.inputs(config, outcome.execution_id)
    assert [(row.door, row.errors) for row in log[2:]] == [
        ("reentry", ("not handed off: no again today",)),
        ("reentry", ("not handed off: no again today",)),
    ]
    assert len(position_of(config, outcome.execution_id)["heard"]) == 2


def test_refusals_on_create(database, make_config):
    """What a chart sends when it is created and what it hears of it is part of the creation."""
    config = make_config(
        database,
        charts=registry(a=told("a", on_create=[to("nowhere", "born")])),
    )
    outcome = step(config)
    assert position_of(config, outcome.execution_id)["heard"][0][1] == "born"
    assert [row.door for row in executions.inputs(config, outcome.execution_id)] == [
        "create",
        "reentry",
        "deliver_event",
    ]


def test_a_refused_send_of_the_last_step(configure):
    """An execution that ended hears nothing more: its input row keeps what was not handed off."""
    config = configure(routes={"bank": refusing})
    outcome = step(config, to("bank", "bye"), end=True)
    assert executions.fetch(config, outcome.execution_id).status == "completed"
    assert executions.inputs(config, outcome.execution_id)[-1].errors == ("not handed off: no bye today",)


def test_a_chart_that_fails_on_the_news(database, make_config):
    """A chart that raises on `error.communication` fails the delivery: nothing of it remains."""
    chart = Calling("frail")
    config = make_config(database, charts=registry(a=chart))

    def hook(position, event, now):
        if event.name.startswith("error."):
            raise ValueError("cannot bear it")
        return Step(position, active=["open"], effects=[Send("x", target="nowhere")])

    with chart.calling(hook), pytest.raises(StepFailed, match="cannot bear it"):
        step(config)
    assert everything(config).empty


def test_a_ledger_row_that_fails_harms_no_step(postgresql, make_config):
    """The row of a refused send is written under a savepoint of its own: the step stands without it."""
    config = make_config(postgresql, charts=registry(a=told("a")))
    with config.engine.begin() as connection:
        connection.execute(
            text(
                "ALTER TABLE statifier_router_ledger ADD CONSTRAINT no_refusals"
                " CHECK (outcome <> 'send_refused')"
            )
        )
    outcome = step(config, to("nowhere"))
    assert outcomes(config) == ["created_and_delivered"]
    assert len(position_of(config, outcome.execution_id)["heard"]) == 1


# --- keys ---------------------------------------------------------------------------------------------


def test_keys_of_sends(configure):
    """Trap 4. Two sends of one step under one author-written id have two keys; the same content in the
    next step a third and a fourth.
    """
    bank = Noting()
    config = configure(routes={"bank": bank})
    twice = [to("bank", "paid", {"n": 1}, send_id="s"), to("bank", "paid", {"n": 1}, send_id="s")]
    step(config, *twice)
    step(config, *twice, message_id="e-2")
    assert len({key for _, key, _ in bank.handed}) == 4


def test_a_step_that_is_driven_again(configure):
    """Trap 3. A step re-driven after a rollback has the same keys, and one outbox row, one timer row; a
    different event after a rollback has other keys.
    """
    failures = [RuntimeError("the power is out")]
    bank = Noting(lambda *_: failures and _raise(failures.pop()))
    config = configure(
        routes={"bank": bank, "box": OutboxRoute("box")}, mint_execution_id=lambda scope, doc, key: "run-1"
    )
    effects = [to("box", "kept"), later(60), to("bank", "paid")]
    with pytest.raises(RuntimeError, match="power"):
        step(config, *effects)
    assert stored(config, "outbox") == stored(config, "timers") == []
    step(config, *effects)
    (_, first, _), (_, second, _) = bank.handed
    assert first == second
    assert len(stored(config, "outbox")) == len(stored(config, "timers")) == 1
    failures.append(RuntimeError("the power is out"))
    with pytest.raises(RuntimeError, match="power"):
        step(config, to("bank", "paid", {"n": 2}), message_id="e-2")
    failed = bank.handed[-1][1]
    step(config, to("bank", "paid", {"n": 2}), message_id="e-3")
    assert bank.handed[-1][1] != failed


def _raise(error):
    raise error


def test_the_row_of_a_key_is_inserted_once(configure):
    """The outbox is unique on the key: a route that is handed one key twice leaves one row."""
    box = OutboxRoute("box")

    def twice(event, key, context):
        box.hand_off(event, key, context)
        box.hand_off(event, key, context)

    config = configure(routes={"bank": twice})
    step(config, to("bank"))
    assert handed_off(config) == [("box", "notice", None)]


# --- the outbox ---------------------------------------------------------------------------------------


def test_the_outbox(configure):
    """One row a send: queue, key, sender, scope, event, context, the step's time; with the step."""
    config = configure(routes={"notices": OutboxRoute("mail")})
    binding = scans(document="a", data=("effects",))
    data = {"effects": [to("notices", "hello", {"n": 1}, send_id="s-1")]}
    outcome = deliver(config, binding, "K1", Delivery("m-1", "acme", NOW, data, context={"trace": "t"}))
    (row,) = stored(config, "outbox")
    assert row.pop("key").startswith(f"{outcome.execution_id}:1:0:0:")
    assert (row.pop("xid") > 0) == (config.engine.dialect.name == "postgresql")
    assert row == {
        "id": 1,
        "queue": "mail",
        "execution_id": outcome.execution_id,
        "scope": "acme",
        "event": {
            "name": "hello",
            "data": {"n": 1},
            "origin": outcome.execution_id,
            "send_id": "s-1",
        },
        "context": {"trace": "t"},
        "created_at": NOW,
    }


@pytest.mark.parametrize(("pipeline", "waits"), [(False, 4), (True, 2)])
def test_rows_that_are_handed_off_travel_with_the_step(postgresql, pipeline, waits):
    """A delivery that fills the outbox, arms timers and finishes waits no more often than one that does
    nothing of it; the rows are numbered in the order in which they were sent.
    """
    sends = [to("box", "one"), later(60, send_id="s"), to("box", "two"), later(90), to("box", "three")]
    with Proxy(postgresql.url) as proxy:
        engine = create_engine(proxy.url, pool_size=1, max_overflow=0)
        config = Config(
            engine,
            charts=registry(a=told("a")),
            routes={"box": OutboxRoute("box"), "done": OutboxRoute("box")},
            on_complete="done",
            pipeline=pipeline,
        )
        binding = scans(document="a", data=("effects", "end"))
        # The driver prepares a statement once it has met it five times, at the cost of one turn.
        for n in range(8):
            deliver(config, binding, f"K{n}", Delivery(f"c-{n}", "acme", NOW, {}))
            data = {"effects": sends, "end": True}
            proxy.reset()
            outcome = deliver(config, binding, f"K{n}", Delivery(f"m-{n}", "acme", NOW, data))
            turns = proxy.turns
        assert outcome.recorded == "delivered"
        assert turns == waits
        assert [name for _, name, _ in handed_off(config)[-4:]] == ["one", "two", "three", "done.execution"]
        assert len(timers.pending(config, execution_id=outcome.execution_id)) == 2
        engine.dispose()


def test_the_outbox_goes_with_its_step(configure):
    """A delivery that fails after it handed off leaves no row behind."""
    config = configure(routes={"box": OutboxRoute("box"), "bank": lambda *_: _raise(RuntimeError("no"))})
    with pytest.raises(RuntimeError):
        step(config, to("box"), to("bank"))
    assert stored(config, "outbox") == []
    assert everything(config).empty


# --- scopes -------------------------------------------------------------------------------------------


def test_overrides(configure):
    """A scope may have another instance of a route: that of the stepping execution's own scope."""
    bank, other = Noting(), Noting()
    config = configure(routes={"bank": bank}, route_overrides={"other": {"bank": other}})
    step(config, to("bank", "one"))
    step(config, to("bank", "two"), scope="other", message_id="e-2")
    assert (bank.names, other.names) == (["one"], ["two"])


def test_overrides_however_deep(configure):
    """Trap 13. In a delivery within a delivery the override is still that of whoever steps: a route of
    scope `acme` delivers into scope `other`, and each sends by its own scope's instance.
    """
    mine, theirs = Noting(), Noting()

    def across(event, key, context):
        inner = envelope("inner", f"{key}", scope="other", data={"effects": [to("bank", "theirs")]})
        deliver_event(config, Plan("across", "b"), "K9", inner)

    config = configure(routes={"bank": mine, "across": across}, route_overrides={"other": {"bank": theirs}})
    step(config, to("bank", "before"), to("across"), to("bank", "after"))
    assert (mine.names, theirs.names) == (["before", "after"], ["theirs"])


def test_a_timer_goes_by_its_executions_scope(configure):
    """A delayed send to a route takes the instance of its execution's scope when it fires."""
    bank, other = Noting(), Noting()
    config = configure(routes={"bank": bank}, route_overrides={"other": {"bank": other}})
    step(config, later(5, "late", target="bank"), scope="other")
    assert timers.fire_due(config, now=NOW + 5 * SECOND).fired == 1
    assert (bank.names, other.names) == ([], ["late"])


# --- what a route may do ------------------------------------------------------------------------------


@pytest.fixture
def own_table(database):
    """A table of the host's, with one row whose key is taken."""
    with database.bare_engine().begin() as connection:
        connection.execute(text("CREATE TABLE host_notes (id integer PRIMARY KEY)"))
        connection.execute(text("INSERT INTO host_notes VALUES (1)"))
    return table("host_notes", column("id"))


def notes(config, own_table):
    with config.engine.connect() as connection:
        return sorted(connection.execute(select(own_table.c.id)).scalars())


def test_what_a_route_writes_exists_with_the_step(configure, own_table):
    """On the delivery's own connection, it commits and rolls back with it."""

    def note(event, key, context):
        context.connection.execute(insert(own_table).values(id=event.data))

    config = configure(routes={"note": note, "bank": lambda *_: _raise(RuntimeError("no"))})
    step(config, to("note", data=2))
    with pytest.raises(RuntimeError):
        step(config, to("note", data=3), to("bank"), message_id="e-2")
    assert notes(config, own_table) == [1, 2]


def test_what_a_refusing_route_wrote_is_undone(configure, own_table):
    """A refusal means "not handed off": nothing that the route wrote before it remains."""

    def note(event, key, context):
        context.connection.execute(insert(own_table).values(id=2))
        raise RouteRefused("changed my mind")

    config = configure(routes={"note": note})
    outcome = step(config, to("note"))
    assert outcome.recorded == "created_and_delivered"
    assert notes(config, own_table) == [1]


def test_a_route_that_raises_a_database_error(database, configure, own_table):
    """Trap 8. The delivery fails whole; the host's own transaction stays usable, with its rows."""

    def note(event, key, context):
        context.connection.execute(insert(own_table).values(id=1))

    config = configure(routes={"note": note})
    with config.engine.begin() as connection:
        connection.execute(insert(own_table).values(id=5))
        with pytest.raises(IntegrityError):
            deliver_event(config, PLAN, "K1", envelope(data={"effects": [to("note")]}), connection=connection)
        connection.execute(insert(own_table).values(id=6))
    assert everything(config).empty
    assert notes(config, own_table) == [1, 5, 6]


def test_a_route_that_names_a_table_that_is_not_there(configure):
    """Its error is its own: nothing says that the library's schema is at fault."""

    def note(event, key, context):
        context.connection.execute(text("INSERT INTO no_such_table VALUES (1)"))

    config = configure(routes={"note": note})
    with pytest.raises(DBAPIError, match="no_such_table"):
        step(config, to("note"))


def test_a_route_that_swallows_its_database_error(configure, own_table):
    """Trap 9. The delivery still commits, with what else it wrote."""

    def note(event, key, context):
        with contextlib.suppress(IntegrityError):
            context.connection.execute(insert(own_table).values(id=1))

    config = configure(routes={"note": note, "box": OutboxRoute("box")})
    outcome = step(config, to("box", "one"), to("note"), to("box", "two"))
    assert [name for _, name, _ in handed_off(config)] == ["one", "two"]
    assert position_of(config, outcome.execution_id)["seen"] == ["go"]


def test_the_sender_as_a_route_sees_it(configure):
    """A route sees its sender as it was before the step, and when it is created not at all."""
    seen = []

    def look(event, key, context):
        seen.append(executions.fetch(config, context.execution_id, connection=context.connection))

    charts = registry(a=told("a", on_create=[to("look")]))
    config = configure(routes={"look": look}, charts=charts)
    step(config)
    step(config, to("look"), message_id="e-2")
    assert seen[0] is None
    assert (seen[1].revision, seen[1].position["seen"]) == (1, ["go"])


def test_any_other_exception_takes_the_delivery_with_it(configure):
    """It comes out as it was raised, and nothing of the delivery remains."""
    config = configure(routes={"bank": lambda *_: _raise(LookupError("who?"))})
    with pytest.raises(LookupError, match=r"who\?"):
        step(config, to("bank"))
    assert everything(config).empty


# --- doors inside a route -----------------------------------------------------------------------------


def _routing(config, swallow):
    def call(event, key, context):
        with pytest.raises(ReentrantRoute) as raised:
            route(config[0], message(do="moved"))
        assert raised.value.execution_id == context.execution_id
        if not swallow:
            raise raised.value

    return call


@pytest.mark.parametrize("swallow", [False, True])
def test_a_route_that_calls_route(configure, swallow):
    """20-delivery trap 20. Let escape, the refusal fails the delivery whole; caught, the step commits.
    Nothing nested was stepped either way.
    """
    config = []
    config.append(
        configure(routes={"bank": _routing(config, swallow)}, bindings=[scans(document="b", data=())])
    )
    if swallow:
        step(config[0], to("bank"))
        assert len(everything(config[0]).executions) == 1
    else:
        with pytest.raises(ReentrantRoute):
            step(config[0], to("bank"))
        assert everything(config[0]).empty


def test_the_mark_is_restored(configure):
    """After a route has returned, refused or raised, doors are open again."""

    def act(event, key, context):
        if event.name == "refused":
            raise RouteRefused("no")
        if event.name == "raised":
            raise RuntimeError("no")

    config = configure(routes={"bank": act}, bindings=[scans(document="b", data=())])
    for number, name in enumerate(("returned", "refused")):
        step(config, to("bank", name), message_id=f"e-{number}")
    with pytest.raises(RuntimeError):
        step(config, to("bank", "raised"), message_id="e-9")
    assert [each.recorded for each in route(config, message())] == ["created_and_delivered"]


def test_deliver_event_inside_a_route(configure):
    """It is not refused: a route may hand an event on; but its sender's own step is open."""

    def pass_on(event, key, context):
        deliver_event(config, Plan("on", "b"), event.data, envelope("on", key))

    config = configure(routes={"on": pass_on})
    step(config, to("on", data="K2"))
    assert at(config, "K2")["seen"] == ["on"]

    def back(event, key, context):
        deliver_event(config, Plan("on", "a"), context.key, envelope("on", key))

    config = configure(routes={"on": back})
    with pytest.raises(ReentrantStep):
        step(config, to("on"), message_id="e-2")


def test_the_target_execution_is_not_marked(configure):
    """A send to `execution` is no route: what it steps may call doors from its own code."""
    chart = Calling("b")
    config = configure(
        charts=registry(a=told("a"), b=chart, c=told("c")), bindings=[scans(document="c", data=())]
    )

    def hook(position, event, now):
        assert route(config, message("m-9"))[0].recorded == "created_and_delivered"

    with chart.calling(hook):
        step(config, to_execution("K2"))
    assert at(config, "P7", "c")["seen"] == ["scanned"]


# --- a host's own executor ----------------------------------------------------------------------------


def test_a_hosts_own_executor_hands_its_effects_on(database, make_config):
    """Routes, outbox and timers serve any executor that hands its effects on."""
    OwnTables.create_tables(database.engine())
    bank = Noting()
    config = make_config(
        database,
        charts=registry(a=told("a")),
        executor=OwnTables(),
        routes={"bank": bank, "box": OutboxRoute("box")},
    )
    step(config, to("bank", "paid"), to("box", "kept"), later(5))
    assert bank.names == ["paid"]
    assert [name for _, name, _ in handed_off(config)] == ["kept"]
    assert timers.fire_due(config, now=NOW + 5 * SECOND).fired == 1
    (row,) = everything(config).executions
    assert row["revision"] == 2


def test_a_subclass_writes_what_the_default_does(database, make_config):
    """The rows of a step with sends are the same over both plans."""

    def rows(executor):
        config = make_config(
            database,
            charts=registry(a=told("a"), b=told("b")),
            executor=executor,
            routes={"box": OutboxRoute("box")},
            mint_execution_id=lambda scope, document, key: f"run-{document}-{key}",
        )
        step(config, to("box"), later(5), to_execution("K2"), to("nowhere"))
        step(config, {"cancel": "s"}, to_execution("K2"), message_id="e-2")
        found = [
            everything(config).counts(),
            [{**row, "xid": 0} for row in stored(config, "outbox")],
            stored(config, "timers"),
            outcomes(config),
            at(config, "K1", "a"),
        ]
        config.engine.dispose()
        database.clear()
        return found

    assert rows(SQLExecutor()) == rows(WritingPlainly())


# --- bindings and doors -------------------------------------------------------------------------------


def test_a_routed_message_sends(configure):
    """What `route` delivers sends like anything else; a duplicate sends nothing again."""
    binding = Binding(
        id="orders",
        source="shop",
        match={},
        key="order",
        document="a",
        event="ordered",
        data=("effects",),
    )
    config = configure(routes={"box": OutboxRoute("box")}, bindings=[binding])
    order = Message("shop", "m-1", "acme", {"order": "K1", "effects": [to("box", "ordered")]})
    for expected in ("created_and_delivered", "duplicate"):
        (outcome,) = route(config, order)
        assert outcome.recorded == expected
    assert handed_off(config) == [("box", "ordered", None)]


def test_nothing_is_handed_off_for_an_event_that_is_dropped(configure):
    """A finished execution sends nothing; an event that it refuses has no effects."""
    bank = Noting()
    config = configure(routes={"bank": bank})
    step(config, end=True)
    with written(config) as rows:
        assert step(config, to("bank"), message_id="e-2").recorded == "dropped: finished"
    assert rows.summary() == "+claims +ledger ~addresses"
    step(config, to("bank"), key="K2", after="never", message_id="e-3")
    assert bank.names == []


def test_the_completion_route_refuses(configure):
    """`OnCompleteFailed`: the finish rolls back, and the error names the route and why."""
    config = configure(routes={"done": refusing}, on_complete="done")
    step(config)
    with written(config) as rows, pytest.raises(OnCompleteFailed) as raised:
        step(config, end=True, message_id="e-2")
    assert (raised.value.route, raised.value.reason) == ("done", "no done.execution today")
    assert raised.value.fault == "execution"
    assert rows.nothing


@pytest.mark.parametrize("overridden", [False, True])
def test_a_coroutine_function_is_no_route(database, make_config, overridden):
    """Nobody would await it: `Config` refuses it, naming the route, as a method and in an override too."""

    class Later:
        async def hand_off(self, event, key, context):
            raise AssertionError

    async def awaited(event, key, context):
        raise AssertionError

    for given in (Later(), awaited):
        routes = {"notices": OutboxRoute("notices") if overridden else given}
        overrides = {"acme": {"notices": given}} if overridden else {}
        with pytest.raises(ConfigError, match=r"notices.*coroutine"):
            make_config(database, routes=routes, route_overrides=overrides)


@pytest.mark.parametrize("answer", ["awaitable", "refusal"])
def test_an_answer_that_looks_like_none(database, make_config, answer):
    """A refusal that is returned, or a coroutine, is no hand-off: the delivery fails whole, saying so."""

    async def awaited():
        raise AssertionError

    def route(event, key, context):
        return awaited() if answer == "awaitable" else RouteRefused("no")

    config = make_config(database, charts=registry(parcel=obedient()), routes={"elsewhere": route})
    with written(config) as rows, pytest.raises(ConfigError, match="elsewhere"):
        deliver(config, scans(), "P7", delivery(data={"do": "sent"}))
    assert rows.nothing
