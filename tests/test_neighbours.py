"""The target `execution`: one durable execution sends to another, inside its own step."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta

import pytest
from sqlalchemy.pool import QueuePool

from statifier_router import (
    Delivery,
    ExecutionBusy,
    OutboxRoute,
    Plan,
    RouteRefused,
    Send,
    Step,
    StepFailed,
    addresses,
    deliver,
    deliver_event,
    delivery,
    executions,
    ledger,
    route,
)
from statifier_router.sends import neighbours
from tests.support.charts import NOW, Calling, envelope, message, registry, scans
from tests.support.racing import MOMENT, TIMEOUT, WritingPlainly, blocked, open_transaction, threads
from tests.support.rows import everything, written
from tests.support.told import (
    Noting,
    at,
    handed_off,
    later,
    outcomes,
    position_of,
    stored,
    timer_states,
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
    """`configure(**kw)`: documents `a`, `b` and `c` run on charts that their events tell what to do."""

    def make(**kw):
        charts = kw.pop("charts", None) or registry(a=told("a"), b=told("b"), c=told("c"))
        if plan == "plain":
            kw.setdefault("executor", WritingPlainly())
        return make_config(database, charts=charts, **kw)

    return make


def step(config, *effects, key="K1", name="go", message_id="e-1", now=NOW, scope="acme", **data):
    """One delivery to the execution `key` of document `a`, whose step has these effects."""
    sent = envelope(name, message_id, now=now, scope=scope, data={"effects": list(effects), **data})
    return deliver_event(config, PLAN, key, sent)


def heard(config, execution_id):
    """The reasons that an execution heard of its refused sends."""
    return [reason for _, _, reason, _ in position_of(config, execution_id)["heard"]]


# --- a send arrives -----------------------------------------------------------------------------------


def test_a_send_creates_and_steps(configure):
    """`create` is `if_absent` where nothing is said: the target is created and stepped, in the sender's
    scope, with the event, the params that are no envelope, the sender as origin, and the send id.
    """
    config = configure()
    sent = to_execution("K2", "hello", n=1, note={"x": None}) | {"send_id": "s-1"}
    outcome = step(config, sent)
    assert outcome.recorded == "created_and_delivered"
    target = addresses.find(config, "acme", "b", "K2")
    (create, hello) = executions.inputs(config, target.execution_id)
    assert create.door == "create"
    assert hello.event.data == {"n": 1, "note": {"x": None}}
    assert (hello.event.name, hello.event.origin, hello.event.send_id) == (
        "hello",
        outcome.execution_id,
        "s-1",
    )
    assert hello.door == "deliver_event"
    theirs, mine = ledger.rows(config)
    assert (theirs.binding_id, theirs.outcome, theirs.key) == ("execution", "created_and_delivered", "K2")
    assert theirs.message_id == hello.message_id
    assert theirs.message_id.startswith(outcome.execution_id)
    assert mine.binding_id == "jobs"


def test_a_send_to_one_that_is_there(configure):
    """It is stepped; `create` may be `never` then."""
    config = configure()
    step(config, to_execution("K2"))
    step(config, to_execution("K2", "again", create="never"), message_id="e-2")
    assert at(config, "K2")["seen"] == ["hello", "again"]
    assert heard(config, addresses.find(config, "acme", "a", "K1").execution_id) == []


def test_the_claim_of_a_send(configure):
    """It is kept 72 hours under the plan `execution`, the message id being the send's key."""
    config = configure()
    step(config, to_execution("K2"))
    (claim,) = [row for row in everything(config).claims if row["binding_id"] == "execution"]
    assert claim["expires_at"] == NOW + timedelta(hours=72)


def test_a_duplicate_send_is_all_right(configure):
    """A send that was taken before is a duplicate, of which nobody tells the chart."""
    config = configure(mint_execution_id=lambda scope, document, key: f"run-{document}-{key}")
    step(config, to_execution("K2"))
    # The sender is set back by hand, as if its rows had been restored without those of the target.
    with config.engine.begin() as connection:
        for table in (config.schema.executions, config.schema.inputs, config.schema.addresses):
            name = "id" if table is config.schema.executions else "execution_id"
            connection.execute(table.delete().where(table.c[name] == "run-a-K1"))
        claims = config.schema.claims
        connection.execute(claims.delete().where(claims.c.binding_id == "jobs"))
    outcome = step(config, to_execution("K2"))
    assert outcomes(config)[-2:] == ["duplicate", "created_and_delivered"]
    assert heard(config, outcome.execution_id) == []
    assert at(config, "K2")["seen"] == ["hello"]


