"""Two at once: real second connections, each seen waiting on the server before it is let go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select

from statifier_router import (
    Config,
    CreatedAndDelivered,
    Dedupe,
    Delivered,
    Dropped,
    Duplicate,
    ExecutionBusy,
    Plan,
    addresses,
    claims,
    create_engine,
    deliver,
    deliver_event,
    executions,
    ledger,
)
from statifier_router.merged_plan import MergedActs
from tests.support import rows
from tests.support.charts import NOW, Asked, Calling, delivery, envelope, obedient, registry, scans
from tests.support.databases import Database
from tests.support.processes import Children, release_together
from tests.support.proxy import Proxy
from tests.support.racing import (
    MOMENT,
    PLANS,
    TIMEOUT,
    Beside,
    WritingPlainly,
    blocked,
    configuring,
    disposing,
    open_transaction,
    seen,
    threads,
)
from tests.support.workers import RELAY

SCANS = scans()


@pytest.fixture
def beside() -> Iterator[Beside]:
    """Runs a function in a thread of its own, beside the test."""
    with threads() as beside:
        yield beside


@pytest.fixture
def configure(database, make_config):
    """Configurations on either database."""
    return configuring(database, make_config)


@pytest.fixture(params=[*PLANS, "expecting"])
def on_postgresql(request, postgresql, make_config, monkeypatch):
    """Configurations on PostgreSQL, under each plan; and where every address is expected to be there."""
    if request.param != "expecting":
        return configuring(postgresql, make_config, request.param)
    monkeypatch.setattr(MergedActs, "expects_address", lambda self: True)
    return configuring(postgresql, make_config)


# --- one message, one address, one execution ----------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_one_message_at_two_workers(postgresql, on_postgresql, beside, ending, exists):
    """Trap 2. The second waits for the first; then it is a duplicate, or goes on where that rolled back."""
    one, two = on_postgresql(), on_postgresql()
    if exists:
        deliver(one, SCANS, "P7", delivery("m-0"))
    with open_transaction(one) as (connection, pid):
        first = deliver(one, SCANS, "P7", delivery("m-1"), connection=connection)
        second = beside(deliver, two, SCANS, "P7", delivery("m-1"))
        blocked(postgresql, pid, second)
        getattr(connection, ending)()
        answer = second.result(TIMEOUT)
    wanted = Delivered if exists else CreatedAndDelivered
    assert isinstance(first, wanted)
    if ending == "commit":
        assert answer == Duplicate("scans")
    else:
        assert isinstance(answer, wanted)
    assert len(seen(one, rows.everything(one).executions[0]["id"])) == 1 + exists
    assert postgresql.logged_errors() == []


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_one_message_at_two_workers_on_sqlite(sqlite, make_config, beside, ending):
    """Trap 2. The second worker gets nowhere while the first is open; then the same outcomes."""
    configure = configuring(sqlite, make_config)
    one, two, hasty = configure(), configure(), configure(lock_timeout=MOMENT)
    with open_transaction(one) as (connection, _):
        deliver(one, SCANS, "P7", delivery("m-1"), connection=connection)
        second = beside(deliver, two, SCANS, "P7", delivery("m-1"))
        with pytest.raises(ExecutionBusy):
            deliver(hasty, SCANS, "P7", delivery("m-1"))
        assert not second.done()
        getattr(connection, ending)()
        answer = second.result(TIMEOUT)
    assert isinstance(answer, Duplicate if ending == "commit" else CreatedAndDelivered)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_two_messages_for_one_new_address(postgresql, on_postgresql, beside, ending):
    """Trap 5, and 30-executions trap 3. The loser of the address waits, then steps the winner's execution.

    It inserts nothing, never asks for a chart by document, never creates; the server logs no error.
    """
    winner = on_postgresql(charts=registry(parcel=Calling()))
    chart = Calling()
    asked = Asked(parcel=chart)
    loser = on_postgresql(charts=asked)
    created: list[Any] = []
    with chart.creating(lambda data, now: created.append(data)), open_transaction(winner) as (held, pid):
        first = deliver(winner, SCANS, "P7", delivery("m-1"), connection=held)
        second = beside(deliver, loser, SCANS, "P7", delivery("m-2"))
        blocked(postgresql, pid, second)
        getattr(held, ending)()
        answer = second.result(TIMEOUT)
    if ending == "commit":
        assert answer == Delivered("scans", first.execution_id)
        assert (asked.documents, created) == ([], [])
        assert asked.hashes == [chart.content_hash]
    else:
        assert isinstance(answer, CreatedAndDelivered)
        assert answer.execution_id != first.execution_id
        assert (asked.documents, len(created)) == ([("acme", "parcel")], 1)
    found = rows.everything(winner)
    assert [row["execution_id"] for row in found.addresses] == [answer.execution_id]
    assert [row["id"] for row in found.executions] == [answer.execution_id]
    assert postgresql.logged_errors() == []


class _Reaping:
    """An address that appears before a client's insert reaches the server, and is gone before the re-read."""

    def __init__(self, config: Config, times: int) -> None:
        self._config = config
        self._left = times
        self._stands = False
        self.inserts = 0

    def __call__(self, n: int, sql: str) -> None:
        if "INSERT INTO statifier_router_addresses" in sql:
            self.inserts += 1
            if self._left:
                self._left -= 1
                self._appear()
        elif "statifier_router_addresses" in sql and self._stands:
            self._vanish()

    def _appear(self) -> None:
        row = {
            "scope": "acme",
            "document": "parcel",
            "key": "P7",
            "execution_id": "ex_other",
            "inserted_at": NOW,
        }
        with self._config.engine.begin() as connection:
            connection.execute(insert(self._config.schema.addresses).values(row))
        self._stands = True

    def _vanish(self) -> None:
        table = self._config.schema.addresses
        with self._config.engine.begin() as connection:
            connection.execute(delete(table).where(table.c.execution_id == "ex_other"))
        self._stands = False


