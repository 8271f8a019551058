"""The programs of `examples/`, run as a reader runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from statifier_router import Config, Event, Tables, addresses, executions, ledger, timers

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / "examples" / "github"


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, GITHUB / "run.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"} | environment,
    )


def counts(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def repository(**more: object) -> dict[str, object]:
    return {"repository": {"full_name": "octo/repo"}, **more}


def pull_request(action: str, **more: object) -> dict[str, object]:
    return repository(action=action, pull_request={"number": 12, "merged": False, **more})


def review(state: str) -> dict[str, object]:
    return repository(action="submitted", pull_request={"number": 12}, review={"state": state})


def issue(action: str, number: object = 3) -> dict[str, object]:
    return repository(action=action, issue={"number": number})


# In the package's format; small, so that every count below can be followed by eye.
EVENTS = [
    {"name": "issue_comment", "examples": [issue("created")]},
    {
        "name": "issues",
        "examples": [
            issue("opened"),
            issue("pinned"),
            issue("closed", number=None),
            {"action": "closed", "issue": {"number": 3}},
            issue("deleted"),
            issue("reopened"),
        ],
    },
    {"name": "organization", "examples": [{"action": "renamed", "organization": {"login": "octo"}}]},
    {"name": "pull_request_review", "examples": [review("approved"), review("approved")]},
    {
        "name": "pull_request",
        "examples": [
            pull_request("opened", number=13, draft=False),
            pull_request("opened", draft=False),
            pull_request("opened", draft=False),
            pull_request("closed", merged=None),
            pull_request("closed", merged=True),
        ],
    },
    {
        "name": "workflow_run",
        "examples": [repository(action="completed", workflow_run={"id": 7, "conclusion": None})],
    },
]

FIRST = {
    "created_and_delivered": 3,  # issue 3, pull requests 12 and 13
    "deferred": 1,  # a review that came before its pull request
    "delivered": 2,  # its deletion, its merge
    "dropped: finished": 1,  # reopened after it was deleted
    "dropped: no_execution": 1,  # the comment came before the issue
    "dropped: unmatched_event": 1,  # a run that completed without a conclusion
    "duplicate": 2,  # the same payload twice in the file
    "key_refused": 2,  # a null for a number; no repository
    "no_match": 2,  # pinned; merged is neither true nor false
    "unrouted": 1,  # an organisation's event
}
SECOND = {"duplicate": 11, "key_refused": 2, "no_match": 2, "unrouted": 1}


@pytest.fixture
def payloads(tmp_path: Path) -> Path:
    file = tmp_path / "payloads.json"
    file.write_text(json.dumps(EVENTS))
    return file


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's own module of charts."""
    spec = importlib.util.spec_from_file_location("charts", GITHUB / "charts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_every_payload_has_an_honest_outcome_and_the_second_pass_changes_nothing(
    database, payloads, charts, make_config
):
    """A null number, an absent repository, an unknown event: each is counted, none stops the run."""
    summary = counts(run("--url", database.url, payloads))

    assert summary.pop("passes") == [FIRST, SECOND]
    assert summary == {name: FIRST.get(name, 0) + SECOND.get(name, 0) for name in FIRST | SECOND}
    # What it left behind folds, like every execution of these tests.
    make_config.watch(_config(database, charts))


def _config(database, charts):
    return Config(database.engine(), charts=charts.charts(), tables=Tables(prefix="github_example_"))


def test_what_a_pull_request_says_to_the_world(database, payloads, charts):
    """A review that came first lands when its pull request does; a merge is told to the release of its
    repository; two days without a review leave a reminder in the outbox.
    """
    done = run("--url", database.url, payloads)
    assert counts(done)["deferred"] == 1
    config = _config(database, charts)
    told = [row.outcome for row in ledger.rows(config, binding_id="review-submitted")]
    assert told == ["deferred", "duplicate", "delivered", "duplicate", "duplicate"]
    address = addresses.find(config, "github.com", "release", "octo/repo")
    assert executions.fetch(config, address.execution_id).position["data"]["merged"] == [12]
    reminded = [line.split() for line in done.stdout.splitlines() if "review_missing" in line]
    assert reminded == [["review_missing", "octo/repo#13"]]
    assert timers.pending(config) == []


def test_a_second_run_begins_anew(database, payloads):
    """The tables of the run before are dropped, so its messages are no duplicates."""
    assert counts(run("--url", database.url, payloads)) == counts(run("--url", database.url, payloads))