def test_an_event_that_its_target_does_not_take(configure):
    """It counts as delivered: what a neighbour makes of it is the neighbour's own business."""
    config = configure()
    outcome = step(config, to_execution("K2", answer="ignored"))
    assert heard(config, outcome.execution_id) == []
    assert outcomes(config) == ["created_and_delivered", "created_and_delivered"]


def test_the_context_travels(configure):
    """The opaque context of the message goes on with the send, and into the target's input row."""
    config = configure()
    data = {"effects": [to_execution("K2")]}
    deliver(
        config,
        scans(document="a", data=("effects",)),
        "K1",
        Delivery("m-1", "acme", NOW, data, context={"trace": "t-1"}),
    )
    target = addresses.find(config, "acme", "b", "K2").execution_id
    contexts = [row["context"] for row in stored(config, "inputs") if row["execution_id"] == target]
    assert contexts == [{"trace": "t-1"}, {"trace": "t-1"}]


def test_every_row_carries_the_instant_of_the_message(configure):
    """Trap 11. A step that sends under `route(now=t)`: the rows of the target, its timers and its outbox
    carry t, whatever the clock says.
    """
    then = NOW - timedelta(days=9)
    binding = scans(document="a", data=("effects",))
    config = configure(bindings=[binding], routes={"box": OutboxRoute("box")})
    inner = [later(60), to("box", "kept")]
    route(config, message(effects=[to_execution("K2", effects=inner)]), now=then)
    rows = everything(config)
    assert {row["inserted_at"] for row in rows.addresses + rows.ledger} == {then}
    assert {row["created_at"] for row in rows.executions} == {then}
    assert {row["at"] for row in rows.inputs} == {then}
    assert {row["expires_at"] for row in rows.claims} == {then + timedelta(hours=72)}
    assert [row["due_at"] for row in stored(config, "timers")] == [then + timedelta(seconds=60)]
    assert [row["created_at"] for row in stored(config, "outbox")] == [then]


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (to_execution("K2", document=None), "document"),
        (to_execution("K2", document=""), "document"),
        (to_execution("K2", document=7), "document"),
        (to_execution("K2", document="d" * 129), "document"),
        (to_execution(None), "key"),
        (to_execution(""), "key"),
        (to_execution(7), "key"),
        (to_execution("k" * 513), "key"),
        (to_execution("K2", create="always_new"), "create"),
        (to_execution("K2", create=None), "create"),
        (to_execution("K2", create=["never"]), "create"),
        (to_execution("K1", document="a"), "self_address"),
        (to_execution("K2") | {"delay": 60}, "delay"),
        ({"event": "hello", "target": "execution"}, "document"),
        ({"event": "hello", "target": "execution", "data": "text"}, "document"),
        ({"event": "hello", "target": "execution", "delay": 60}, "delay"),
    ],
)
def test_what_is_refused(database, make_config, send, reason):
    """One ledger row each, under the id `execution`; the chart hears the same reason; the step stands,
    no timer is armed, and nothing of a target is there.
    """
    config = make_config(database, charts=registry(a=told("a"), b=told("b")))
    outcome = step(config, send | {"send_id": "s-1"})
    assert position_of(config, outcome.execution_id)["heard"] == [
        ["error.communication", "hello", reason, "s-1"]
    ]
    assert outcomes(config) == [f"send_refused ({reason})", "created_and_delivered"]
    refused = ledger.rows(config)[0]
    assert (refused.binding_id, refused.execution_id) == ("execution", outcome.execution_id)
    counts = everything(config).counts()
    assert (counts["executions"], counts["claims"]) == (1, 1)
    assert stored(config, "timers") == []


