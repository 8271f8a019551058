"""`ledger`, `execution`, `explain`: what is written down is what is shown."""

from __future__ import annotations

import sys
import types
from datetime import timedelta

import attrs
import pytest

from statifier_router import (
    ChartRegistry,
    Dedupe,
    DeliveryError,
    Envelope,
    Event,
    Message,
    Plan,
    claims,
    deliver_event,
    executions,
    ledger,
    route,
)
from tests.support import charts
from tests.support.charts import NOW
from tests.support.command_line import run

CONFIG = ("--config", "the_host:config")


@pytest.fixture
def given(database, make_config, monkeypatch):
    """Sets the configuration that the commands find, and answers it."""

    def given(**kw):
        arguments = {
            "charts": charts.registry(parcel=charts.obedient()),
            "bindings": [charts.scans(), charts.scans(id="audit", create="never", source="office")],
            "clock": lambda: NOW,
        }
        module = types.ModuleType("the_host")
        module.config = make_config(database, **(arguments | kw))
        monkeypatch.setitem(sys.modules, "the_host", module)
        return module.config

    return given


def again(config, monkeypatch, **changes):
    """The same database under a changed configuration, which the commands find from now on."""
    changed = attrs.evolve(config, **changes)
    module = types.ModuleType("the_host")
    module.config = changed
    monkeypatch.setitem(sys.modules, "the_host", module)
    return changed


def scan(message_id="m-1", *, scope="acme", parcel="P7", source="carrier", **data):
    return Message(source, message_id, scope, {"parcel": parcel, **data})


# --- ledger -----------------------------------------------------------------------------------------


def test_the_ledger_is_filtered_as_its_rows_are_and_paged(given):
    config = given()
    for number in range(5):
        route(config, scan(f"m-{number}"))
    route(config, scan("m-1"))
    route(config, scan("m-9", parcel=9))
    every = run("ledger", "--json", *CONFIG).json
    assert every["next"] is None
    assert [row["message_id"] for row in every["rows"]] == ["m-0", "m-1", "m-2", "m-3", "m-4", "m-1", "m-9"]
    assert every["rows"][0] == {
        "id": 1,
        "binding_id": "scans",
        "message_id": "m-0",
        "scope": "acme",
        "outcome": "created_and_delivered",
        "key": "P7",
        "execution_id": ledger.rows(config)[0].execution_id,
        "reason": None,
        "inserted_at": "2026-03-01T12:00:00.123456Z",
    }
    page = run("ledger", "--limit", "3", "--json", *CONFIG).json
    assert page["next"] == 3
    assert len(run("ledger", "--after", "3", "--json", *CONFIG).json["rows"]) == 4
    for filters, count in [
        (["--binding", "scans"], 7),
        (["--message", "m-1"], 2),
        (["--scope", "other"], 0),
        (["--outcome", "duplicate"], 1),
        (["--execution", every["rows"][0]["execution_id"]], 5),
        (["--message", "m-1", "--outcome", "duplicate"], 1),
    ]:
        assert len(run("ledger", *filters, "--json", *CONFIG).json["rows"]) == count


def test_the_ledger_as_a_table_has_a_line_a_row_and_says_once_what_all_rows_say(given):
    config = given()
    for number in range(3):
        route(config, scan(f"m-{number}"))
    lines = run("ledger", "--limit", "3", *CONFIG).out.splitlines()
    execution_id = ledger.rows(config)[0].execution_id
    assert lines[0] == f"every row: binding scans, scope acme, key P7, execution {execution_id}"
    assert lines[1].split() == ["row", "2026-03-01", "message", "outcome"]
    assert [line.split() for line in lines[3:6]] == [
        ["1", "12:00:00", "m-0", "created_and_delivered"],
        ["2", "12:00:00", "m-1", "delivered"],
        ["3", "12:00:00", "m-2", "delivered"],
    ]
    assert lines[6] == "there may be more: --after 3"
    assert run("ledger", "--scope", "none", *CONFIG).out == "no rows\n"


# --- execution --------------------------------------------------------------------------------------


def test_an_execution_is_shown_with_the_states_around_each_input(given):
    """States between inputs are stored nowhere; they are the chart's answers to the log."""
    config = given()
    route(config, scan("m-1"))
    route(config, scan("m-2", do="refused"))
    [created, *_] = ledger.rows(config)
    executions.suspend(config, created.execution_id, actor="ann")
    executions.resume(config, created.execution_id, actor="ann")
    route(config, scan("m-3", do="finished"))
    document = run("execution", created.execution_id, "--json", *CONFIG).json
    assert document["execution"]["status"] == "completed"
    assert document["execution"]["active"] == ["done"]
    assert document["address"]["key"] == "P7"
    assert document["states_not_told"] is None
    assert [
        (each["input"]["door"], each["before"], each["after"], each["status"], each["answer"])
        for each in document["inputs"]
    ] == [
        ("create", None, ["open"], "active", "moved"),
        ("deliver", ["open"], ["open"], "active", "moved"),
        ("deliver", ["open"], ["open"], "active", "refused"),
        ("suspend", ["open"], ["open"], "suspended", None),
        ("resume", ["open"], ["open"], "active", None),
        ("deliver", ["open"], ["done"], "completed", "moved"),
    ]
    shown = run("execution", created.execution_id, *CONFIG).out
    assert "open → done" in shown
    assert "open (refused)" in shown
    assert "by ann" in shown


