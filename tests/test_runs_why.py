"""`why`: the one reason why a record is, or is not, at its target; and `doctor`: what is wrong with runs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from statifier_router import ConfigError
from statifier_router.runs import Changes, Policy, RetryPolicy, record_change
from statifier_router.testing.targets import breaks, gone, rejects, times_out
from tests.support.charts import HOUR, NOW, SECOND
from tests.support.operated import LEASE, RULE, TARGET, host

MINUTE = timedelta(minutes=1)
WHO = {"actor": "ada"}


@pytest.fixture
def at(database, make_config):
    """A host with one saved rule."""
    return host(make_config, database)


def why(at, source_id="P1"):
    found = at.outbound.why(RULE, source_id)
    assert (found.rule, found.source_id) == (RULE, source_id)
    return found


def reason(at, source_id="P1"):
    return why(at, source_id).reason


def run(at):
    """One run, to its end; a fault of the rule ends it."""
    for chain_id in at.outbound.tick():
        at.outbound.run_chain(chain_id)


def failing(at):
    with pytest.raises(Exception, match="raised"):
        run(at)


# --- what the record alone decides --------------------------------------------------------------------


def test_a_record_that_is_there(at):
    at.shelf.put("P1")
    assert reason(at) == "not_scanned"
    run(at)
    found = why(at)
    assert (found.reason, found.advice) == ("delivered", "")
    assert found.facts["row"]["status"] == "delivered"
    assert found.facts["source"] == {"signal": "v1", "deleted": False}


def test_a_newer_version_waits_for_the_next_scan(at):
    at.shelf.put("P1")
    run(at)
    at.shelf.put("P1", "v2")
    found = why(at)
    assert (found.reason, found.advice) == ("newer_version", "statifier-router run parcels")
    assert "an older version" in found.text
    at.shelf.put("P1", "v1")
    assert reason(at) == "delivered"


def test_a_newer_version_that_the_policy_never_sends(at):
    """Nothing waits, whether a scan has seen the newer version or passed it."""
    at.save(policy=Policy.CREATE_ONLY)
    at.shelf.put("P1")
    run(at)
    at.shelf.put("P1", "v2")
    found = why(at)
    assert (found.reason, found.advice) == ("suppressed", "")
    run(at)
    assert reason(at) == "suppressed"


def test_a_deletion_waits_for_the_next_scan_and_is_told_behind_it(at):
    at.shelf.put("P1")
    run(at)
    at.shelf.put("P1", "v2", deleted=True)
    assert reason(at) == "newer_version"
    assert "its deletion waits" in why(at).text
    run(at)
    assert reason(at) == "deleted"
    at.shelf.put("P2", deleted=True)
    assert reason(at, "P2") == "deleted"


def test_a_record_that_its_source_has_lost_without_a_trace(at):
    at.shelf.put("P1")
    run(at)
    del at.shelf.kept["P1"]
    found = why(at)
    assert found.reason == "deleted"
    assert "its source has it no more" in found.text


def test_a_record_that_nobody_knows(at):
    found = why(at, "P-1")
    assert found.reason == "unknown"
    assert "check the id" in found.advice


def test_a_failed_attempt_says_which_and_when_the_next_one_is(at):
    at.save(retry=RetryPolicy(spread=0))
    at.shelf.put("P1")
    at.target.on("P1", rejects("no such street"))
    run(at)
    found = why(at)
    assert found.reason == "failed"
    assert found.text == (
        "attempt 1 of 5 failed (rejected): no such street; the next one is at 2026-03-01 12:05:00 UTC"
    )
    assert found.advice == "sooner: statifier-router release parcels P1 --mode retry"
    at.outbound.pause(RULE)
    assert reason(at) == "failed"
    assert "and rule 'parcels' is paused" in why(at).text
    assert why(at).advice == (
        "statifier-router resume parcels; then, to have it sent sooner: "
        "statifier-router release parcels P1 --mode retry"
    )
    at.outbound.resume(RULE)
    at.clock.pass_by(5 * MINUTE)
    assert (reason(at), why(at).advice) == ("due", "statifier-router run parcels")


def test_a_call_that_timed_out_is_in_doubt(at):
    at.shelf.put("P1")
    at.target.on("P1", times_out(taken=True))
    run(at)
    assert reason(at) == "in_doubt"
    assert "whether it took effect nobody knows" in why(at).text
    at.clock.pass_by(HOUR)
    assert reason(at) == "in_doubt"


def test_exhausted_and_released(at):
    at.save(retry=RetryPolicy(max_attempts=1))
    at.shelf.put("P1")
    at.target.on("P1", rejects("no such street"))
    run(at)
    found = why(at)
    assert found.reason == "exhausted"
    assert "given up after one attempt" in found.text
    assert "no such street" in found.text
    assert found.advice.endswith("statifier-router release parcels P1 --mode retry")
    at.outbound.release(RULE, mode="retry", source_ids=["P1"], spread=HOUR, **WHO)
    assert reason(at) == "due"
    run(at)
    assert reason(at) == "delivered"


def test_an_exhausted_create_in_doubt_is_to_be_looked_up(at):
    at.record("P1", "exhausted", remote_id=None, error_kind="unknown_create")
    at.operation("P1")
    found = why(at)
    assert found.reason == "exhausted"
    assert "whether its last create took effect" in found.text
    for mode in ("'adopt ID'", "recreate", "retry"):
        assert f"--mode {mode}" in found.advice


def test_an_unaddressable_create_is_adopted(at):
    """The target may well have it: to create it anew comes second."""
    at.record("P1", "exhausted", remote_id=None, error_kind="unaddressable")
    advice = why(at).advice
    assert advice.index("--mode 'adopt ID'") < advice.index("--mode recreate")


def test_gone_at_the_target(at):
    at.shelf.put("P1")
    run(at)
    at.shelf.put("P1", "v2")
    at.target.on("P1", gone())
    run(at)
    found = why(at)
    assert found.reason == "remote_gone"
    assert "--mode recreate" in found.advice
    at.outbound.release(RULE, mode="dismiss", source_ids=["P1"], **WHO)
    assert "was dismissed" in why(at).text
    assert reason(at) == "remote_gone"


def test_parked_by_hand(at):
    at.shelf.put("P1")
    at.outbound.park(RULE, ["P1"], reason="breaks the writer", **WHO)
    found = why(at)
    assert found.reason == "parked"
    assert "breaks the writer" in found.text
    run(at)
    assert reason(at) == "parked"
    at.outbound.release(RULE, mode="retry", source_ids=["P1"], **WHO)
    run(at)
    assert reason(at) == "delivered"


@pytest.mark.parametrize(
    ("policy", "row", "told"),
    [
        (Policy.UPDATE_ONLY, {"remote_id": None, "error_kind": "update_only"}, "has no address of it"),
        (Policy.CREATE_ONLY, {"error_kind": "create_only"}, "the target has it already"),
    ],
)
def test_suppressed_by_the_policy(at, policy, row, told):
    at.save(policy=policy)
    at.shelf.put("P1")
    at.record("P1", "suppressed", **row)
    found = why(at)
    assert found.reason == "suppressed"
    assert told in found.text
    assert ("adopt ID" in found.advice) == (policy is Policy.UPDATE_ONLY)
    at.shelf.put("P1", "v2")
    assert reason(at) == ("newer_version" if policy is Policy.UPDATE_ONLY else "suppressed")


def test_a_call_in_flight(at):
    at.shelf.put("P1", "v2")
    at.record("P1")
    at.operation("P1", verb="update", in_doubt=False, lease_token=4)
    at.lease(4, NOW + SECOND)
    at.chain("running")
    found = why(at)
    assert found.reason == "in_flight"
    assert found.advice == (
        "its process holds it until 2026-03-01 12:00:01 UTC; if that has died, the first tick after "
        "2026-03-01 12:03:00 UTC goes on by itself (sooner, from 2026-03-01 12:00:01 UTC on: "
        "statifier-router run parcels)"
    )
    at.clock.pass_by(MINUTE)
    assert reason(at) == "in_doubt"
    assert "left its update open" in why(at).text


# --- what the rule decides ----------------------------------------------------------------------------


def test_a_paused_rule(at):
    at.shelf.put("P1")
    at.outbound.pause(RULE)
    found = why(at)
    assert (found.reason, found.advice) == ("paused", "statifier-router resume parcels")


def test_a_closed_route(at):
    at.shelf.put("P1")
    at.closed = "the account is disabled"
    found = why(at)
    assert found.reason == "route_closed"
    assert "the account is disabled" in found.text


def test_an_open_breaker(at):
    at.shelf.put("P1")
    at.breaker()
    found = why(at)
    assert found.reason == "breaker_open"
    assert "until 2026-03-01 12:01:00 UTC" in found.text
    assert found.advice.endswith("statifier-router breaker reset carrier")


def test_a_rule_that_fails(at):
    """At this record or at another one, told with what the fault says."""
    at.shelf.put("P1")
    at.shelf.put("P2")
    at.target.coming(*[breaks(KeyError("street"))] * 3)
    for _ in range(3):
        failing(at)
    found = why(at)
    assert found.reason == "rule_failing"
    assert "at this very record (unclassified)" in found.text
    assert "statifier-router park parcels P1" in found.advice
    other = why(at, "P2")
    assert other.reason == "rule_failing"
    assert "this very record" not in other.text
    assert other.advice == found.advice
    # The command that is named mends it.
    at.outbound.park(RULE, ["P1"], reason="unclassified", **WHO)
    run(at)
    assert (reason(at), reason(at, "P2")) == ("parked", "delivered")
    at.outbound.release(RULE, mode="retry", source_ids=["P1"], **WHO)
    run(at)
    assert reason(at) == "delivered"


def test_a_rule_without_a_writer(at):
    at.shelf.put("P1")
    found = at.made(writers={}).why(RULE, "P1")
    assert found.reason == "rule_failing"
    assert found.advice == "Outbound(..., writers={'carrier': ...})"


def test_rules_of_other_processes(at):
    """The source of a rule that is not defined here cannot be asked; its parked rows tell all the same."""
    at.record("P2", "exhausted")
    other = at.made(at.rule("letters"))
    assert other.why(RULE, "P1").reason == "not_defined_here"
    assert other.why(RULE, "P2").reason == "exhausted"
    at.shelf.put("P1")
    other.save_rule(at.rule(batch_size=7))
    assert reason(at) == "defined_differently"


def test_a_run_that_is_under_way(at):
    """What fell due behind its beginning, and what its scan has not come to."""
    at.chain("running")
    at.shelf.put("P1")
    assert reason(at) == "not_scanned"
    assert "the run that began at 2026-03-01 12:00:00 UTC is under way" in why(at).text
    assert "the first tick after 2026-03-01 12:03:00 UTC goes on by itself" in why(at).advice
    at.clock.pass_by(2 * LEASE + SECOND)
    assert (reason(at), why(at).advice) == ("not_scanned", "statifier-router run parcels")


# --- what the source decides --------------------------------------------------------------------------


def test_a_version_that_the_source_holds_back(at):
    at.shelf.put("P1")
    at.shelf.held.add("P1")
    found = why(at)
    assert found.reason == "held_back"
    assert "somebody is still writing" in found.text


def test_a_version_behind_the_horizon(postgresql, make_config):
    """A row of `changes` that is committed while an older transaction is open."""
    at = host(make_config, postgresql)
    at.outbound = at.made(at.rule("changed", source=Changes("parcel")))
    with at.config.engine.begin() as open_one:
        record_change(at.config, "parcel", "P9", {}, connection=open_one)
        record_change(at.config, "parcel", "P1", {"state": "held"})
        found = at.outbound.why("changed", "P1")
        assert (found.reason, found.advice) == ("held_back", "statifier-router doctor")
    assert at.outbound.why("changed", "P1").reason == "not_scanned"


def test_a_record_that_the_cursor_has_passed(at):
    at.shelf.put("P1")
    at.record("P1", signal="v0")
    at.lease(1, None, cursor="5")
    found = why(at)
    assert found.reason == "newer_version"
    assert "the cursor has passed it" in found.text
    assert "statifier-router replay parcels P1" in found.advice


def test_a_source_that_fails(at):
    at.shelf.fault = OSError("no such table")
    at.record("P1")
    at.record("P2", "exhausted")
    found = why(at)
    assert found.reason == "source_failed"
    assert "OSError: no such table" in found.text
    assert reason(at, "P2") == "exhausted"


@pytest.mark.parametrize("hook", ["held_back", "rewound"])
def test_a_source_whose_hook_fails(at, hook):
    """What a host's own source raises never keeps the question why from its answer."""

    def broken(*_):
        raise OSError("no such view")

    at.shelf.put("P1")
    run(at)
    at.shelf.put("P1", "v2")
    setattr(at.shelf, hook, broken)
    found = why(at)
    assert found.reason == ("source_failed" if hook == "held_back" else "newer_version")


