"""`deliver`: the order of one delivery, its table of outcomes, and its traps; over two executors."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from statifier_router import (
    ChartMismatch,
    ChartNotResolved,
    CreatedAndDelivered,
    Dedupe,
    Delivered,
    Discarded,
    Dropped,
    Duplicate,
    ExecutionBusy,
    ExecutionExists,
    ExecutionNotFound,
    ExecutionSuspended,
    SQLExecutor,
    StaleRevision,
    StepFailed,
    Unresolved,
    UnresolvedDocument,
    addresses,
    deliver,
    executions,
    ledger,
)
from tests.support.charts import NOW, Asked, delivery, obedient, registry, scans
from tests.support.executors import OwnTables, Watching
from tests.support.rows import everything, written

SECOND = timedelta(seconds=1)
TINY = timedelta(microseconds=1)
HORIZON = timedelta(hours=72)


@pytest.fixture(params=["default", "own"])
def configured(request, database, make_config):
    """`configured(**kw)`: a configuration over each executor in turn, on each database."""

    def make(**kw):
        engine = database.engine()
        executor = {"default": None, "own": OwnTables()}[request.param]
        if request.param == "own":
            OwnTables.create_tables(engine)
        kw.setdefault("charts", registry(parcel=obedient()))
        return make_config(database, engine=engine, executor=executor, **kw)

    return make


@pytest.fixture
def configure(database, make_config):
    """`configure(**kw)`: a configuration over the default executor, on each database."""

    def make(**kw):
        kw.setdefault("charts", registry(parcel=obedient()))
        return make_config(database, **kw)

    return make


def send(config, message_id="m-1", do="moved", *, key="P7", now=NOW, scope="acme", **changes):
    """One delivery of the binding `scans`."""
    data = {"do": do}
    return deliver(config, scans(**changes), key, delivery(message_id, scope=scope, now=now, data=data))


# --- §3: the table of outcomes ----------------------------------------------------------------------


def test_created_and_delivered(configured):
    """Claim, a new address, the execution created and stepped, its inputs, a ledger row with key and
    execution; every row carries the one `now`.
    """
    config = configured()
    with written(config) as rows:
        outcome = send(config)
    assert outcome == CreatedAndDelivered("scans", rows.one("executions")["id"])
    assert outcome.execution_id.startswith("ex_")
    assert outcome.execution_id == outcome.execution_id.lower()
    assert rows.one("claims") | {"digest": ""} == {
        "binding_id": "scans",
        "scope": "",
        "message_id": "m-1",
        "digest": "",
        "expires_at": NOW + HORIZON,
    }
    assert rows.one("addresses") | {"id": 0} == {
        "id": 0,
        "scope": "acme",
        "document": "parcel",
        "key": "P7",
        "execution_id": outcome.execution_id,
        "inserted_at": NOW,
        "terminal_seen_at": None,
    }
    execution = rows.one("executions")
    assert (execution["status"], execution["revision"]) == ("active", 1)
    assert (execution["document"], execution["scope"], execution["key"]) == ("parcel", "acme", "P7")
    assert (execution["created_at"], execution["ended_at"]) == (NOW, None)
    assert [row["seq"] for row in rows.added["inputs"]] == [0, 1]
    assert rows.one("ledger") | {"id": 0} == {
        "id": 0,
        "binding_id": "scans",
        "message_id": "m-1",
        "scope": "acme",
        "outcome": "created_and_delivered",
        "key": "P7",
        "execution_id": outcome.execution_id,
        "reason": None,
        "inserted_at": NOW,
    }
    assert rows.summary() == "+claims +addresses +executions +inputs +inputs +ledger"


def test_delivered(configured):
    """Claim, no address, the execution stepped, one input, a ledger row with key and execution."""
    config = configured()
    created = send(config)
    with written(config) as rows:
        outcome = send(config, "m-2", now=NOW + SECOND)
    assert outcome == Delivered("scans", created.execution_id)
    assert rows.summary() == "+claims +inputs +ledger ~executions"
    assert rows.changed["executions"][0]["revision"] == 2
    row = rows.one("ledger")
    assert (row["outcome"], row["key"], row["execution_id"]) == ("delivered", "P7", created.execution_id)
    assert (row["reason"], row["inserted_at"]) == (None, NOW + SECOND)


def test_duplicate(configured):
    """The claim stays as it was, nothing is created or stepped; a ledger row with the key only."""
    config = configured()
    send(config)
    with written(config) as rows:
        assert send(config, now=NOW + SECOND) == Duplicate("scans")
    assert rows.summary() == "+ledger"
    row = rows.one("ledger")
    assert (row["outcome"], row["key"], row["execution_id"]) == ("duplicate", "P7", None)
    assert row["reason"] is None


@pytest.mark.parametrize("difference", ["key", "data", "event"])
def test_duplicate_of_other_content(configured, difference):
    """The same message id with another event name, key or projection is still a duplicate, and says so."""
    config = configured()
    send(config)
    changed = {"key": {"key": "P8"}, "data": {"do": "unknown"}, "event": {"event": "lost"}}[difference]
    with written(config) as rows:
        outcome = send(config, **changed)
    assert outcome == Duplicate("scans", content_differs=True)
    assert rows.summary() == "+ledger"
    row = rows.one("ledger")
    assert row["outcome"] == "duplicate"
    assert row["reason"]
    assert row["key"] == changed.get("key", "P7")
    assert row["execution_id"] is None


def test_same_content_spelt_otherwise(configure):
    """The digest is over canonical JSON: the order of names makes no difference."""
    config = configure()
    deliver(config, scans(), "P7", delivery(data={"a": 1, "b": {"c": 2, "d": None}}))
    again = deliver(config, scans(), "P7", delivery(data={"b": {"d": None, "c": 2}, "a": 1}))
    assert again == Duplicate("scans", content_differs=False)


def test_context_is_no_content(configure):
    """The context is never part of the digest; it is stored with the input."""
    config = configure()
    first = delivery(data={})
    deliver(config, scans(), "P7", type(first)("m-1", "acme", NOW, {}, context={"trace": "1"}))
    outcome = deliver(config, scans(), "P7", type(first)("m-1", "acme", NOW, {}, context={"trace": "2"}))
    assert outcome == Duplicate("scans", content_differs=False)
    assert [row["context"] for row in everything(config).inputs] == ['{"trace":"1"}'] * 2


def test_dropped_no_execution(configured):
    """`create="never"` at an address without execution: a claim, and a ledger row with the key only."""
    config = configured()
    with written(config) as rows:
        outcome = send(config, create="never")
    assert outcome == Dropped("scans", "no_execution")
    assert outcome.execution_id is None
    assert rows.summary() == "+claims +ledger"
    row = rows.one("ledger")
    assert (row["outcome"], row["key"]) == ("dropped: no_execution", "P7")
    assert (row["execution_id"], row["reason"]) == (None, None)


def test_never_finds_what_is_there(configured):
    """`create="never"` steps an execution that exists."""
    config = configured()
    created = send(config)
    assert send(config, "m-2", create="never") == Delivered("scans", created.execution_id)


def test_dropped_finished(configured):
    """A terminal execution: claim, the address stamped where empty, no input; key and execution in the
    ledger, and no chart is asked for.
    """
    charts = Asked(parcel=obedient())
    config = configured(charts=charts)
    created = send(config)
    send(config, "m-2", "finished")
    charts.hashes.clear()
    with written(config) as rows:
        outcome = send(config, "m-3", now=NOW + SECOND)
    assert outcome == Dropped("scans", "finished", created.execution_id)
    assert rows.summary() == "+claims +ledger ~addresses"
    assert rows.changed["addresses"][0]["terminal_seen_at"] == NOW + SECOND
    row = rows.one("ledger")
    assert (row["outcome"], row["key"]) == ("dropped: finished", "P7")
    assert (row["execution_id"], row["reason"]) == (created.execution_id, None)
    assert (charts.hashes, len(charts.documents)) == ([], 1)


@pytest.mark.parametrize("on_create", ["finished", "broken"])
def test_dropped_finished_at_creation(configured, on_create):
    """Trap 6. An execution that ends on start: `Dropped(finished)` with the new id, one execution, no
    input beyond its create, its address stamped; the next event finds it ended.
    """
    config = configured(charts=registry(parcel=obedient(on_create=on_create)))
    with written(config) as rows:
        outcome = send(config)
    execution = rows.one("executions")
    assert outcome == Dropped("scans", "finished", execution["id"])
    assert execution["status"] == {"finished": "completed", "broken": "failed"}[on_create]
    assert (execution["created_at"], execution["ended_at"]) == (NOW, NOW)
    assert [row["seq"] for row in rows.added["inputs"]] == [0]
    assert rows.one("addresses")["terminal_seen_at"] == NOW
    assert rows.one("ledger")["execution_id"] == execution["id"]
    with written(config) as rows:
        assert send(config, "m-2", now=NOW + SECOND) == outcome
    assert rows.summary() == "+claims +ledger"


@pytest.mark.parametrize("answer", ["refused", "ignored"])
def test_dropped_unmatched_event(configured, answer):
    """An event that its execution refuses or ignores is logged as an input and moves nothing; the
    ledger's reason tells which of the two it was.
    """
    config = configured()
    created = send(config)
    before = everything(config).executions[0]
    with written(config) as rows:
        outcome = send(config, "m-2", answer)
    assert outcome == Dropped("scans", "unmatched_event", created.execution_id)
    assert rows.summary() == "+claims +inputs +ledger ~executions"
    after = rows.changed["executions"][0]
    assert after == before | {"revision": before["revision"] + 1}
    row = rows.one("ledger")
    assert (row["outcome"], row["reason"]) == ("dropped: unmatched_event", answer)
    assert (row["key"], row["execution_id"]) == ("P7", created.execution_id)


def test_dropped_unmatched_event_of_a_new_execution(configured):
    """A first event that is ignored: the execution is created, at an address, and stays."""
    config = configured()
    with written(config) as rows:
        outcome = send(config, "m-1", "ignored")
    assert outcome == Dropped("scans", "unmatched_event", rows.one("executions")["id"])
    assert rows.summary() == "+claims +addresses +executions +inputs +inputs +ledger"


def test_unknown_is_delivered(configured):
    """A chart that cannot say whether it reacted (`unknown`) has been delivered to, and may have moved."""
    config = configured()
    created = send(config)
    assert send(config, "m-2", "unknown") == Delivered("scans", created.execution_id)
    assert executions.fetch(config, created.execution_id).position["seen"] == [
        "scanned:moved",
        "scanned:unknown",
    ]


@pytest.mark.parametrize("answer", ["failed", "raised"])
@pytest.mark.parametrize("exists", [True, False])
def test_step_failed(configured, answer, exists):
    """A step that answers `failed`, or raises, is `StepFailed`: nothing at all is written."""
    config = configured()
    if exists:
        send(config)
    with written(config) as rows, pytest.raises(StepFailed, match="scanned") as raised:
        send(config, "m-2", answer)
    assert rows.nothing
    error = raised.value
    assert (error.binding_id, error.fault, error.retryable) == ("scans", "message", False)
    assert isinstance(error.__cause__, ValueError) == (answer == "raised")
    # The message was not taken: when its chart is mended it is delivered.
    assert isinstance(send(config, "m-2"), Delivered if exists else CreatedAndDelivered)


@pytest.mark.parametrize("answer", ["failed", "raised"])
def test_create_failed(configured, answer):
    """A raise out of the chart's create is `StepFailed` too, and leaves nothing."""
    config = configured(charts=registry(parcel=obedient(on_create=answer)))
    with written(config) as rows, pytest.raises(StepFailed):
        send(config)
    assert rows.nothing


