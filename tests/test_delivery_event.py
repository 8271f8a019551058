"""`deliver_event`: an event of the caller's own, always under a savepoint, never unmatched."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import event as sa_event

from statifier_router import (
    CreatedAndDelivered,
    Dedupe,
    Delivered,
    Dropped,
    Duplicate,
    Envelope,
    Event,
    ExecutionSuspended,
    Plan,
    StepFailed,
    UnresolvedDocument,
    addresses,
    deliver,
    deliver_event,
    executions,
    ledger,
)
from tests.support.charts import NOW, delivery, envelope, obedient, registry, scans
from tests.support.executors import OwnTables
from tests.support.rows import everything, written

PLAN = Plan("jobs", "parcel")
SECOND = timedelta(seconds=1)


@pytest.fixture(params=["default", "own"])
def config(request, database, make_config):
    """A configuration over each executor, on each database."""
    engine, executor = database.engine(), None
    if request.param == "own":
        executor = OwnTables()
        OwnTables.create_tables(engine)
    charts = registry(parcel=obedient(), short=obedient(on_create="finished"))
    return make_config(database, engine=engine, executor=executor, charts=charts)


@pytest.fixture
def default(database, make_config):
    """A configuration over the default executor, on each database."""
    return make_config(database, charts=registry(parcel=obedient()))


# --- outcomes ---------------------------------------------------------------------------------------


def test_created_and_delivered(config):
    """Claim, address, execution, its inputs, a ledger row with key and execution."""
    with written(config) as rows:
        outcome = deliver_event(config, PLAN, "P7", envelope())
    assert outcome == CreatedAndDelivered("jobs", rows.one("executions")["id"])
    assert rows.summary() == "+claims +addresses +executions +inputs +inputs +ledger"
    row = rows.one("ledger")
    assert (row["binding_id"], row["message_id"], row["scope"]) == ("jobs", "e-1", "acme")
    assert (row["outcome"], row["key"]) == ("created_and_delivered", "P7")
    assert row["execution_id"] == outcome.execution_id


def test_delivered_and_duplicate(config):
    """An existing execution is stepped once."""
    created = deliver_event(config, PLAN, "P7", envelope())
    with written(config) as rows:
        outcome = deliver_event(config, PLAN, "P7", envelope("lost", "e-2"))
    assert outcome == Delivered("jobs", created.execution_id)
    assert rows.summary() == "+claims +inputs +ledger ~executions"
    with written(config) as rows:
        assert deliver_event(config, PLAN, "P7", envelope("lost", "e-2")) == Duplicate("jobs")
        assert deliver_event(config, PLAN, "P7", envelope("found", "e-2")) == Duplicate("jobs", True)
    assert rows.summary() == "+ledger +ledger"


@pytest.mark.parametrize("answer", ["refused", "ignored", "unknown"])
def test_an_unmatched_event_stays_delivered(config, answer):
    """There is no `unmatched_event` here: what the chart does not react to has been delivered, to a new
    execution too; its input row is there, and the execution stands where it stood.
    """
    created = deliver_event(config, PLAN, "P7", envelope(answer))
    assert created.recorded == "created_and_delivered"
    with written(config) as rows:
        outcome = deliver_event(config, PLAN, "P7", envelope(answer, "e-2"))
    assert outcome == Delivered("jobs", created.execution_id)
    assert rows.summary() == "+claims +inputs +ledger ~executions"
    assert rows.one("ledger")["reason"] is None


def test_no_execution(config):
    """`create="never"` without an execution is a drop."""
    with written(config) as rows:
        outcome = deliver_event(config, Plan("jobs", "parcel", create="never"), "P7", envelope())
    assert outcome == Dropped("jobs", "no_execution")
    assert rows.summary() == "+claims +ledger"


def test_finished(config):
    """A terminal execution is a drop, and its address is stamped."""
    created = deliver_event(config, PLAN, "P7", envelope())
    deliver_event(config, PLAN, "P7", envelope("finished", "e-2"))
    with written(config) as rows:
        outcome = deliver_event(config, PLAN, "P7", envelope("lost", "e-3"))
    assert outcome == Dropped("jobs", "finished", created.execution_id)
    assert rows.summary() == "+claims +ledger ~addresses"


def test_finished_at_creation(config):
    """An execution that ends on start is a drop with the new id."""
    with written(config) as rows:
        outcome = deliver_event(config, Plan("jobs", "short"), "P7", envelope())
    assert outcome == Dropped("jobs", "finished", rows.one("executions")["id"])
    assert len(rows.added["inputs"]) == 1


def test_always_new(config):
    """Each event has an execution of its own, at no address."""
    plan = Plan("jobs", "parcel", create="always_new")
    first = deliver_event(config, plan, "P7", envelope())
    second = deliver_event(config, plan, "P7", envelope(message_id="e-2"))
    assert first.execution_id != second.execution_id
    assert everything(config).addresses == []


def test_errors_leave_nothing(config):
    """An error undoes the whole delivery, in a transaction of its own too."""
    with written(config) as rows:
        with pytest.raises(UnresolvedDocument) as unresolved:
            deliver_event(config, Plan("jobs", "letter"), "P7", envelope())
        with pytest.raises(StepFailed) as failed:
            deliver_event(config, PLAN, "P7", envelope("failed"))
    assert rows.nothing
    assert unresolved.value.binding_id == failed.value.binding_id == "jobs"


def test_a_suspended_execution(default):
    """An event to it is the retryable `ExecutionSuspended`."""
    created = deliver_event(default, PLAN, "P7", envelope())
    executions.suspend(default, created.execution_id)
    with written(default) as rows, pytest.raises(ExecutionSuspended):
        deliver_event(default, PLAN, "P7", envelope(message_id="e-2"))
    assert rows.nothing


# --- what is delivered ------------------------------------------------------------------------------


def test_the_event_is_the_callers(default):
    """Name, data, origin and send id reach the chart and the log as they are; the door is told."""
    event = Event("paid", {"amount": 7, "nul": "a\x00b"}, origin="ex_other", send_id="s-1")
    created = deliver_event(default, PLAN, "P7", Envelope(event, "e-1", "acme", NOW, context={"trace": "t"}))
    log = executions.inputs(default, created.execution_id)
    assert [(row.seq, row.door, row.message_id) for row in log] == [
        (0, "create", "e-1"),
        (1, "deliver_event", "e-1"),
    ]
    assert (log[0].event, log[1].event) == (None, event)
    assert log[1].at == NOW
    assert everything(default).inputs[1]["context"] == '{"trace":"t"}'


@pytest.mark.parametrize("data", [None, [], 1.5, "text", True, {"a": [None]}])
def test_any_json_is_data(default, data):
    """The data of an event may be any JSON."""
    event = Event("paid", data)
    created = deliver_event(default, PLAN, "P7", Envelope(event, "e-1", "acme", NOW))
    assert executions.inputs(default, created.execution_id)[1].event == event


def test_a_plan_and_a_binding_of_one_id_share_claims(default):
    """Dedupe is by the id and the message id, whichever door."""
    binding = scans(id="jobs")
    created = deliver(default, binding, "P7", delivery("e-1"))
    assert deliver_event(default, PLAN, "P7", envelope()) == Duplicate("jobs", content_differs=False)
    assert deliver_event(default, Plan("other", "parcel"), "P7", envelope()) == Delivered(
        "other", created.execution_id
    )


def test_a_plan_has_its_own_dedupe(default):
    """Horizon and scope of a plan's dedupe count as a binding's do."""
    plan = Plan("jobs", "parcel", dedupe=Dedupe(SECOND, per_scope=True))
    deliver_event(default, plan, "P7", envelope())
    assert deliver_event(default, plan, "P7", envelope(scope="globex")).recorded == "created_and_delivered"
    assert deliver_event(default, plan, "P7", envelope(now=NOW + SECOND)) == Duplicate("jobs")
    late = NOW + SECOND + timedelta(microseconds=1)
    assert deliver_event(default, plan, "P7", envelope(now=late)).recorded == "delivered"


# --- the bracket ------------------------------------------------------------------------------------


def _statements(engine):
    found = []

    def note(connection, cursor, statement, parameters, context, executemany):
        found.append(statement)

    sa_event.listen(engine, "before_cursor_execute", note)
    return found


def _savepoints(statements):
    return [each for each in statements if "SAVEPOINT" in each]


def test_always_in_a_savepoint_of_its_own(default):
    """Explicit and named, from a counter of the process: in its own transaction and in a borrowed one;
    released on an outcome. Nothing that a caller supplies is in the name.
    """
    statements = _statements(default.engine)
    deliver_event(default, PLAN, "SAVEPOINT", envelope(message_id="SAVEPOINT"))
    with default.engine.begin() as connection:
        deliver_event(default, PLAN, "P7", envelope(message_id="e-2"), connection=connection)
    opened = [each for each in _savepoints(statements) if each.startswith("SAVEPOINT")]
    released = [each for each in _savepoints(statements) if each.startswith("RELEASE")]
    assert len(opened) == len(set(opened)) == 2
    for save, release in zip(opened, released, strict=True):
        name = save.removeprefix("SAVEPOINT ")
        assert name.removeprefix("sr_delivery_").isdecimal()
        assert release == f"RELEASE SAVEPOINT {name}"


def test_an_error_rolls_the_savepoint_back(default):
    """On an error it is rolled back to, in its own transaction too, before that one ends."""
    statements = _statements(default.engine)
    with pytest.raises(StepFailed):
        deliver_event(default, PLAN, "P7", envelope("failed"))
    (name,) = [each.removeprefix("SAVEPOINT ") for each in statements if each.startswith("SAVEPOINT ")]
    assert _savepoints(statements)[1:] == [f"ROLLBACK TO SAVEPOINT {name}", f"RELEASE SAVEPOINT {name}"]


def test_deliver_is_bracketed_only_where_it_joined(default):
    """`deliver` has no savepoint in a transaction that it opened, and one in a transaction it joined."""
    statements = _statements(default.engine)
    deliver(default, scans(), "P7", delivery())
    assert _savepoints(statements) == []
    with default.engine.begin() as connection:
        deliver(default, scans(), "P7", delivery("m-2"), connection=connection)
    assert len(_savepoints(statements)) == 2


def test_it_opens_a_transaction_where_there_is_none(default):
    """Called by a host's own job, it commits by itself."""
    deliver_event(default, PLAN, "P7", envelope())
    assert [row.outcome for row in ledger.rows(default)] == ["created_and_delivered"]
    assert addresses.find(default, "acme", "parcel", "P7") is not None


def test_around_names_the_door(database, make_config):
    """`around_delivery` is called once around each whole door, with its scope and name."""
    calls = []

    def around(scope, door, work):
        calls.append((scope, door))
        return work()

    config = make_config(database, charts=registry(parcel=obedient()), around_delivery=around)
    deliver_event(config, PLAN, "P7", envelope(scope="globex"))
    deliver(config, scans(), "P7", delivery())
    assert calls == [("globex", "deliver_event"), ("acme", "deliver")]