def test_a_source_that_answers_nonsense(at):
    """What a source answers is never taken on trust, not even by the question why."""
    at.shelf.kept["P1"] = "nonsense"
    found = why(at)
    assert found.reason == "source_failed"
    assert "load answered str" in found.text


@pytest.mark.parametrize("source_id", ["", 7, "x" * 600])
def test_an_id_that_no_record_can_have(at, source_id):
    with pytest.raises(ConfigError, match="source_id"):
        at.outbound.why(RULE, source_id)


# --- messages -----------------------------------------------------------------------------------------


def test_a_message_is_delivered_once(at):
    at.save(kind="message", policy=Policy.CREATE_ONLY)
    at.shelf.put("P1")
    run(at)
    assert reason(at) == "delivered"
    del at.shelf.kept["P1"]
    assert reason(at) == "delivered"


def test_a_message_is_sent_a_second_time_by_replay(at):
    """Under a key that the target does not know."""
    at.save(kind="message", policy=Policy.CREATE_ONLY)
    at.shelf.put("P1")
    run(at)
    at.outbound.replay(RULE, source_ids=["P1"])
    assert reason(at) == "due"
    run(at)
    first, second = at.target.requests
    assert (first.verb, second.verb, first.key != second.key) == ("create", "create", True)
    assert reason(at) == "delivered"


