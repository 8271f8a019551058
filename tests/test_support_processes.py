"""Children are real processes that come and go as they are told; locks are seen on the server."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.support import processes
from tests.support.databases import Database
from tests.support.locks import NotBlocked, backend_pid, wait_until_blocked, wait_until_one_is_blocked
from tests.support.processes import ChildFailed, Children, pause, release_together


def add(one: int, *, other: int) -> dict[str, int]:
    return {"sum": one + other, "pid": os.getpid()}


def fail() -> None:
    raise LookupError("no such parcel")


def print_and_answer() -> str:
    print("whatever")
    return "answer"


def step_by_step(file: str) -> str:
    for step in ("first", "second"):
        with Path(file).open("a") as log:
            log.write(f"{step}\n")
        pause(step, {"wrote": step})
    return "done"


def take_lock(url: str) -> None:
    with Database("postgresql", url, lambda: None).bare_engine().begin() as connection:
        pause("ready", backend_pid(connection))
        connection.execute(text("LOCK TABLE host"))


def test_a_function_runs_in_another_process() -> None:
    """Arguments go there and the result comes back as JSON."""
    answer = processes.run("tests.test_support_processes:add", 2, other=3)
    assert answer["sum"] == 5
    assert answer["pid"] != os.getpid()


def test_a_raise_comes_back() -> None:
    """What the function raised is in the error, traceback and all."""
    with pytest.raises(ChildFailed, match="no such parcel"):
        processes.run("tests.test_support_processes:fail")


def test_a_name_that_is_not_there_is_an_error() -> None:
    """A function that cannot be found fails like one that raises."""
    with pytest.raises(ChildFailed, match="absent"):
        processes.run("tests.test_support_processes:absent")


def test_printing_disturbs_nothing() -> None:
    """Standard output is the child's own affair."""
    assert processes.run("tests.test_support_processes:print_and_answer") == "answer"


def test_a_child_pauses_until_it_is_released(tmp_path: Path, children: Children) -> None:
    """Between `wait_for` and `release` the child does nothing."""
    file = tmp_path / "log"
    child = children.start("tests.test_support_processes:step_by_step", str(file))
    assert child.wait_for("first") == {"wrote": "first"}
    assert file.read_text() == "first\n"
    child.release()
    assert child.wait_for("second") == {"wrote": "second"}
    child.release()
    assert child.result() == "done"


def test_a_killed_child_is_gone(tmp_path: Path, children: Children) -> None:
    """After `kill` the process does not exist, and nothing of it goes on."""
    child = children.start("tests.test_support_processes:step_by_step", str(tmp_path / "log"))
    child.wait_for("first")
    child.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    with pytest.raises(ChildFailed, match="without a word"):
        child.result()


def test_waiting_for_another_point_fails_at_once(tmp_path: Path, children: Children) -> None:
    """A child that pauses elsewhere is an error, not a wait."""
    child = children.start("tests.test_support_processes:step_by_step", str(tmp_path / "log"))
    with pytest.raises(ChildFailed, match="second"):
        child.wait_for("second")


def test_a_silent_child_is_an_error(tmp_path: Path, children: Children) -> None:
    """A wait is bounded."""
    child = children.start("tests.test_support_processes:step_by_step", str(tmp_path / "log"))
    child.wait_for("first")
    with pytest.raises(ChildFailed, match="said nothing"):
        child.result(timeout=0)


def test_a_barrier_lets_all_go(children: Children, table: Database) -> None:
    """Children wait for each other; those that then collide are seen blocked, by whom and how many."""
    started = [children.start("tests.test_support_processes:take_lock", table.url) for _ in range(2)]
    engine = table.bare_engine(pool_size=2)
    with engine.connect() as holder:
        pid = backend_pid(holder)
        holder.execute(text("LOCK TABLE host"))
        release_together(started, "ready")
        assert len(wait_until_one_is_blocked(engine, by=pid)) >= 1
        holder.rollback()
    for child in started:
        child.result()


@pytest.fixture
def table(unmigrated_postgresql: Database) -> Database:
    """A database with the table `host`."""
    with unmigrated_postgresql.bare_engine().begin() as connection:
        connection.execute(text("CREATE TABLE host (id INTEGER PRIMARY KEY)"))
    return unmigrated_postgresql


def test_a_blocked_transaction_is_seen(table: Database) -> None:
    """`wait_until_blocked` returns while the wait lasts, and says who blocks."""
    engine = table.bare_engine()
    with engine.connect() as holder, engine.connect() as waiter:
        pid, by = backend_pid(waiter), backend_pid(holder)
        holder.execute(text("LOCK TABLE host"))
        thread = threading.Thread(target=lambda: waiter.execute(text("LOCK TABLE host")))
        thread.start()
        assert wait_until_blocked(engine, pid, by=by) == [by]
        assert thread.is_alive()
        holder.rollback()
        thread.join(30)
        assert not thread.is_alive()


def test_one_that_is_not_blocked_is_told(table: Database) -> None:
    """The error says what the transaction does instead; the polls are bounded."""
    engine = table.bare_engine()
    with engine.connect() as idle, pytest.raises(NotBlocked, match="idle in transaction"):
        wait_until_blocked(engine, backend_pid(idle), polls=2)
    with pytest.raises(NotBlocked, match="0 of 1"):
        wait_until_one_is_blocked(engine, by=1, polls=2)