@pytest.mark.parametrize(("answer", "status"), [("finished", "completed"), ("broken", "failed")])
def test_the_event_that_ends_an_execution(configured, answer, status):
    """Trap 7. It is delivered, and the address is not stamped by it: the next sighting stamps, a later
    one does not move the stamp.
    """
    config = configured()
    created = send(config)
    assert send(config, "m-2", answer, now=NOW + SECOND) == Delivered("scans", created.execution_id)
    execution = executions.fetch(config, created.execution_id)
    assert (execution.status, execution.ended_at) == (status, NOW + SECOND)
    assert execution.failure == ("it broke" if status == "failed" else None)
    assert addresses.find(config, "acme", "parcel", "P7").terminal_seen_at is None
    for seconds in (2, 3):
        assert send(config, f"m-{seconds + 1}", now=NOW + seconds * SECOND).recorded == "dropped: finished"
        found = addresses.find(config, "acme", "parcel", "P7")
        assert found.terminal_seen_at == NOW + 2 * SECOND


def test_always_new(configured):
    """`always_new` reads and writes no address: each message has an execution of its own."""
    config = configured()
    with written(config) as rows:
        first = send(config, create="always_new")
        second = send(config, "m-2", create="always_new")
        third = send(config, create="always_new")
    assert first.recorded == second.recorded == "created_and_delivered"
    assert first.execution_id != second.execution_id
    assert third == Duplicate("scans")
    assert rows.added["addresses"] == []
    assert len(rows.added["executions"]) == 2
    assert addresses.by_execution(config, first.execution_id) is None


