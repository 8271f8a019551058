"""What operators ask of runs and do to records, rules and breakers."""

from __future__ import annotations

import json
from datetime import timedelta

import attrs
import pytest
from sqlalchemy import event, select

from statifier_router import ConfigError
from statifier_router.runs import Policy
from tests.support.charts import HOUR, NOW, SECOND
from tests.support.operated import LEASE, RULE, TARGET, host

MINUTE = timedelta(minutes=1)
WHO = {"actor": "ada"}


@pytest.fixture
def at(database, make_config):
    """A host with one saved rule."""
    return host(make_config, database)


def audited(at):
    return [(row["actor"], row["action"], row["count"], row["reason"]) for row in at.rows("audit")]


# --- how rules stand ----------------------------------------------------------------------------------


def state(at):
    (status,) = [each for each in at.outbound.rules() if each.name == RULE]
    return status.state, status.advice


def test_a_rule_that_never_ran_and_one_that_is_idle(at):
    """Nothing to do looks different from nothing ever done."""
    assert state(at) == ("never ran", "statifier-router run parcels")
    at.chain()
    assert state(at) == ("idle", "")


def test_everything_about_a_rule(at):
    """Its definition, cursor, runs, counts by status, what is due, in doubt and parked."""
    at.lease(3, None, cursor="[7,1]")
    for status in ("delivered", "delivered ", "suppressed", "exhausted", "remote_gone"):
        at.record(f"{status} one", status.strip())
    at.record("seen", "exhausted", acknowledged_at=NOW)
    at.record("due", "failed", next_attempt_at=NOW - MINUTE)
    at.record("later", "failed")
    at.operation("due")
    first, second = at.chain(), at.chain("running")
    (status,) = at.outbound.rules()
    assert status.definition == at.rule().definition
    assert status.cursor == [7, 1]
    assert status.counts == {
        "delivered": 2,
        "suppressed": 1,
        "failed": 2,
        "exhausted": 2,
        "remote_gone": 1,
        "parked": 2,
    }
    assert (status.due, status.oldest_due, status.in_doubt) == (1, NOW - MINUTE, 1)
    assert (status.last_chain.id, status.chain.id) == (first["id"], second["id"])
    assert (status.chain.started_at, status.chain.counters) == (NOW, {"delivered": 2})
    assert status.state == "running"
    assert status.breaker is None


def test_a_chain_that_gives_no_sign_for_two_leases_is_stalled(at):
    at.chain("running")
    at.clock.pass_by(2 * LEASE)
    assert state(at)[0] == "running"
    at.clock.pass_by(SECOND)
    told, advice = state(at)
    assert told == "stalled"
    assert "statifier-router tick" in advice


def test_a_rule_whose_last_run_failed_names_the_fault_and_what_mends_it(at):
    at.chain("failed", fault_kind="no_writer", fault_source_id=None, fault_text="give it a writer")
    assert state(at) == ("failing: no_writer", "give it a writer")
    at.chain()
    assert state(at)[0] == "idle"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, True),
        ({"fault_source_id": "P2"}, False),
        ({"fault_kind": "impossible_candidate"}, False),
        ({"fault_text": "another one"}, False),
    ],
    ids=["equal", "another record", "another kind", "another text"],
)
def test_three_equal_unclassified_faults_at_one_record_name_the_command_that_parks_it(at, changes, named):
    """Two do not, and one of them that differs does not."""
    at.chain("failed", **changes)
    at.chain("failed")
    assert "park" not in state(at)[1]
    at.chain("failed")
    command = "statifier-router park parcels P1 --reason unclassified"
    assert state(at)[1].endswith(command) == named


def test_a_run_between_equal_faults_ends_their_row(at):
    for ended in ("failed", "failed", "finished", "failed"):
        at.chain(ended)
    assert "statifier-router park" not in state(at)[1]


def test_an_idle_rule_with_failed_records_says_where_they_are(at):
    at.chain()
    at.record("P1", "failed")
    listed = "to see them: statifier-router records parcels --status failed"
    assert state(at) == ("idle", f"1 record failed and is tried again; {listed}")
    at.record("P2", "failed")
    assert state(at) == ("idle", f"2 records failed and are tried again; {listed}")
    at.breaker()
    told, advice = state(at)
    assert told == "breaker open"
    assert advice.endswith(listed)


