"""`RecordRoute`: what executions say becomes versions of records, with their steps, under every plan."""

from __future__ import annotations

from datetime import timedelta

import pytest

from statifier_router import (
    Config,
    ConfigError,
    Delivery,
    OnCompleteFailed,
    OutboxRoute,
    Plan,
    RecordRoute,
    Route,
    create_engine,
    deliver,
    deliver_event,
    deliver_many,
    executions,
    join,
    timers,
)
from statifier_router.jsontext import decode, digest
from statifier_router.runs import Changes, bracket
from tests.support.charts import NOW, envelope, registry, scans
from tests.support.proxy import Proxy
from tests.support.racing import WritingPlainly
from tests.support.told import handed_off, later, position_of, stored, to, told

PLAN = Plan("jobs", "a")
SECOND = timedelta(seconds=1)
PLANS = {"merged": {}, "plain": {"executor": WritingPlainly()}, "pipelined": {"pipeline": True}}
PARCELS = RecordRoute("parcel", record_id="parcel")


@pytest.fixture(params=["sqlite", *PLANS])
def configure(request, make_config):
    """`configure(**kw)`: documents `a` and `b` do as their events tell; SQLite, each plan on PostgreSQL."""
    database = request.getfixturevalue("sqlite" if request.param == "sqlite" else "postgresql")

    def make(**kw):
        kw.setdefault("charts", registry(a=told("a"), b=told("b")))
        kw.setdefault("routes", {"records": PARCELS, "box": OutboxRoute("box")})
        return make_config(database, **PLANS.get(request.param, {}) | kw)

    return make


def step(config, *effects, key="K1", message_id="e-1", now=NOW, scope="acme", **data):
    """One delivery to the execution `key` of document `a`, whose step has these effects."""
    sent = envelope("go", message_id, now=now, scope=scope, data={"effects": list(effects), **data})
    return deliver_event(config, PLAN, key, sent)


def record(parcel="P1", **data):
    """A send to the route."""
    return to("records", "parcel", {"parcel": parcel, **data})


def recorded(config):
    """The rows in the order in which they were appended: entity, record, data."""
    return [(row["entity"], row["source_id"], decode(row["data"])) for row in stored(config, "changes")]


# --- rows ---------------------------------------------------------------------------------------------


def test_a_row(configure):
    """Entity, record, data, the digest of the data, the step's time; and the transaction that wrote it."""
    config = configure()
    step(config, record(state="held", sum=7.5))
    (row,) = stored(config, "changes")
    data = {"parcel": "P1", "state": "held", "sum": 7.5}
    xid = row.pop("xid")
    assert (xid > 0) == (config.engine.dialect.name == "postgresql")
    assert row == {
        "seq": row["seq"],
        "entity": "parcel",
        "source_id": "P1",
        "signal": digest({"data": data, "deleted": False}),
        "data": '{"parcel":"P1","state":"held","sum":7.5}',
        "deleted": False,
        "created_at": NOW,
    }


def test_each_send_appends(configure):
    """In the order of the sends, step by step; beside what else a step hands off."""
    config = configure()
    step(config, record(n=1), to("box", "first"), record("P2"), later(60), record(n=2), to("box", "second"))
    step(config, record(n=1), message_id="e-2")
    assert [(id, data.get("n")) for _, id, data in recorded(config)] == [
        ("P1", 1), ("P2", None), ("P1", 2), ("P1", 1),
    ]  # fmt: skip
    first, _, _, again = (row["signal"] for row in stored(config, "changes"))
    assert first == again
    assert [name for _, name, _ in handed_off(config)] == ["first", "second"]
    assert len(timers.pending(config)) == 1


def test_a_source_reads_what_the_route_wrote(configure):
    """The newest version of each record, for a run."""
    config = configure()
    step(config, record(n=1), record("P2", n=1), record(n=2))
    with bracket.reading(config) as connection:
        page = Changes("parcel").scan(connection, None, 9)
    assert [(each.source_id, each.payload) for each in page] == [
        ("P2", {"parcel": "P2", "n": 1}),
        ("P1", {"parcel": "P1", "n": 2}),
    ]


def test_any_json(configure):
    """What data may hold is kept, NUL included."""
    config = configure()
    data = {"text": 'a\x00b "ü" \U0001f4e6 \\', "list": [None, True, 1.5, {}], "empty": ""}
    step(config, record("ü, 'P1'", **data))
    assert recorded(config) == [("parcel", "ü, 'P1'", {"parcel": "ü, 'P1'", **data})]


def test_a_batch(postgresql, make_config):
    """Many deliveries at once append what one by one they would."""
    config = make_config(postgresql, charts=registry(a=told("a")), routes={"records": PARCELS})
    binding = scans(document="a", data=("effects",))
    items = [
        (binding, f"K{n % 3}", Delivery(f"m-{n}", "acme", NOW, {"effects": [record(n=n), record("P2", n=n)]}))
        for n in range(9)
    ]
    deliver_many(config, items)
    assert recorded(config) == [
        ("parcel", parcel, {"parcel": parcel, "n": n}) for n in range(9) for parcel in ("P1", "P2")
    ]
    assert len({row["xid"] for row in stored(config, "changes")}) == 1