def test_always_new_that_ends_at_creation(configured):
    """`always_new` and an execution that ends on start: no other execution's address is stamped."""
    config = configured(charts=registry(parcel=obedient(on_create="finished")))
    send(config)
    config.engine.dispose()
    with written(config) as rows:
        assert send(config, "m-2", create="always_new").recorded == "dropped: finished"
    assert rows.summary() == "+claims +executions +inputs +ledger"


@pytest.mark.parametrize("who", ["absent", "raises"])
def test_unresolved_document(configured, who):
    """A document without a chart is `UnresolvedDocument`, with its facts; nothing is written."""
    charts = Asked(parcel=obedient())
    if who == "raises":
        charts.failures.append(Unresolved("it is being edited"))
    config = configured(charts=charts)
    document = "letter" if who == "absent" else "parcel"
    with written(config) as rows, pytest.raises(UnresolvedDocument) as raised:
        send(config, document=document)
    assert rows.nothing
    error = raised.value
    assert (error.document, error.scope, error.binding_id) == (document, "acme", "scans")
    assert (error.fault, error.retryable) == ("binding", False)
    assert error.reason


def test_every_error_leaves_nothing(configured):
    """Trap 4. A resolver that fails once, with whatever: nothing is written, and the message handed over
    again creates, it is no duplicate.
    """
    charts = Asked(parcel=obedient())
    charts.failures.append(RuntimeError("the host's chart store is away"))
    config = configured(charts=charts)
    with written(config) as rows, pytest.raises(RuntimeError, match="away"):
        send(config)
    assert rows.nothing
    assert send(config).recorded == "created_and_delivered"


