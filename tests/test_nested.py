"""Doors called from inside a step: they join, undo what is theirs alone, and let faults through."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading

import psycopg
import pytest
from sqlalchemy import event as sa_event
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from statifier_router import (
    DatabaseFault,
    DeliveryError,
    ExecutionBusy,
    Plan,
    ReentrantStep,
    Step,
    StepFailed,
    UnresolvedDocument,
    addresses,
    claims,
    deliver,
    deliver_event,
    executions,
    ledger,
    route,
)
from tests.support import locks
from tests.support.charts import NOW, Calling, delivery, envelope, message, obedient, registry, scans
from tests.support.rows import everything, written

only_postgresql = pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)

PLAN = Plan("inner", "parcel")
FIRST = Plan("first", "sender")
MIDDLE = Plan("middle", "relay")


@pytest.fixture
def sender():
    """The chart of the outer executions."""
    return Calling("sender")


@pytest.fixture
def relay():
    """The chart of executions between the outer and the inner ones."""
    return Calling("relay")


@pytest.fixture
def configure(database, make_config, sender, relay):
    """`configure(**kw)`: the documents `sender` and `relay` call the test, `parcel` obeys."""

    def make(engine=None, **kw):
        charts = registry(parcel=obedient(), sender=sender, relay=relay)
        return make_config(database, engine=engine or database.engine(), charts=charts, **kw)

    return make


@pytest.fixture
def config(configure):
    """A configuration on each database."""
    return configure()


def start(config, message_id="o-1", key="S1"):
    """One delivery to the outer execution."""
    return deliver_event(config, FIRST, key, envelope(message_id=message_id))


# --- joining ----------------------------------------------------------------------------------------


def test_a_step_delivers_to_another_execution(config, sender):
    """`deliver_event` from inside a step joins the sender's transaction: on its connection, seen by
    nobody before it commits, and there with it.
    """
    inside = []

    def send(position, event, now):
        inside.append(deliver_event(config, PLAN, "P7", envelope(now=now)))
        # Committed is nothing; in the transaction both are there.
        inside.append(everything(config).empty)
        inside.append(executions.fetch(config, inside[0].execution_id) is not None)

    with sender.calling(send):
        outer = start(config)
    assert outer.recorded == inside[0].recorded == "created_and_delivered"
    assert inside[1:] == [True, True]
    assert everything(config).counts() == {
        "claims": 2,
        "addresses": 2,
        "executions": 2,
        "inputs": 4,
        "ledger": 2,
    }
    # The inner delivery ended first.
    assert [row.binding_id for row in ledger.rows(config)] == ["inner", "first"]


@pytest.mark.parametrize("door", ["route", "deliver"])
def test_the_other_doors_join_too(configure, sender, door):
    """So do `route` and `deliver`, each delivery under a savepoint of its own."""
    config = configure(bindings=[scans(), scans(id="refusing", key="depot")])
    seen = []

    def send(position, event, now):
        if door == "route":
            seen.extend(route(config, message(), now=now))
        else:
            seen.append(deliver(config, scans(), "P7", delivery(now=now)))
        seen.append(everything(config).empty)

    with sender.calling(send):
        start(config)
    assert seen.pop() is True
    expected = ["created_and_delivered", "key_refused"] if door == "route" else ["created_and_delivered"]
    assert [each.recorded for each in seen] == expected
    assert everything(config).counts()["ledger"] == len(expected) + 1


def test_no_second_connection(database, configure, sender, relay):
    """Trap 17. A pool of one connection suffices for deliveries nested in deliveries, for what they read,
    for reapers and operators' acts inside a step.
    """
    engine = database.engine(poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    config = configure(engine)
    deliver_event(config, PLAN, "P1", envelope(message_id="e-0"))

    def send(position, event, now):
        deliver_event(config, MIDDLE, "R1", envelope(now=now))

    def pass_on(position, event, now):
        deliver_event(config, PLAN, "P7", envelope(now=now))
        found = addresses.find(config, "acme", "parcel", "P1")
        assert executions.suspend(config, found.execution_id).status == "suspended"
        assert addresses.by_execution(config, found.execution_id) == found
        assert addresses.reap(config, now=now).deleted == 0
        assert claims.reap(config, now=now) == 0
        assert len(ledger.rows(config)) == 2
        assert ledger.prune(config, before=now) == executions.prune(config, before=now) == 0
        assert executions.replay(config, found.execution_id).agrees
        assert len(executions.inputs(config, found.execution_id)) == 3

    with sender.calling(send), relay.calling(pass_on):
        start(config)
    assert everything(config).counts()["executions"] == 4


def test_an_explicit_connection_of_the_step_is_the_one_in_force(config, sender):
    """Handing on the very connection that a delivery runs on is joining it."""
    with config.engine.connect() as connection:

        def send(position, event, now):
            deliver_event(config, PLAN, "P7", envelope(now=now), connection=connection)

        with sender.calling(send), connection.begin():
            deliver_event(config, FIRST, "S1", envelope(), connection=connection)
            assert everything(config).empty
    assert everything(config).counts()["executions"] == 2


def test_another_database_is_not_joined(tmp_path, sqlite, make_config, sender):
    """A door of another engine, called in a step, opens a transaction there."""
    from statifier_router import create_engine, migrations

    engine = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with engine.begin() as connection:
        migrations.up(connection)
    other = make_config(sqlite, engine=engine, charts=registry(parcel=obedient()))
    config = make_config(sqlite, charts=registry(sender=sender))

    def send(position, event, now):
        deliver_event(other, PLAN, "P7", envelope(now=now))
        raise RuntimeError("the outer one ends badly")

    with sender.calling(send), pytest.raises(StepFailed):
        start(config)
    assert everything(config).empty
    assert everything(other).counts()["executions"] == 1
    engine.dispose()


# --- errors of a nested delivery --------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["unresolved", "step", "resolver"])
def test_a_nested_error_that_is_caught(configure, sender, fault):
    """Trap 12. A step that catches what `deliver_event` raised goes on, and commits: no claim, address or
    execution of that delivery remains, and what was nested before it stays.
    """

    def resolver(scope, document):
        if document == "odd":
            raise RuntimeError("the chart store is away")
        return charts.resolve(scope, document)

    charts = registry(parcel=obedient(), sender=sender)
    config = configure()
    config = type(config)(config.engine, resolver=resolver, chart_resolver=charts.by_hash)
    plan = Plan("inner", {"unresolved": "letter", "step": "parcel", "resolver": "odd"}[fault])
    expected = {"unresolved": UnresolvedDocument, "step": StepFailed, "resolver": RuntimeError}[fault]
    caught = []

    def send(position, event, now):
        deliver_event(config, PLAN, "P1", envelope(message_id="before", now=now))
        with pytest.raises(expected) as raised:
            deliver_event(config, plan, "P2", envelope("failed", now=now))
        caught.append(raised.value)
        deliver_event(config, PLAN, "P3", envelope(message_id="after", now=now))

    with sender.calling(send):
        outer = start(config)
    assert outer.recorded == "created_and_delivered"
    assert len(caught) == 1
    rows = everything(config)
    assert [row["key"] for row in rows.addresses] == ["S1", "P1", "P3"]
    assert [row["message_id"] for row in rows.claims] == ["o-1", "after", "before"]
    assert len(rows.executions) == 3
    assert [row["message_id"] for row in rows.ledger] == ["before", "after", "o-1"]


def test_a_nested_error_that_is_not_caught(config, sender):
    """It fails the sender's step, chained, and everything is undone."""

    def send(position, event, now):
        deliver_event(config, PLAN, "P1", envelope(message_id="before", now=now))
        deliver_event(config, Plan("inner", "letter"), "P2", envelope(now=now))

    with written(config) as rows, sender.calling(send), pytest.raises(StepFailed) as raised:
        start(config)
    assert rows.nothing
    assert raised.value.binding_id == "first"
    assert isinstance(raised.value.__cause__, UnresolvedDocument)
    assert raised.value.__cause__.binding_id == "inner"