def test_an_address_that_is_reaped_in_the_instant_it_won(postgresql, make_config):
    """The race is lost to a row that is gone at the re-read: insert again, and create."""
    other = configuring(postgresql, make_config)()
    reaping = _Reaping(other, 1)
    with _through(postgresql, reaping, other) as config:
        assert isinstance(deliver(config, SCANS, "P7", delivery()), CreatedAndDelivered)
    assert reaping.inserts == 2
    found = rows.everything(other).counts()
    assert found == {"claims": 1, "addresses": 1, "executions": 1, "inputs": 2, "ledger": 1}


def test_an_address_that_is_reaped_each_time_it_wins(postgresql, make_config):
    """Three tries at most: then it is the retryable `ExecutionBusy`, and nothing is written."""
    other = configuring(postgresql, make_config)()
    reaping = _Reaping(other, 3)
    with (
        _through(postgresql, reaping, other) as config,
        rows.written(other) as written,
        pytest.raises(ExecutionBusy) as caught,
    ):
        deliver(config, SCANS, "P7", delivery())
    assert written.nothing
    assert (caught.value.execution_id, caught.value.binding_id) == (None, "scans")
    assert reaping.inserts == 3


@contextmanager
def _through(database: Database, on_statement: _Reaping, other: Config) -> Iterator[Config]:
    """A configuration like `other` whose connections go through a proxy, one statement an act."""
    with Proxy(database.url, on_statement) as proxy, disposing(create_engine(proxy.url)) as engine:
        yield Config(engine, charts=other.charts, executor=WritingPlainly())


@contextmanager
def _waiting_for_its_claim(
    database: Database, configure: Any, beside: Beside
) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """A delivery of `m-1` to `P7` that waits for its claim: a configuration to use meanwhile, and its end."""
    one, two = configure(), configure()
    with open_transaction(one) as (connection, pid):
        deliver(one, SCANS, "elsewhere", delivery("m-1"), connection=connection)
        second = beside(deliver, two, SCANS, "P7", delivery("m-1"))
        blocked(database, pid, second)

        def end() -> Any:
            connection.rollback()
            return second.result(TIMEOUT)

        yield one, end