def test_a_paused_rule(at):
    at.outbound.pause(RULE)
    assert state(at) == ("paused", "statifier-router resume parcels")


def test_a_closed_route_says_why_and_since_when(at):
    """What the host says now, and what a run found."""
    at.chain()
    at.closed = "the account is disabled"
    assert state(at)[0] == "route closed"
    assert "the account is disabled" in state(at)[1]
    at.closed = None
    assert state(at)[0] == "idle"
    at.lease(1, None, closed_since=NOW)
    (status,) = at.outbound.rules()
    assert (status.state, status.closed_since, status.health) == ("route closed", NOW, None)


def test_health_that_raises_hides_no_rule(at):
    def raising(rule):
        raise OSError("no network")

    (status,) = at.made(health=raising).rules()
    assert status.state == "route closed"
    assert "OSError: no network" in status.health


def test_an_open_breaker_says_until_when(at):
    at.chain()
    at.breaker()
    told, advice = state(at)
    assert told == "breaker open"
    assert "2026-03-01 12:01:00 UTC" in advice
    assert advice.endswith("statifier-router breaker reset carrier")
    at.clock.pass_by(2 * MINUTE)
    assert "the next run tries the target" in state(at)[1]


def test_a_suspect_rule(at):
    at.chain(end="SUSPECT_RULE")
    assert state(at)[0] == "suspect rule"


def test_a_rule_without_a_writer_is_failing_before_it_ever_ran(at):
    (status,) = at.made(writers={}).rules()
    assert status.state == "failing: no_writer"
    assert "Outbound(..., writers={'carrier': ...})" in status.advice


def test_rules_of_other_processes(at):
    """One that is not defined here, and one that is defined differently here, are told as such."""
    other = at.made(at.rule("letters"))
    at.chain()
    assert {each.name: each.state for each in other.rules()} == {
        "letters": "never ran",
        RULE: "not defined here",
    }
    assert [each.known_here for each in other.rules()] == [True, False]
    other.save_rule(at.rule(batch_size=7))
    assert state(at)[0] == "defined differently"


def test_a_rule_that_cannot_be_saved_is_told_and_hides_no_other(at):
    """Another target than its rows are of is refused; the one that was saved is shown, as failing."""
    at.record("P1")
    (status,) = at.made(at.rule(target="elsewhere")).rules()
    assert status.state == "failing: refused"
    assert "target must stay 'carrier'" in status.advice
    assert status.definition["target"] == TARGET


def test_rules_are_saved_when_they_are_first_asked_for(database, make_config):
    made = host(make_config, database)
    other = made.made(made.rule("letters"))
    assert [row["name"] for row in made.rows("rules")] == [RULE]
    other.rules()
    assert [row["name"] for row in made.rows("rules")] == ["letters", RULE]


@pytest.mark.parametrize(
    "ask",
    [
        lambda outbound: outbound.chains("parcel"),
        lambda outbound: outbound.records("parcel"),
        lambda outbound: outbound.parked("parcel"),
        lambda outbound: outbound.count_parked("parcel"),
        lambda outbound: outbound.why("parcel", "P1"),
        lambda outbound: outbound.release("parcel", mode="retry", **WHO),
        lambda outbound: outbound.park("parcel", ["P1"], reason="x"),
        lambda outbound: outbound.replay("parcel", source_ids=["P1"]),
        lambda outbound: outbound.pause("parcel"),
        lambda outbound: outbound.resume("parcel"),
        lambda outbound: outbound.pause(None),
    ],
)
def test_a_rule_that_nobody_knows(at, ask):
    """The error lists the names that there are, those of other processes with them."""
    at.made(at.rule("letters")).rules()
    with pytest.raises(ConfigError, match="there are: letters, parcels"):
        ask(at.outbound)


# --- chains and records -------------------------------------------------------------------------------


