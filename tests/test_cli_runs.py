"""The commands of the outbound half, as an operator types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from datetime import timedelta

import pytest

from statifier_router import ChartRegistry, Config, Tables
from statifier_router.runs import Changes, Outbound, Outbox, Policy, RetryPolicy, record_change
from statifier_router.testing.targets import ScriptedWriter, breaks, gone, rejects
from tests.support.charts import HOUR, NOW
from tests.support.command_line import COMMAND, environment, process, run
from tests.support.operated import LEASE, RULE, Clock, Host, host

CONFIG = ("--config", "the_host:config")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def at(database, make_config, monkeypatch):
    """A host whose configuration and `outbound` the commands find in the module `the_host`."""
    made = host(make_config, database)
    module = types.ModuleType("the_host")
    module.config, module.outbound = made.config, made.outbound
    monkeypatch.setitem(sys.modules, "the_host", module)
    for name in ("CONFIG", "OUTBOUND"):
        monkeypatch.delenv(f"STATIFIER_ROUTER_{name}", raising=False)
    made.module = module
    return made


def shown(*arguments, code=0):
    ran = run(*arguments, *CONFIG)
    assert ran.code == code, (ran.out, ran.err)
    return ran.out


def told(*arguments, code=0):
    ran = run(*arguments, "--json", *CONFIG)
    assert ran.code == code, (ran.out, ran.err)
    return ran.json


# --- finding the Outbound -----------------------------------------------------------------------------


def test_beside_the_configuration_or_by_its_own_name(at):
    """The option goes before the variable, and either before what stands beside."""
    at.module.other = at.made(at.rule("letters"), at.rule())
    at.module.factory = lambda: at.module.other
    names = [
        [rule["name"] for rule in run("rules", "--json", *where, env=env).json["rules"]]
        for where, env in (
            (CONFIG, None),
            ((), {"STATIFIER_ROUTER_CONFIG": "the_host:config"}),
            (("--outbound", "the_host:other"), None),
            (("--outbound", "the_host:factory", *CONFIG), None),
            (CONFIG, {"STATIFIER_ROUTER_OUTBOUND": "the_host:other"}),
            ((), {"STATIFIER_ROUTER_OUTBOUND": "the_host:other"}),
            (("--outbound", "the_host:outbound"), {"STATIFIER_ROUTER_OUTBOUND": "no:where"}),
        )
    ]
    assert names == [[RULE], [RULE], *[["letters", RULE]] * 5]


def test_the_option_may_stand_before_the_command(at):
    assert run("--outbound", "the_host:outbound", "rules", "--json").json["rules"]


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ((), "no Outbound: give --outbound package.module:attribute, or set STATIFIER_ROUTER_OUTBOUND"),
        (("--config", "the_host:config"), "or name one outbound in the_host"),
        (("--outbound", "the_host"), "--outbound must be of the form package.module:attribute"),
        (("--outbound", "no_such_host:x"), "--outbound no_such_host:x: there is no module 'no_such_host'"),
        (("--outbound", "the_host:nothing"), "the_host has no attribute 'nothing'"),
        (("--outbound", "the_host:config"), "must be an Outbound, or a callable without arguments"),
    ],
)
def test_an_outbound_that_is_not_found_is_one_clear_line(at, where, problem):
    del at.module.outbound
    ran = run("rules", *where)
    assert ran.code == 2
    assert problem in ran.error


def test_the_connections_of_the_host_are_closed_at_the_end(at):
    shown("rules")
    assert at.config.engine.pool.checkedin() == 0


# --- run, tick, work ----------------------------------------------------------------------------------


def test_run_sends_what_changed(at):
    for number in range(3):
        at.shelf.put(f"P{number}")
    at.target.on("P1", rejects())
    answer = told("run", RULE)["run"]
    assert (answer["rule"], answer["end"], answer["problem"]) == (RULE, "COMPLETED", None)
    assert answer["counters"] == {"delivered": 2, "failed": 1}
    lines = shown("run", RULE).splitlines()
    assert lines[0].split() == ["rule", "ended"]
    assert lines[-1].split() == [RULE, "completed"]


def test_run_says_why_it_did_not_come_to_its_end(at):
    at.shelf.put("P1")
    at.closed = "the account is disabled"
    answer = told("run", RULE, code=1)["run"]
    assert (answer["end"], answer["problem"]) == ("ROUTE_CLOSED", "a connection of the rule is closed")
    at.closed = None
    at.outbound.pause(RULE)
    ran = run("run", RULE, *CONFIG)
    assert ran.code == 1
    assert ran.error == "error: rule 'parcels' is paused; next: statifier-router resume parcels"


def test_run_tells_the_fault_of_a_rule_in_one_line(at):
    at.shelf.put("P1")
    at.target.on("P1", breaks(KeyError("street")))
    ran = run("run", RULE, *CONFIG)
    assert ran.code == 1
    assert ran.error.startswith("error: rule 'parcels': the writer of the driver 'carrier' raised KeyError")
    assert at.rows("chains")[0]["state"] == "failed"


def test_run_carries_on_what_another_process_left(at):
    """While it is busy, that is said."""
    at.shelf.put("P1")
    chain = at.chain("running", phase="drain")
    at.lease(4, at.clock.now + LEASE)
    answer = told("run", RULE, code=1)["run"]
    assert (answer["chain_id"], answer["end"]) == (chain["id"], "BUSY")
    assert "its process holds it until 2026-03-01 12:01:30 UTC" in answer["problem"]
    at.lease(4, None)
    assert told("run", RULE)["run"]["chain_id"] == chain["id"]


def test_a_rule_that_is_not_there(at):
    for arguments in (("run",), ("rules",), ("pause",), ("release", "--all", "--mode", "retry")):
        ran = run(arguments[0], "parcel", *arguments[1:], *CONFIG)
        assert ran.code == 2
        assert "no rule is named 'parcel'" in ran.error
        assert RULE in ran.error


def test_tick_runs_every_rule_once_and_one_that_fails_hinders_no_other(at):
    at.shelf.put("P1")
    at.module.outbound = at.made(at.rule("broken", driver="nothing"), at.rule(), at.rule("held"))
    at.module.outbound.pause("held")
    ran = run("tick", "--json", *CONFIG)
    assert ran.code == 1
    assert "rule broken: rule 'broken' needs a writer for the driver 'nothing'" in ran.err
    assert [(each["rule"], each["end"], each["counters"]) for each in ran.json["runs"]] == [
        ("broken", "FAILED", {}),
        ("held", "PAUSED", {}),
        (RULE, "COMPLETED", {"delivered": 1}),
    ]
    shown_lines = shown("tick", code=1).splitlines()
    assert [line.split()[:2] for line in shown_lines[2:]] == [
        ["broken", "failed"],
        ["held", "paused"],
        [RULE, "completed"],
    ]


def test_tick_leaves_a_rule_to_the_process_that_has_it(at):
    at.chain("running")
    (ran,) = told("tick")["runs"]
    assert (ran["end"], ran["problem"]) == (
        "BUSY",
        (
            "a run of it is under way: no process holds it now; the first tick after 2026-03-01 12:03:00 UTC "
            "goes on by itself (sooner: statifier-router run parcels)"
        ),
    )
    at.lease(4, at.clock.now + LEASE)
    (ran,) = told("tick")["runs"]
    assert "its process holds it until 2026-03-01 12:01:30 UTC; if that has died" in ran["problem"]


def test_work_over_no_tables_ends_at_once(unmigrated, make_config, monkeypatch):
    """As a tick does: no rule fares better at the next interval."""
    clock = Clock()
    made = Host(make_config(unmigrated, clock=clock), clock)
    module = types.ModuleType("the_host")
    module.config, module.outbound = made.config, made.outbound
    monkeypatch.setitem(sys.modules, "the_host", module)
    for command in (("tick",), ("work", "--every", "1")):
        ran = run(*command, *CONFIG)
        assert (ran.code, len(ran.err.splitlines())) == (1, 1)
        assert "migrate" in ran.error


def test_tick_without_rules(at):
    at.module.outbound = at.made(rules=())
    assert "has no rules" in run("tick", *CONFIG).error


def test_tick_without_tables_is_one_clear_line(at):
    """What no rule is to blame for is not told once a rule."""
    elsewhere = Config(at.config.engine, charts=ChartRegistry(), tables=Tables(prefix="nowhere_"))
    rules = [at.rule(), at.rule("letters")]
    at.module.outbound = Outbound(elsewhere, writers={"carrier": ScriptedWriter(at.target)}, rules=rules)
    ran = run("tick", *CONFIG)
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1
    assert "statifier-router migrate" in ran.error


@pytest.mark.parametrize("every", ["0", "x", "-1", "2d", "1.5"])
def test_a_bad_interval(at, every):
    ran = run("work", f"--every={every}", *CONFIG)
    assert ran.code == 2
    assert "--every" in ran.error


HOST = """
import os
from statifier_router import ChartRegistry, Config, create_engine
from statifier_router.runs import Changes, Outbound, Policy, Rule
from statifier_router.testing.targets import ScriptedTarget, ScriptedWriter, breaks

