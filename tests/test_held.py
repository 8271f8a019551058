"""Transactions that are begun and ended past SQLAlchemy's `Connection`: nobody is to see a difference."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import attrs
import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, ResourceClosedError
from sqlalchemy.pool import AssertionPool, NullPool, Pool, StaticPool
from sqlalchemy.pool.base import _ConnectionFairy, _ConnectionRecord

from statifier_router import CreatedAndDelivered, Delivered, OutboxRoute, deliver, dialect, executions, ledger
from statifier_router.ambient import in_force
from statifier_router.errors import DatabaseFault, StepFailed
from tests.support.charts import Calling, delivery, obedient, registry, scans
from tests.support.databases import Database

SCANS = scans()
TOLD = ("engine_connect", "begin", "commit", "rollback")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Every `Connection` of SQLAlchemy's that is made."""
    found: list[Connection] = []
    init = Connection.__init__

    def noted(self: Connection, *args: Any, **kw: Any) -> None:
        found.append(self)
        init(self, *args, **kw)

    monkeypatch.setattr(Connection, "__init__", noted)
    return found


@pytest.fixture
def config(database: Database, make_config: Any) -> Any:
    return make_config(database, charts=registry(parcel=obedient()))


def test_a_delivery_needs_no_connection_of_sqlalchemys(config: Any, made: list[Connection]) -> None:
    """Nothing of a common delivery asks for more than the pooled connection, once the pool is filled."""
    deliver(config, SCANS, "P7", delivery("m-1"))
    before = len(made)
    outcome = deliver(config, SCANS, "P7", delivery("m-2"))
    assert isinstance(outcome, Delivered)
    assert made[before:] == []


def test_whoever_asks_gets_one_in_the_same_transaction(
    database: Database, make_config: Any, made: list[Connection]
) -> None:
    """It is made once, is in the delivery's transaction, and what is written on it commits with the step."""
    calling = Calling()
    config = make_config(database, charts=registry(parcel=calling))
    with config.engine.begin() as own:
        own.execute(text("CREATE TABLE notes (id integer)"))
    execution_id = deliver(config, SCANS, "P7", delivery("m-1")).execution_id
    seen: list[Connection] = []

    def hook(position: Any, event: Any, now: Any) -> None:
        frame = in_force(config.writer)
        assert frame is not None
        seen.extend([frame.connection, frame.connection])
        seen[0].execute(text("INSERT INTO notes VALUES (1)"))
        # It joins by that very connection.
        assert executions.fetch(config, execution_id, connection=seen[0]).revision == 1
        assert seen[0].in_transaction()

    before = len(made)
    try:
        with calling.calling(hook):
            deliver(config, SCANS, "P7", delivery("m-2"))
        assert made[before:] == seen[:1]
        assert seen[0] is seen[1]
        assert _notes(config.engine) == 1
        with calling.calling(lambda *_: _noted_and_raised(config)), pytest.raises(Exception, match="no more"):
            deliver(config, SCANS, "P7", delivery("m-3"))
        assert _notes(config.engine) == 1
    finally:
        with config.engine.begin() as own:
            own.execute(text("DROP TABLE notes"))


def _noted_and_raised(config: Any) -> None:
    frame = in_force(config.writer)
    assert frame is not None
    frame.connection.execute(text("INSERT INTO notes VALUES (2)"))
    raise ValueError("no more")