def test_chains_the_newest_first(at):
    made = [at.chain(), at.chain("failed"), at.chain("running")]
    found = at.outbound.chains(RULE)
    assert [chain.id for chain in found] == [chain["id"] for chain in reversed(made)]
    assert [chain.running for chain in found] == [True, False, False]
    assert (found[1].fault_kind, found[1].fault_source_id) == ("unclassified", "P1")
    assert [chain.id for chain in at.outbound.chains(at.rule(), limit=1)] == [made[2]["id"]]


def test_records_by_page_and_status(at):
    for number in range(5):
        at.record(f"P{number}", "failed" if number % 2 else "delivered")
    first = at.outbound.records(RULE, limit=2)
    assert [row.source_id for row in first] == ["P0", "P1"]
    rest = at.outbound.records(RULE, after=first[-1].source_id)
    assert [row.source_id for row in rest] == ["P2", "P3", "P4"]
    failed = at.outbound.records(RULE, status="failed")
    assert [(row.source_id, row.attempts, row.is_terminal) for row in failed] == [
        ("P1", 2, False),
        ("P3", 2, False),
    ]
    assert [row.is_terminal for row in at.outbound.records(RULE, status="delivered")] == [False] * 3


def test_parked_records_by_filter(at):
    at.made(at.rule("letters")).rules()
    at.record("P1", "exhausted", parked_at=NOW - HOUR)
    at.record("P2", "exhausted", error_kind="timed_out")
    at.record("P3", "remote_gone")
    at.record("P4", "exhausted", acknowledged_at=NOW)
    at.record("L1", "exhausted", rule="letters")
    at.record("P5", "failed")

    def ids(*arguments, **filters):
        found = [row.source_id for row in at.outbound.parked(*arguments, **filters)]
        assert at.outbound.count_parked(*arguments, **filters) == len(found)
        return found

    assert ids() == ["P1", "L1", "P2", "P3"]
    assert ids(RULE) == ["P1", "P2", "P3"]
    assert ids(status="remote_gone") == ["P3"]
    assert ids(error_kind="timed_out") == ["P2"]
    assert ids(RULE, since=NOW) == ["P2", "P3"]
    assert ids(RULE, acknowledged=True) == ["P4"]
    assert ids(RULE, acknowledged=None) == ["P1", "P2", "P3", "P4"]
    assert ids(RULE, status="exhausted", error_kind="gone") == []