def test_three_deep(config, sender, relay):
    """Trap 14. In a delivery nested in a delivery nested in a delivery the innermost fails: only it is
    undone.
    """

    def send(position, event, now):
        deliver_event(config, MIDDLE, "R1", envelope(now=now))

    def pass_on(position, event, now):
        with pytest.raises(StepFailed):
            deliver_event(config, PLAN, "P7", envelope("failed", now=now))

    with sender.calling(send), relay.calling(pass_on):
        start(config)
    rows = everything(config)
    assert [row["document"] for row in rows.addresses] == ["sender", "relay"]
    assert [row["binding_id"] for row in rows.claims] == ["first", "middle"]
    assert len(rows.executions) == 2


def test_the_middle_one_fails(config, sender, relay):
    """What was nested inside a delivery that fails goes with it, though it had succeeded."""

    def send(position, event, now):
        with pytest.raises(StepFailed, match="the relay broke"):
            deliver_event(config, MIDDLE, "R1", envelope(now=now))

    def pass_on(position, event, now):
        deliver_event(config, PLAN, "P7", envelope(now=now))
        raise RuntimeError("the relay broke")

    with sender.calling(send), relay.calling(pass_on):
        start(config)
    assert [row["document"] for row in everything(config).addresses] == ["sender"]
    assert everything(config).counts()["executions"] == 1