class Slow(ScriptedWriter):
    def create(self, payload, context):
        print("called", flush=True)
        return super().create(payload, context)

target = ScriptedTarget()
target.on("bad", *[breaks(KeyError("street"))] * 100)
config = Config(create_engine(os.environ["HOST_DATABASE"]), charts=ChartRegistry())
outbound = Outbound(config, writers={"carrier": Slow(target)}, rules=[
    Rule(name, entity=name, source=Changes(name), target="carrier", driver="carrier",
         policy=Policy.CREATE_ONLY)
    for name in ("letters", "parcels")])
"""


def test_work_goes_on_until_it_is_told_to_stop(tmp_path, database, make_config):
    """It stops between two runs, tells what failed as it goes, and exits with 1 where anything did."""
    config = make_config(database)
    record_change(config, "letters", "bad", {})
    record_change(config, "parcels", "P1", {})
    config.engine.dispose()
    (tmp_path / "host.py").write_text(HOST)
    working = subprocess.Popen(
        [*COMMAND, "work", "--every", "1h", "--config", "host:config"],
        cwd=tmp_path,
        env=environment(HOST_DATABASE=database.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        heard = []
        while heard.count("called\n") < 2:
            heard.append(working.stderr.readline())
            assert heard[-1], heard
        os.kill(working.pid, signal.SIGTERM)
        out, rest = working.communicate(timeout=60)
    finally:
        working.kill()
    err = "".join(heard) + rest
    assert (working.returncode, out) == (1, "stopped; something failed meanwhile\n")
    assert "error rule failed (rule=letters" in err
    assert "KeyError" in err
    assert "Traceback" not in err
    done = process(
        "rules", "--json", "--config", "host:config", cwd=tmp_path, env={"HOST_DATABASE": database.url}
    )
    rules = {rule["name"]: rule for rule in done.json["rules"]}
    assert rules["letters"]["state"] == "failing: unclassified"
    assert rules["parcels"]["counts"]["delivered"] == 1


# --- rules, why, parked, records ----------------------------------------------------------------------


def test_rules_at_a_glance(at):
    at.shelf.put("P1")
    at.target.on("P1", breaks(KeyError("street")))
    run("run", RULE, *CONFIG)
    at.record("P2", "exhausted")
    lines = shown("rules").splitlines()
    assert lines[0].split()[:4] == ["rule", "state", "target", "delivered"]
    row = lines[2].split()
    assert row[:8] == [RULE, "failing:", "unclassified", "carrier", "0", "0", "0", "1"]
    assert lines[4] == "parcels: failing: unclassified"
    assert lines[5].startswith("  next: rule 'parcels': the writer of the driver 'carrier' raised KeyError")
    answer = told("rules")["rules"][0]
    assert answer["state"] == "failing: unclassified"
    assert answer["last_chain"]["fault_source_id"] == "P1"


def test_one_rule_in_full(at):
    at.breaker()
    at.record("P1", "failed", next_attempt_at=NOW - MINUTE)
    at.operation("P1")
    at.lease(1, None, cursor="[7,1]", closed_since=NOW)
    at.chain("failed")
    screen = shown("rules", RULE)
    for told_of in (
        "failing: unclassified",
        "[7, 1]",
        "failed: 1",
        "1, the oldest since 2026-03-01 11:59",
        "in doubt",
    ):
        assert told_of in screen
    assert "open until 2026-03-01 12:01:00, 5 faults in a row" in screen
    assert "KeyError: 'street'" in screen
    assert "delivered 2" in screen
    answer = told("rules", RULE)
    assert answer["rule"]["cursor"] == [7, 1]
    assert [chain["state"] for chain in answer["chains"]] == ["failed"]


def test_no_rules(at):
    with at.config.engine.begin() as connection:
        connection.execute(at.config.schema.rules.delete())
    at.module.outbound = at.made(rules=())
    assert shown("rules") == "no rules\n"


def test_why(at):
    at.save(retry=RetryPolicy(max_attempts=1))
    at.shelf.put("it's\x1b[2J P1")
    at.target.always(rejects("no such street"))
    run("run", RULE, *CONFIG)
    lines = shown("why", RULE, "it's\x1b[2J P1").splitlines()
    assert lines[0] == r"it's\x1b[2J P1 of parcels: exhausted"
    assert "no such street" in lines[1]
    assert lines[2].startswith("  next: ")
    answer = told("why", RULE, "it's\x1b[2J P1")
    assert (answer["reason"], answer["facts"]["row"]["attempts"]) == ("exhausted", 1)


def test_parked_records(at):
    at.record("P1", "exhausted", parked_at=NOW - HOUR)
    at.record("P2", "remote_gone")
    at.record("P3", "exhausted", acknowledged_at=NOW, error_kind="timed_out")
    assert [row["source_id"] for row in told("parked")["rows"]] == ["P1", "P2"]
    assert told("parked", RULE, "--status", "remote_gone")["parked"] == 1
    assert [row["source_id"] for row in told("parked", "--since", "30m")["rows"]] == ["P2"]
    assert [row["source_id"] for row in told("parked", "--all", "--error-kind", "timed_out")["rows"]] == [
        "P3"
    ]
    lines = shown("parked", "--limit", "1").splitlines()
    assert lines[0].split()[:3] == ["rule", "id", "status"]
    assert lines[2].split()[:3] == [RULE, "P1", "exhausted"]
    assert lines[-1] == "1 more: --limit"
    assert "exhausted (dismissed)" in shown("parked", RULE, "--all")
    assert (
        shown("parked", "--status", "remote_gone", "--error-kind", "gone", "--since", "2026-03-02T00:00:00Z")
        == "nothing is parked\n"
    )


@pytest.mark.parametrize("columns", ["80", "200"])
def test_ids_are_never_broken(at, columns):
    """However narrow the terminal: they are copied into the next command."""
    long = "ex_01m8q5p74de3vwtz9946z9j5he:17:0:3:" + "long." * 20
    at.record(long, "exhausted", remote_id=None, last_error="the target refused it, at length " * 6)
    at.record("P2", "failed", last_error="the target refused it, and says so at length " * 4)
    for command in (("records", RULE), ("parked",), ("parked", RULE)):
        screen = run(*command, *CONFIG, env={"COLUMNS": columns}).out
        (line,) = [line for line in screen.splitlines() if "ex_01m8" in line]
        assert line.startswith((f"{long}  ", f"{RULE}  {long}  "))
    lines = run("records", RULE, "--status", "failed", *CONFIG, env={"COLUMNS": columns}).out.splitlines()
    assert max(map(len, lines)) <= int(columns)


def test_records_page_by_page(at):
    for number in range(3):
        at.record(f"P{number}", "failed" if number == 1 else "delivered")
    answer = told("records", RULE, "--limit", "2")
    assert ([row["source_id"] for row in answer["rows"]], answer["next"]) == (["P0", "P1"], "P1")
    assert [row["source_id"] for row in told("records", RULE, "--after", "P1")["rows"]] == ["P2"]
    screen = shown("records", RULE, "--limit", "2")
    assert "rejected: no such street" in screen
    assert screen.endswith("there may be more: --after P1\n")
    assert shown("records", RULE, "--status", "suppressed") == "no records\n"


# --- release, park, replay ----------------------------------------------------------------------------


def test_a_stalled_rule_is_found_understood_and_released(at):
    """From the rule's state to the record, by the commands that each answer names."""
    at.shelf.put("P1")
    at.shelf.put("P2")
    at.target.on("P1", *[breaks(KeyError("street"))] * 3)
    for _ in range(3):
        run("run", RULE, *CONFIG)
    advice = told("rules")["rules"][0]["advice"]
    assert advice == told("why", RULE, "P2")["advice"]
    command = advice.partition("statifier-router ")[2].split()
    assert command == ["park", RULE, "P1", "--reason", "unclassified"]
    assert shown(*command) == "parcels: 1 parked\n"
    assert told("run", RULE)["run"]["counters"]["delivered"] == 1
    advice = told("why", RULE, "P1")["advice"]
    command = advice.partition("statifier-router ")[2].split()
    assert shown(*command) == "parcels: 1 released (retry), due 2026-03-01 12:00:00\n"
    told("run", RULE)
    assert told("why", RULE, "P1")["reason"] == "delivered"
    assert [row["action"] for row in at.rows("audit")] == ["park", "release retry"]