@pytest.mark.parametrize(("pipeline", "waits"), [(False, 4), (True, 2)])
def test_it_costs_no_wait(postgresql, pipeline, waits):
    """A step that records travels as fast as one that does not."""
    with Proxy(postgresql.url) as proxy:
        engine = create_engine(proxy.url, pool_size=1, max_overflow=0)
        config = Config(engine, charts=registry(a=told("a")), routes={"records": PARCELS}, pipeline=pipeline)
        binding = scans(document="a", data=("effects",))
        # The driver prepares a statement once it has met it five times, at the cost of one turn.
        for n in range(8):
            deliver(config, binding, f"K{n}", Delivery(f"c-{n}", "acme", NOW, {}))
            proxy.reset()
            sent = Delivery(f"m-{n}", "acme", NOW, {"effects": [record(n=1), record("P2")]})
            outcome = deliver(config, binding, f"K{n}", sent)
            turns = proxy.turns
        assert outcome.recorded == "delivered"
        assert turns == waits
        assert len(recorded(config)) == 16
        engine.dispose()


# --- with the step ------------------------------------------------------------------------------------


def _raise(error):
    raise error


def test_a_step_that_fails_leaves_no_row(configure):
    """What was appended goes with it; the step that is driven again appends it once."""
    failures = [RuntimeError("the power is out")]
    config = configure(
        routes={"records": PARCELS, "bank": lambda *_: failures and _raise(failures.pop())},
        mint_execution_id=lambda scope, document, key: "run-1",
    )
    with pytest.raises(RuntimeError, match="power"):
        step(config, record(n=1), to("bank"))
    assert recorded(config) == []
    step(config, record(n=1), to("bank"))
    assert len(recorded(config)) == 1


def test_a_step_on_a_connection_that_was_lent(configure):
    """Rolled back, nothing is there; driven again, its version has the same signal, so that a second row of
    it would do no harm.
    """
    config = configure()
    with config.engine.connect() as connection:
        sent = envelope("go", "e-1", data={"effects": [record(n=1)]})
        deliver_event(config, PLAN, "K1", sent, connection=connection)
        connection.rollback()
        assert recorded(config) == []
        deliver_event(config, PLAN, "K1", sent, connection=connection)
        connection.commit()
    step(config, record(n=1), key="K2", message_id="e-2")
    first, second = (row["signal"] for row in stored(config, "changes"))
    assert first == second


def test_a_timer_records_when_it_fires(configure):
    """A delayed send to the route appends with the firing."""
    config = configure()
    step(config, to("records", "parcel", {"parcel": "P1"}, delay=60))
    assert recorded(config) == []
    assert timers.fire_due(config, now=NOW + 60 * SECOND).fired == 1
    (row,) = stored(config, "changes")
    assert row["created_at"] == NOW + 60 * SECOND


def test_the_end_of_an_execution_is_a_record(configure):
    """The completion hook may record: the donedata is the version."""
    config = configure(on_complete="records")
    step(config, end=True, donedata={"parcel": "P1", "state": "delivered"})
    assert recorded(config) == [("parcel", "P1", {"parcel": "P1", "state": "delivered"})]


def test_an_end_that_has_no_record(configure):
    """Donedata without the id: the finish is refused, and rolled back."""
    config = configure(on_complete="records")
    with pytest.raises(OnCompleteFailed, match="record_id: the event's data has no field 'parcel'"):
        step(config, end=True)
    assert stored(config, "executions") == []


# --- which record -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record_id", "data", "source_id"),
    [
        ("parcel.id", {"parcel": {"id": "P1"}}, "P1"),
        (("parcel.id",), {"parcel.id": "P1"}, "P1"),
        (join("order", "line"), {"order": "O#1", "line": 7}, "O%231#7"),
        (lambda view: view.order.upper(), {"order": "o1"}, "O1"),
        (lambda view: view["order"]["id"] + "!", {"order": {"id": "o1"}}, "o1!"),
    ],
)
def test_the_id_of_a_record(configure, record_id, data, source_id):
    """A path into the event's data, `join(...)`, or a callable over a view of it; positional too."""
    config = configure(routes={"records": RecordRoute("order", record_id)})
    step(config, to("records", "order", data))
    assert recorded(config) == [("order", source_id, data)]