def test_an_address_that_appears_while_a_claim_is_waited_for(postgresql, on_postgresql, beside):
    """What was committed during the wait counts, whenever the address was first looked for."""
    with _waiting_for_its_claim(postgresql, on_postgresql, beside) as (config, end):
        created = deliver(config, SCANS, "P7", delivery("m-2"))
        assert end() == Delivered("scans", created.execution_id)
    assert len(seen(config, created.execution_id)) == 2


def test_a_step_while_a_claim_is_waited_for(postgresql, on_postgresql, beside):
    """The execution is stepped from where it stands after the wait, not from where it stood before."""
    created = deliver(on_postgresql(), SCANS, "P7", delivery("m-0"))
    with _waiting_for_its_claim(postgresql, on_postgresql, beside) as (config, end):
        deliver(config, SCANS, "P7", delivery("m-2"))
        assert end() == Delivered("scans", created.execution_id)
    inputs = executions.inputs(config, created.execution_id)
    assert [one.message_id for one in inputs] == ["m-0", "m-0", "m-2", "m-1"]


def test_an_address_that_is_given_anew_while_a_claim_is_waited_for(postgresql, on_postgresql, beside):
    """The execution that is at the address after the wait is stepped, not the finished one before it."""
    deliver(on_postgresql(), SCANS, "P7", delivery("m-0", data={"do": "finished"}))
    with _waiting_for_its_claim(postgresql, on_postgresql, beside) as (config, end):
        assert addresses.reap(config, []).deleted == 1
        created = deliver(config, SCANS, "P7", delivery("m-2"))
        assert isinstance(created, CreatedAndDelivered)
        assert end() == Delivered("scans", created.execution_id)


def test_an_address_that_is_reaped_while_a_claim_is_waited_for(postgresql, on_postgresql, beside):
    """An address that is gone after the wait is made anew, and a new execution with it."""
    deliver(on_postgresql(), SCANS, "P7", delivery("m-0", data={"do": "finished"}))
    with _waiting_for_its_claim(postgresql, on_postgresql, beside) as (config, end):
        assert addresses.reap(config, []).deleted == 1
        assert isinstance(end(), CreatedAndDelivered)


# --- steps of one execution -----------------------------------------------------------------------------


def test_two_steps_of_one_execution(database, configure, beside):
    """30-executions trap 1. While one step is slow the next one waits; the result is one serial order."""
    chart = Calling()
    slow = configure(charts=registry(parcel=chart), engine=database.engine(pool_size=1, max_overflow=0))
    quick = configure(charts=registry(parcel=chart))
    created = deliver(slow, SCANS, "P7", delivery("m-0"))
    pid = _pid_of_the_one_connection(slow)
    reached, go = threading.Event(), threading.Event()

    def hook(position: Any, event: Any, now: Any) -> None:
        if event.name == "slow":
            reached.set()
            assert go.wait(TIMEOUT)

    with chart.calling(hook):
        first = beside(deliver, slow, scans(event="slow"), "P7", delivery("m-1"))
        assert reached.wait(TIMEOUT)
        second = beside(deliver, quick, scans(event="quick"), "P7", delivery("m-2"))
        if database.kind == "postgresql":
            blocked(database, pid, second)
        else:
            _refused_while_held(configure(charts=slow.charts, lock_timeout=MOMENT))
        assert not second.done()
        go.set()
        assert first.result(TIMEOUT) == second.result(TIMEOUT) == Delivered("scans", created.execution_id)
    assert seen(slow, created.execution_id) == ["scanned", "slow", "quick"]
    assert [one.message_id for one in executions.inputs(slow, created.execution_id)] == [
        "m-0",
        "m-0",
        "m-1",
        "m-2",
    ]


def _pid_of_the_one_connection(config: Any) -> int:
    with open_transaction(config) as (_, pid):
        return pid


def _refused_while_held(hasty: Any) -> None:
    with pytest.raises(ExecutionBusy):
        deliver(hasty, SCANS, "P7", delivery("m-9"))