def test_interrupts_undo_too(config, sender):
    """A KeyboardInterrupt out of a step leaves nothing, and comes out as it is."""

    def send(position, event, now):
        deliver_event(config, PLAN, "P7", envelope(now=now))
        raise KeyboardInterrupt

    with written(config) as rows, sender.calling(send), pytest.raises(KeyboardInterrupt):
        start(config)
    assert rows.nothing
    with config.engine.connect() as connection:
        assert not connection.in_transaction()


# --- re-entrance ------------------------------------------------------------------------------------


def _doors(config, execution_id):
    return {
        "deliver_event": lambda: deliver_event(config, FIRST, "S1", envelope(message_id="again")),
        "deliver": lambda: deliver(config, scans(document="sender"), "S1", delivery("again")),
        "cancel": lambda: executions.cancel(config, execution_id),
        "fail": lambda: executions.fail(config, execution_id, reason="why"),
        "suspend": lambda: executions.suspend(config, execution_id),
        "resume": lambda: executions.resume(config, execution_id),
    }


@pytest.mark.parametrize("door", ["deliver_event", "deliver", "cancel", "fail", "suspend", "resume"])
@pytest.mark.parametrize("borrowed", [True, False])
def test_reentrant_step(config, sender, door, borrowed):
    """A door or operator call for the execution whose own step is open is `ReentrantStep`; caught, the
    step goes on and nothing of the inner call is there.
    """
    first = start(config)
    caught = []

    def again(position, event, now):
        with pytest.raises(ReentrantStep) as raised:
            _doors(config, first.execution_id)[door]()
        caught.append(raised.value)

    with written(config) as rows, sender.calling(again):
        if borrowed:
            with config.engine.begin() as connection:
                deliver_event(config, FIRST, "S1", envelope(message_id="o-2"), connection=connection)
        else:
            start(config, "o-2")
    assert rows.summary() == "+claims +inputs +ledger ~executions"
    (error,) = caught
    assert (error.execution_id, error.fault, error.retryable) == (first.execution_id, "execution", False)


def test_reentrant_through_another(config, sender, relay):
    """A → B → A in one transaction, by a host's own calls, is `ReentrantStep` too."""

    def send(position, event, now):
        deliver_event(config, MIDDLE, "R1", envelope(now=now))

    def answer(position, event, now):
        with pytest.raises(ReentrantStep):
            deliver_event(config, FIRST, "S1", envelope(message_id="answer", now=now))

    with sender.calling(send), relay.calling(answer):
        start(config)
    assert [row["binding_id"] for row in everything(config).claims] == ["first", "middle"]


def test_reentrant_create(config, sender):
    """While an execution is being created, its address leads to a step that is open."""
    caught = []

    def create(data, now):
        with pytest.raises(ReentrantStep) as raised:
            deliver_event(config, FIRST, "S1", envelope(message_id="again", now=now))
        caught.append((raised.value.execution_id, data["execution"]["id"]))

    with sender.creating(create):
        outer = start(config)
    assert caught == [(outer.execution_id, outer.execution_id)]
    assert everything(config).counts()["claims"] == 1