def test_pages_of_parked_records_leave_none_out(at):
    """Also where many were parked at one instant."""
    for number in range(7):
        at.record(f"P{number}", "exhausted", parked_at=NOW + (number // 3) * SECOND)
    seen, last = [], None
    while page := at.outbound.parked(limit=2, after=last):
        seen += [row.source_id for row in page]
        last = page[-1]
    assert seen == [f"P{number}" for number in range(7)]


@pytest.mark.parametrize(
    ("filters", "named"),
    [
        ({"status": "failed"}, "status"),
        ({"status": 3}, "status"),
        ({"error_kind": ""}, "error_kind"),
        ({"since": NOW.replace(tzinfo=None)}, "since"),
        ({"acknowledged": 1}, "acknowledged"),
        ({"limit": 0}, "limit"),
        ({"after": "P1"}, "after"),
    ],
)
def test_a_bad_filter_is_named(at, filters, named):
    with pytest.raises(ConfigError, match=named):
        at.outbound.parked(RULE, **filters)


# --- release ------------------------------------------------------------------------------------------


def test_retry_begins_again_with_the_call_in_doubt_under_its_key(at):
    """Due now, no attempts counted; the operation stays, and belongs to the row as it is now."""
    at.record("P1", "exhausted", acknowledged_at=NOW, error_kind="unknown_create", remote_id=None)
    operation = at.operation("P1")
    at.clock.pass_by(HOUR)
    done = at.outbound.release(RULE, mode="retry", source_ids=["P1"], reason="mended", **WHO)
    assert (done.count, done.busy, done.passed_over, done.unknown) == (1, 0, 0, 0)
    row = at.row("P1")
    assert (row["status"], row["attempts"], row["next_attempt_at"]) == ("failed", 0, NOW + HOUR)
    assert (row["parked_at"], row["acknowledged_at"]) == (None, None)
    # What the engine goes by where an operator has had the last word on a create in doubt.
    assert row["error_kind"] == "unknown_create"
    assert row["generation"] == 1
    assert at.rows("operations") == [operation | {"row_version": row["row_version"]}]
    assert audited(at) == [("ada", "release retry", 1, "mended")]
    (audit,) = at.rows("audit")
    assert json.loads(audit["selection"]) == {"rule": RULE, "source_ids": ["P1"]}
    assert audit["id"] == done.audit_id


def test_recreate_forgets_the_address_and_the_call_in_doubt(at):
    at.record("P1", "remote_gone")
    at.operation("P1")
    at.outbound.release(RULE, mode="recreate", source_ids=["P1"], **WHO)
    row = at.row("P1")
    assert (row["status"], row["remote_id"], row["generation"], row["next_attempt_at"]) == (
        "failed",
        None,
        2,
        NOW,
    )
    assert at.rows("operations") == []


@pytest.mark.parametrize("spelled", [{"mode": "adopt", "remote_id": "R-7"}, {"mode": "adopt R-7"}])
def test_adopt_settles_the_call_in_doubt_and_has_an_update_follow(at, spelled):
    at.record("P1", "exhausted", remote_id=None, generation=0)
    at.operation("P1")
    done = at.outbound.release(RULE, source_ids=["P1"], **spelled, **WHO)
    assert (done.mode, done.count) == ("adopt", 1)
    row = at.row("P1")
    assert (row["status"], row["remote_id"], row["next_attempt_at"], row["generation"]) == (
        "failed",
        "R-7",
        NOW,
        1,
    )
    assert at.rows("operations") == []
    (audit,) = at.rows("audit")
    assert json.loads(audit["selection"])["remote_id"] == "R-7"


@pytest.mark.parametrize(
    "changes", [{"kind": "message", "policy": Policy.CREATE_ONLY}, {"policy": Policy.CREATE_ONLY}]
)
def test_adopt_where_no_update_ever_follows(at, changes):
    """The record is delivered then, in the version that was in doubt."""
    at.save(**changes)
    at.record("P1", "exhausted", remote_id=None, signal="v1")
    at.operation("P1", signal="v2")
    at.outbound.release(RULE, mode="adopt", remote_id="R-7", source_ids=["P1"], **WHO)
    row = at.row("P1")
    assert (row["status"], row["remote_id"], row["signal"], row["last_error"]) == (
        "delivered",
        "R-7",
        "v2",
        None,
    )


def test_dismiss_leaves_the_record_as_it_is_and_lists_it_no_more(at):
    before = at.record("P1", "exhausted")
    at.record("P2", "exhausted")
    assert at.outbound.release(RULE, mode="dismiss", source_ids=["P1"], **WHO).due_from is None
    after = at.row("P1")
    assert after == before | {"acknowledged_at": NOW, "row_version": after["row_version"]}
    assert [row.source_id for row in at.outbound.parked()] == ["P2"]
    again = at.outbound.release(RULE, mode="dismiss", source_ids=["P1"], **WHO)
    assert (again.count, again.passed_over) == (0, 1)


def released(at, **arguments):
    done = at.outbound.release(RULE, **({"mode": "retry"} | WHO | arguments))
    due = [row["source_id"] for row in at.rows("records") if row["next_attempt_at"] == NOW]
    assert done.count == len(due)
    return due


@pytest.fixture
def mixed(at):
    """Records of every status."""
    at.record("delivered")
    at.record("suppressed", "suppressed")
    at.record("failed", "failed")
    at.record("gone", "remote_gone")
    at.record("old", "exhausted", parked_at=NOW - HOUR)
    at.record("seen", "exhausted", acknowledged_at=NOW)
    at.record("slow", "exhausted", error_kind="timed_out")
    return at


def test_all_that_are_parked_and_not_dismissed(mixed):
    """What nothing chooses is that; failed ones are tried again anyway."""
    assert released(mixed) == ["gone", "old", "slow"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"status": "failed"}, ["failed"]),
        ({"status": "exhausted"}, ["old", "slow"]),
        ({"error_kind": "timed_out"}, ["slow"]),
        ({"since": NOW}, ["gone", "slow"]),
        ({"since": NOW, "status": "exhausted"}, ["slow"]),
        ({"source_ids": ["failed", "seen", "seen"]}, ["failed", "seen"]),
        ({"source_ids": ["old", "gone"], "status": "remote_gone"}, ["gone"]),
    ],
)
def test_records_are_chosen_by_name_and_by_filter(mixed, chosen, expected):
    assert released(mixed, **chosen) == expected