def test_release_by_filter_with_a_spread_and_first_without_effect(at):
    for number in range(4):
        at.record(f"P{number}", "exhausted", error_kind="timed_out" if number else "rejected")
    chosen = ("release", RULE, "--mode", "retry", "--error-kind", "timed_out", "--spread", "3h")
    before = at.dump()
    line = "parcels: 3 would be released (retry), due 2026-03-01 12:00:00 to 2026-03-01 15:00:00\n"
    assert shown(*chosen, "--dry-run") == line
    assert at.dump() == before
    answer = told(*chosen, "--actor", "ada", "--reason", "the carrier is back")["released"]
    assert (answer["count"], answer["dry_run"]) == (3, False)
    due = [row["next_attempt_at"] for row in at.rows("records") if row["next_attempt_at"]]
    assert due == [NOW, NOW + HOUR, NOW + 2 * HOUR]
    (audit,) = at.rows("audit")
    assert (audit["actor"], audit["count"], audit["reason"]) == ("ada", 3, "the carrier is back")


def test_a_release_that_chooses_nothing_tells_of_failed_records(at):
    """They are tried again anyway, and --all and filters pass them by."""
    at.record("P1", "failed", error_kind="unavailable")
    at.record("P2", "failed")
    line = "parcels: 0 released (retry)\n"
    hint = "  {} failed, which are not parked but tried again: --status failed chooses them\n"
    chosen = ("release", RULE, "--mode", "retry")
    assert shown(*chosen, "--all") == line + hint.format(2)
    assert shown(*chosen, "--error-kind", "unavailable") == line + hint.format(1)
    assert shown(*chosen, "--error-kind", "timed_out") == line
    assert told(*chosen, "--all")["released"]["count"] == 0
    assert shown("release", RULE, "--mode", "dismiss", "--all") == "parcels: 0 dismissed\n"
    assert not at.rows("audit")
    assert told(*chosen, "--status", "failed", "--error-kind", "unavailable")["released"]["count"] == 1