# --- §3: the order ----------------------------------------------------------------------------------


def test_the_charts_are_asked_at_creation_only(configured):
    """(scope, document) is asked for at creation, once; an existing execution's chart by its hash."""
    charts = Asked(parcel=obedient())
    config = configured(charts=charts)
    send(config)
    assert (charts.documents, charts.hashes) == ([("acme", "parcel")], [])
    send(config, "m-2")
    send(config, "m-2")
    assert len(charts.documents) == 1
    assert charts.hashes == [obedient().content_hash]


def test_a_new_revision_leaves_executions_alone(configured):
    """Trap 8. With a new revision published, an existing execution's old hash is asked for, the document
    not at all; a new execution runs on the new one.
    """
    old, new = obedient(tag="old"), obedient(version="2", tag="new")
    charts = Asked(parcel=old)
    config = configured(charts=charts)
    first = send(config)
    charts.registry.publish("parcel", new)
    charts.documents.clear()
    send(config, "m-2")
    assert (charts.documents, charts.hashes) == ([], [old.content_hash])
    second = send(config, "m-3", key="P8")
    assert executions.fetch(config, first.execution_id).position["tag"] == "old"
    assert executions.fetch(config, second.execution_id).position["tag"] == "new"


def test_an_address_without_execution(configured):
    """Trap 9. Its execution's row is gone: `ExecutionNotFound` each time, until the reaper removes the
    address; the next event creates.
    """
    config = configured()
    created = send(config)
    with config.engine.begin() as connection:
        tables = getattr(config.executor, "own_tables", None)
        table = tables["executions"] if tables else config.schema.executions
        connection.execute(table.delete())
    for _ in range(2):
        with written(config) as rows, pytest.raises(ExecutionNotFound) as raised:
            send(config, "m-2")
        assert rows.nothing
        assert (raised.value.execution_id, raised.value.binding_id) == (created.execution_id, "scans")
        assert raised.value.fault == "execution"
    reaped = addresses.reap(config, [scans()], now=NOW)
    assert (reaped.stamped, reaped.deleted, reaped.next) == (0, 1, None)
    if tables is None:
        # The old log belongs to nothing any more.
        with config.engine.begin() as connection:
            connection.execute(config.schema.inputs.delete())
    again = send(config, "m-2")
    assert again.recorded == "created_and_delivered"
    assert again.execution_id != created.execution_id


def test_a_suspended_execution(configure):
    """An event to a suspended execution is the retryable `ExecutionSuspended`; nothing is written, and
    after `resume` the same message is delivered.
    """
    config = configure()
    created = send(config)
    executions.suspend(config, created.execution_id)
    with written(config) as rows, pytest.raises(ExecutionSuspended) as raised:
        send(config, "m-2")
    assert rows.nothing
    assert (raised.value.execution_id, raised.value.retryable) == (created.execution_id, True)
    assert raised.value.fault == "execution"
    executions.resume(config, created.execution_id)
    assert send(config, "m-2") == Delivered("scans", created.execution_id)


def test_a_chart_that_is_gone(configured):
    """The hash of an existing execution that nobody knows is `ChartNotResolved`; nothing is written."""
    chart = obedient()
    known = {chart.content_hash: chart}
    config = configured(charts=None, resolver=lambda scope, document: chart, chart_resolver=known.get)
    created = send(config)
    known.clear()
    with written(config) as rows, pytest.raises(ChartNotResolved) as raised:
        send(config, "m-2")
    assert rows.nothing
    error = raised.value
    assert (error.content_hash, error.execution_id) == (chart.content_hash, created.execution_id)
    assert (error.fault, error.retryable, error.binding_id) == ("execution", False, "scans")
    known[chart.content_hash] = chart