def _notes(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM notes")).scalar_one())


@pytest.mark.parametrize("on", ["engine", "connections"])
@pytest.mark.parametrize("told", TOLD)
def test_a_host_that_listens_hears_of_every_transaction(config: Any, told: str, on: str) -> None:
    """A listener to connections or transactions is told of each delivery's, wherever it listens."""
    deliver(config, SCANS, "P7", delivery("m-1"))
    heard: list[str] = []

    def listener(connection: Connection) -> None:
        heard.append(told)

    target = config.engine if on == "engine" else Connection
    event.listen(target, told, listener)
    try:
        deliver(config, SCANS, "P7", delivery("m-2"))
        deliver(config, SCANS, "P7", delivery("m-3"))
        with pytest.raises(Exception, match="failed"):
            deliver(config, SCANS, "P7", delivery("m-4", data={"do": "failed"}))
    finally:
        event.remove(target, told, listener)
        if on == "connections":
            # Nothing takes this back by itself, and every later test would be told.
            Connection._has_events = False
    assert len(heard) == {"commit": 2, "rollback": 1}.get(told, 3)


def test_the_pools_own_events_are_told(config: Any) -> None:
    """A checkout, a reset and a checkin for each delivery, as of any connection of the pool."""
    deliver(config, SCANS, "P7", delivery("m-1"))
    heard: list[str] = []
    for name in ("checkout", "reset", "checkin"):
        event.listen(config.engine, name, lambda *_, name=name: heard.append(name))
    deliver(config, SCANS, "P7", delivery("m-2"))
    assert heard == ["checkout", "reset", "checkin"]


def test_echo_tells_of_every_transaction(
    database: Database, make_config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that logs says BEGIN and COMMIT of a delivery too."""
    engine = database.engine()
    config = make_config(database, engine=engine, charts=registry(parcel=obedient()))
    deliver(config, SCANS, "P7", delivery("m-1"))
    engine.echo = True
    with caplog.at_level(logging.INFO, logger="sqlalchemy.engine"):
        deliver(config, SCANS, "P7", delivery("m-2"))
    engine.echo = False
    said = [record.getMessage() for record in caplog.records]
    assert "BEGIN (implicit)" in said
    assert "COMMIT" in said


@pytest.fixture
def deferred(postgresql: Database) -> Iterator[None]:
    """The ledger's rows break a constraint, which is looked at when they are committed."""
    table = "statifier_router_ledger"
    with postgresql.engine().begin() as own:
        own.execute(text(
            f"ALTER TABLE {table} ADD CONSTRAINT once UNIQUE (binding_id) DEFERRABLE INITIALLY DEFERRED"
        ))  # fmt: skip
    yield
    with postgresql.engine().begin() as own:
        own.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT once"))


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_commit_that_fails_is_told_as_sqlalchemy_tells_it(
    postgresql: Database,
    make_config: Any,
    deferred: None,
    pipeline: bool,
) -> None:
    """It is an error of SQLAlchemy's, nothing of the delivery stays, and the connection is not lost."""
    engine = postgresql.engine(pool_size=1, max_overflow=0)
    config = make_config(postgresql, engine=engine, charts=registry(parcel=obedient()), pipeline=pipeline)
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-1")), CreatedAndDelivered)
    with engine.connect() as connection:
        pid = connection.connection.dbapi_connection.info.backend_pid
    with pytest.raises(IntegrityError, match="once"):
        deliver(config, SCANS, "P7", delivery("m-2"))
    assert [row.message_id for row in ledger.rows(config)] == ["m-1"]
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection.info.backend_pid == pid
        assert not connection.connection.dbapi_connection.info.transaction_status


def test_a_fault_handler_hears_of_a_commit_that_fails(
    postgresql: Database, make_config: Any, deferred: None
) -> None:
    """SQLAlchemy's `handle_error` is asked about a delivery's COMMIT."""
    engine = postgresql.engine()
    config = make_config(postgresql, engine=engine, charts=registry(parcel=obedient()))
    deliver(config, SCANS, "P7", delivery("m-1"))
    heard: list[str] = []
    event.listen(engine, "handle_error", lambda context: heard.append(str(context.original_exception)))
    with pytest.raises(IntegrityError):
        deliver(config, SCANS, "P7", delivery("m-2"))
    assert len(heard) == 1
    assert "once" in heard[0]


def test_what_is_kept_past_its_delivery_serves_nobody(database: Database, make_config: Any) -> None:
    """A frame's connection, asked for once the delivery has ended, is a closed one."""
    calling = Calling()
    config = make_config(database, charts=registry(parcel=calling))
    frames: list[Any] = []
    with calling.calling(lambda *_: frames.append(in_force(config.writer))):
        deliver(config, SCANS, "P7", delivery("m-1"))
    (frame,) = frames
    assert frame.connection.closed
    with pytest.raises(ResourceClosedError):
        frame.connection.execute(text("SELECT 1"))
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-2")), Delivered)


def test_a_database_that_cannot_be_opened_is_told_as_sqlalchemy_tells_it(tmp_path: Any) -> None:
    """A driver's error while connecting comes as SQLAlchemy's error."""
    engine = dialect.create_engine(f"sqlite:///{tmp_path}/no/such/place.db")
    with pytest.raises(DBAPIError, match="unable to open"):
        dialect.Held(engine).take()


def test_an_interrupted_commit_gives_the_connection_up(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what is on its way after an interruption: the connection is not handed out again."""
    held = dialect.Held(config.opener)
    held.take()
    held.begin()
    lost = held.connection.dbapi_connection

    class Interrupting:
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    held.driver = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        held.commit()
    assert held.invalidated
    held.close()
    with config.engine.connect() as connection:
        assert connection.connection.dbapi_connection is not lost


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every proxy that SQLAlchemy makes of a pooled connection."""
    found: list[Any] = []
    init = _ConnectionFairy.__init__

    def noted(self: Any, *args: Any, **kw: Any) -> None:
        found.append(self)
        init(self, *args, **kw)

    monkeypatch.setattr(_ConnectionFairy, "__init__", noted)
    return found


@pytest.fixture
def pooled(postgresql: Database, make_config: Any) -> Iterator[Any]:
    """Makes a configuration over a pool of one connection, which is filled."""
    engines: list[Engine] = []

    def make(charts: Any = None, **kw: Any) -> Any:
        engine = postgresql.engine(pool_size=1, max_overflow=0, pool_timeout=20, **kw)
        engines.append(engine)
        config = make_config(postgresql, engine=engine, charts=charts or registry(parcel=obedient()))
        deliver(config, SCANS, "P7", delivery("m-1"))
        return config

    yield make
    for engine in engines:
        engine.dispose()


def test_a_delivery_needs_no_proxy_of_the_pools(pooled: Any, proxies: list[Any]) -> None:
    """With the installed SQLAlchemy the common delivery goes past it: an update must not undo that."""
    config = pooled()
    before = len(proxies)
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-2")), Delivered)
    assert proxies[before:] == []
    assert config.engine.pool.checkedout() == 0


@pytest.mark.parametrize("why", ["pings", "checkout", "checkin", "reset", "logs"])
def test_whoever_looks_at_the_pool_sees_the_proxy(pooled: Any, proxies: list[Any], why: str) -> None:
    """It is made at once where somebody listens to the pool, where it pings, and where it logs."""
    config = pooled(pool_pre_ping=why == "pings", echo_pool="debug" if why == "logs" else False)
    if why in ("checkout", "checkin", "reset"):
        event.listen(config.engine, why, lambda *_: None)
    before = len(proxies)
    deliver(config, SCANS, "P7", delivery("m-2"))
    assert len(proxies) == before + 1
    assert config.engine.pool.checkedout() == 0


@pytest.mark.parametrize("name", ["checkout", "checkin", "reset"])
def test_whoever_looks_at_every_pool_sees_the_proxy(pooled: Any, proxies: list[Any], name: str) -> None:
    """A listener to all pools is told of a delivery's, as of any other."""
    config = pooled()
    heard: list[str] = []

    def listener(*_: Any) -> None:
        heard.append(name)

    event.listen(Pool, name, listener)
    try:
        deliver(config, SCANS, "P7", delivery("m-2"))
    finally:
        event.remove(Pool, name, listener)
    assert heard == [name]
    before = len(proxies)
    deliver(config, SCANS, "P7", delivery("m-3"))
    assert proxies[before:] == []


@pytest.mark.parametrize("asks", [False, True], ids=["asks for nothing", "asks for the connection"])
@pytest.mark.parametrize("ends", ["well", "in a fault", "interrupted"])
def test_whatever_happens_the_connection_comes_back(pooled: Any, ends: str, asks: bool) -> None:
    """The pool's one connection is out while a step runs, and then in again, with nothing open on it."""
    calling = Calling()
    config = pooled(registry(parcel=calling))
    out: list[int] = []

    def hook(*_: Any) -> None:
        out.append(config.engine.pool.checkedout())
        if asks:
            frame = in_force(config.writer)
            assert frame is not None
            frame.connection.execute(text("SELECT 1"))
        if ends == "in a fault":
            raise ValueError("no more")
        if ends == "interrupted":
            raise KeyboardInterrupt

    raised = {"well": None, "in a fault": StepFailed, "interrupted": KeyboardInterrupt}[ends]
    with calling.calling(hook), pytest.raises(raised) if raised else nullcontext():
        deliver(config, SCANS, "P7", delivery("m-2"))
    assert out == [1]
    pool = config.engine.pool
    assert (pool.checkedout(), pool.checkedin()) == (0, 1)
    with config.engine.connect() as connection:
        assert not connection.connection.dbapi_connection.info.transaction_status
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-3")), Delivered)


def test_another_thread_waits_for_the_pool(pooled: Any) -> None:
    """The pool's limit holds: what it has not, a delivery waits for, and is woken when it comes back."""
    calling = Calling()
    config = pooled(registry(parcel=calling))
    inside, goes_on = threading.Event(), threading.Event()

    def hook(*_: Any) -> None:
        inside.set()
        assert goes_on.wait(20)

    with ThreadPoolExecutor(2) as threads:
        with calling.calling(hook):
            first = threads.submit(deliver, config, SCANS, "P7", delivery("m-2"))
            assert inside.wait(20)
        second = threads.submit(deliver, config, SCANS, "P8", delivery("m-3"))
        queue: Any = config.engine.pool._pool
        while not queue.not_empty._waiters:
            assert not second.done()
            threading.Event().wait(0.001)
        goes_on.set()
        assert isinstance(first.result(20), Delivered)
        assert isinstance(second.result(20), CreatedAndDelivered)


@pytest.mark.parametrize("how", ["the pool", "the connection", "age"])
def test_what_the_pool_has_given_up_is_opened_anew(
    pooled: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Invalidated, or past its age: a delivery gets another connection, as anybody would."""
    config = pooled(pool_recycle=3600)
    engine = config.engine
    with engine.connect() as connection:
        lost = connection.connection.dbapi_connection
        if how == "the connection":
            connection.invalidate()
        elif how == "the pool":
            engine.pool._invalidate(connection.connection)
        else:
            connection.connection._connection_record.starttime -= 4000
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-2")), Delivered)
    assert lost.closed
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection is not lost


def test_a_pool_that_is_disposed_of_meanwhile_is_left_alone(pooled: Any) -> None:
    """What comes back after `dispose` goes to the pool that it came from; the next delivery opens anew."""
    calling = Calling()
    config = pooled(registry(parcel=calling))
    old = config.engine.pool
    with calling.calling(lambda *_: config.engine.dispose()):
        assert isinstance(deliver(config, SCANS, "P7", delivery("m-2")), Delivered)
    assert (old.checkedin(), config.engine.pool.checkedin()) == (1, 0)
    old.dispose()
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-3")), Delivered)
    assert config.engine.pool.checkedout() == 0


def test_a_server_that_refuses_is_told_as_sqlalchemy_tells_it(pooled: Any, monkeypatch: Any) -> None:
    """A connection that cannot be opened anew leaves the pool its place, and is SQLAlchemy's error."""
    config = pooled()
    with config.engine.connect() as connection:
        connection.invalidate()
    connect = config.engine.dialect.loaded_dbapi.connect

    def refused(*_: Any, **__: Any) -> None:
        raise config.engine.dialect.loaded_dbapi.OperationalError("the server is starting up")

    with monkeypatch.context() as patched:
        patched.setattr(config.engine.dialect, "connect", refused)
        with pytest.raises(DatabaseFault):
            deliver(attrs.evolve(config, retries=0), SCANS, "P7", delivery("m-2"))
    assert config.engine.dialect.loaded_dbapi.connect is connect
    assert config.engine.pool.checkedout() == 0
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-2")), Delivered)


@pytest.mark.parametrize("lifo", [False, True])
def test_the_pools_order_is_kept(postgresql: Database, make_config: Any, lifo: bool) -> None:
    """The connection that was given back first, or last, as the pool was told."""
    engine = postgresql.engine(pool_size=2, max_overflow=0, pool_use_lifo=lifo)
    calling = Calling()
    config = make_config(postgresql, engine=engine, charts=registry(parcel=calling))
    one, other = engine.connect(), engine.connect()
    pids = [each.connection.dbapi_connection.info.backend_pid for each in (one, other)]
    one.close()
    other.close()
    seen: list[int] = []

    def hook(*_: Any) -> None:
        frame = in_force(config.writer)
        assert frame is not None
        seen.append(frame.connection.connection.dbapi_connection.info.backend_pid)

    with calling.calling(hook):
        deliver(config, SCANS, "P7", delivery("m-1"))
    assert seen == [pids[1] if lifo else pids[0]]
    engine.dispose()


class Keeps:
    """A route that keeps what it is handed; whether it ever asks for the connection is in its attribute."""

    def __init__(self, *, writes_rows_only: bool) -> None:
        self.writes_rows_only = writes_rows_only
        self.kept: list[tuple[Any, ...]] = []

    def hand_off(self, *handed: Any) -> None:
        self.kept.append(handed)


@pytest.mark.parametrize("rows_only", [False, True])
def test_a_context_kept_past_its_delivery_writes_nowhere(
    database: Database, make_config: Any, rows_only: bool
) -> None:
    """Not into somebody else's transaction on the connection that it had, nor alone."""
    keeps = Keeps(writes_rows_only=rows_only)
    config = make_config(database, charts=registry(parcel=obedient()), routes={"elsewhere": keeps})
    deliver(config, SCANS, "P7", delivery("m-1", data={"do": "sent"}))
    event_, key, context = keeps.kept[0]
    before = _outbox(config.engine)
    with config.engine.begin() as another, pytest.raises(ResourceClosedError):
        another.execute(text("SELECT 1"))
        OutboxRoute("late").hand_off(event_, f"{key} again", context)
    with pytest.raises(ResourceClosedError):
        OutboxRoute("late").hand_off(event_, f"{key} once more", context)
    assert _outbox(config.engine) == before
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-2")), Delivered)


def _outbox(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM statifier_router_outbox")).scalar_one())


def test_a_connection_is_given_back_once(pooled: Any) -> None:
    """A second close gives nothing back: it is somebody else's by then."""
    config = pooled()
    held = dialect.Held(config.opener)
    held.take()
    held.close()
    with config.engine.connect():
        held.close()
        assert config.engine.pool.checkedin() == 0
    assert (config.engine.pool.checkedin(), config.engine.pool.checkedout()) == (1, 0)


def test_an_interruption_while_it_is_taken_loses_no_connection(
    pooled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes once the pool has let go of it."""
    config = pooled()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    for owner, name in ((dialect.Held, "_keep"), (_ConnectionRecord, "get_connection")):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(owner, name, interrupted)
            deliver(config, SCANS, "P7", delivery("m-2"))
        assert config.engine.pool.checkedout() == 0
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-3")), Delivered)


def test_whoever_begins_to_listen_in_the_meantime_is_told(pooled: Any) -> None:
    """Of the reset and the checkin, although the connection was taken without a proxy."""
    calling = Calling()
    config = pooled(registry(parcel=calling))
    heard: list[str] = []

    def listen(*_: Any) -> None:
        for name in ("reset", "checkin"):
            event.listen(config.engine, name, lambda *_, name=name: heard.append(name))

    with calling.calling(listen):
        deliver(config, SCANS, "P7", delivery("m-2"))
    assert heard == ["reset", "checkin"]


@pytest.mark.parametrize(
    "kw",
    [
        {"poolclass": NullPool},
        {"poolclass": StaticPool},
        {"poolclass": AssertionPool},
        {"pool_reset_on_return": None},
        {"pool_reset_on_return": "commit"},
        {"pool_size": 1, "max_overflow": 1},
    ],
    ids=str,
)
def test_any_pool_serves(postgresql: Database, make_config: Any, kw: dict[str, Any]) -> None:
    """Deliveries, faults and deliveries again, and nothing is left open for whoever is next."""
    engine = postgresql.engine(**kw)
    config = make_config(postgresql, engine=engine, charts=registry(parcel=obedient()))
    for number in range(3):
        deliver(config, SCANS, "P7", delivery(f"m-{number}"))
        with pytest.raises(StepFailed):
            deliver(config, SCANS, "P7", delivery(f"n-{number}", data={"do": "failed"}))
    with engine.connect() as connection:
        assert not connection.connection.dbapi_connection.info.transaction_status
    assert isinstance(deliver(config, SCANS, "P7", delivery("m-9")), Delivered)
    engine.dispose()