def test_an_unknown_execution_is_an_error(given):
    given()
    done = run("execution", "ex_none", "--json", *CONFIG)
    assert (done.code, done.out) == (1, "")
    assert done.error == "error: execution ex_none does not exist; check the id"


@pytest.mark.no_fold("its chart is gone")
def test_an_execution_whose_chart_is_gone_is_shown_without_states(given, monkeypatch):
    config = given()
    route(config, scan("m-1"))
    [row] = ledger.rows(config)
    again(config, monkeypatch, charts=ChartRegistry())
    document = run("execution", row.execution_id, "--json", *CONFIG).json
    assert document["execution"]["active"] == ["open"]
    assert "which is not to be had" in document["states_not_told"]
    assert [each["after"] for each in document["inputs"]] == [None, None]
    assert "states are not told: " in run("execution", row.execution_id, *CONFIG).out


def test_a_pruned_execution_says_so(given):
    config = given()
    route(config, scan("m-1", do="finished"))
    [row] = ledger.rows(config)
    executions.prune(config, before=NOW + timedelta(seconds=1))
    document = run("execution", row.execution_id, "--json", *CONFIG).json
    assert (document["inputs"], document["states_not_told"]) == ([], "its input log was pruned")
    assert "pruned" in run("execution", row.execution_id, *CONFIG).out


def test_of_many_inputs_the_last_are_shown(given):
    config = given()
    for number in range(60):
        route(config, scan(f"m-{number}"))
    row = ledger.rows(config)[0]
    shown = run("execution", row.execution_id, *CONFIG).out
    assert "11 earlier inputs; --all shows them" in shown
    assert "m-59" in shown
    assert "m-2 " not in shown
    assert "m-2 " in run("execution", row.execution_id, "--all", *CONFIG).out


# --- explain ----------------------------------------------------------------------------------------


def test_a_message_is_explained_binding_by_binding(given):
    """Claim, ledger rows, address, execution, and the input with the states around it."""
    config = given()
    route(config, scan("m-1"))
    route(config, scan("m-1"))
    document = run("explain", "m-1", "--json", *CONFIG).json
    assert (document["known"], document["scopes"], document["unrouted"]) == (True, ["acme"], [])
    scans, audit = document["bindings"]
    assert audit["declared"] == {
        "source": "office",
        "document": "parcel",
        "event": "scanned",
        "create": "never",
        "enabled": True,
    }
    assert (audit["claims"], audit["ledger"], audit["executions"]) == ([], [], [])
    assert scans["claims"] == [{"scope": "", "expires_at": "2026-03-04T12:00:00.123456Z", "expired": False}]
    assert [row["outcome"] for row in scans["ledger"]] == ["created_and_delivered", "duplicate"]
    [reached] = scans["executions"]
    assert reached["address"]["key"] == "P7"
    assert reached["execution"]["status"] == "active"
    assert [(each["input"]["seq"], each["after"]) for each in reached["inputs"]] == [
        (0, ["open"]),
        (1, ["open"]),
    ]


def test_the_explanation_reads_as_a_story(given):
    config = given()
    route(config, scan("m-1"))
    route(config, scan("m-2", do="finished"))
    route(config, scan("m-2", parcel="P8"))
    lines = run("explain", "m-2", *CONFIG).out.splitlines()
    [row, *_] = ledger.rows(config)
    assert lines == [
        "Message m-2  scope acme",
        "",
        "scans: from carrier, event scanned to parcel (create if_absent)",
        "  2026-03-01 12:00:00  delivered: its execution was stepped with the event  [row 2]",
        (
            "  2026-03-01 12:00:00  duplicate: it had been taken before, so nothing was stepped, although "
            "its content differs  [row 3]"
        ),
        "  claim      until 2026-03-04 12:00:00: a further copy before that is a duplicate",
        "  address    parcel, key P7, scope acme (since 2026-03-01 12:00:00)",
        f"  execution  {row.execution_id}: completed in done, revision 2",
        "  input 2    scanned: open → done",
        "",
        "Not for these bindings (another source, or no match; that leaves no row):",
        "  audit: from office, event scanned to parcel (create never)",
    ]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (scan(source="unheard"), "unrouted: no binding took it (no enabled binding of source 'unheard')"),
        (scan(parcel=7), "key_refused: the binding could not be judged on it"),
        (scan(source="office"), "dropped: no_execution: there was no execution, and this binding creates"),
        (scan(do="refused"), "dropped: unmatched_event: its execution did not react to the event (refused)"),
    ],
)
def test_whatever_became_of_it_is_said_in_words(given, message, says):
    config = given()
    route(config, message)
    done = run("explain", "m-1", *CONFIG)
    assert done.code == 0
    assert says in done.out


