"""The demo: what it prints is true, can be typed, and comes out again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from statifier_router import demo, executions, ledger
from statifier_router.demo import database, messages, running
from tests.support.command_line import environment, process, run

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(demo.VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    """A short day, for what does not depend on how many messages there are."""
    whole = messages.day
    monkeypatch.setattr(messages, "day", lambda start, *, seed: whole(start, seed=seed, count=60))


# --- the messages -----------------------------------------------------------------------------------


def test_the_day_is_the_same_for_the_same_seed():
    assert messages.day(START, seed=7) == messages.day(START, seed=7)
    assert messages.day(START, seed=7) != messages.day(START, seed=8)


@pytest.mark.parametrize("seed", [1, 42])
def test_the_day_has_what_it_is_to_show(seed):
    """2,000 messages of three sources within a day: late ones, copies, and some out of order."""
    day = messages.day(START, seed=seed)
    assert len(day) == 2_000
    assert {each.message.source for each in day} == {"shop", "carrier", "depot"}
    assert all(START <= each.arrived < START + timedelta(days=1) for each in day)
    assert [each.arrived for each in day] == sorted(each.arrived for each in day)
    copies = Counter(each.message.message_id for each in day)
    assert sum(1 for count in copies.values() if count > 1) > 100
    assert sum(1 for each in day if each.late_by > timedelta(minutes=15)) > 100
    assert [each.happened for each in day] != sorted(each.happened for each in day)


# --- a run ------------------------------------------------------------------------------------------


def test_the_whole_demo_in_a_process_of_its_own(here):
    """No configuration, one page, and every outcome that it promises to show."""
    done = process("demo", "--json", cwd=here)
    assert (done.code, done.err) == (0, "")
    document = done.json
    assert document["messages"] == 2_000
    assert set(document["outcomes"]) == {
        "created_and_delivered",
        "delivered",
        "duplicate",
        "dropped: finished",
        "dropped: unmatched_event",
        "deferred",
        "unrouted",
        "no_match",
        "key_refused",
    }
    assert set(document["by_binding"]) == {
        "orders", "cancels", "pickups", "arrivals", "deliveries", "depots",
    }  # fmt: skip
    assert [each.name for each in here.iterdir()] == ["parcels.db"]
    config = demo.config(here / "parcels.db")
    try:
        counted = Counter(row.outcome for row in ledger.rows(config, limit=10_000))
        stored = executions.fetch(config, document["story"]["execution_id"])
    finally:
        config.engine.dispose()
    del document["outcomes"]["no_match"]
    meanwhile = document["meanwhile"]
    assert meanwhile["timers_fired"] == counted.pop("timer_fired") > 0
    assert meanwhile["notices"] > meanwhile["timers_fired"]
    # What was kept has a second row, when it landed or was dropped.
    counted["delivered"] -= meanwhile["kept_landed"]
    counted["dropped: unmatched_event"] -= meanwhile["kept_expired"]
    assert meanwhile["kept_expired"] > 0
    assert counted == document["outcomes"]
    assert stored is not None
    assert (stored.status, stored.active) == ("completed", ("delivered",))


def test_the_story_has_a_duplicate_a_late_one_and_an_unmatched_one(here, small):
    story = run("demo", "--json").json["story"]["messages"]
    assert [(line["outcome"], line["states"]) for line in story] == [
        ("created_and_delivered", "expected → moving"),
        ("duplicate", "nothing stepped"),
        ("delivered", "moving → moving"),
        ("delivered", "moving → at_depot"),
        # Nothing reacts to a cancellation any more; a guard says no to an arrival of the morning.
        ("dropped: unmatched_event", "at_depot (ignored)"),
        ("dropped: unmatched_event", "at_depot (refused)"),
        ("delivered", "at_depot → delivered"),
        ("duplicate", "nothing stepped"),
        ("dropped: finished", "nothing stepped"),
    ]
    assert [line["late_by_seconds"] > 3600 for line in story].count(True) == 3


def test_the_page_is_one_page(here, small):
    """Fifty lines that fit a terminal of 80 columns; only the commands below them are longer."""
    lines = run("demo", env={"COLUMNS": "80"}).out.splitlines()
    assert len(lines) <= 50
    cut = lines.index(f"All of it is in the SQLite file {here / 'parcels.db'}. Now try:")
    assert max(len(line) for line in lines[:cut]) <= 80
    assert lines[0].startswith("A shop, a carrier and six depots")


@pytest.mark.parametrize("arguments", [[], ["--database", "another file.db"]])
def test_what_it_says_to_type_next_can_be_typed(here, small, monkeypatch, arguments):
    """Each command works as it is printed, from the directory it was printed in."""
    monkeypatch.setattr(sys, "argv", ["statifier_router/cli/__main__.py"])
    page = run("demo", *arguments).out
    typed = page[page.index("Now try:\n") + len("Now try:\n") :]
    assert typed.count("\n# ") == 3
    done = subprocess.run(
        ["/bin/sh", "-e", "-c", typed],
        cwd=here,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Message scan-pickup-P42" in done.stdout
    assert "completed" in done.stdout
    assert "outcome dropped: unmatched_event" in done.stdout
    assert done.stdout.endswith("1 of 1 lines routed\n")


def test_the_command_it_names_is_the_one_that_was_called(here, small, monkeypatch):
    """Where the script is not on the path, its own path is printed."""
    script = here / "bin" / "statifier-router"
    script.parent.mkdir()
    script.write_text("")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "")
    assert run("demo", "--json").json["next"][0].startswith(f"{script} explain ")
    monkeypatch.setenv("PATH", str(script.parent))
    assert run("demo", "--json").json["next"][0].startswith("statifier-router explain ")


def test_a_second_run_begins_anew(here, small):
    """The demo's own file is made again; nothing of the first run remains."""
    first = run("demo", "--json").json
    second = run("demo", "--json").json
    assert first["outcomes"] == second["outcomes"]
    assert first["story"]["execution_id"] != second["story"]["execution_id"]
    config = demo.config()
    try:
        assert executions.fetch(config, first["story"]["execution_id"]) is None
    finally:
        config.engine.dispose()