# --- acts, and the runs behind them -------------------------------------------------------------------


def test_a_replayed_record_is_updated_under_a_new_key(at):
    at.shelf.put("P1")
    run(at)
    at.outbound.replay(RULE, source_ids=["P1"])
    run(at)
    at.outbound.replay(RULE, source_ids=["P1"])
    run(at)
    verbs = [request.verb for request in at.target.requests]
    assert verbs == ["create", "update", "update"]
    assert len({request.key for request in at.target.requests}) == 3


def test_a_recreated_record_has_one_copy_at_the_target(at):
    at.shelf.put("P1")
    run(at)
    at.shelf.put("P1", "v2")
    (held,) = at.target.records.values()
    at.target.forget(held.remote_id)
    at.target.on("P1", gone())
    run(at)
    at.outbound.release(RULE, mode="recreate", source_ids=["P1"], **WHO)
    run(at)
    assert [held.signal for held in at.target.records.values()] == ["v2"]
    assert reason(at) == "delivered"


def test_an_adopted_record_is_updated(at):
    """The create took effect, nobody heard of it; the operator names its address."""
    at.save(on_unknown_create="park")
    at.shelf.put("P1")
    at.target.on("P1", times_out(taken=True))
    run(at)
    at.clock.pass_by(HOUR)
    run(at)
    assert reason(at) == "exhausted"
    at.shelf.put("P1", "v2")
    (held,) = at.target.records.values()
    at.outbound.release(RULE, mode="adopt", remote_id=held.remote_id, source_ids=["P1"], **WHO)
    run(at)
    assert [held.signal for held in at.target.records.values()] == ["v2"]
    assert [request.verb for request in at.target.requests] == ["create", "update"]
    assert reason(at) == "delivered"