def test_after_the_step_it_is_open_no_more(config, sender, relay):
    """Once a nested step has ended, its execution may be delivered to again in the same transaction."""

    def send(position, event, now):
        deliver_event(config, PLAN, "P7", envelope(message_id="e-1", now=now))
        with pytest.raises(StepFailed):
            deliver_event(config, PLAN, "P7", envelope("failed", message_id="e-2", now=now))
        deliver_event(config, PLAN, "P7", envelope(message_id="e-3", now=now))
        execution_id = addresses.find(config, "acme", "parcel", "P7").execution_id
        assert executions.cancel(config, execution_id).status == "cancelled"

    with sender.calling(send):
        start(config)
    assert [row["message_id"] for row in everything(config).claims] == ["o-1", "e-1", "e-3"]


@pytest.mark.no_fold("the end is the hook's answer, which the chart alone does not give again")
def test_the_event_that_its_own_step_ends(config, sender):
    """A step that ends its execution and delivers elsewhere first: both stand."""

    def send(position, event, now):
        deliver_event(config, PLAN, "P7", envelope(now=now))
        return Step({"seen": ["end"]}, active=["done"], status="completed")

    with sender.calling(send):
        outer = start(config)
    assert outer.recorded == "created_and_delivered"
    assert [row["status"] for row in everything(config).executions] == ["completed", "active"]


# --- transient faults leave every nested door -------------------------------------------------------


def _fault(database):
    """A fault that the outermost door treats, as the driver raises it."""
    if database.kind == "postgresql":
        return psycopg.errors.DeadlockDetected("deadlock detected")
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


@pytest.mark.parametrize("way", ["swallows", "replaces", "lets through"])
def test_a_fault_that_a_host_swallows(database, configure, sender, relay, way):
    """A transient fault inside travels as the database error it is, and dooms the delivery: whether the
    host's code swallows it, raises its own or lets it through, nothing commits. A deadlock is retried
    whole, SQLite's busy is `ExecutionBusy`.
    """
    config = configure(retries=2)
    faults = [_fault(database)]
    seen = []

    def break_once(position, event, now):
        if faults:
            raise faults.pop()

    def send(position, event, now):
        try:
            deliver_event(config, MIDDLE, "R1", envelope(now=now))
        except Exception as error:
            seen.append(error)
            # Nothing else is done in a doomed transaction.
            with pytest.raises(type(error)):
                deliver_event(config, PLAN, "P8", envelope(message_id="e-2", now=now))
            if way == "replaces":
                raise ValueError("the host's own") from error
            if way == "lets through":
                raise

    with written(config) as rows, sender.calling(send), relay.calling(break_once):
        if database.kind == "sqlite":
            with pytest.raises(ExecutionBusy) as raised:
                start(config)
            assert raised.value.binding_id == "first"
            assert everything(config).empty
        outer = start(config)
    (error,) = seen
    assert not isinstance(error, DeliveryError)
    assert outer.recorded == "created_and_delivered"
    assert [row["key"] for row in rows.added["addresses"]] == ["S1", "R1"]


def test_a_doomed_borrowed_transaction(database, config, sender, relay):
    """In a caller's transaction the doomed delivery is undone and told; it is never retried there, and
    the caller's transaction stays usable.
    """
    calls = []

    def break_it(position, event, now):
        raise _fault(database)

    def send(position, event, now):
        calls.append(1)
        with pytest.raises((psycopg.Error, sqlite3.Error)):
            deliver_event(config, MIDDLE, "R1", envelope(now=now))

    expected = DatabaseFault if database.kind == "postgresql" else ExecutionBusy
    with (
        config.engine.begin() as connection,
        sender.calling(send),
        relay.calling(break_it),
    ):
        with pytest.raises(expected) as raised:
            deliver_event(config, FIRST, "S1", envelope(), connection=connection)
        assert everything(config, connection).empty
        deliver_event(config, PLAN, "P7", envelope(), connection=connection)
    assert (raised.value.retryable, raised.value.fault, len(calls)) == (True, "transient", 1)
    assert [row["key"] for row in everything(config).addresses] == ["P7"]