@pytest.mark.parametrize("content", [b"", b"a text of somebody's", b"SQLite format 3\x00" + b"\x00" * 84])
def test_a_file_of_somebody_else_s_is_left_alone(here, small, content):
    file = here / "parcels.db"
    file.write_bytes(content)
    done = run("demo")
    assert (done.code, done.out) == (2, "")
    assert "--database parcels.db exists and is not a database of the demo" in done.error
    assert file.read_bytes() == content


def test_a_database_that_cannot_be_written_is_one_line(here, small):
    done = run("demo", "--database", "nowhere/parcels.db")
    assert done.code == 2
    assert done.error.startswith("error: --database nowhere/parcels.db cannot be written: ")


def test_the_file_is_known_as_the_demo_s_however_its_run_ends(here):
    """A run that is killed leaves a file that the next run may replace."""
    database.make_new(here / "parcels.db")
    assert database.is_ours(here / "parcels.db")
    database.make_new(here / "parcels.db")


def test_without_a_run_the_configuration_says_what_to_do(here):
    done = run("ledger", "--config", "statifier_router.demo:config")
    assert done.code == 2
    assert "the demo has no database at parcels.db: run statifier-router demo first" in done.error


def test_the_configuration_needs_no_command_line(here):
    """A host may import the demo's configuration without click and rich."""
    program = (
        "import sys; sys.modules['click'] = sys.modules['rich'] = None\n"
        "import statifier_router.demo, statifier_router.demo.running, statifier_router.demo.database\n"
        "statifier_router.demo.charts()"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), cwd=here, check=True)


def test_without_its_extra_the_demo_says_which(here):
    """The state machines are SCXML documents; without their library there is one line, and no file."""
    program = (
        "import sys; sys.modules['statemachine'] = None; sys.argv = ['statifier-router', 'demo']\n"
        "from statifier_router.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the demo needs the extra 'statemachine': pip install 'statifier-router[statemachine]'\n"
    )
    assert list(here.iterdir()) == []


def test_the_parcel_s_state_machine_can_be_drawn(here, small):
    """The execution of the story, with where it stands."""
    id = run("demo", "--json").json["story"]["execution_id"]
    drawn = run("execution", id, "--diagram", "--config", "statifier_router.demo:config").out
    assert "arrived [_event.data.at #62;= last]" in drawn
    assert drawn.endswith("class delivered active\n")


def test_every_log_of_a_day_folds_to_its_position(here, make_config):
    """The demo's charts are pure: asked again, they answer the same."""
    database.make_new(here / "parcels.db")
    config = make_config.watch(demo.config(here / "parcels.db"))
    shown = running.run(config, messages.day(START, count=200), lambda: None)
    assert len(shown.outcomes) == 200
    assert shown.execution_id == shown.story[0].outcome.execution_id
    config.engine.dispose()


def test_the_day_that_is_played_is_over():
    """Yesterday: no instant lies ahead, and every claim is still remembered."""
    now = datetime(2026, 1, 2, 15, 30, tzinfo=UTC)
    assert running.start_of_day(now) == START