@pytest.mark.parametrize("how", ["its last event", "cancel"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_step_waits_for_the_end_of_its_execution(postgresql, on_postgresql, beside, how, ending):
    """30-executions trap 2. It finds the execution finished: dropped, stamped, no input row."""
    one, two = on_postgresql(), on_postgresql()
    created = deliver(one, SCANS, "P7", delivery("m-0"))
    with open_transaction(one) as (connection, pid):
        if how == "cancel":
            executions.cancel(one, created.execution_id, connection=connection)
        else:
            deliver(one, SCANS, "P7", delivery("m-1", data={"do": "finished"}), connection=connection)
        second = beside(deliver, two, SCANS, "P7", delivery("m-2"))
        blocked(postgresql, pid, second)
        getattr(connection, ending)()
        answer = second.result(TIMEOUT)
    messages = [one.message_id for one in executions.inputs(two, created.execution_id)]
    address = addresses.find(two, "acme", "parcel", "P7")
    if ending == "commit":
        assert answer == Dropped("scans", "finished", created.execution_id)
        assert "m-2" not in messages
        assert address.terminal_seen_at == NOW
    else:
        assert answer == Delivered("scans", created.execution_id)
        assert messages == ["m-0", "m-0", "m-2"]
        assert address.terminal_seen_at is None


def test_while_one_key_is_held_another_goes_on(postgresql, on_postgresql):
    """Trap 16. Deliveries of different keys never wait for each other, whether they create or step."""
    one, two = on_postgresql(), on_postgresql(lock_timeout=MOMENT)
    deliver(one, SCANS, "there", delivery("m-0"))
    deliver(one, SCANS, "elsewhere", delivery("m-1"))
    with open_transaction(one) as (connection, _):
        deliver(one, SCANS, "new", delivery("m-2"), connection=connection)
        deliver(one, SCANS, "there", delivery("m-3"), connection=connection)
        assert isinstance(deliver(two, SCANS, "newer", delivery("m-4")), CreatedAndDelivered)
        assert isinstance(deliver(two, SCANS, "elsewhere", delivery("m-5")), Delivered)
        assert {row["key"] for row in rows.everything(two).addresses} == {"there", "elsewhere", "newer"}
        connection.commit()
    assert postgresql.logged_errors() == []


# --- processes ------------------------------------------------------------------------------------------


def _processes(database: Database, children: Children, count: int) -> list[list[list[list[str | None]]]]:
    """200 messages for one new key spread over `count` processes; then one message at all of them."""
    started = []
    for number in range(count):
        mine = [(f"m-{n}", "P7") for n in range(number, 200, count)]
        started.append(
            children.start("tests.support.workers:route_in_rounds", database.url, [mine, [("same", "P8")]])
        )
    for number in range(2):
        release_together(started, f"round {number}")
    return [child.result() for child in started]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param("sqlite", 4, marks=pytest.mark.sqlite),
        pytest.param("postgresql", 8, marks=pytest.mark.postgresql),
    ],
)
def test_processes_and_one_new_key(kind, count, request, make_config, children, record_property):
    """Trap 16. 200 messages for one new key: one execution, one address, 1 created and 199 delivered.

    Every caller is told the same id. Of one message at every process one is created, the others are
    duplicates. Nobody sees an error, nor does the server.
    """
    database = request.getfixturevalue(kind)
    config = make_config(database, charts=registry(parcel=obedient(), relay=RELAY))
    before = database.counters() if kind == "postgresql" else None
    answers = _processes(database, children, count)
    many = [answer for rounds in answers for answer in rounds[0]]
    same = [answer for rounds in answers for answer in rounds[1]]
    counted = Counter(recorded for recorded, _ in many)
    told = f"{kind}, {count} processes: {dict(counted)}; one message: {dict(Counter(r for r, _ in same))}"
    print(told)
    record_property("race", told)
    assert counted == {"created_and_delivered": 1, "delivered": 199}
    assert Counter(r for r, _ in same) == {"created_and_delivered": 1, "duplicate": count - 1}
    (execution_id,) = {execution_id for _, execution_id in many}
    assert len(seen(config, execution_id)) == 200
    with config.engine.connect() as connection:
        for table, wanted in (("executions", 2), ("addresses", 2), ("claims", 201)):
            counting = select(func.count()).select_from(getattr(config.schema, table))
            assert connection.execute(counting).scalar_one() == wanted
    outcomes = Counter(row.outcome for row in ledger.rows(config, limit=1000))
    assert outcomes == {"created_and_delivered": 2, "delivered": 199, "duplicate": count - 1}
    if before is not None:
        assert (database.counters() - before).deadlocks == 0
        assert database.logged_errors() == []


