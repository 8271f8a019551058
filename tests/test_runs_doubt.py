"""Delivery runs: one open operation a rule, calls in doubt, and what settles them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from statifier_router.runs import ChainEnd, Created, Policy, RetryPolicy, WriterTraits
from statifier_router.testing import Clock
from statifier_router.testing.targets import (
    breaks,
    gone,
    lands,
    rejects,
    throttles,
    times_out,
    unavailable,
)
from tests.support.outbound import make_runs


@pytest.fixture
def runs(database, make_config):
    """`runs(**kw)`: one rule from a listed source to a scripted target."""

    def make(**kw):
        clock = Clock()
        return make_runs(make_config(database, clock=clock), clock, **kw)

    return make


class Killed(BaseException):
    """Stands for the death of the process: nothing is written behind it."""


def crash(runs, monkeypatch, *, taken=True, value=0, source_id="p1", **kw):
    """The process dies in its call for a record, which took effect or not; answers the chain's id."""
    runs.source.put(source_id, value, **kw)
    runs.target.on(source_id, breaks(Killed(), taken=taken))
    with monkeypatch.context() as patch:
        patch.setattr("statifier_router.runs.failing.fail", lambda *given: None)
        with pytest.raises(Killed):
            runs.go()
    return runs.chain()["id"]


def taken_over(runs):
    """The next chain, once the one that died counts as dead."""
    return runs.later(minutes=4)


# --- the open operation -------------------------------------------------------------------------------


def test_the_operation_stands_before_its_call(runs):
    """Verb, key, signal and payload are committed before the call; no other is open, and after it none."""
    one = runs()
    seen = []
    create = one.writer.create

    def looking(payload, context):
        seen.append((one.rows("operations"), context))
        return create(payload, context)

    one.writer.create = looking
    one.source.fill(3)
    one.go()
    assert len(seen) == 3
    for (operation,), context in seen:
        assert (operation["source_id"], operation["key"]) == (context.source_id, context.key)
        assert (operation["verb"], operation["signal"], operation["payload"]) == (
            "create",
            context.signal,
            '{"value":0}',
        )
        assert (operation["in_doubt"], operation["chain_id"]) == (False, one.chain()["id"])
        assert (context.attempt, context.in_doubt, context.timeout) == (1, False, one.rule.call_timeout)
    assert one.operations() == {}


def test_no_transaction_is_open_during_a_call(runs):
    """The pool has every connection back."""
    one = runs()
    out = []
    create = one.writer.create

    def looking(payload, context):
        out.append(one.config.engine.pool.checkedout())
        return create(payload, context)

    one.writer.create = looking
    one.source.fill(2)
    one.go()
    assert out == [0, 0]


@pytest.mark.parametrize("taken", [True, False])
def test_a_crash_in_a_call(runs, monkeypatch, taken):
    """The next chain sends the same again, under the same key, before anything else."""
    one = runs(keyed=True)
    dead = crash(one, monkeypatch, taken=taken)
    one.source.put("p2", 0)
    assert one.statuses() == {}
    assert taken_over(one) is ChainEnd.COMPLETED
    first, second, other = one.target.requests
    assert (first.key, first.payload) == (second.key, second.payload)
    assert (second.context.in_doubt, other.source_id) == (True, "p2")
    assert one.statuses() == {"p1": "delivered", "p2": "delivered"}
    assert len(one.target.copies("p1")) == 1
    assert one.operations() == {}
    (cancelled, _) = one.chains()
    assert (cancelled["id"], cancelled["state"], cancelled["fault_source_id"]) == (dead, "cancelled", "p1")


def test_crash_after_crash(runs, monkeypatch):
    """An operation that was taken over and left again is swept again."""
    one = runs(keyed=True)
    crash(one, monkeypatch)
    for _ in range(3):
        one.target.on("p1", breaks(Killed(), taken=True))
        with monkeypatch.context() as patch:
            patch.setattr("statifier_router.runs.failing.fail", lambda *given: None)
            with pytest.raises(Killed):
                taken_over(one)
    taken_over(one)
    assert one.row("p1")["status"] == "delivered"
    assert len(one.target.copies("p1")) == 1
    assert len({each.key for each in one.target.requests}) == 1


def test_an_old_payload_that_lands_is_followed_by_the_current_one(runs, monkeypatch):
    """The create in doubt goes out as it was; the current version follows as an update in the same visit."""
    one = runs(keyed=True)
    crash(one, monkeypatch)
    one.source.put("p1", 1)
    taken_over(one)
    assert [(each.verb, each.payload) for each in one.target.requests] == [
        ("create", {"value": 0}),
        ("create", {"value": 0}),
        ("update", {"value": 1}),
    ]
    keys = [each.key for each in one.target.requests]
    assert keys[0] == keys[1] != keys[2]
    row = one.row("p1")
    assert (row["status"], row["signal"], row["attempts"]) == ("delivered", "1", 0)
    (held,) = one.target.copies("p1")
    assert held.payload == {"value": 1}