def test_a_suspended_target(configure):
    """`suspended`: one ledger row, the chart hears it, and nothing of the send remains to bar another."""
    config = configure()
    step(config, to_execution("K2"))
    target = addresses.find(config, "acme", "b", "K2").execution_id
    executions.suspend(config, target)
    with written(config) as rows:
        outcome = step(config, to_execution("K2", "again"), message_id="e-2")
    assert heard(config, outcome.execution_id) == ["suspended"]
    assert [(row["outcome"], row["reason"]) for row in rows.added["ledger"]] == [
        ("send_refused", "suspended"),
        ("delivered", None),
    ]
    assert [row["binding_id"] for row in rows.added["claims"]] == ["jobs"]
    executions.resume(config, target)
    step(config, to_execution("K2", "again"), message_id="e-3")
    assert position_of(config, target)["seen"] == ["hello", "again"]


def test_no_execution_and_none_to_create(configure):
    """A drop re-enters the sender with its reason: here `no_execution`; the target's own row says it."""
    config = configure()
    outcome = step(config, to_execution("K2", create="never"))
    assert heard(config, outcome.execution_id) == ["no_execution"]
    assert outcomes(config) == ["dropped: no_execution", "created_and_delivered"]


def test_a_target_that_has_finished(configure):
    """`finished`, likewise; the target's address is stamped."""
    config = configure()
    step(config, to_execution("K2", end=True))
    outcome = step(config, to_execution("K2"), message_id="e-2")
    assert heard(config, outcome.execution_id) == ["finished"]
    assert addresses.find(config, "acme", "b", "K2").terminal_seen_at == NOW


def test_a_document_that_does_not_resolve(configure):
    """20-delivery trap 11. The sender's step commits and hears the real reason; the target's rows are
    gone; the sender's claim stands.
    """
    config = configure()
    outcome = step(config, to_execution("K2", document="nobody"), to_execution("K3"))
    (reason,) = heard(config, outcome.execution_id)
    assert "nobody" in reason
    assert at(config, "K3")["seen"] == ["hello"]
    rows = everything(config)
    assert sorted(row["document"] for row in rows.addresses) == ["a", "b"]
    assert [row["binding_id"] for row in rows.claims] == ["execution", "jobs"]
    assert step(config).recorded == "duplicate"


def test_a_target_whose_step_fails(configure):
    """A delivery error is told with its reason; what the target did before it failed is undone, its own
    sends with it.
    """
    config = configure(routes={"box": OutboxRoute("box")})
    step(config, to_execution("K2"))
    with written(config) as rows:
        outcome = step(
            config,
            to("box", "before"),
            to_execution("K2", "bad", effects=[to("box", "theirs")], answer="failed"),
            to_execution("K2", "worse", answer="raised"),
            to("box", "after"),
            message_id="e-2",
        )
    first, second = heard(config, outcome.execution_id)
    assert "told to" in first
    assert "worse raised" in second
    assert [name for _, name, _ in handed_off(config)] == ["before", "after"]
    assert rows.summary() == "+claims +inputs +inputs +inputs +ledger ~executions"


def test_a_target_that_a_host_route_breaks(configure):
    """What a route of the host raises is no delivery error: it takes the whole delivery with it."""

    def broken(event, key, context):
        raise LookupError("who?")

    config = configure(routes={"bank": broken})
    with pytest.raises(LookupError):
        step(config, to_execution("K2", effects=[to("bank")]))
    assert everything(config).empty


def test_the_scope_is_the_senders(configure):
    """Trap 13. A param `scope` is data like any other: nobody sends into another scope's world."""
    config = configure()
    step(config, to_execution("K2", scope="other"))
    assert [(row["scope"], row["key"]) for row in everything(config).addresses] == [
        ("acme", "K1"),
        ("acme", "K2"),
    ]
    target = addresses.find(config, "acme", "b", "K2").execution_id
    assert executions.inputs(config, target)[1].event.data == {"scope": "other"}


def test_overrides_of_a_target(configure):
    """However deep, a route is that of the stepping execution's scope."""
    mine, theirs = Noting(), Noting()
    config = configure(routes={"bank": mine}, route_overrides={"other": {"bank": theirs}})
    inner = to_execution("K3", document="c", effects=[to("bank", "deep")])
    for number, scope in enumerate(("acme", "other")):
        step(config, to_execution("K2", effects=[inner]), scope=scope, message_id=f"e-{number}")
    assert (mine.names, theirs.names) == (["deep"], ["deep"])


# --- open steps ---------------------------------------------------------------------------------------