# --- deadlock -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_deadlock_is_retried_whole(postgresql, on_postgresql, beside, swallowed):
    """Trap 21. Of two deliveries whose steps deliver to each other's execution the server ends one.

    That one is tried again whole, and both land, even where the chart swallows the error. No caller sees it.
    """
    chart = Calling()
    config = on_postgresql(charts=registry(parcel=chart))
    ids = {key: deliver(config, SCANS, key, delivery(f"m-{key}")).execution_id for key in ("P7", "P8")}
    before = postgresql.counters()
    both_stand = threading.Barrier(2)
    tries: Counter[str] = Counter()

    def hook(position: Any, event: Any, now: Any) -> None:
        if event.name != "go":
            return
        tries[event.data["to"]] += 1
        if tries[event.data["to"]] == 1:
            both_stand.wait(TIMEOUT)
        hello = envelope("hello", f"hello-{event.data['to']}")
        try:
            deliver_event(config, Plan("greetings", "parcel"), event.data["to"], hello)
        except Exception:
            if not swallowed:
                raise

    with chart.calling(hook):
        going = [
            beside(deliver, config, scans(event="go"), mine, delivery(f"go-{mine}", data={"to": other}))
            for mine, other in (("P7", "P8"), ("P8", "P7"))
        ]
        outcomes = [one.result(TIMEOUT) for one in going]
    assert outcomes == [Delivered("scans", ids["P7"]), Delivered("scans", ids["P8"])]
    for execution_id in ids.values():
        assert sorted(seen(config, execution_id)) == ["go", "hello", "scanned"]
    assert (postgresql.counters() - before).deadlocks >= 1
    assert sum(tries.values()) >= 3
    assert Counter(row.outcome for row in ledger.rows(config)) == {
        "created_and_delivered": 2,
        "delivered": 4,
    }


# --- reapers --------------------------------------------------------------------------------------------


def test_no_reaper_waits_for_a_delivery(on_postgresql):
    """Claims, addresses and executions that a delivery holds are passed over, not waited for."""
    one, two = on_postgresql(), on_postgresql(lock_timeout=MOMENT)
    short = scans(dedupe=Dedupe(timedelta(seconds=1)))
    ended = deliver(one, short, "P7", delivery("m-1", data={"do": "finished"}))
    later = NOW + timedelta(days=1)
    with open_transaction(one) as (connection, _):
        # It renews the expired claim, and stamps the address of the finished execution.
        again = delivery("m-1", now=later)
        assert deliver(one, short, "P7", again, connection=connection) == Dropped(
            "scans", "finished", ended.execution_id
        )
        assert claims.reap(two, now=later + timedelta(days=1)) == 0
        reaped = addresses.reap(two, [short], now=later)
        assert (reaped.stamped, reaped.deleted) == (0, 0)
        assert executions.prune(two, before=later) == 0
        connection.commit()
    assert claims.reap(two, now=later + timedelta(days=1)) == 1
    assert addresses.reap(two, [short], now=later + timedelta(days=1)).deleted == 1


def test_an_uncommitted_address_is_reaped_by_nobody(on_postgresql):
    """A reaper sees neither the address nor the execution of a delivery that is still open."""
    one, two = on_postgresql(), on_postgresql(lock_timeout=MOMENT)
    with open_transaction(one) as (connection, _):
        deliver(one, SCANS, "P7", delivery(), connection=connection)
        assert addresses.reap(two, [], now=NOW) == addresses.Reaped(stamped=0, deleted=0, next=None)
        connection.commit()
    assert addresses.find(two, "acme", "parcel", "P7") is not None