def test_a_follow_up_that_fails(runs, monkeypatch):
    """It counts on the attempts of the visit, and is tried again by the address that is known now."""
    one = runs(keyed=True)
    one.source.put("p1", 0)
    one.target.on("p1", times_out(taken=True), lands(), rejects())
    one.go()
    one.source.put("p1", 1)
    one.later(minutes=10)
    row = one.row("p1")
    assert (row["status"], row["attempts"], row["remote_id"]) == ("failed", 2, "r1")
    one.later(hours=1)
    assert one.row("p1")["status"] == "delivered"
    assert [each.verb for each in one.target.requests] == ["create", "create", "update", "update"]
    assert [each.context.attempt for each in one.target.requests] == [1, 2, 2, 3]


def test_a_follow_up_that_is_cut_short(runs, monkeypatch):
    """Between the two calls the route closes: the row is due, and the next chain brings what is current."""
    one = runs(keyed=True)
    crash(one, monkeypatch)
    one.source.put("p1", 1)
    create, health = one.writer.create, []

    def closing(payload, context):
        health.append("closed")
        return create(payload, context)

    one.writer.create = closing
    one.outbound.health = type("Health", (), {"closed": lambda self, rule: health[0] if health else None})()
    assert taken_over(one) is ChainEnd.ROUTE_CLOSED
    row = one.row("p1")
    assert (row["status"], row["error_kind"], row["remote_id"]) == ("failed", "outdated", "r1")
    health.clear()
    one.writer.create = create
    assert one.later(seconds=1) is ChainEnd.COMPLETED
    assert one.row("p1")["status"] == "delivered"
    (held,) = one.target.copies("p1")
    assert held.payload == {"value": 1}


def test_a_crash_in_an_update(runs, monkeypatch):
    """The newest version is sent; another version than the one in doubt has a key of its own."""
    one = runs(keyed=True)
    one.source.put("p1", 0)
    one.go()
    crash(one, monkeypatch, value=1)
    one.source.put("p1", 2)
    taken_over(one)
    _, first, second = one.target.requests
    assert (second.payload, second.context.in_doubt) == ({"value": 2}, True)
    assert first.key != second.key
    assert one.row("p1")["signal"] == "2"


def test_a_version_that_was_in_doubt_and_comes_back(runs, monkeypatch):
    """B in doubt, then A, then B: its second key is a new one, or a target that honours keys would keep A."""
    one = runs(keyed=True)
    one.source.put("p1", "a")
    one.go()
    crash(one, monkeypatch, value="b")
    one.source.put("p1", "a")
    one.target.on("p1", times_out(taken=True))
    taken_over(one)
    one.source.put("p1", "b")
    one.later(minutes=10)
    assert one.row("p1")["status"] == "delivered"
    (held,) = one.target.copies("p1")
    assert held.payload == {"value": "b"}


def test_a_record_that_went_back_to_what_its_row_says(runs, monkeypatch):
    """The row says A, an update to B was in flight, the source is back at A: A is sent anew."""
    one = runs()
    one.source.put("p1", "a")
    one.go()
    crash(one, monkeypatch, value="b")
    one.source.put("p1", "a")
    taken_over(one)
    (held,) = one.target.copies("p1")
    assert held.payload == {"value": "a"}
    assert one.operations() == {}


# --- doubt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reaction", "kind"), [(times_out(taken=True), "timed_out"), (unavailable(taken=True), "unavailable")]
)
def test_a_call_that_may_have_taken_effect_stays_in_doubt(runs, reaction, kind):
    """The operation stands beside the failed row, and the next attempt has its key and its payload."""
    one = runs(keyed=True)
    one.source.put("p1", 0)
    one.target.on("p1", reaction)
    one.go()
    assert (one.row("p1")["status"], one.row("p1")["error_kind"]) == ("failed", kind)
    operation = one.operations()["p1"]
    assert operation["in_doubt"]
    one.source.put("p1", 1)
    one.later(minutes=10)
    first, second, third = one.target.requests
    assert (first.key, first.payload) == (second.key, second.payload)
    assert (second.context.in_doubt, third.context.in_doubt) == (True, False)
    assert (third.verb, third.payload) == ("update", {"value": 1})
    assert one.operations() == {}