def test_what_is_not_released_is_counted(mixed):
    done = mixed.outbound.release(
        RULE, mode="retry", source_ids=["delivered", "suppressed", "nobody", "gone"], **WHO
    )
    assert (done.count, done.passed_over, done.unknown) == (1, 2, 1)


def test_nothing_to_do_leaves_no_audit_row(at):
    done = at.outbound.release(RULE, mode="retry", source_ids=["nobody"], **WHO)
    assert (done.count, done.unknown, done.audit_id) == (0, 1, None)
    assert at.outbound.release(RULE, mode="recreate", **WHO).count == 0
    assert at.rows("audit") == []


@pytest.mark.parametrize("arguments", [{}, {"mode": "recreate"}, {"mode": "dismiss"}, {"status": "failed"}])
def test_a_dry_run_counts_the_same_and_writes_nothing(mixed, arguments):
    mixed.operation("gone")
    before = mixed.dump()
    would = mixed.outbound.release(RULE, dry_run=True, **({"mode": "retry"} | WHO | arguments))
    assert mixed.dump() == before
    done = mixed.outbound.release(RULE, **({"mode": "retry"} | WHO | arguments))
    assert attrs.evolve(done, dry_run=True, audit_id=None) == would


def test_a_dry_run_of_adopt(at):
    at.record("P1", "exhausted")
    before = at.dump()
    assert at.outbound.release(RULE, mode="adopt R-7", source_ids=["P1"], dry_run=True, **WHO).count == 1
    assert at.dump() == before


def test_a_spread_is_even(at):
    """The first is due at once, the last before the end, and the time between two is always the same."""
    for number in range(8):
        at.record(f"P{number}", "exhausted")
    done = at.outbound.release(RULE, mode="retry", spread=8 * MINUTE, **WHO)
    assert (done.due_from, done.due_until) == (NOW, NOW + 8 * MINUTE)
    due = [row["next_attempt_at"] for row in at.rows("records")]
    assert due == [NOW + number * MINUTE for number in range(8)]


def test_a_call_in_flight_is_passed_over(at):
    """Its job is alive, and will write its outcome; nothing of the record changes."""
    at.record("P1", "failed")
    at.record("P2", "failed")
    at.operation("P1", in_doubt=False, lease_token=4)
    at.lease(4, NOW + SECOND)
    before = at.row("P1")
    for mode in ("retry", "recreate", "adopt R-1"):
        done = at.outbound.release(RULE, mode=mode, source_ids=["P1"], **WHO)
        assert (done.count, done.busy) == (0, 1)
    parked = at.outbound.park(RULE, ["P1"], reason="x", **WHO)
    assert (parked.count, parked.busy) == (0, 1)
    assert at.row("P1") == before
    assert at.outbound.release(RULE, mode="retry", status="failed", **WHO).count == 1


@pytest.mark.parametrize(
    ("token", "until", "revoked"),
    [(4, NOW - SECOND, True), (4, None, False), (5, NOW + SECOND, False)],
    ids=["the lease is over", "the job has ended", "another job has the rule"],
)
def test_a_call_that_nobody_alive_has_in_hand_is_no_hindrance(at, token, until, revoked):
    """A job that may still come back finds that it has lost the rule."""
    at.record("P1", "failed")
    at.operation("P1", in_doubt=False, lease_token=4)
    at.lease(token, until)
    assert at.outbound.release(RULE, mode="recreate", source_ids=["P1"], **WHO).count == 1
    (rule,) = at.rows("rules")
    assert rule["lease_token"] == token + revoked
    assert at.rows("operations") == []