@pytest.mark.parametrize(
    ("record_id", "data", "reason"),
    [
        ("parcel.id", {"parcel": "P1"}, "record_id: the event's data has no field 'parcel.id'"),
        ("parcel", None, "record_id: the event's data has no field 'parcel'"),
        ("parcel", {"parcel": 7}, "record_id must be text, not int; join(...) renders integers as text"),
        ("parcel", {"parcel": None}, "record_id must be text, not NoneType"),
        ("parcel", {"parcel": ""}, "record_id must not be empty"),
        ("parcel", {"parcel": "ü" * 257}, "record_id is 514 bytes long in UTF-8, the limit is 512"),
        ("parcel", {"parcel": "a\x00b"}, "record_id holds a NUL character"),
        (lambda view: view.parcel, {}, "record_id: the message has no field 'parcel'"),
        (lambda view: view.parcel, [1], "record_id: the event's data is no object, so it has no fields"),
        (join("parcel"), {"parcel": 1.5}, "record_id: the field 'parcel' must be text or an integer"),
        (lambda view: 7, {}, "record_id must be text, not int"),
    ],
)
def test_an_event_without_a_record(configure, record_id, data, reason):
    """It is refused, the chart hears it, and the step stands with all else that it handed off."""
    config = configure(routes={"records": RecordRoute("order", record_id), "box": OutboxRoute("box")})
    outcome = step(config, to("box", "before"), to("records", "order", data), to("box", "after"))
    (heard,) = position_of(config, outcome.execution_id)["heard"]
    assert heard[:2] == ["error.communication", "order"]
    assert heard[2].startswith(reason)
    assert recorded(config) == []
    assert [name for _, name, _ in handed_off(config)] == ["before", "after"]


def test_a_refusal_of_a_timer(configure):
    """It reaches the chart as one of a step does."""
    config = configure()
    outcome = step(config, to("records", "parcel", {}, delay=60))
    assert timers.fire_due(config, now=NOW + 60 * SECOND).fired == 1
    ((name, _, reason, _),) = position_of(config, outcome.execution_id)["heard"]
    assert (name, reason) == ("error.communication", "record_id: the event's data has no field 'parcel'")


def test_a_callable_that_breaks(configure):
    """It takes the delivery with it, as a route that raises does: nothing is lost."""
    config = configure(routes={"records": RecordRoute("order", lambda view: 1 / 0)})
    with pytest.raises(ZeroDivisionError):
        step(config, to("records", "order", {}))
    assert stored(config, "executions") == []


def test_a_coroutine_names_no_record(configure):
    """Nobody would await it."""

    async def record_id(view):
        """No plain function."""

    config = configure(routes={"records": RecordRoute("order", record_id)})
    with pytest.raises(ConfigError, match="record_id answered an awaitable"):
        step(config, to("records", "order", {}))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("", "id"), "entity must not be empty"),
        (("e" * 129, "id"), "entity is 129 bytes"),
        ((7, "id"), "entity must be text"),
        (("order", 7), "record_id must be a callable, a dotted path or join"),
        (("order", ""), "record_id holds an empty name"),
        (("order", "a..b"), "record_id holds an empty name"),
        (("order", ()), "record_id must name at least one field"),
    ],
)
def test_a_route_that_cannot_be(arguments, named):
    """What is wrong is told where the route is made, by the name of the argument."""
    with pytest.raises(ConfigError, match=named):
        RecordRoute(*arguments)


def test_it_is_a_value():
    """Equal where entity and record id are; a `Route`."""
    assert RecordRoute("a", record_id="id") == RecordRoute("a", "id") != RecordRoute("b", "id")
    assert isinstance(PARCELS, Route)
    assert repr(PARCELS) == "RecordRoute(entity='parcel', record_id='parcel')"


# --- scopes -------------------------------------------------------------------------------------------


def test_scopes_are_kept_apart_by_their_entities(configure):
    """A scope may have another entity under the same name of a route; the sender's scope decides."""
    config = configure(
        route_overrides={"globex": {"records": RecordRoute("parcel of globex", record_id="parcel")}}
    )
    step(config, record())
    step(config, record(), scope="globex", message_id="e-2")
    assert [entity for entity, _, _ in recorded(config)] == ["parcel", "parcel of globex"]


# --- a host's own hands -------------------------------------------------------------------------------


def test_a_route_that_records_too(configure):
    """A host's own route may hand on to it, and its refusal is that route's."""

    def book(event, key, context):
        PARCELS.hand_off(event, key, context)

    config = configure(routes={"bank": book})
    step(config, to("bank", "parcel", {"parcel": "P1"}))
    outcome = step(config, to("bank", "parcel"), message_id="e-2")
    assert len(recorded(config)) == 1
    (heard,) = position_of(config, outcome.execution_id)["heard"]
    assert heard[2] == "record_id: the event's data has no field 'parcel'"


def test_an_executor_of_a_hosts_own(configure):
    """It hands its effects on, and what it records is there with its step."""
    config = configure(executor=WritingPlainly())
    outcome = step(config, record(n=1))
    assert len(recorded(config)) == 1
    assert executions.replay(config, outcome.execution_id).agrees