@pytest.mark.parametrize("refusal", [rejects(), throttles(), unavailable(), gone()])
def test_a_refusal_does_not_settle_doubt(runs, refusal):
    """The call before it may have taken effect all the same: its key and payload are kept."""
    one = runs(keyed=True)
    one.source.put("p1", 0)
    one.target.on("p1", times_out(taken=True), refusal)
    one.go()
    one.source.put("p1", 1)
    one.later(minutes=10)
    assert one.operations()["p1"]["in_doubt"]
    one.later(hours=1)
    assert len({each.key for each in one.target.calls("p1", "create")}) == 1
    assert len(one.target.copies("p1")) == 1
    assert one.row("p1")["signal"] == "1"


def test_a_refusal_settles_where_the_writer_says_so(runs):
    """`refusal_settles`: the next attempt is of the current version, under its own key."""
    one = runs(traits=WriterTraits(refusal_settles=True))
    one.source.put("p1", 0)
    one.target.on("p1", times_out(), rejects())
    one.go()
    one.source.put("p1", 1)
    one.later(minutes=10)
    assert one.operations() == {}
    one.later(hours=1)
    assert one.target.requests[-1].payload == {"value": 1}


def test_doubt_that_lasts_to_the_end(runs):
    """An exhausted record keeps its operation in doubt: only an operator settles it."""
    one = runs(retry=RetryPolicy(max_attempts=2))
    one.source.put("p1", 0)
    one.target.always(times_out(), verbs=["create"])
    one.go()
    one.later(minutes=10)
    assert one.row("p1")["status"] == "exhausted"
    assert one.operations()["p1"]["in_doubt"]
    one.source.put("p1", 1)
    one.later(hours=5)
    assert len(one.sent()) == 2


def test_an_unknown_create_may_be_parked(runs, monkeypatch):
    """`on_unknown_create="park"` without keys: exhausted, not sent a second time."""
    one = runs(on_unknown_create="park")
    one.source.put("p1", 0)
    one.target.on("p1", times_out(taken=True))
    one.go()
    one.later(minutes=10)
    row = one.row("p1")
    assert (row["status"], row["error_kind"]) == ("exhausted", "unknown_create")
    assert (one.sent(), one.operations()["p1"]["in_doubt"]) == (["p1"], True)
    crash(one, monkeypatch, source_id="p2")
    taken_over(one)
    assert one.row("p2")["error_kind"] == "unknown_create"


def test_an_unknown_create_is_sent_again_where_keys_are_honoured(runs):
    """There it is harmless."""
    one = runs(on_unknown_create="park", keyed=True)
    one.source.put("p1", 0)
    one.target.on("p1", times_out(taken=True))
    one.go()
    one.later(minutes=10)
    assert one.row("p1")["status"] == "delivered"


VERBS = ("create", "update", "lookup")


@pytest.mark.parametrize("newer", [False, True])
def test_a_lookup_that_finds_the_create(runs, monkeypatch, newer):
    """Its address is adopted, and nothing is created twice; a newer version follows as an update."""
    one = runs(verbs=VERBS)
    crash(one, monkeypatch)
    if newer:
        one.source.put("p1", 1)
    taken_over(one)
    assert [each.verb for each in one.target.requests] == ["create", "lookup", *(["update"] * newer)]
    row = one.row("p1")
    assert (row["status"], row["remote_id"], row["signal"]) == ("delivered", "r1", "1" if newer else "0")
    assert one.operations() == {}


def test_a_lookup_that_finds_nothing(runs, monkeypatch):
    """The create did not take effect: the current version is created."""
    one = runs(verbs=VERBS, on_unknown_create="park")
    crash(one, monkeypatch, taken=False)
    one.source.put("p1", 1)
    taken_over(one)
    assert [each.verb for each in one.target.requests] == ["create", "lookup", "create"]
    assert one.target.requests[-1].payload == {"value": 1}
    assert (one.row("p1")["signal"], one.operations()) == ("1", {})


def test_a_lookup_that_fails(runs):
    """An attempt that failed; the doubt stays."""
    one = runs(verbs=VERBS)
    one.source.put("p1", 0)
    one.target.on("p1", times_out(taken=True))
    one.target.always(rejects(), verbs=["lookup"])
    one.go()
    one.later(minutes=10)
    assert (one.row("p1")["status"], one.row("p1")["attempts"]) == ("failed", 2)
    assert one.operations()["p1"]["in_doubt"]
    one.target.up()
    one.later(hours=1)
    assert (one.row("p1")["status"], len(one.target.copies("p1"))) == ("delivered", 1)


def test_deleted_while_its_create_is_in_doubt(runs):
    """Suppressed, and the operation stays in doubt beside it; when it comes back the create goes on."""
    one = runs(keyed=True)
    one.source.put("p1", 0)
    one.target.on("p1", times_out(taken=True))
    one.go()
    one.source.put("p1", None, deleted=True)
    one.later(minutes=10)
    row = one.row("p1")
    assert (row["status"], row["error_kind"]) == ("suppressed", "deleted")
    assert one.operations()["p1"]["in_doubt"]
    one.source.put("p1", 2)
    one.later(minutes=10)
    (held,) = one.target.copies("p1")
    assert (held.payload, one.row("p1")["status"], one.operations()) == ({"value": 2}, "delivered", {})