def test_a_retried_create_in_doubt_keeps_its_key(at):
    at.save(on_unknown_create="park")
    at.shelf.put("P1")
    at.target.on("P1", times_out())
    run(at)
    at.clock.pass_by(HOUR)
    run(at)
    at.outbound.release(RULE, mode="retry", source_ids=["P1"], **WHO)
    run(at)
    first, second = at.target.requests
    assert first.key == second.key
    assert reason(at) == "delivered"


def test_a_record_that_is_parked_while_a_page_comes_to_it_is_left_alone(at):
    """The page had found no row of it; the one that an operator wrote is no fault."""
    at.shelf.put("P1")
    at.shelf.put("P2")

    class Parking:
        def create(self, payload, context):
            if context.source_id == "P1":
                at.outbound.park(RULE, ["P2"], reason="not this one", **WHO)
            return None if context.source_id == "P2" else _created(context)

    at.outbound = at.made(at.rule(policy=Policy.CREATE_ONLY), writers={"carrier": Parking()})
    run(at)
    assert (reason(at), reason(at, "P2")) == ("delivered", "parked")


def _created(context):
    from statifier_router.runs import Created

    return Created(f"R-{context.source_id}")


# --- doctor -------------------------------------------------------------------------------------------


def kinds(at, outbound=None):
    found = (outbound or at.outbound).doctor()
    assert all(finding.text and finding.advice for finding in found)
    return [finding.kind for finding in found]