def test_many_are_released_in_transactions_of_a_few_hundred_with_one_audit_row(at):
    at.write("records", *[_parked(number) for number in range(1_200)])
    told = []

    def progress(done, total):
        committed = sum(row["status"] == "failed" for row in at.rows("records"))
        told.append((committed, done, total))

    done = at.outbound.release(RULE, mode="retry", spread=HOUR, progress=progress, **WHO)
    assert done.count == 1_200
    assert told == [(500, 500, 1_200), (1_000, 1_000, 1_200), (1_200, 1_200, 1_200)]
    assert audited(at) == [("ada", "release retry", 1_200, None)]
    due = {row["next_attempt_at"] for row in at.rows("records")}
    assert (min(due), len(due)) == (NOW, 1_200)


def _parked(number):
    return {
        "rule": RULE,
        "source_id": f"P{number:05}",
        "status": "exhausted",
        "signal": "v1",
        "attempts": 5,
        "error_kind": "rejected",
        "last_error": "no such street",
        "parked_at": NOW,
        "generation": 0,
        "row_version": 1,
        "updated_at": NOW,
    }


def test_what_was_committed_before_a_fault_stays_and_is_in_the_audit_row(at):
    at.write("records", *[_parked(number) for number in range(700)])

    def fail(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.outbound.release(RULE, mode="retry", progress=fail, **WHO)
    assert audited(at) == [("ada", "release retry", 500, None)]
    assert sum(row["status"] == "failed" for row in at.rows("records")) == 500


def test_what_a_run_changed_in_the_meantime_is_left_alone(at):
    """Chosen first, looked at again under the lock."""
    for number in range(501):
        at.record(f"P{number:03}", "exhausted")

    def deliver(done, total):
        table = at.config.schema.records
        with at.config.engine.begin() as connection:
            connection.execute(
                table.update().where(table.c.source_id == "P500").values(status="delivered", parked_at=None)
            )

    done = at.outbound.release(RULE, mode="retry", progress=deliver, **WHO)
    assert (done.count, done.passed_over) == (500, 1)
    assert at.row("P500")["status"] == "delivered"


def test_an_act_waits_for_the_lock_of_the_rule_s_row(postgresql, make_config):
    """A job writes under it: neither sees half of what the other does. The wait is bounded."""
    at = host(make_config, postgresql, lock_timeout=timedelta(milliseconds=50))
    at.record("P1", "exhausted")
    rules = at.config.schema.rules
    before = at.dump()
    with at.config.engine.begin() as connection:
        connection.execute(select(rules).where(rules.c.name == RULE).with_for_update())
        for act in (
            lambda: at.outbound.release(RULE, mode="retry", **WHO),
            lambda: at.outbound.park(RULE, ["P2"], reason="x"),
            lambda: at.outbound.pause(RULE),
        ):
            with pytest.raises(Exception, match="lock timeout"):
                act()
    assert at.dump() == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"mode": "again"}, "mode must be one of retry, recreate, adopt, dismiss, not 'again'"),
        ({"mode": None}, "mode"),
        ({"mode": "adopt"}, "remote_id must be the address"),
        ({"mode": "adopt", "remote_id": " ", "source_ids": ["P1"]}, "remote_id must be the address"),
        ({"mode": "adopt", "remote_id": "R", "source_ids": ["P1", "P2"]}, "exactly one id"),
        ({"mode": "adopt R"}, "exactly one id"),
        ({"mode": "retry", "remote_id": "R"}, "remote_id goes with mode 'adopt'"),
        ({"mode": "dismiss", "spread": HOUR}, "spread does not go with mode 'dismiss'"),
        ({"mode": "dismiss", "status": "failed"}, "status must be one of exhausted, remote_gone"),
        ({"status": "delivered"}, "status must be one of failed, exhausted, remote_gone"),
        ({"spread": 60}, "spread"),
        ({"spread": -HOUR}, "spread"),
        ({"source_ids": "P1"}, "source_ids must be a sequence of ids, not str"),
        ({"source_ids": [7]}, "source_id must be text"),
        ({"source_ids": [""]}, "source_id must not be empty"),
        ({"since": NOW.replace(tzinfo=None)}, "since"),
        ({"actor": ""}, "actor"),
        ({"reason": " "}, "reason must say why"),
    ],
)
def test_a_bad_argument_is_named_and_nothing_is_written(at, arguments, problem):
    at.record("P1", "exhausted")
    before = at.dump()
    with pytest.raises(ConfigError, match=problem):
        at.outbound.release(RULE, **({"mode": "retry"} | WHO | arguments))
    assert at.dump() == before