def test_a_resolver_of_hashes_that_says_why(configured):
    """`Unresolved` out of the hash resolver is `ChartNotResolved`, with its reason."""
    chart = obedient()
    reasons = []

    def by_hash(content_hash):
        if reasons:
            raise Unresolved(reasons[0])
        return chart

    config = configured(charts=None, resolver=lambda scope, document: chart, chart_resolver=by_hash)
    send(config)
    reasons.append("it was archived")
    with written(config) as rows, pytest.raises(ChartNotResolved, match="it was archived"):
        send(config, "m-2")
    assert rows.nothing
    reasons.clear()


def test_another_chart_than_the_one_asked_for(configured):
    """30-executions, trap 4. A chart edited under a live execution is `ChartMismatch`, which names both
    hashes; nothing is written.
    """
    chart, edited = obedient(), obedient(version="2")
    known = {chart.content_hash: chart}
    config = configured(charts=None, resolver=lambda scope, document: chart, chart_resolver=known.get)
    created = send(config)
    known[chart.content_hash] = edited
    with written(config) as rows, pytest.raises(ChartMismatch) as raised:
        send(config, "m-2")
    assert rows.nothing
    error = raised.value
    assert (error.content_hash, error.execution_id) == (chart.content_hash, created.execution_id)
    assert chart.content_hash in str(error)
    assert edited.content_hash in str(error)
    known[chart.content_hash] = chart


@pytest.mark.parametrize("reaped", [1, 2, 3])
def test_an_address_that_is_reaped_that_instant(database, make_config, monkeypatch, reaped):
    """The race for an address is lost, and the winner's row is gone when it is read again: it is inserted
    again, with the same id, at most three times; then the delivery is `ExecutionBusy` and left nothing.
    """
    engine = database.engine()
    OwnTables.create_tables(engine)
    config = make_config(database, engine=engine, charts=registry(parcel=obedient()), executor=OwnTables())
    insert, tried = addresses.insert, []

    def losing(connection, schema, scope, document, key, execution_id, now):
        tried.append(execution_id)
        if len(tried) <= reaped:
            return False
        return insert(connection, schema, scope, document, key, execution_id, now)

    monkeypatch.setattr(addresses, "insert", losing)
    if reaped == 3:
        with pytest.raises(ExecutionBusy) as raised:
            send(config)
        assert (raised.value.retryable, raised.value.execution_id) == (True, None)
        assert everything(config).empty
    else:
        assert send(config).execution_id == tried[0]
    assert len(tried) == min(reaped + 1, 3)
    assert len(set(tried)) == 1


def test_an_executor_that_discards(database, make_config):
    """An executor that finds the execution ended and did not step it: `Dropped(finished)`, stamped."""

    class Discarding(SQLExecutor):
        discards = False

        def step(self, context, execution, chart, event):
            if self.discards:
                return Discarded(execution)
            return super().step(context, execution, chart, event)

    executor = Discarding()
    config = make_config(database, charts=registry(parcel=obedient()), executor=executor)
    created = send(config)
    executor.discards = True
    with written(config) as rows:
        assert send(config, "m-2") == Dropped("scans", "finished", created.execution_id)
    assert rows.summary() == "+claims +ledger ~addresses"


def test_a_failed_answer_of_any_executor(database, make_config):
    """`failed` in what a host's executor answers is `StepFailed`, though it wrote something."""

    class Obliging(OwnTables):
        def step(self, context, execution, chart, event):
            stepped = super().step(context, execution, chart, event)
            assert stepped.step.outcome == "failed"
            return stepped

    engine = database.engine()
    OwnTables.create_tables(engine)
    config = make_config(database, engine=engine, charts=registry(parcel=obedient()), executor=Obliging())
    with written(config) as rows, pytest.raises(StepFailed, match="scanned cannot be"):
        send(config, do="failed")
    assert rows.nothing


def test_a_derived_executor_is_asked(database, make_config):
    """A subclass of `SQLExecutor` is what creates, locks and steps."""
    executor = Watching()
    config = make_config(database, charts=registry(parcel=obedient()), executor=executor)
    send(config)
    assert executor.calls == ["create", "step"]
    send(config, "m-2")
    assert executor.calls[2:] == ["lock", "step"]
    executions.fetch(config, everything(config).executions[0]["id"])
    assert executor.calls[4:] == ["fetch"]


# --- §4: rollback -----------------------------------------------------------------------------------