@pytest.mark.parametrize("back", [False, True])
def test_a_delete_in_doubt(runs, back):
    """It is sent again; where the record is back at its source, it is created again in the same visit."""
    one = runs(verbs=("create", "update", "delete"), keyed=True)
    one.source.put("p1", 0)
    one.go()
    one.source.put("p1", None, deleted=True)
    one.target.on("p1", times_out(taken=True))
    one.go()
    if back:
        one.source.put("p1", 0)
    one.later(minutes=10)
    verbs = [each.verb for each in one.target.requests]
    assert verbs == ["create", "delete", "delete", *(["create"] * back)]
    assert one.row("p1")["status"] == ("delivered" if back else "suppressed")
    assert len(one.target.copies("p1")) == back
    assert one.operations() == {}


def test_what_is_gone_cannot_be_in_doubt(runs):
    """An update that timed out, then Gone: the record is remote_gone, and nothing is open."""
    one = runs()
    one.source.put("p1", 0)
    one.go()
    one.source.put("p1", 1)
    one.target.on("p1", times_out(), gone())
    one.go()
    one.later(minutes=10)
    assert (one.row("p1")["status"], one.operations()) == ("remote_gone", {})


def test_a_message_in_doubt(runs):
    """Sent again under its key, as it was; once it landed, nothing follows."""
    one = runs(kind="message", verbs=("create",), policy=Policy.CREATE_ONLY, keyed=True)
    one.source.put("m1", 0)
    one.target.on("m1", times_out(taken=True))
    one.go()
    one.source.put("m1", 1)
    one.later(minutes=10)
    assert [(each.verb, each.payload) for each in one.target.requests] == [("create", {"value": 0})] * 2
    assert one.row("m1")["status"] == "delivered"
    assert len(one.target.copies("m1")) == 1


def test_an_unclassified_fault_is_in_doubt(runs):
    """Its operation stays open, and the next chain sends the same again."""
    one = runs(keyed=True)
    one.source.put("p1", 0)
    one.target.on("p1", breaks(KeyError("x"), taken=True))
    with pytest.raises(Exception, match="KeyError"):
        one.go()
    assert one.go() is ChainEnd.COMPLETED
    assert len(one.target.copies("p1")) == 1
    assert one.target.requests[-1].context.in_doubt


def test_the_signal_that_is_written_is_the_one_that_was_sent(runs):
    """The record changes during its call: the row tells of what was sent, and the new version follows."""
    one = runs()
    one.source.put("p1", 0)
    create = one.writer.create

    def changing(payload, context):
        one.source.put("p1", 1)
        return create(payload, context)

    one.writer.create = changing
    one.go()
    assert one.row("p1")["signal"] == "0"
    one.go()
    assert one.row("p1")["signal"] == "1"
    assert one.target.requests[-1].payload == {"value": 1}


def test_an_interrupted_job_is_told_apart(runs):
    """A signal to the process: the chain is cancelled at once, and its rule free; the call is in doubt."""
    one = runs()
    one.source.put("p1", 0)
    one.target.on("p1", breaks(KeyboardInterrupt(), taken=True))
    with pytest.raises(KeyboardInterrupt):
        one.go()
    chain = one.chain()
    assert (chain["state"], chain["end"], chain["fault_kind"]) == (
        "cancelled",
        "CANCELLED",
        "KeyboardInterrupt",
    )
    assert one.rule_row["lease_until"] is None
    assert one.go() is ChainEnd.COMPLETED
    assert one.target.requests[-1].context.in_doubt


def test_an_operator_may_change_a_row_during_its_call(runs):
    """What they wrote stays where the call failed, and gives way where it landed."""
    from sqlalchemy import update

    one = runs()
    one.source.put("p1", 0)
    one.target.on("p1", rejects())
    one.go()
    table = one.config.schema.records
    landing = []

    def create(payload, context):
        values = {"attempts": 0, "row_version": table.c.row_version + 1, "error_kind": "mine"}
        with one.config.engine.begin() as connection:
            connection.execute(update(table).values(values))
        if not landing:
            return one.writer.target.call("create", context, payload=payload)
        return Created("r1")

    one.writer.create = create
    one.target.on("p1", rejects())
    one.later(minutes=10)
    row = one.row("p1")
    assert (row["attempts"], row["error_kind"], one.operations()) == (0, "mine", {})
    landing.append(True)
    one.clock.set(row["next_attempt_at"] + timedelta(seconds=1))
    one.go()
    assert one.row("p1")["status"] == "delivered"
