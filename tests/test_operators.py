"""What an operator may do to an execution: each act takes its lock, leaves a row, and is told."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from statifier_router import (
    ConfigError,
    ExecutionBusy,
    ExecutionNotFound,
    ExecutionSuspended,
    Plan,
    deliver_event,
    executions,
    ledger,
)
from tests.support import locks
from tests.support.charts import NOW, envelope, obedient, registry
from tests.support.rows import everything, written

PLAN = Plan("jobs", "parcel")
SECOND = timedelta(seconds=1)

only_postgresql = pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)

ACTS = {
    "cancel": executions.cancel,
    "fail": lambda config, id, **kw: executions.fail(config, id, **({"reason": "why"} | kw)),
    "suspend": executions.suspend,
    "resume": executions.resume,
}


@pytest.fixture
def configure(database, make_config):
    """`configure(**kw)`: a configuration on each database, at an instant after every delivery."""

    def make(**kw):
        kw.setdefault("clock", lambda: NOW + SECOND)
        return make_config(database, charts=registry(parcel=obedient()), **kw)

    return make


def put(config, name="scanned", message_id="e-1", key="P7"):
    return deliver_event(config, PLAN, key, envelope(name, message_id))


@pytest.mark.parametrize(("act", "status"), [("cancel", "cancelled"), ("fail", "failed")])
def test_ending(configure, act, status):
    """`cancel` and `fail` end it: status, `ended_at`, an input row with the actor, and no ledger row."""
    config = configure()
    id = put(config).execution_id
    with written(config) as rows:
        execution = ACTS[act](config, id, actor="ada@example.org")
    assert rows.summary() == "+inputs ~executions"
    assert execution == executions.fetch(config, id)
    assert (execution.status, execution.ended_at, execution.revision) == (status, NOW + SECOND, 2)
    assert execution.failure == ("why" if act == "fail" else None)
    row = executions.inputs(config, id)[-1]
    assert (row.seq, row.door, row.actor, row.at) == (2, act, "ada@example.org", NOW + SECOND)
    assert (row.event, row.message_id) == (None, None)
    assert put(config, "late", "e-2").recorded == "dropped: finished"


def test_holding(configure):
    """`suspend` holds it: events are refused retryably, none is lost; `resume` lets them through."""
    config = configure()
    id = put(config).execution_id
    position = executions.fetch(config, id).position
    assert executions.suspend(config, id, actor="ada").status == "suspended"
    with pytest.raises(ExecutionSuspended):
        put(config, "scanned", "e-2")
    assert executions.resume(config, id, actor="bob").status == "active"
    assert executions.fetch(config, id).position == position
    assert put(config, "scanned", "e-2").recorded == "delivered"
    log = executions.inputs(config, id)
    assert [(row.door, row.actor) for row in log] == [
        ("create", None),
        ("deliver_event", None),
        ("suspend", "ada"),
        ("resume", "bob"),
        ("deliver_event", None),
    ]
    assert executions.replay(config, id).agrees


@pytest.mark.parametrize("act", ["cancel", "fail"])
def test_a_suspended_one_may_be_ended(configure, act):
    """What is on hold may be ended."""
    config = configure()
    id = put(config).execution_id
    executions.suspend(config, id)
    assert ACTS[act](config, id).terminal
    assert executions.replay(config, id).agrees


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("end", ["cancel", "fail", "finished", "broken"])
def test_a_terminal_one(configure, act, end):
    """On a terminal execution an act answers False and writes nothing."""
    config = configure()
    id = put(config).execution_id
    if end in ACTS:
        ACTS[end](config, id)
    else:
        put(config, end, "e-2")
    with written(config) as rows:
        assert ACTS[act](config, id) is False
    assert rows.nothing


@pytest.mark.parametrize(("act", "first"), [("suspend", "suspend"), ("resume", None)])
def test_an_act_without_effect(configure, act, first):
    """Suspending what is suspended, and resuming what is active, answers it and writes nothing."""
    config = configure()
    id = put(config).execution_id
    if first:
        ACTS[first](config, id)
    with written(config) as rows:
        assert ACTS[act](config, id) == executions.fetch(config, id)
    assert rows.nothing


@pytest.mark.parametrize("act", ACTS)
def test_nobody(configure, act):
    """An unknown id is `ExecutionNotFound`."""
    config = configure()
    with written(config) as rows, pytest.raises(ExecutionNotFound) as raised:
        ACTS[act](config, "ex_nobody")
    assert rows.nothing
    assert (raised.value.execution_id, raised.value.fault) == ("ex_nobody", "execution")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("act", ACTS)
def test_the_actor_by_default(configure, act):
    """The actor is "host" where none is named."""
    config = configure()
    id = put(config).execution_id
    if act == "resume":
        executions.suspend(config, id, actor="ada")
    ACTS[act](config, id)
    assert executions.inputs(config, id)[-1].actor == "host"


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("actor", ["", None, 7, "x" * 129, "é" * 65, "a\x00b", "\ud800"])
def test_a_bad_actor(configure, act, actor):
    """An actor is text within its limit: else `ConfigError` naming it, and nothing is written."""
    config = configure()
    id = put(config).execution_id
    with written(config) as rows, pytest.raises(ConfigError, match="actor") as raised:
        ACTS[act](config, id, actor=actor)
    assert rows.nothing
    assert "\n" not in str(raised.value)


def test_a_reason_is_cleaned(configure):
    """A reason is kept to 2,000 characters, without NUL and lone surrogates; an empty one is refused."""
    config = configure()
    id = put(config).execution_id
    with pytest.raises(ConfigError, match="reason"):
        executions.fail(config, id, reason="")
    failed = executions.fail(config, id, reason="a\x00b\ud800" + "x" * 3000)
    assert failed.failure.startswith("a")
    assert len(failed.failure) == 2000
    assert "\x00" not in failed.failure
    assert executions.fetch(config, id).failure == failed.failure


def test_no_ledger_row(configure):
    """An operator's act is in the execution's own log, not in the ledger."""
    config = configure()
    id = put(config).execution_id
    for act in ("suspend", "resume", "cancel"):
        ACTS[act](config, id)
    assert [row.outcome for row in ledger.rows(config)] == ["created_and_delivered"]


@pytest.mark.parametrize("act", ACTS)
def test_in_a_callers_transaction(configure, act):
    """An act joins a caller's transaction, which commits it or not."""
    config = configure()
    id = put(config).execution_id
    if act == "resume":
        executions.suspend(config, id)
    with config.engine.connect() as connection, written(config) as rows:
        assert ACTS[act](config, id, connection=connection)
        assert (
            executions.fetch(config, id, connection=connection).revision
            == executions.fetch(config, id).revision + 1
        )
        connection.rollback()
    assert rows.nothing