_FAIL = {
    "sqlite": [
        (
            "CREATE TRIGGER no_{table} BEFORE {act} ON statifier_router_{table}"
            " BEGIN SELECT RAISE(ABORT, 'not now'); END"
        )
    ],
    "postgresql": [
        (
            "CREATE FUNCTION no_{table}() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'not now'; END $$"
        ),
        (
            "CREATE TRIGGER no_{table} BEFORE {act} ON statifier_router_{table}"
            " FOR EACH ROW EXECUTE FUNCTION no_{table}()"
        ),
    ],
}
_MEND = {
    "sqlite": ["DROP TRIGGER no_{table}"],
    "postgresql": ["DROP TRIGGER no_{table} ON statifier_router_{table}", "DROP FUNCTION no_{table}()"],
}


def _run(config, database, statements, table, act=""):
    with config.engine.begin() as connection:
        for statement in statements[database.kind]:
            connection.execute(text(statement.format(table=table, act=act)))


@pytest.mark.parametrize(
    ("table", "act"),
    [
        ("claims", "INSERT"),
        ("addresses", "INSERT"),
        ("executions", "INSERT"),
        ("inputs", "INSERT"),
        ("executions", "UPDATE"),
        ("ledger", "INSERT"),
    ],
)
def test_a_statement_fails(database, configure, table, act):
    """Trap 13. Whichever statement fails, the ledger's included: claim, address, execution and input are
    all gone, the database's error comes out as it was raised, and the message may be handed over again.
    """
    config = configure()
    if act == "UPDATE":
        # The delivery that creates an execution may insert it in its final form.
        send(config, "m-0")
    _run(config, database, _FAIL, table, act)
    with written(config) as rows, pytest.raises(DBAPIError, match="not now"):
        send(config)
    assert rows.nothing
    _run(config, database, _MEND, table)
    assert send(config).recorded == ("delivered" if act == "UPDATE" else "created_and_delivered")


@pytest.mark.parametrize("table", ["ledger", "addresses"])
def test_a_statement_fails_after_the_end(database, configure, table):
    """The ledger row of a drop is as needed as any: where it, or the stamp, fails, no claim stays."""
    config = configure()
    send(config)
    send(config, "m-2", "finished")
    _run(config, database, _FAIL, table, "INSERT" if table == "ledger" else "UPDATE")
    with written(config) as rows, pytest.raises(DBAPIError, match="not now"):
        send(config, "m-3")
    assert rows.nothing
    _run(config, database, _MEND, table)


def test_a_send_that_nobody_takes(configure):
    """A send to a target that nobody registered is heard by the chart in the same step: never dropped."""
    config = configure()
    outcome = send(config, do="sent")
    assert outcome.recorded == "created_and_delivered"
    assert [row.door for row in executions.inputs(config, outcome.execution_id)] == [
        "create",
        "deliver",
        "reentry",
    ]
    seen = executions.fetch(config, outcome.execution_id).position["seen"]
    assert seen == ["scanned:sent", "error.communication"]


def test_a_bypassed_lock(database, make_config):
    """A row moved behind the step's back is the retryable `StaleRevision`, never a lost update."""

    class Meddling(SQLExecutor):
        meddles = False

        def step(self, context, execution, chart, event):
            if self.meddles:
                table = context.config.schema.executions
                context.connection.execute(table.update().values(revision=table.c.revision + 1))
            return super().step(context, execution, chart, event)

    executor = Meddling()
    config = make_config(database, charts=registry(parcel=obedient()), executor=executor)
    created = send(config)
    executor.meddles = True
    with written(config) as rows, pytest.raises(StaleRevision) as raised:
        send(config, "m-2")
    assert rows.nothing
    assert (raised.value.execution_id, raised.value.retryable) == (created.execution_id, True)


# --- errors that a chart handled itself -------------------------------------------------------------


def test_handled_errors_are_kept(configure):
    """`on_chart_error="commit"`: the step counts, and its errors stand on the input row."""
    config = configure()
    created = send(config)
    assert send(config, "m-2", "erred") == Delivered("scans", created.execution_id)
    errors = [row.errors for row in executions.inputs(config, created.execution_id)]
    assert errors == [(), (), ("a guard failed", "an action failed")]


def test_handled_errors_are_kept_of_a_create(configure):
    """The errors of a create stand on row 0."""
    config = configure(charts=registry(parcel=obedient(on_create="erred")))
    created = send(config)
    assert created.recorded == "created_and_delivered"
    assert executions.inputs(config, created.execution_id)[0].errors == (
        "a guard failed",
        "an action failed",
    )


@pytest.mark.parametrize("at_create", [True, False])
def test_handled_errors_are_rejected(configured, at_create):
    """`on_chart_error="reject"`: they are `StepFailed`, and nothing is written."""
    chart = obedient(on_create="erred" if at_create else "moved")
    config = configured(charts=registry(parcel=chart), on_chart_error="reject")
    with written(config) as rows, pytest.raises(StepFailed, match="a guard failed; an action failed"):
        send(config, do="moved" if at_create else "erred")
    assert rows.nothing


