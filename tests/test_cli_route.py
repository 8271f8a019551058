"""`route`: every line judged alone, everything counted, and a code that tells whether all is well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from functools import partial

import pytest

from statifier_router import ChartRegistry, Config, ledger
from statifier_router.cli import route_command
from statifier_router.cli.lines import Arriving
from tests.support import charts
from tests.support.command_line import COMMAND, environment, run
from tests.test_cli import HOST

CONFIG = ("--config", "the_host:config")


@pytest.fixture
def config(database, make_config, monkeypatch):
    """Bindings of which one has no chart, in the module `the_host`."""
    made = make_config(
        database,
        charts=charts.registry(parcel=charts.obedient()),
        bindings=[
            charts.scans(),
            charts.scans(id="claims-office", source="office", document="nowhere"),
            charts.scans(id="picky", source="picky", match={"kind": "wanted"}),
        ],
        clock=lambda: charts.NOW,
    )
    module = types.ModuleType("the_host")
    module.config = made
    monkeypatch.setitem(sys.modules, "the_host", module)
    return made


def line(message_id="m-1", *, source="carrier", scope="acme", parcel="P7", **more):
    data = {"parcel": parcel, **more.pop("data", {})}
    return json.dumps({"source": source, "message_id": message_id, "scope": scope, "data": data, **more})


def test_all_is_well_exits_with_zero(config):
    text = "\n".join([line("m-1"), "", line("m-2"), line("m-1"), "   ", line("m-3", source="unheard")])
    done = run("route", "-", "--json", *CONFIG, stdin=text)
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "lines": 4,
        "messages": 4,
        "outcomes": {"created_and_delivered": 1, "delivered": 1, "duplicate": 1, "unrouted": 1},
        "by_binding": {"scans": {"created_and_delivered": 1, "delivered": 1, "duplicate": 1}},
        "failed": {},
        "problems": [],
        "stopped": None,
    }


def test_whatever_goes_wrong_is_told_by_line_and_the_rest_goes_on(config, tmp_path):
    """A bad line, a refused key and a failed delivery are counted; the lines behind them are routed."""
    file = tmp_path / "messages.jsonl"
    file.write_text(
        "\n".join(
            [
                line("m-1"),
                "{not json",
                line("m-2", parcel=7),
                line("m-3", data={"do": "failed"}),
                line("m-4", source="office"),
                line("m-5", source="picky"),
                line("m-6"),
            ]
        )
    )
    done = run("route", str(file), "--json", *CONFIG)
    assert done.code == 1
    assert done.json["outcomes"] == {
        "created_and_delivered": 1,
        "delivered": 1,
        "unrouted": 1,
        "no_match": 1,
        "key_refused": 1,
    }
    assert done.json["failed"] == {"StepFailed": 1, "UnresolvedDocument": 1, "bad line": 1}
    assert [(each["line"], each["message_id"]) for each in done.json["problems"]] == [
        (2, None),
        (3, "m-2"),
        (4, "m-3"),
        (5, "m-4"),
    ]
    told = done.err.splitlines()
    assert len(told) == 4
    assert told[0].startswith("line 2: bad line: the line is not JSON: ")
    assert told[1].startswith("line 3: message m-2: key_refused: binding scans: key: the field 'parcel'")
    assert told[2].startswith("line 4: message m-3: StepFailed: binding scans: the chart of execution ")
    assert [row.message_id for row in ledger.rows(config)] == ["m-1", "m-2", "m-5", "m-6"]


def test_the_summary_is_a_table_for_people(config):
    done = run("route", "-", *CONFIG, stdin=f"{line('m-1')}\n{line('m-2', parcel=7)}\n")
    assert done.code == 1
    assert [each.split() for each in done.out.splitlines()] == [
        ["outcome", "count"],
        ["─" * 28],
        ["created_and_delivered", "1"],
        ["key_refused", "1"],
        [],
        ["2", "of", "2", "lines", "routed,", "1", "refused", "or", "failed"],
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[1]", "the line must hold a JSON object, not an array"),
        (b"null", "the line must hold a JSON object, not null"),
        (b"\xff", "the line is not UTF-8 (byte 1)"),
        (b"[" * 200_000, "the line is nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "the line holds a number that is too long"),
        (b"{}", "source is missing"),
        (b'{"source": "a", "message_id": "b", "scope": ""}', "data is missing"),
        (b'{"source": "a", "message_id": "", "scope": "", "data": {}}', "message_id must not be empty"),
        (b'{"source": "a", "message_id": "b", "scope": "", "data": []}', "data must be a mapping, not list"),
        (b'{"source": "a", "message_id": "b", "scope": "", "data": {"x": NaN}}', "data['x'] nan is not a"),
        (b'{"source": "a", "message_id": "b", "scope": "", "data": {}, "id": 1}', "'id' is not a field"),
        (b'{"source": "a", "message_id": "b", "scope": "", "data": {}, "context": 0}', "context must be"),
        (b'{"source": "a", "message_id": "b", "scope": "", "data": {}, "now": 5}', "now must be text"),
        (
            b'{"source": "a", "message_id": "b", "scope": "", "data": {}, "now": "x"}',
            "now must be an instant",
        ),
        (
            b'{"source": "a", "message_id": "b", "scope": "", "data": {}, "now": "2026-01-01T00:00:00"}',
            "now must be an aware datetime",
        ),
    ],
)
def test_a_bad_line_is_one_line_that_names_the_field_and_leaves_no_row(config, text, says):
    done = run("route", "-", *CONFIG, stdin=text + b"\n")
    assert done.code == 1
    assert done.error.startswith(f"line 1: bad line: {says}")
    assert ledger.rows(config) == []


def test_now_and_context_come_from_the_line(config):
    text = line(now="2026-02-03T04:05:06+02:00", context={"traceparent": "00-1"})
    assert run("route", "-", *CONFIG, stdin=f"\ufeff{text}").code == 0
    [row] = ledger.rows(config)
    assert row.inserted_at.isoformat() == "2026-02-03T02:05:06+00:00"


def test_a_database_that_does_not_answer_stops_the_run(monkeypatch):
    """Counting the same fault a million times would tell nobody more; what is left is handed over again."""
    from statifier_router import create_engine

    module = types.ModuleType("the_host")
    module.config = Config(
        create_engine("postgresql://nobody@127.0.0.1:1/nowhere"),
        charts=ChartRegistry(),
        bindings=[charts.scans()],
        retries=0,
    )
    monkeypatch.setitem(sys.modules, "the_host", module)
    done = run("route", "-", "--json", *CONFIG, stdin=f"{line('m-1')}\n{line('m-2')}\n")
    assert done.code == 1
    assert done.json["lines"] == 1
    assert done.json["stopped"]["line"] == 1
    assert done.error.startswith("stopped at line 1: the database could not finish the delivery")


def test_tables_that_are_missing_stop_the_run_with_the_line_that_mends_it(
    unmigrated, make_config, monkeypatch
):
    module = types.ModuleType("the_host")
    module.config = make_config(unmigrated, bindings=[charts.scans()])
    monkeypatch.setitem(sys.modules, "the_host", module)
    done = run("route", "-", *CONFIG, stdin=f"{line('m-1')}\n{line('m-2')}\n")
    assert done.code == 1
    assert "run: statifier-router migrate" in done.error


# --- many lines in one transaction ------------------------------------------------------------------


def test_lines_are_committed_by_the_hundred(config, monkeypatch):
    """So many lines as are at hand share a transaction, a hundred at the most; every line is counted."""
    sizes = []
    all_of = route_command.route_each
    monkeypatch.setattr(
        route_command, "route_each", lambda config, some: sizes.append(len(some)) or all_of(config, some)
    )
    done = run("route", "-", "--json", *CONFIG, stdin="".join(f"{line(f'm-{n}')}\n" for n in range(250)))
    assert (done.code, done.json["lines"], done.json["messages"]) == (0, 250, 250)
    assert sizes == [100, 100, 50]


def test_what_takes_a_whole_chunk_is_told_at_its_own_line(database, make_config, monkeypatch):
    """A fault that is no delivery's own stops at its line: those before it are done, those behind it not."""

    def bindings(scope):
        if scope == "broken":
            raise RuntimeError("the resolver is down")
        return [charts.scans()]

    made = make_config(database, charts=charts.registry(parcel=charts.obedient()), bindings_resolver=bindings)
    module = types.ModuleType("the_host")
    module.config = made
    monkeypatch.setitem(sys.modules, "the_host", module)
    text = "\n".join([line("m-1"), line("m-2"), line("m-3", scope="broken"), line("m-4")])
    done = run("route", "-", "--json", *CONFIG, stdin=text)
    assert (done.code, done.json["lines"], done.json["messages"]) == (1, 3, 2)
    assert done.json["stopped"]["line"] == 3
    assert "the resolver is down" in done.json["stopped"]["reason"]
    assert [row.message_id for row in ledger.rows(made)] == ["m-1", "m-2"]