def test_an_error_kind_that_there_is_not(at):
    """One that a record of the rule has will do, for a writer's own faults have kinds of their own."""
    at.record("P1", "exhausted", error_kind="out_of_stock")
    chosen = ("release", RULE, "--mode", "retry", "--error-kind")
    for command in ((*chosen, "time_out"), ("parked", "--error-kind", "time_out")):
        ran = run(*command, *CONFIG)
        assert ran.code == 2
        assert "error_kind 'time_out' is that of no record" in ran.error
        assert "throttled, timed_out, unaddressable" in ran.error
    at.module.outbound = at.made(at.rule("letters"), at.rule())
    ran = run("release", "letters", *chosen[2:], "out_of_stock", *CONFIG)
    assert (ran.code, "no record of rule 'letters'" in ran.error) == (2, True)
    assert told("parked", "--error-kind", "out_of_stock")["parked"] == 1
    assert told(*chosen, "out_of_stock")["released"]["count"] == 1


def test_a_status_that_is_not_parked_is_listed_elsewhere(at):
    ran = run("parked", RULE, "--status", "failed", *CONFIG)
    assert ran.code == 2
    assert ran.error.endswith("to list it: statifier-router records parcels --status failed")
    assert (
        "status must be one of exhausted, remote_gone, not 'x'"
        in run("parked", "--status", "x", *CONFIG).error
    )