# --- §5: time and identity --------------------------------------------------------------------------


def test_a_duplicate_at_exactly_the_horizon(configure):
    """Trap 3. At exactly the stored expiry a message is still a duplicate; a microsecond later it is
    delivered, and the expiry moves.
    """
    config = configure()
    dedupe = Dedupe(SECOND)
    created = send(config, dedupe=dedupe)
    assert send(config, dedupe=dedupe, now=NOW + SECOND) == Duplicate("scans")
    assert everything(config).claims[0]["expires_at"] == NOW + SECOND
    late = NOW + SECOND + TINY
    assert send(config, dedupe=dedupe, now=late) == Delivered("scans", created.execution_id)
    assert everything(config).claims[0]["expires_at"] == late + SECOND
    assert send(config, dedupe=dedupe, now=late) == Duplicate("scans")


def test_a_claim_taken_anew_is_of_the_new_content(configure):
    """After the expiry the claim carries the later message's digest."""
    config = configure()
    send(config, dedupe=Dedupe(SECOND))
    send(config, dedupe=Dedupe(SECOND), now=NOW + 2 * SECOND, do="unknown")
    assert send(config, dedupe=Dedupe(SECOND), now=NOW + 2 * SECOND, do="unknown") == Duplicate("scans")
    differs = send(config, dedupe=Dedupe(SECOND), now=NOW + 2 * SECOND)
    assert differs == Duplicate("scans", content_differs=True)


@pytest.mark.parametrize(
    "instant",
    [NOW.replace(microsecond=0), NOW.replace(microsecond=1), NOW.replace(microsecond=500_000), NOW],
)
def test_times_are_exact(configure, instant):
    """Trap 29. Times with and without microseconds are kept and compared exactly, on SQLite too."""
    config = configure()
    dedupe = Dedupe(SECOND)
    send(config, dedupe=dedupe, now=instant)
    assert send(config, dedupe=dedupe, now=instant + SECOND) == Duplicate("scans")
    rows = everything(config)
    assert rows.claims[0]["expires_at"] == instant + SECOND
    assert rows.executions[0]["created_at"] == rows.addresses[0]["inserted_at"] == instant
    assert {row.inserted_at for row in ledger.rows(config)} == {instant, instant + SECOND}
    assert send(config, dedupe=dedupe, now=instant + SECOND + TINY).recorded == "delivered"


def test_the_duplicate_of_another_time_zone(configure):
    """Every instant is converted to UTC: where a caller's clock stands makes no difference."""
    from datetime import timezone

    config = configure()
    there = timezone(timedelta(hours=-3, minutes=-30))
    send(config, dedupe=Dedupe(SECOND), now=NOW.astimezone(there))
    assert everything(config).executions[0]["created_at"] == NOW
    assert send(config, dedupe=Dedupe(SECOND), now=NOW + SECOND) == Duplicate("scans")
    assert send(config, dedupe=Dedupe(SECOND), now=NOW + SECOND + TINY).recorded == "delivered"


def test_a_zero_horizon(configure):
    """With a horizon of zero a message is a duplicate of the same instant only."""
    config = configure()
    send(config, dedupe=Dedupe(timedelta(0)))
    assert send(config, dedupe=Dedupe(timedelta(0))) == Duplicate("scans")
    assert send(config, dedupe=Dedupe(timedelta(0)), now=NOW + TINY).recorded == "delivered"


def test_dedupe_across_scopes(configure):
    """The documented trap, one way: without `per_scope` the same message id in another scope is a
    duplicate, and is not delivered there.
    """
    config = configure()
    send(config)
    assert send(config, scope="globex") == Duplicate("scans")
    assert send(config, "m-2", scope="globex").recorded == "created_and_delivered"


def test_dedupe_per_scope(configure):
    """The other way: with `per_scope` each scope has message ids of its own."""
    config = configure()
    dedupe = Dedupe(per_scope=True)
    first = send(config, dedupe=dedupe)
    second = send(config, dedupe=dedupe, scope="globex")
    assert first.recorded == second.recorded == "created_and_delivered"
    assert first.execution_id != second.execution_id
    assert send(config, dedupe=dedupe) == Duplicate("scans")
    assert send(config, dedupe=dedupe, scope="globex") == Duplicate("scans")
    assert [row["scope"] for row in everything(config).claims] == ["acme", "globex"]


def test_dedupe_per_binding(configure):
    """Two bindings that see one message each deliver it once."""
    config = configure()
    created = send(config)
    assert send(config, id="audit") == Delivered("audit", created.execution_id)
    assert send(config, id="audit") == Duplicate("audit")