def test_an_answer_to_an_open_step(configure):
    """20-delivery trap 22. B answers A at once: A is stepped with the answer after its first step, in the
    same transaction, once.
    """
    config = configure()
    outcome = step(config, to_execution("K2", "ask", effects=[to_execution("K1", "answer", document="a")]))
    assert position_of(config, outcome.execution_id)["seen"] == ["go", "answer"]
    assert [row.door for row in executions.inputs(config, outcome.execution_id)] == [
        "create",
        "deliver_event",
        "deliver_event",
    ]
    # B's answer, then A's first step, whose row is written before the answer is delivered.
    assert outcomes(config) == ["created_and_delivered", "created_and_delivered", "delivered"]
    assert step(config).recorded == "duplicate"
    assert position_of(config, outcome.execution_id)["seen"] == ["go", "answer"]


def test_a_ring_of_three(configure):
    """Trap 14. A sends to B sends to C sends to A: each stepped once more, in order, in one transaction."""
    config = configure()
    back = to_execution("K1", "back", document="a")
    onward = to_execution("K3", "onward", document="c", effects=[back])
    with config.engine.connect() as connection:
        sent = envelope("go", data={"effects": [to_execution("K2", "hello", effects=[onward])]})
        outcome = deliver_event(config, PLAN, "K1", sent, connection=connection)
        assert everything(config).empty
        connection.commit()
    assert position_of(config, outcome.execution_id)["seen"] == ["go", "back"]
    assert at(config, "K2")["seen"] == ["hello"]
    assert at(config, "K3", "c")["seen"] == ["onward"]
    order = [(row["scope"], row["key"]) for row in stored(config, "ledger")]
    assert [key for _, key in order] == ["K3", "K2", "K1", "K1"]


def test_queued_sends_keep_their_order(configure):
    """What is queued for an open step arrives in the order in which it was sent."""
    config = configure()
    back = [to_execution("K1", f"back-{n}", document="a") for n in range(3)]
    outcome = step(config, to_execution("K2", effects=back), to_execution("K3", effects=back))
    assert position_of(config, outcome.execution_id)["seen"] == [
        "go",
        *(f"back-{n}" for n in range(3)),
        *(f"back-{n}" for n in range(3)),
    ]


def test_a_savepoint_that_is_undone_takes_what_was_queued_inside(configure):
    """A route hands an event to B, B answers A, and the route refuses: A never hears the answer."""
    answer = to_execution("K1", "answer", document="a")

    def change_its_mind(event, key, context):
        inner = envelope("in", key, data={"effects": [answer]})
        assert deliver_event(config, Plan("in", "b"), "K9", inner).recorded == "created_and_delivered"
        raise RouteRefused("no")

    config = configure(routes={"indecisive": change_its_mind})
    outcome = step(config, to("indecisive"))
    assert position_of(config, outcome.execution_id)["seen"] == ["go"]
    assert heard(config, outcome.execution_id) == ["no"]
    assert len(everything(config).executions) == 1


def test_a_queued_send_that_fails(configure):
    """Its failure reaches the sender as a further step, logged as `reentry`; the sender's step stands."""
    config = configure()
    bad = to_execution("K1", "bad", document="a", answer="raised") | {"send_id": "s-7"}
    outcome = step(config, to_execution("K2", effects=[bad]))
    assert position_of(config, outcome.execution_id)["seen"] == ["go"]
    target = addresses.find(config, "acme", "b", "K2").execution_id
    ((error, event, reason, send_id),) = position_of(config, target)["heard"]
    assert (error, event, send_id) == ("error.communication", "bad", "s-7")
    assert "bad raised" in reason
    assert [row.door for row in executions.inputs(config, target)] == ["create", "deliver_event", "reentry"]
    assert executions.fetch(config, target).revision == 2


def test_news_for_a_sender_that_has_ended(configure):
    """A sender that has ended hears nothing more: the ledger says what became of its send."""
    config = configure()
    bad = to_execution("K1", "bad", document="a", answer="failed")
    step(config, to_execution("K2", effects=[bad], end=True))
    (refused,) = ledger.rows(config, outcome="send_refused")
    assert "told to" in refused.reason
    assert refused.key == "K1"