def test_the_actor_is_whoever_is_logged_in(at, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "grace")
    at.record("P1", "exhausted")
    shown("release", RULE, "--mode", "retry", "--all")
    shown("pause", RULE)
    assert [row["actor"] for row in at.rows("audit")] == ["grace", "grace"]


def test_adopt_and_recreate_and_dismiss(at):
    for number in range(1, 4):
        at.record(f"P{number}", "exhausted", remote_id=None)
    assert shown("release", RULE, "P1", "--mode", "adopt R-7").startswith("parcels: 1 adopted, due")
    assert shown("release", RULE, "P2", "--mode", "recreate").startswith("parcels: 1 released (recreate)")
    assert shown("release", RULE, "P3", "--mode", "dismiss") == "parcels: 1 dismissed\n"
    assert at.row("P1")["remote_id"] == "R-7"
    assert shown("parked") == "nothing is parked\n"


def test_what_was_named_and_not_released_is_told(at):
    at.record("P1")
    at.record("P2", "failed")
    at.operation("P2", in_doubt=False, lease_token=4)
    at.lease(4, NOW + LEASE)
    lines = shown("release", RULE, "P1", "P2", "P3", "--mode", "retry", code=1).splitlines()
    assert lines == [
        "parcels: 0 released (retry)",
        "  1 in flight: ask again in a moment",
        "  1 passed over: their status is one that this does not take",
        "  1 unknown: the rule has no row of them",
    ]