def test_a_message_handled_whose_address_was_reaped(configure):
    """Trap 1. Redelivered within the horizon it is a duplicate: no address, no execution."""
    config = configure()
    send(config, do="finished")
    long = [scans(dedupe=Dedupe(timedelta(0)))]
    assert addresses.reap(config, long, now=NOW).deleted == 1
    with written(config) as rows:
        assert send(config, do="finished", now=NOW + SECOND) == Duplicate("scans")
    assert rows.summary() == "+ledger"
    assert addresses.find(config, "acme", "parcel", "P7") is None


_ALIKE = [
    "Straße",
    "STRASSE",
    "straße",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "cafe\N{COMBINING ACUTE ACCENT}",
    "cafe",
    "cafe ",
    " cafe",
    "cafe\n",
    "Cafe",
    "ﬁ",
    "fi",
    "\N{GRINNING FACE}",
]


def test_keys_are_compared_bytewise(configured):
    """Trap 18. Keys that differ by case, by normal form, by a space at either end are distinct."""
    config = configured()
    ids = {}
    for number, key in enumerate(_ALIKE):
        outcome = send(config, f"m-{number}", key=key)
        assert outcome.recorded == "created_and_delivered", key
        ids[key] = outcome.execution_id
    assert len(set(ids.values())) == len(_ALIKE)
    for number, key in enumerate(_ALIKE):
        assert send(config, f"again-{number}", key=key) == Delivered("scans", ids[key])
        assert addresses.find(config, "acme", "parcel", key).execution_id == ids[key]


def test_message_ids_and_scopes_are_compared_bytewise(configure):
    """The same for message ids, scopes and documents."""
    config = configure(charts=registry(parcel=obedient(), Parcel=obedient("Parcel")))
    for number, text_ in enumerate(_ALIKE):
        assert send(config, text_, key=str(number)).recorded == "created_and_delivered", text_
        assert send(config, f"in {number}", scope=text_).recorded == "created_and_delivered", text_
    assert send(config, "m-1", document="Parcel").recorded == "created_and_delivered"


def test_every_limit_is_reached(configure):
    """Text at exactly its limit in UTF-8 bytes is kept whole."""
    message_id, key, scope = "é" * 127 + "m", "ß" * 256, "s" * 128
    document, binding_id, name = "d" * 128, "b" * 128, "e" * 128
    config = configure(charts=registry(**{document: obedient()}))
    binding = scans(id=binding_id, document=document, event=name)
    created = deliver(config, binding, key, delivery(message_id, scope=scope))
    assert created.recorded == "created_and_delivered"
    (row,) = ledger.rows(config)
    assert (row.message_id, row.key, row.scope, row.binding_id) == (message_id, key, scope, binding_id)
    assert deliver(config, binding, key, delivery(message_id, scope=scope)) == Duplicate(binding_id)


def test_hostile_text_is_data(configure):
    """No text of a caller's is ever read as SQL."""
    config = configure()
    hostile = "'); DROP TABLE statifier_router_ledger; -- %s :key \\ \""
    send(config, hostile[:200], key=hostile, scope=hostile)
    (row,) = ledger.rows(config)
    assert (row.key, row.scope, row.message_id) == (hostile, hostile, hostile)
    assert ledger.rows(config, message_id=hostile, scope=hostile) == [row]


# --- ids of the host's own --------------------------------------------------------------------------


def test_a_host_mints_ids(configured):
    """`mint_execution_id(scope, document, key)` names new executions, and is asked for those only."""
    asked = []

    def mint(scope, document, key):
        asked.append((scope, document, key))
        return f"run-{len(asked)}"

    config = configured(mint_execution_id=mint)
    assert send(config) == CreatedAndDelivered("scans", "run-1")
    assert send(config, "m-2") == Delivered("scans", "run-1")
    assert send(config, "m-3", create="never", key="P8").recorded == "dropped: no_execution"
    assert send(config) == Duplicate("scans")
    assert asked == [("acme", "parcel", "P7")]


def test_a_host_mints_an_id_twice(configured):
    """A repeated id is `ExecutionExists`; nothing is written, and the next fresh id is taken."""
    ids = ["run-1", "run-1", "run-2"]
    config = configured(mint_execution_id=lambda *_: ids.pop(0))
    send(config)
    with written(config) as rows, pytest.raises(ExecutionExists) as raised:
        send(config, "m-2", key="P8")
    assert rows.nothing
    assert (raised.value.execution_id, raised.value.fault) == ("run-1", "execution")
    assert send(config, "m-2", key="P8") == CreatedAndDelivered("scans", "run-2")