def test_recreate_is_refused_where_the_rule_never_creates(at):
    at.save(policy=Policy.UPDATE_ONLY)
    with pytest.raises(ConfigError, match="never creates"):
        at.outbound.release(RULE, mode="recreate", **WHO)


# --- park ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["delivered", "suppressed", "failed"])
def test_a_parked_record_says_why(at, status):
    at.record("P1", status)
    at.operation("P1", in_doubt=False, lease_token=1)
    at.lease(1, None)
    done = at.outbound.park(RULE, ["P1"], reason="breaks the writer", **WHO)
    assert (done.count, done.passed_over) == (1, 0)
    row = at.row("P1")
    assert (row["status"], row["error_kind"], row["last_error"]) == (
        "exhausted",
        "parked",
        "breaks the writer",
    )
    assert (row["parked_at"], row["next_attempt_at"], row["remote_id"]) == (NOW, None, "R-P1")
    (operation,) = at.rows("operations")
    # No run sweeps it, and a release resumes it.
    assert (operation["in_doubt"], operation["row_version"]) == (True, row["row_version"])
    assert audited(at) == [("ada", "park", 1, "breaks the writer")]
    again = at.outbound.park(RULE, ["P1"], reason="once more", **WHO)
    assert (again.count, again.passed_over) == (0, 1)


def test_a_record_without_a_row_is_parked_where_a_call_of_it_is_open(at):
    """As an unclassified fault at its first call leaves it."""
    at.operation("P1", in_doubt=False, lease_token=1, row_version=None, signal="v9")
    at.lease(1, None)
    assert at.outbound.park(RULE, ["P1"], reason="x", **WHO).count == 1
    row = at.row("P1")
    assert (row["status"], row["signal"], row["generation"], row["remote_id"]) == ("exhausted", "v9", 0, None)
    (operation,) = at.rows("operations")
    assert (operation["row_version"], operation["in_doubt"]) == (row["row_version"], True)


def test_a_record_without_a_row_is_parked_where_its_source_knows_it(at):
    """A mistyped id is told instead."""
    at.shelf.put("P1", "v2")
    done = at.outbound.park(RULE, ["P1", "P-1"], reason="x", **WHO)
    assert (done.count, done.unknown) == (1, 1)
    assert [(row["source_id"], row["signal"]) for row in at.rows("records")] == [("P1", "v2")]
    assert audited(at)[0][2] == 1


@pytest.mark.parametrize("reason", [None, "", "  ", 7])
def test_parking_wants_a_reason(at, reason):
    with pytest.raises(ConfigError, match="reason"):
        at.outbound.park(RULE, ["P1"], reason=reason, **WHO)


# --- replay -------------------------------------------------------------------------------------------


def test_delivered_records_are_offered_again_under_new_keys(at):
    at.record("P1")
    at.record("P2", "suppressed", error_kind="deleted")
    at.record("P3", "failed")
    done = at.outbound.replay(RULE, source_ids=["P1", "P2", "P3", "P4"], **WHO)
    assert (done.mode, done.count, done.passed_over, done.unknown) == ("replay", 2, 1, 1)
    row = at.row("P1")
    assert (row["status"], row["attempts"], row["next_attempt_at"], row["remote_id"], row["generation"]) == (
        "failed",
        0,
        NOW,
        "R-P1",
        2,
    )
    assert audited(at) == [("ada", "replay", 2, None)]