@only_postgresql
def test_a_real_lock_timeout_that_a_host_swallows(configure, sender):
    """A nested delivery waits for a lock until its bounded wait runs out; swallowed, the whole delivery is
    `ExecutionBusy`, naming the execution that was waited for, and nothing of it is there.
    """
    from datetime import timedelta

    config = configure(lock_timeout=timedelta(milliseconds=50))
    inner = deliver_event(config, PLAN, "P7", envelope(message_id="e-0"))
    swallowed = []

    def send(position, event, now):
        try:
            deliver_event(config, PLAN, "P7", envelope(now=now))
        except Exception as error:
            swallowed.append(error)

    with config.engine.connect() as holder, holder.begin():
        executions.suspend(config, inner.execution_id, connection=holder)
        with sender.calling(send), pytest.raises(ExecutionBusy) as raised:
            start(config)
    assert raised.value.execution_id == inner.execution_id
    assert [type(each.orig) for each in swallowed] == [psycopg.errors.LockNotAvailable]
    assert everything(config).counts()["executions"] == 1


@only_postgresql
def test_a_real_deadlock_that_a_host_swallows(database, configure, sender):
    """A nested delivery is the victim of a real deadlock, and host code swallows it: the whole delivery is
    retried, with the id that its first attempt minted, and both executions are stepped once.
    """
    impatient = {"options": "-c deadlock_timeout=20ms"}
    minted = []

    def mint(scope, document, key):
        minted.append(f"run-{len(minted)}")
        return minted[-1]

    config = configure(database.engine(connect_args=impatient), mint_execution_id=mint)
    other = database.engine(connect_args={"options": "-c deadlock_timeout=60s"})
    inner = deliver_event(config, PLAN, "P7", envelope(message_id="e-0"))
    ready, tries, swallowed = threading.Barrier(2), [], []
    before = database.counters()

    def send(position, event, now):
        tries.append(1)
        if len(tries) == 1:
            # The sender's claim is held; the other one waits for it while holding the inner execution.
            ready.wait(30)
            locks.wait_until_one_is_blocked(other, by=pid[0])
        try:
            deliver_event(config, PLAN, "P7", envelope(now=now))
        except Exception as error:
            swallowed.append(error)

    pid = []
    sa_event.listen(config.engine, "checkout", lambda opened, *_: pid.append(opened.info.backend_pid))

    def crossing():
        with other.connect() as connection, connection.begin():
            executions.suspend(config, inner.execution_id, connection=connection)
            executions.resume(config, inner.execution_id, connection=connection)
            ready.wait(30)
            # The very message that the other one is about to take.
            deliver_event(
                config, Plan(FIRST.id, "relay"), "R1", envelope(message_id="o-1"), connection=connection
            )
            connection.rollback()

    thread = threading.Thread(target=crossing)
    thread.start()
    with sender.calling(send):
        outer = start(config)
    thread.join(30)
    assert [type(each.orig) for each in swallowed] == [psycopg.errors.DeadlockDetected]
    assert len(tries) >= 2
    assert outer.recorded == "created_and_delivered"
    assert executions.fetch(config, inner.execution_id).revision == 2
    assert outer.execution_id == "run-1"
    assert (database.counters() - before).deadlocks == 1


@only_postgresql
def test_a_lost_connection_that_a_host_swallows(database, configure, sender):
    """A connection cut inside a nested delivery, swallowed: the whole delivery is retried on another."""
    config = configure()
    killer = database.engine()
    tries = []

    def send(position, event, now):
        tries.append(1)
        if len(tries) == 1:
            with killer.begin() as connection:
                connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND state = 'idle in transaction'"
                    )
                )
            with pytest.raises(DBAPIError):
                deliver_event(config, PLAN, "P7", envelope(now=now))
        else:
            deliver_event(config, PLAN, "P7", envelope(now=now))

    with sender.calling(send):
        outer = start(config)
    assert outer.recorded == "created_and_delivered"
    assert len(tries) == 2
    assert everything(config).counts()["executions"] == 2