def test_a_sender_that_cannot_take_the_news(configure, database, make_config):
    """A chart that fails on the news of a queued send keeps its step: the ledger says so."""
    chart = Calling("frail")
    config = make_config(database, charts=registry(a=told("a"), b=chart))
    bad = Send("bad", {"document": "a", "key": "K1", "answer": "failed"}, target="execution")

    def hook(position, event, now):
        if event.name.startswith("error."):
            raise ValueError("cannot bear it")
        return Step({"seen": [event.name]}, active=["open"], effects=[bad])

    with chart.calling(hook):
        step(config, to_execution("K2"))
    (refused,) = ledger.rows(config, outcome="send_refused")
    assert "cannot bear it" in refused.reason
    target = addresses.find(config, "acme", "b", "K2").execution_id
    assert [row.door for row in executions.inputs(config, target)] == ["create", "deliver_event"]
    # What it was asked within the block is not what it says when its log is folded.
    executions.cancel(config, target)


def test_two_that_answer_each_other_end(configure):
    """At most 100 hops a transaction: the last one is refused (`hops`), its sender hears it, and may not
    go on from there. What was done until then stands.
    """
    ping, pong = Calling("ping"), Calling("pong")

    def answering(document, key):
        def hook(position, event, now):
            if event.name.startswith("error."):
                position["heard"] = event.data["reason"]
            effects = [Send("hit", {"document": document, "key": key}, target="execution")]
            return Step({**position, "hits": position.get("hits", 0) + 1}, active=["open"], effects=effects)

        return hook

    config = configure(charts=registry(a=ping, b=pong))
    with ping.calling(answering("b", "K2")), pong.calling(answering("a", "K1")):
        outcome = step(config)
        seen = position_of(config, outcome.execution_id), at(config, "K2")
        # Folded while the charts still answer as they did.
        for row in everything(config).executions:
            assert executions.replay(config, row["id"]).agrees
    assert [reason for reason in outcomes(config) if "hops" in reason]
    hits = sum(each["hits"] for each in seen)
    assert neighbours.MOST_HOPS < hits < 3 * neighbours.MOST_HOPS
    assert "hops" in [each.get("heard") for each in seen]
    assert step(config).recorded == "duplicate"
    with config.engine.begin() as connection:
        connection.execute(config.schema.executions.update().values(position=None))


def test_a_long_chain(configure):
    """A chain of new executions is as long as it likes: what would nest too deep is queued instead."""
    config = configure()
    effects = []
    for number in range(40, 0, -1):
        effects = [to_execution(f"K{number}", f"link-{number}", effects=effects)]
    step(config, *effects, key="K0")
    assert len(everything(config).executions) == 41
    assert at(config, "K40")["seen"] == ["link-40"]


# --- connections, locks and transient faults ----------------------------------------------------------