def test_without_a_url_a_temporary_file_is_used(payloads):
    """No database has to be there, and the states are told."""
    done = run(payloads)
    assert counts(done)["passes"] == [FIRST, SECOND]
    lines = [line.split() for line in done.stdout.splitlines() if "octo/repo#" in line and "steps" in line]
    states = {words[1]: words[2] for words in lines}
    assert states == {
        "octo/repo#3": "gone",
        "octo/repo#12": "merged",
        "octo/repo#13": "open,",
        "octo/repo#7": "queued",
    }


def test_check_fails_where_the_counts_differ(payloads):
    """So that one command can stand in a build."""
    done = run("--check", payloads)
    assert done.returncode == 1
    assert "expected.json" in done.stderr


def test_the_expected_counts_are_complete():
    """What the check compares with: each pass has an outcome for every message, the second takes none."""
    expected = json.loads((GITHUB / "expected.json").read_text())
    first, second = expected.pop("passes")
    assert sum(first.values()) == sum(second.values()) == sum(expected.values()) / 2
    assert set(second) <= {"duplicate", "no_match", "unrouted", "key_refused"}


def stepped(charts: ModuleType, document: str, *events: tuple[str, dict[str, Any]]) -> Any:
    """The active states and the position after these events, each of which the chart must take."""
    chart = charts.charts().resolve("", document)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    step = chart.create(data={"execution": {}}, now=now)
    for number, (name, data) in enumerate(events):
        step = chart.step(step.position, Event(name, data), event_id=f"m-{number}", now=now)
        assert step.outcome == "moved", name
        assert step.errors == (), name
    return step


def test_a_push_takes_an_approval_back(charts):
    """Life and review are two regions, which one event may move at once."""
    approval = ("reviewed", {"review": {"state": "approved"}})
    assert stepped(charts, "pull_request", approval).active == ("open", "approved")
    pushed = stepped(charts, "pull_request", approval, ("pushed_to", {}))
    assert pushed.active == ("open", "unreviewed")
    who = {"repository": {"full_name": "octo/repo"}, "pull_request": {"number": 12}}
    merged = stepped(charts, "pull_request", approval, ("merged", who))
    assert [(effect.target, effect.data["key"]) for effect in merged.effects] == [("execution", "octo/repo")]
    assert (merged.active, merged.status) == (("merged",), "completed")


def test_a_reopened_issue_is_as_it_was(charts):
    """Its history knows whether somebody had looked at it before it was closed."""
    for before, active in ([], "untriaged"), ([("triaged", {})], "triaged"):
        again = stepped(charts, "issue", *before, ("closed", {}), ("reopened", {}))
        assert again.active == (active,)


def test_a_run_keeps_the_jobs_that_failed(charts):
    """Jobs come before and after the run itself; its conclusion ends it."""
    failed = ("job_completed", {"workflow_job": {"name": "lint", "conclusion": "failure"}})
    passed = ("job_completed", {"workflow_job": {"name": "test", "conclusion": "success"}})
    running = stepped(charts, "workflow_run", failed, passed)
    assert running.active == ("running",)
    assert running.position["data"]["failed_jobs"] == ["lint"]
    ended = stepped(
        charts, "workflow_run", failed, ("completed", {"workflow_run": {"conclusion": "failure"}})
    )
    assert (ended.active, ended.status) == (("failed",), "completed")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"\xff", "is not JSON"),
        (b"{}", "is not a list of"),
        (b'[{"name": "issues"}]', "is not a list of"),
        (b'[{"name": "", "examples": [7]}]', "is no message"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, content, said):
    """The line names the file, and nothing was routed."""
    file = tmp_path / "payloads.json"
    if content is not None:
        file.write_bytes(content)
    done = run(file)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_without_npm_the_error_says_what_to_do(tmp_path):
    """One line: install it, or name a file."""
    done = run(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "npm" in line
    assert "run.py FILE" in line


def test_where_npm_fails_its_words_are_told(tmp_path):
    """A registry that cannot be reached is no traceback either."""
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    npm.chmod(0o755)
    done = run(PATH=f"{tmp_path}:{os.environ['PATH']}", XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "no network" in line
    assert "run.py FILE" in line


def test_a_database_that_is_not_there_is_one_line(payloads):
    """The driver's words, without a traceback."""
    done = run("--url", "postgresql://nobody@127.0.0.1:1/none", payloads)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