@only_postgresql
def test_retries_run_out(database, configure, sender):
    """After `retries` further attempts a deadlock is `DatabaseFault`, with its SQLSTATE; nothing remains."""
    config = configure(retries=2)
    tries = []

    def send(position, event, now):
        tries.append(1)
        raise _fault(database)

    with written(config) as rows, sender.calling(send), pytest.raises(DatabaseFault) as raised:
        start(config)
    assert rows.nothing
    assert len(tries) == 3
    error = raised.value
    assert (error.sqlstate, error.retryable, error.binding_id) == ("40P01", True, "first")
    assert "\n" not in str(error)


# --- threads and tasks ------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [True, False])
def test_a_thread_does_not_join(configure, sender, copied):
    """A thread that a step starts never writes into its transaction, a copy of its context or not: it
    opens its own, and what it did stays though the step fails.
    """
    from datetime import timedelta

    config = configure(lock_timeout=timedelta(milliseconds=20))
    ended = []

    def beside():
        try:
            ended.append(deliver_event(config, PLAN, "P7", envelope()).recorded)
        except ExecutionBusy:
            # SQLite has one writer, which is the step's own transaction: proof enough.
            ended.append("busy")

    def send(position, event, now):
        run = contextvars.copy_context().run if copied else lambda call: call()
        thread = threading.Thread(target=run, args=(beside,))
        thread.start()
        thread.join(30)
        raise RuntimeError("the step fails")

    with sender.calling(send), pytest.raises(StepFailed):
        start(config)
    kept = {"sqlite": ("busy", 0), "postgresql": ("created_and_delivered", 1)}[config.engine.dialect.name]
    assert (ended[0], everything(config).counts()["executions"]) == kept


def test_a_thread_that_outlives_the_step(config, sender):
    """A thread that goes on after the delivery has ended opens its own transaction."""
    go, ended = threading.Event(), []

    def later():
        go.wait(30)
        ended.append(deliver_event(config, PLAN, "P7", envelope()).recorded)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(later,))

    def send(position, event, now):
        thread.start()

    with sender.calling(send):
        start(config)
    go.set()
    thread.join(30)
    assert ended == ["created_and_delivered"]
    assert everything(config).counts()["executions"] == 2


def test_a_context_that_outlives_the_step(config, sender):
    """What is called later in a context that was copied inside a step, in the same thread, does not find
    the delivery that is over in force.
    """
    copied = []

    def send(position, event, now):
        copied.append(contextvars.copy_context())

    with sender.calling(send):
        start(config)
    outcome = copied[0].run(deliver_event, config, PLAN, "P7", envelope())
    assert outcome.recorded == "created_and_delivered"
    assert everything(config).counts()["executions"] == 2


def test_a_task_that_outlives_the_step(config, sender):
    """So does an asyncio task that a step started: it runs when the delivery is over."""
    ended = []

    async def later():
        ended.append(deliver_event(config, PLAN, "P7", envelope()).recorded)

    async def main():
        tasks = []

        def send(position, event, now):
            tasks.append(asyncio.get_running_loop().create_task(later()))

        with sender.calling(send):
            outer = start(config)
        assert everything(config).counts()["executions"] == 1
        await asyncio.gather(*tasks)
        return outer

    outer = asyncio.run(main())
    assert (outer.recorded, ended) == ("created_and_delivered", ["created_and_delivered"])
    assert everything(config).counts()["executions"] == 2


def test_a_step_in_a_task_joins_its_own(config, sender):
    """Inside an asyncio task a nested door joins as anywhere."""

    def send(position, event, now):
        deliver_event(config, PLAN, "P7", envelope(now=now))
        assert everything(config).empty

    async def main():
        with sender.calling(send):
            return start(config)

    assert asyncio.run(main()).recorded == "created_and_delivered"
    assert everything(config).counts()["executions"] == 2


def test_a_frame_ends_with_its_delivery(config, sender):
    """After a delivery, successful or not, nothing is in force any more."""

    def send(position, event, now):
        raise RuntimeError("no")

    with sender.calling(send), pytest.raises(StepFailed):
        start(config)
    start(config)
    assert deliver_event(config, PLAN, "P7", envelope(now=NOW)).recorded == "created_and_delivered"
    assert everything(config).counts()["executions"] == 2