def test_ids_are_read_from_standard_input(at):
    for number in range(3):
        at.record(f"P{number}", "exhausted")
    ran = run("release", RULE, "-", "--mode", "retry", "--json", *CONFIG, stdin="P0\n\n P2 \n")
    assert (ran.code, ran.json["released"]["count"]) == (0, 2)
    assert (
        run("park", RULE, "-", "--reason", "x", "--json", *CONFIG, stdin="P0\n").json["parked"]["count"] == 1
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--mode", "retry"), "nothing is chosen: name records, or give --status"),
        (("--mode", "retry", "--all", "P1"), "--all goes with neither names nor filters"),
        (("--mode", "again", "--all"), "mode must be one of retry, recreate, adopt, dismiss, not 'again'"),
        (("--mode", "adopt R-1", "--all"), "exactly one id"),
        (("P1", "--mode", "adopt", "R-1"), "as one argument: --mode 'adopt REMOTE_ID'"),
        (("--mode", "retry", "--all", "--spread", "soon"), "--spread must be a number and its unit"),
        (("--mode", "retry", "--since", "yesterday"), "--since must be an instant"),
        (("P1",), "Missing option '--mode'"),
    ],
)
def test_a_bad_release_is_one_clear_line(at, arguments, problem):
    ran = run("release", RULE, *arguments, *CONFIG)
    assert ran.code == 2
    assert problem in ran.error


def test_replay(at):
    at.shelf.put("P1")
    told("run", RULE)
    line = "parcels: 1 would be replayed, due 2026-03-01 12:00:00\n"
    assert shown("replay", RULE, "--since", "1h", "--dry-run") == line
    assert told("replay", RULE, "P1")["released"]["count"] == 1
    told("run", RULE)
    assert [request.verb for request in at.target.requests] == ["create", "update"]
    assert "give source_ids, since, or both" in run("replay", RULE, *CONFIG).error


def test_progress_is_shown_on_a_terminal_only(at):
    at.record("P1", "exhausted")
    ran = run("release", RULE, "--mode", "retry", "--all", *CONFIG)
    assert (ran.code, ran.err) == (0, "")


# --- pause, resume, breaker, doctor -------------------------------------------------------------------


def test_pause_and_resume(at):
    assert shown("pause", RULE) == "parcels: paused\n"
    assert shown("pause", RULE) == "parcels: was paused already\n"
    assert told("resume", RULE, "--reason", "mended") == {"rule": RULE, "paused": False, "changed": True}
    assert shown("resume", RULE) == "parcels: was not paused\n"