class Trickle:
    """A stream whose blocks come one by one."""

    def __init__(self, *blocks):
        self.blocks = list(blocks)

    def read1(self, size):
        return self.blocks.pop(0) if self.blocks else b""


def test_no_line_waits_for_one_that_has_not_arrived():
    """A slow producer's line is routed when it comes, not when a chunk is full; blank lines hide nothing."""
    arriving = Arriving(Trickle(b"one\ntw", b"o\nthree\n \n\n", b"four", b"", b"never"))
    assert [(each, arriving.drained) for each in arriving] == [
        (b"one\n", True),
        (b"two\n", False),
        (b"three\n", True),
        (b" \n", True),
        (b"\n", True),
        (b"four", True),
    ]


# --- as a process -----------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path, sqlite):
    (tmp_path / "host.py").write_text(HOST.replace("print(", "str("))
    return {"cwd": tmp_path, "env": environment(HOST_DATABASE=sqlite.url)}


def test_an_interrupted_run_says_how_far_it_came(host):
    """What was routed is committed and counted; the code is that of an interruption."""
    child = subprocess.Popen(
        [*COMMAND, "route", "-", "--json", "--config", "host:config"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A run in the background of a shell ignores interruptions, and its children would too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
        **host,
    )
    child.stdin.write(f"{line('m-1')}\nbad\n")
    child.stdin.flush()
    assert child.stderr.readline().startswith("line 2: bad line")
    # It has said so, and waits for a line that does not come.
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert child.returncode == 130
    assert json.loads(out)["outcomes"] == {"created_and_delivered": 1}
    assert err.startswith("stopped at line 2: interrupted; ")
    assert err.count("\n") == 1


def test_the_progress_bar_is_for_a_terminal_only(host):
    """On a terminal a bar is drawn on standard error; the document on standard output stays alone."""
    (host["cwd"] / "messages.jsonl").write_text("".join(f"{line(f'm-{n}')}\n" for n in range(20)))
    command = [*COMMAND, "route", "messages.jsonl", "--json", "--config", "host:config"]
    ours, theirs = os.openpty()
    env = {**host["env"], "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=host["cwd"], env=env) as child:
        os.close(theirs)
        drawn = b""
        while piece := _read(ours):
            drawn += piece
        document = json.loads(child.stdout.read())
    os.close(ours)
    assert child.returncode == 0
    assert document["messages"] == 20
    assert "routing" in drawn.decode()
    silent = subprocess.run(command, capture_output=True, check=True, cwd=host["cwd"], env=env)
    assert silent.stderr == b""
    assert json.loads(silent.stdout)["outcomes"] == {"duplicate": 20}


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:
        # How Linux tells that the other side of a terminal is gone.
        return b""