def test_a_duplicate_alone_leads_to_the_execution_at_its_key(given):
    """A duplicate's row names the key only; the address tells the rest."""
    config = given()
    route(config, scan("m-1"))
    ledger.prune(config, before=NOW + timedelta(seconds=1))
    route(config, scan("m-1"))
    [part, _] = run("explain", "m-1", "--json", *CONFIG).json["bindings"]
    assert [row["outcome"] for row in part["ledger"]] == ["duplicate"]
    assert part["executions"][0]["execution"]["key"] == "P7"


def test_nothing_known_is_said_clearly(given):
    """Also of a message whose delivery failed: it left nothing behind."""
    config = given()
    with pytest.raises(DeliveryError):
        route(config, scan("m-1", do="raised"))
    done = run("explain", "m-1", *CONFIG)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("Nothing is known of message m-1.\n")
    assert run("explain", "m-1", "--json", *CONFIG).json["known"] is False


def test_an_expired_a_reaped_and_a_lonely_claim_are_told_apart(given, monkeypatch):
    config = given()
    route(config, scan("m-1"))
    later = NOW + timedelta(days=4)
    config = again(config, monkeypatch, clock=lambda: later)
    assert (
        "expired 2026-03-04 12:00:00: a further copy would be delivered" in run("explain", "m-1", *CONFIG).out
    )
    claims.reap(config)
    assert "reaped: a further copy would be delivered" in run("explain", "m-1", *CONFIG).out
    route(config, scan("m-2"))
    ledger.prune(config, before=later + timedelta(seconds=1))
    assert "no ledger row: pruned" in run("explain", "m-2", *CONFIG).out


def test_a_binding_that_is_no_longer_configured_is_shown_all_the_same(given, monkeypatch):
    config = given()
    route(config, scan("m-1"))
    again(config, monkeypatch, bindings=[])
    done = run("explain", "m-1", *CONFIG)
    assert "scans: not in this configuration" in done.out
    assert "input 1" in done.out


def test_what_another_door_delivered_is_explained_too(given):
    config = given()
    plan = Plan("nightly", "parcel")
    deliver_event(config, plan, "P7", Envelope(Event("lost"), "job-1", "acme", NOW))
    done = run("explain", "job-1", *CONFIG)
    assert "nightly: not in this configuration" in done.out
    assert "lost: open → open" in done.out


def test_scopes_are_kept_apart_where_one_is_asked_for(given):
    config = given(bindings=[charts.scans(dedupe=Dedupe(per_scope=True))])
    route(config, scan("m-1", scope="acme"))
    route(config, scan("m-1", scope="umbrella"))
    both = run("explain", "m-1", "--json", *CONFIG).json
    assert both["scopes"] == ["acme", "umbrella"]
    assert len(both["bindings"][0]["claims"]) == 2
    one = run("explain", "m-1", "--scope", "acme", "--json", *CONFIG).json
    assert [claim["scope"] for claim in one["bindings"][0]["claims"]] == ["acme"]
    assert len(one["bindings"][0]["ledger"]) == 1
    none = run("explain", "m-1", "--scope", "initech", *CONFIG)
    assert none.code == 1
    assert "Nothing is known of message m-1 in scope initech." in none.out


def test_bindings_that_are_resolved_are_those_of_the_message_s_scope(given):
    asked = []

    def resolver(scope):
        asked.append(scope)
        return [charts.scans(id=f"scans-{scope}")]

    config = given(bindings=(), bindings_resolver=resolver)
    route(config, scan("m-1"))
    [part] = run("explain", "m-1", "--json", *CONFIG).json["bindings"]
    assert part["binding_id"] == "scans-acme"
    assert part["declared"]["source"] == "carrier"
    assert set(asked) == {"acme"}


def test_asking_writes_nothing(given):
    """All three are reads: they find the same before and after."""
    config = given()
    route(config, scan("m-1"))
    [row] = ledger.rows(config)
    for arguments in (["ledger"], ["explain", "m-1"], ["execution", row.execution_id]):
        first = run(*arguments, "--json", *CONFIG)
        assert first.code == 0
        assert run(*arguments, "--json", *CONFIG) == first
    assert ledger.rows(config) == [row]