def test_the_breaker(at):
    assert shown("breaker") == "no target ever failed\n"
    at.breaker()
    assert shown("breaker").splitlines()[2].split()[:3] == ["carrier", "open", "5"]
    assert shown("breaker", "reset", "carrier") == "carrier: closed\n"
    assert shown("breaker", "reset", "carrier") == "carrier: was closed already\n"
    assert told("breaker", "list")["breakers"][0]["state"] == "closed"
    assert (
        "no target is named 'carier'; there are: carrier" in run("breaker", "reset", "carier", *CONFIG).error
    )


def test_doctor_tells_of_runs_too(at):
    told("run", RULE)
    screen = shown("doctor")
    assert screen.endswith("runs: nothing is wrong\n")
    at.shelf.put("P1")
    at.save(retry=RetryPolicy(max_attempts=1), policy=Policy.UPSERT)
    at.target.on("P1", rejects())
    told("run", RULE)
    answer = told("doctor", code=1)
    assert [finding["kind"] for finding in answer["outbound"]] == ["parked"]
    screen = shown("doctor", code=1)
    assert "1 record waits for an operator at rule 'parcels'" in screen
    assert "next: statifier-router parked parcels" in screen


def test_doctor_without_an_outbound_is_silent_about_runs(at):
    del at.module.outbound
    assert "outbound" not in told("doctor")
    assert "runs" not in shown("doctor")
    assert run("doctor", "--outbound", "no:where", *CONFIG).code == 2


def test_a_record_that_its_target_has_lost(at):
    at.shelf.put("P1")
    told("run", RULE)
    at.shelf.put("P1", "v2")
    at.target.on("P1", gone())
    assert told("run", RULE)["run"]["counters"] == {"remote_gone": 1}
    assert shown("parked", "--status", "remote_gone").splitlines()[2].split()[2] == "remote_gone"


def test_rebase_where_nothing_is_to_be_mended(at):
    assert shown("rebase") == "0 changes and 0 messages were given a new place\n"
    assert told("rebase", "--actor", "ada")["rebased"] == {"changes": 0, "outbox": 0, "rules": []}


def test_prune_changes_and_messages(at):
    """Superseded versions that every rule has passed, and messages that their rules are done with."""
    at.module.outbound = at.made(
        at.rule("changed", source=Changes("parcel")),
        at.rule("mailed", source=Outbox("notices"), kind="message", policy=Policy.CREATE_ONLY),
    )
    for state in ("new", "held", "gone"):
        record_change(at.config, "parcel", "P1", {"state": state})
    at.message("notices", "m-1")
    at.message("notices", "m-2")
    cuts = ("--changes-before", "1h", "--messages-before", "1h")
    at.target.on("m-2", rejects())
    told("tick")
    assert told("prune", *cuts)["pruned"] == {"changes": 0, "messages": 0}
    at.clock.pass_by(2 * HOUR)
    assert shown("prune", *cuts, "--limit", "1") == "changes: 2 pruned\nmessages: 1 pruned\n"
    assert [row["key"] for row in at.rows("outbox")] == ["m-2"]
    del at.module.outbound
    ran = run("prune", *cuts, *CONFIG)
    assert (ran.code, "--messages-before wants an Outbound" in ran.error) == (2, True)
    assert shown("prune", "--changes-before", "1h") == "changes: 0 pruned\n"
    assert shown("prune", "--chains-before", "1h") == "chains: 0 pruned\n"


def test_run_stops_after_the_call_in_hand(at):
    """A signal: what was sent is written, the rest waits for the next run, and the exit code says so."""
    for number in range(3):
        at.shelf.put(f"P{number}")

    class Signalled(ScriptedWriter):
        def create(self, payload, context):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().create(payload, context)

    at.module.outbound = at.made(writers={"carrier": Signalled(at.target)})
    ran = run("run", RULE, "--json", *CONFIG)
    assert ran.code == 130
    assert ran.error == "stopping after the call in hand; once more to stop at once"
    assert (ran.json["run"]["end"], ran.json["run"]["counters"]) == ("YIELDED", {"delivered": 1})
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    at.module.outbound = at.outbound
    assert told("run", RULE)["run"]["counters"]["delivered"] == 2