def test_nothing_is_wrong_behind_a_run(at):
    assert kinds(at) == ["never_ran"]
    run(at)
    assert kinds(at) == []


def test_what_doctor_finds(at):
    at.chain("failed")
    assert kinds(at) == ["failing"]
    at.chain()
    at.record("P1", "exhausted")
    at.operation("P1")
    assert kinds(at) == ["parked", "stuck_in_doubt"]
    at.outbound.release(RULE, mode="dismiss", **WHO)
    assert kinds(at) == []
    at.record("P2", "failed", next_attempt_at=NOW - 16 * MINUTE)
    at.operation("P2", started_at=NOW - timedelta(days=2))
    assert kinds(at) == ["overdue", "failed", "long_in_doubt"]
    at.breaker()
    assert kinds(at) == ["breaker_open", "overdue", "failed", "long_in_doubt"]
    (found, *_) = at.outbound.doctor()
    assert found.advice == "statifier-router breaker reset carrier"
    assert (found.severity, found.rule) == ("problem", RULE)


def test_a_rule_that_nobody_ticks(at):
    at.chain()
    at.clock.pass_by(15 * MINUTE)
    assert kinds(at) == []
    at.clock.pass_by(SECOND)
    assert kinds(at) == ["not_ticked"]
    at.outbound.pause(RULE)
    (found,) = at.outbound.doctor()
    assert (found.kind, found.severity) == ("paused", "notice")


def test_records_that_are_tried_again(at):
    """A notice, unless the last run that tried any delivered none: then it may be the target's matter."""
    at.shelf.put("P1")
    at.shelf.put("P2")
    at.target.on("P1", rejects("not allowed"))
    run(at)
    (found,) = at.outbound.doctor()
    assert (found.kind, found.severity) == ("failed", "notice")
    assert found.advice == "statifier-router records parcels --status failed"
    at.clock.pass_by(HOUR)
    at.target.on("P1", rejects("not allowed"))
    run(at)
    assert kinds(at) == ["failed"]
    at.shelf.put("P2", "v2")
    at.target.on("P2", rejects("not allowed"))
    run(at)
    run(at)
    (found,) = at.outbound.doctor()
    assert (found.kind, found.severity) == ("none_delivered", "problem")
    assert found.text == (
        "2 records failed and are tried again at rule 'parcels', "
        "and its last run that called the target delivered none"
    )
    at.clock.pass_by(HOUR)
    run(at)
    assert kinds(at) == []


def test_the_only_record_that_there_is_fails(at):
    """Nothing was ever delivered."""
    at.shelf.put("P1")
    at.target.on("P1", rejects("not allowed"))
    run(at)
    assert kinds(at) == ["none_delivered"]


def test_a_chain_that_died(at):
    at.chain("running")
    at.clock.pass_by(2 * LEASE + SECOND)
    assert kinds(at) == ["dead_chain"]


def test_a_closed_route_is_found(at):
    run(at)
    at.closed = "the account is disabled"
    assert kinds(at) == ["route_closed"]


def test_a_suspect_rule_is_found(at):
    at.chain(end="SUSPECT_RULE")
    assert kinds(at) == ["suspect_rule"]


def test_other_processes(at):
    """A rule that is not defined here; one with a longer call timeout than this lease bears; no writer."""
    run(at)
    at.made(at.rule(call_timeout=MINUTE), lease=timedelta(minutes=3)).rules()
    assert kinds(at) == ["defined_differently", "lease_too_short"]
    other = at.made(at.rule("letters"), writers={})
    assert kinds(at, other) == ["failing", "not_defined_here", "lease_too_short"]
    assert TARGET in other.doctor()[0].advice