def test_an_error_in_a_callers_transaction(configure):
    """After `ExecutionNotFound` the caller's transaction is usable."""
    config = configure()
    with config.engine.begin() as connection:
        with pytest.raises(ExecutionNotFound):
            executions.cancel(config, "ex_nobody", connection=connection)
        deliver_event(config, PLAN, "P7", envelope(), connection=connection)
    assert everything(config).counts()["executions"] == 1


@only_postgresql
def test_an_act_waits_for_a_step(database, configure):
    """An act waits for the step in progress (seen blocked), and then acts on what that left."""
    config = configure()
    id = put(config).execution_id
    answers = []
    with config.engine.connect() as connection:
        deliver_event(config, PLAN, "P7", envelope("finished", "e-2"), connection=connection)
        thread = threading.Thread(target=lambda: answers.append(executions.cancel(config, id)))
        thread.start()
        locks.wait_until_one_is_blocked(database.engine(), by=locks.backend_pid(connection))
        assert answers == []
        connection.commit()
        thread.join(30)
    assert answers == [False]


@only_postgresql
def test_a_step_waits_for_an_act(database, configure):
    """A step waits for an act in progress, and then finds what it left."""
    config = configure()
    id = put(config).execution_id
    answers = []
    with config.engine.connect() as connection:
        executions.cancel(config, id, connection=connection)
        thread = threading.Thread(target=lambda: answers.append(put(config, "scanned", "e-2").recorded))
        thread.start()
        locks.wait_until_one_is_blocked(database.engine(), by=locks.backend_pid(connection))
        connection.commit()
        thread.join(30)
    assert answers == ["dropped: finished"]


def test_an_act_that_waits_too_long(configure):
    """The bounded wait of an act is `ExecutionBusy`."""
    config = configure(lock_timeout=timedelta(milliseconds=30))
    id = put(config).execution_id
    with config.engine.connect() as connection:
        executions.suspend(config, id, connection=connection)
        with pytest.raises(ExecutionBusy):
            executions.cancel(config, id)
        connection.rollback()
    assert executions.cancel(config, id).status == "cancelled"


def test_there_is_no_delete():
    """Executions are ended, never deleted."""
    assert not {name for name in dir(executions) if "delete" in name or "remove" in name}