def test_a_pool_of_one_connection(database, configure):
    """One connection serves a delivery whose step sends to another execution whose step sends to a third,
    with timers, outbox, refusals and an answer on the way.
    """
    engine = database.engine(poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    config = configure(engine=engine, routes={"box": OutboxRoute("box")}, on_complete="box")
    third = to_execution(
        "K3",
        document="c",
        effects=[later(5), to("box", "deep"), to("nowhere"), to_execution("K1", "back", document="a")],
        end=True,
    )
    step(config, to_execution("K2", effects=[third, later(5, "t", target="box")]), later(5))
    assert at(config, "K1", "a")["seen"] == ["go", "back"]
    assert [name for _, name, _ in handed_off(config)] == ["deep", "done.execution"]
    assert timer_states(config) == ["pending"] * 3


def test_a_busy_target_reaches_no_chart(postgresql, make_config):
    """A lock timeout inside leaves every door: nothing of the sender's remains, its chart hears nothing."""
    config = make_config(postgresql, charts=registry(a=told("a"), b=told("b")))
    hasty = make_config(postgresql, charts=config.charts, lock_timeout=MOMENT)
    step(config, to_execution("K2"))
    target = addresses.find(config, "acme", "b", "K2").execution_id
    with open_transaction(config) as (connection, _):
        deliver_event(config, Plan("holds", "b"), "K2", envelope("hold", "e-9"), connection=connection)
        with written(hasty) as rows, pytest.raises(ExecutionBusy) as raised:
            step(hasty, to_execution("K2", "again"), message_id="e-2")
        connection.commit()
    assert rows.nothing
    assert raised.value.execution_id in (target, None)
    assert step(hasty, to_execution("K2", "again"), message_id="e-2").recorded == "delivered"


def test_a_transient_fault_of_the_librarys_own_naming(configure, monkeypatch):
    """An address that was reaped again and again under a delivery is transient too: told to no chart, and
    not to be settled by code that catches it.
    """

    def swallow(event, key, context):
        with contextlib.suppress(ExecutionBusy):
            deliver_event(config, Plan("in", "b"), "K9", envelope("in", key))

    config = configure(routes={"swallow": swallow})
    step(config)
    for effect in (to_execution("K2"), to("swallow")):
        with monkeypatch.context() as patch, written(config) as rows, pytest.raises(ExecutionBusy):
            patch.setattr(delivery, "_ADDRESS_TRIES", 0)
            step(config, effect, message_id="e-2")
        assert rows.nothing


def test_a_deadlock_between_neighbours(postgresql, make_config):
    """20-delivery trap 21. Two executions send to each other at once: the server ends one, the whole of
    it is tried again, both sends land, and no chart hears of it.
    """
    stands = threading.Barrier(2)
    tries = []
    a, b = Calling("a"), Calling("b")
    config = make_config(postgresql, charts=registry(a=a, b=b))
    deliver_event(config, Plan("p", "a"), "KA", envelope("first", "e-a"))
    deliver_event(config, Plan("p", "b"), "KB", envelope("first", "e-b"))

    def crossing(document, key):
        def hook(position, event, now):
            if event.name != "go":
                return None
            tries.append(document)
            if tries.count(document) == 1:
                stands.wait(TIMEOUT)
            effect = Send("hello", {"document": document, "key": key}, target="execution")
            return Step({"seen": [*position["seen"], "go"]}, active=["open"], effects=[effect])

        return hook

    before = postgresql.counters()
    with a.calling(crossing("b", "KB")), b.calling(crossing("a", "KA")), threads() as beside:
        going = [
            beside(deliver_event, config, Plan("p", document), key, envelope("go", f"go-{document}"))
            for document, key in (("a", "KA"), ("b", "KB"))
        ]
        assert [one.result(TIMEOUT).recorded for one in going] == ["delivered", "delivered"]
    assert (postgresql.counters() - before).deadlocks >= 1
    # The one that is tried again waits for its neighbour first, so that they cannot meet so again.
    assert len(tries) == 3
    for document, key in (("a", "KA"), ("b", "KB")):
        assert sorted(at(config, key, document)["seen"]) == ["first", "go", "hello"]
        log = executions.inputs(config, addresses.find(config, "acme", document, key).execution_id)
        assert all(row.door != "reentry" for row in log)


def test_a_send_waits_for_the_step_of_its_target(postgresql, make_config):
    """Sends to one execution from two others are one serial order, the second seen waiting."""
    config = make_config(postgresql, charts=registry(a=told("a"), b=told("b")))
    step(config, to_execution("K2", "first"))
    with open_transaction(config) as (connection, pid), threads() as beside:
        sent = envelope("go", "e-2", data={"effects": [to_execution("K2", "second")]})
        deliver_event(config, PLAN, "K1", sent, connection=connection)
        other = beside(step, config, to_execution("K2", "third"), key="K7", message_id="e-3")
        blocked(postgresql, pid, other)
        connection.commit()
        other.result(TIMEOUT)
    assert at(config, "K2")["seen"] == ["first", "second", "third"]


def test_a_failure_of_the_whole_undoes_every_neighbour(configure):
    """Whatever a chain of sends did goes with the delivery that began it."""
    config = configure(routes={"box": OutboxRoute("box")})
    chain = to_execution("K2", effects=[to_execution("K3", document="c", effects=[later(5), to("box")])])

    def fail(event, key, context):
        raise LookupError

    config = configure(routes={"box": OutboxRoute("box"), "fail": fail})
    with pytest.raises(LookupError):
        step(config, chain, to("fail"))
    assert everything(config).empty
    assert stored(config, "outbox") == stored(config, "timers") == []


def test_a_step_that_fails_never_sends(configure):
    """Effects of a failed step are handed to nobody."""
    config = configure(routes={"box": OutboxRoute("box")})
    with pytest.raises(StepFailed):
        step(config, to("box"), to_execution("K2"), answer="failed")
    assert everything(config).empty