def test_replay_by_instant(at):
    at.record("old", updated_at=NOW - HOUR)
    at.record("new")
    before = at.dump()
    assert at.outbound.replay(RULE, since=NOW - MINUTE, dry_run=True).count == 1
    assert at.dump() == before
    at.outbound.replay(RULE, since=NOW - MINUTE, spread=HOUR)
    assert [row["status"] for row in at.rows("records")] == ["failed", "delivered"]


def test_a_replay_that_could_do_nothing_is_refused(at):
    with pytest.raises(ConfigError, match="give source_ids, since, or both"):
        at.outbound.replay(RULE)
    at.save(policy=Policy.CREATE_ONLY)
    with pytest.raises(ConfigError, match="creates and never updates"):
        at.outbound.replay(RULE, source_ids=["P1"])


# --- pause, resume, breaker ---------------------------------------------------------------------------


def test_pause_and_resume(at):
    assert at.outbound.pause(RULE, reason="the carrier moves", **WHO) is True
    assert at.outbound.pause(at.rule(), **WHO) is False
    assert at.rows("rules")[0]["paused"] is True
    assert at.outbound.resume(RULE, **WHO) is True
    assert at.outbound.resume(RULE, **WHO) is False
    assert audited(at) == [("ada", "pause", 1, "the carrier moves"), ("ada", "resume", 1, None)]


def test_a_breaker_is_closed_by_hand(at):
    at.breaker(probe_until=NOW)
    assert [(each.target, each.state, each.failures) for each in at.outbound.breakers()] == [
        (TARGET, "open", 5)
    ]
    assert at.outbound.reset_breaker(TARGET, **WHO) is True
    assert at.rows("breakers") == [
        {
            "target": TARGET,
            "state": "closed",
            "failures": 0,
            "open_until": None,
            "probe_until": None,
            "trips": 0,
        }
    ]
    assert at.outbound.reset_breaker(TARGET, **WHO) is False
    assert audited(at) == [("ada", "breaker reset", 1, None)]


def test_the_breaker_of_a_target_that_no_rule_has(at):
    assert at.outbound.reset_breaker(TARGET) is False
    with pytest.raises(ConfigError, match="no target is named 'carier'; there are: carrier"):
        at.outbound.reset_breaker("carier")


# --- what it costs ------------------------------------------------------------------------------------


def test_a_chunk_of_a_release_is_found_by_its_ids(at):
    """However many records are parked, each chunk reads and writes its own by the primary key."""
    at.write("records", *[_parked(number) for number in range(600)])
    plans = []
    explain = "EXPLAIN QUERY PLAN " if at.config.engine.dialect.name == "sqlite" else "EXPLAIN "

    def planned(connection, cursor, statement, parameters, context, many):
        if many or explain in statement or not ("json_each" in statement or "::TEXT[]" in statement):
            return
        beside = cursor.connection.cursor()
        if explain == "EXPLAIN ":
            beside.execute("SET LOCAL enable_seqscan = off")
        beside.execute(explain + statement, parameters)
        plans.append((statement, " ".join(str(row) for row in beside.fetchall())))

    event.listen(at.config.engine, "before_cursor_execute", planned)
    done = at.outbound.release(RULE, mode="recreate", status="exhausted", **WHO)
    event.remove(at.config.engine, "before_cursor_execute", planned)
    assert done.count == 600
    assert plans
    for statement, plan in plans:
        wanted = "source_id=?" if explain.startswith("EXPLAIN Q") else "source_id = ANY"
        assert wanted in plan, (statement, plan)
        assert "_pk" in plan or "autoindex" in plan, (statement, plan)


def test_ids_of_any_spelling_are_among_others(at):
    """They travel as an array of PostgreSQL, or as JSON."""
    names = ['quote"', "back\\slash", "{brace}", "Grüße, 包裹", "NULL", "a,b", "it's"]
    for name in names:
        at.record(name, "exhausted")
    done = at.outbound.release(RULE, mode="retry", source_ids=names, spread=HOUR, **WHO)
    assert done.count == len(names)
    assert at.outbound.park(RULE, names, reason="x").count == len(names)
