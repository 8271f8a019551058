"""The SQL writer keeps the contract of writers on both databases, and its errors are the right faults."""

from __future__ import annotations

import os
import threading
import uuid
from datetime import timedelta
from typing import ClassVar

import attrs
import pytest
import sqlalchemy
from sqlalchemy import (
    CheckConstraint,
    Column,
    Date,
    Engine,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    create_engine,
    event,
    select,
    text,
)

import statifier_router
from statifier_router import ConfigError
from statifier_router.runs import Created, Gone, Rejected, SqlWriter, TimedOut, Unavailable
from statifier_router.runs.calling import Landed, Refused, call
from statifier_router.runs.faults import Unclassified
from statifier_router.runs.sql_writer import typed
from statifier_router.testing import WriterContract
from statifier_router.testing.writer_scenarios import about
from tests.support import servers
from tests.support.http_target import closed_port, silent
from tests.support.proxy import Proxy

SECRET = "hunter2-hunter2"
SHORT = timedelta(milliseconds=400)
ONE_BY_ONE = {"create_many": "one row a transaction", "update_many": "one row a transaction"}

metadata = MetaData()
parcels = Table(
    "target_parcels",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("tracking", Text, nullable=False),
    Column("text", Text, CheckConstraint("text <> 'refused'", name="not_refused")),
    Column("weight", Integer),
    UniqueConstraint("tracking", name="target_parcels_tracking"),
)
letters = Table(
    "target_letters",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("code", Integer, nullable=False, unique=True),
    Column("sent", Date),
)
plain = Table("target_plain", metadata, Column("id", Text, primary_key=True), Column("text", Text))


@attrs.frozen
class Target:
    """A database of its own beside those of the library, with the tables of this module, empty."""

    kind: str
    url: str
    engines: list[Engine] = attrs.field(factory=list)

    def engine(self, url=None, **options):
        """An engine that is disposed of at the end of the test."""
        self.engines.append(create_engine(url or self.url, **options))
        return self.engines[-1]


@pytest.fixture(scope="session")
def _postgresql_url():
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw")
    url = servers.create_database(f"{worker}_sql_target").set(drivername="postgresql+psycopg")
    made = create_engine(url)
    metadata.create_all(made)
    made.dispose()
    return url.render_as_string(hide_password=False)


def emptied(target):
    engine = target.engine()
    metadata.create_all(engine)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(table.delete())
    yield target
    for each in target.engines:
        each.dispose()


@pytest.fixture
def on_sqlite(tmp_path):
    yield from emptied(Target("sqlite", f"sqlite:///{tmp_path}/target.db"))


@pytest.fixture
def on_postgresql(_postgresql_url):
    yield from emptied(Target("postgresql", _postgresql_url))


@pytest.fixture(
    params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("sqlite", "postgresql")]
)
def target(request):
    return request.getfixturevalue(f"on_{request.param}")


@pytest.fixture
def engine(target):
    return target.engine()


@pytest.fixture
def writer(engine):
    return SqlWriter(engine, parcels, key="tracking", delete=True)


def rows(engine, table=parcels):
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]


# --- the contract ---------------------------------------------------------------------------------------


class _Sql(WriterContract):
    """What both databases share."""

    __test__ = False
    some_address = "1"

    def writer(self):
        return SqlWriter(self.engine, parcels, key="tracking", delete=True)

    def texts(self):
        with self.engine.connect() as connection:
            return list(connection.execute(select(parcels.c.text)).scalars())

    def forget(self, remote_id):
        with self.engine.begin() as connection:
            connection.execute(parcels.delete().where(parcels.c.number == int(remote_id)))

    def refused(self):
        return {"text": "refused"}

    def writer_to(self, url, **options):
        return SqlWriter(self.target.engine(url, **options), parcels, key="tracking", delete=True)


@pytest.mark.sqlite
class TestSqlite(_Sql):
    """The fourteen points, on SQLite."""

    __test__ = True
    not_applicable: ClassVar = {
        **ONE_BY_ONE,
        "silent": "a file answers at once",
        "throttling": "no error of it says so",
        "secrets": "a file has no credentials",
    }

    @pytest.fixture(autouse=True)
    def _prepared(self, on_sqlite):
        self.target = on_sqlite
        self.engine = on_sqlite.engine()

    def unreachable(self):
        return self.writer_to(f"{self.target.url}/nowhere.db")

    def out_of_order(self):
        path = self.target.url.removeprefix("sqlite:///")
        return self.writer_to(f"sqlite:///file:{path}?mode=ro&uri=true")


@pytest.mark.postgresql
class TestPostgresql(_Sql):
    """The fourteen points, on PostgreSQL."""

    __test__ = True
    not_applicable: ClassVar = {**ONE_BY_ONE, "throttling": "no error of it says so"}

    @pytest.fixture(autouse=True)
    def _prepared(self, on_postgresql):
        self.target = on_postgresql
        self.engine = on_postgresql.engine()
        self.over = threading.Event()
        self.proxies = []
        yield
        self.over.set()
        for each in self.proxies:
            each.close()

    def unreachable(self):
        return self.writer_to(f"postgresql+psycopg://me:{SECRET}@127.0.0.1:{closed_port()}/db")

    def silent(self):
        def hold(_, sql):
            if "set_config" in sql:
                self.over.wait()
            return "forward"

        proxy = Proxy(self.target.url, hold)
        self.proxies.append(proxy)
        return self.writer_to(proxy.url)

    def out_of_order(self):
        return self.writer_to(
            self.target.url, connect_args={"options": "-c default_transaction_read_only=on"}
        )

    def secrets(self):
        return [SECRET]


# --- rows -----------------------------------------------------------------------------------------------


def test_a_create_is_an_upsert_by_the_key(engine, writer):
    """A row that is there already is adopted and brought up to date; other columns keep what they have."""
    with engine.begin() as connection:
        connection.execute(parcels.insert().values(number=7, tracking="p1", text="old", weight=3))
    assert writer.create({"text": "new"}, about("p1")) == Created("7")
    assert writer.create({"weight": 4}, about("p1")) == Created("7")
    assert writer.create({}, about("p1")) == Created("7")
    assert rows(engine) == [(7, "p1", "new", 4)]


def test_neither_key_nor_address_is_moved(engine, writer):
    """A payload that names them decides the address of a new row only."""
    assert writer.create({"number": 5, "tracking": "other", "text": "a"}, about("p1")) == Created("5")
    assert writer.create({"number": 6, "text": "b"}, about("p1")) == Created("5")
    writer.update("5", {"number": 6, "tracking": "other", "text": "c"}, about("p1"))
    assert rows(engine) == [(5, "p1", "c", None)]
    writer.update("5", {}, about("p1"))
    with pytest.raises(Gone):
        writer.update("6", {}, about("p1"))


def test_a_row_of_the_hosts_own_making(engine):
    """Columns from anywhere in the payload and the context; keys and addresses that are no text."""
    made = uuid.UUID(int=0xABC)

    def row(payload, context):
        return {"id": made, "sent": None, "code": 1}

    writer = SqlWriter(engine, letters, key="code", row=row)
    assert writer.create(["anything"], about("12")) == Created(str(made))
    writer.update(str(made), None, about("12"))
    assert writer.lookup(about("12")) == Created(str(made))
    assert rows(engine, letters) == [(made, 12, None)]
    for none in ("x", str(made).upper(), f"{{{made}}}", "7", ""):
        with pytest.raises(Gone):
            writer.update(none, None, about("12"))
    for none in ("p1", "012", " 12", "١٢"):
        with pytest.raises(Rejected, match="the record's id is none for the column code"):
            writer.create(None, about(none))


def test_a_key_that_is_the_primary_key(engine):
    """The address is then the record's own id."""
    table = plain
    writer = SqlWriter(engine, table, key="id")
    assert writer.create({"text": "a"}, about("p1")) == Created("p1")
    assert writer.create({"text": "b", "id": "x"}, about("p1")) == Created("p1")
    writer.update("p1", {"text": "c"}, about("p1"))
    assert rows(engine, table) == [("p1", "c")]


@pytest.mark.parametrize("payload", [None, 7, "text", [], [["text", "a"]]])
def test_a_payload_that_is_no_row_is_rejected(engine, writer, payload):
    """One record's fault; nothing is sent."""
    for verb in ("create", "update"):
        answer = call(writer, "sql", verb, about(), payload=payload, remote_id="1")
        assert isinstance(answer.fault, Rejected)
    assert not rows(engine)


def test_a_column_that_is_not_there_is_named(writer):
    """And never left out in silence."""
    with pytest.raises(Rejected, match="target_parcels has no column 'colour'"):
        writer.create({"text": "a", "colour": "red"}, about())


@pytest.mark.parametrize(
    "payload",
    [
        {"text": "refused"},
        {"weight": "heavy"},
        {"weight": {"a": 1}},
        {"weight": 10**30},
        {"text": "nul\x00"},
        {"number": None, "text": "x" * 10, "weight": [1, 2]},
    ],
)
def test_a_value_that_the_database_refuses_is_a_rejection(target, engine, writer, payload):
    """By its type, its size or a constraint; the next record is served. SQLite takes nearly everything."""
    answer = call(writer, "sql", "create", about(), payload=payload)
    if target.kind == "postgresql" or payload == {"text": "refused"}:
        assert isinstance(answer, Refused)
        assert isinstance(answer.fault, Rejected), answer
        assert answer.fault.__cause__ is None
        assert not rows(engine)
    assert isinstance(call(writer, "sql", "create", about("p2"), payload={"text": "b"}), Landed)


def test_a_date_that_is_none(engine):
    """Refused before it is sent, on both databases."""
    writer = SqlWriter(
        engine, letters, key="code", row=lambda payload, context: {"id": uuid.uuid4(), **payload}
    )
    with pytest.raises(Rejected):
        writer.create({"sent": "yesterday evening"}, about("12"))


def test_a_fault_of_the_table_is_one_of_the_rule(engine):
    """A table that is not there: every record would meet it. The payload is not told."""
    table = Table("target_absent", MetaData(), Column("id", Text, primary_key=True), Column("text", Text))
    writer = SqlWriter(engine, table, key="id")
    with pytest.raises(Unclassified, match="target_absent") as raised:
        call(writer, "sql", "create", about(), payload={"text": "the payload"})
    assert "the payload" not in str(raised.value)
    assert isinstance(raised.value.__cause__, ConfigError)
    assert raised.value.__cause__.__cause__ is None


def test_an_engine_of_the_librarys_making_will_do(target):
    """One that `create_engine` made ready begins and waits in its own way."""
    engine = statifier_router.create_engine(target.url)
    writer = SqlWriter(engine, parcels, key="tracking", delete=True)
    address = writer.create({"text": "a"}, about()).remote_id
    writer.update(address, {"text": "b"}, about())
    assert writer.lookup(about()) == Created(address)
    assert [row[2] for row in rows(engine)] == ["b"]
    writer.ping(SHORT)
    writer.delete(address, about())
    assert not rows(engine)
    engine.dispose()


# --- waits ----------------------------------------------------------------------------------------------


def test_a_lock_that_is_held_is_waited_for_no_longer_than_the_timeout(target, engine, writer):
    """The database gives up by itself: nothing is in doubt, and the connection is as good as before."""
    address = writer.create({"text": "a"}, about()).remote_id
    other = target.engine()
    with other.connect() as connection:
        if target.kind == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.execute(parcels.update().values(text="held"))
        with pytest.raises(TimedOut) as raised:
            writer.update(address, {"text": "b"}, about(timeout=SHORT))
        assert not raised.value.in_doubt
        connection.rollback()
    writer.update(address, {"text": "c"}, about())
    assert [row[2] for row in rows(engine)] == ["c"]


def test_the_hosts_own_waits_are_as_before(target, engine, writer):
    """What was set for a call does not stay with the pooled connection."""
    writer.create({"text": "a"}, about(timeout=SHORT))
    with engine.connect() as connection:
        if target.kind == "sqlite":
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 5000
        else:
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "0"


@pytest.fixture
def through(on_postgresql):
    """`through(decide)`: a writer whose statements `decide(sql)` is asked about."""
    proxies = []

    def make(decide):
        proxies.append(Proxy(on_postgresql.url, lambda _, sql: decide(sql)))
        return SqlWriter(on_postgresql.engine(proxies[-1].url), parcels, key="tracking", delete=True)

    yield make
    for each in on_postgresql.engines:
        each.dispose()
    for each in proxies:
        each.close()


@pytest.mark.parametrize(
    ("at", "verdict", "in_doubt"),
    [
        ("INSERT", "cut", False),
        ("INSERT", "cut_after", False),
        ("COMMIT", "cut", True),
        ("COMMIT", "cut_after", True),
    ],
)
def test_a_connection_that_breaks(through, on_postgresql, at, verdict, in_doubt):
    """Before the commit was sent nothing can have happened; after it, nobody knows."""
    writer = through(lambda sql: verdict if sql.startswith(at) else "forward")
    with pytest.raises(Unavailable) as raised:
        writer.create({"text": "a"}, about())
    assert raised.value.in_doubt is in_doubt
    assert len(rows(on_postgresql.engine())) == (at == "COMMIT" and verdict == "cut_after")


@pytest.mark.parametrize("at", ["INSERT", "COMMIT"])
def test_a_server_that_says_nothing_any_more(through, on_postgresql, at):
    """In doubt. The connection is shut down: nothing is done over it later, and the pool has others."""
    over = threading.Event()
    held = []

    def decide(sql):
        if sql.startswith(at) and not held:
            held.append(sql)
            over.wait()
            return "cut"
        return "forward"

    writer = through(decide)
    with pytest.raises(TimedOut) as raised:
        writer.create({"text": "a"}, about(timeout=SHORT))
    assert raised.value.in_doubt
    over.set()
    assert writer.create({"text": "b"}, about(again=True)) == writer.lookup(about())
    assert [row[2] for row in rows(on_postgresql.engine())] == ["b"]


def test_a_server_that_takes_connections_and_says_nothing():
    """Nothing was sent: not in doubt."""
    with silent() as origin:
        engine = create_engine(origin.replace("http", "postgresql+psycopg", 1) + "/db")
        writer = SqlWriter(engine, parcels, key="tracking")
        with pytest.raises(Unavailable, match="no connection to the target's database in time") as raised:
            writer.create({"text": "a"}, about(timeout=SHORT))
        assert not raised.value.in_doubt
        with pytest.raises(Unavailable):
            writer.ping(SHORT)


def test_a_call_that_nobody_waits_for_writes_nothing(on_postgresql):
    """A connection that is made after the call was given up is not worked on."""
    late, over = threading.Event(), threading.Event()

    def slow(*_):
        over.wait()

    def returned(*_):
        late.set()

    held = on_postgresql.engine()
    event.listen(held, "do_connect", slow)
    event.listen(held, "checkin", returned)
    writer = SqlWriter(held, parcels, key="tracking")
    with pytest.raises(Unavailable):
        writer.create({"text": "a"}, about(timeout=SHORT))
    over.set()
    assert late.wait(30)
    assert not rows(on_postgresql.engine())


def test_a_pool_that_has_no_connection_left(on_postgresql):
    """Unavailable, and not in doubt."""
    engine = on_postgresql.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    writer = SqlWriter(engine, parcels, key="tracking")
    with engine.connect(), pytest.raises(Unavailable, match=r"no connection .* was free") as raised:
        writer.create({"text": "a"}, about())
    assert not raised.value.in_doubt


# --- set up ---------------------------------------------------------------------------------------------

SQLITE = create_engine("sqlite://")
PARTIAL = Table("t", MetaData(), Column("id", Integer, primary_key=True), Column("a", Text))
Index("partial", PARTIAL.c.a, unique=True, sqlite_where=text("a <> ''"))
TWO = Table("t", MetaData(), Column("a", Text, primary_key=True), Column("b", Text, primary_key=True))
DATED = Table("t", MetaData(), Column("id", Integer, primary_key=True), Column("a", Date, unique=True))


@pytest.mark.parametrize(
    ("engine", "table", "options", "told"),
    [
        (None, parcels, {}, "engine must be of the class Engine"),
        (sqlalchemy.create_mock_engine("sqlite://", None), parcels, {}, "engine must be of the class Engine"),
        (SQLITE, "parcels", {}, "table must be of the class Table"),
        (SQLITE, parcels, {"key": "colour"}, "key must name a column of target_parcels, not 'colour'"),
        (SQLITE, parcels, {"key": None}, "key must name a column"),
        (SQLITE, parcels, {"key": "text"}, "key must name a column that is unique by itself"),
        (SQLITE, PARTIAL, {"key": "a"}, "key must name a column that is unique by itself"),
        (SQLITE, TWO, {"key": "a"}, "key must name a column that is unique by itself"),
        (SQLITE, DATED, {"key": "a"}, "key: the column a must hold text, integers or UUIDs"),
        (SQLITE, DATED, {"key": "id", "address": "a"}, "address: the column a must hold"),
        (SQLITE, parcels, {"address": "colour"}, "address must name a column"),
        (SQLITE, parcels, {"row": "text"}, "row must be a function"),
    ],
)
def test_what_is_refused_at_the_edge(engine, table, options, told):
    """The message names the argument."""
    with pytest.raises(ConfigError, match=told):
        SqlWriter(engine, table, **{"key": "tracking", **options})


def test_a_third_database_is_refused():
    """Its upserts and its errors are others."""
    engine = create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with pytest.raises(ConfigError, match="the database must be PostgreSQL or SQLite"):
        SqlWriter(engine, parcels, key="tracking")


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        (parcels.c.number, "7", 7),
        (parcels.c.number, "-7", -7),
        (parcels.c.tracking, " 7 ", " 7 "),
        (letters.c.id, "00000000-0000-0000-0000-000000000007", uuid.UUID(int=7)),
    ],
)
def test_a_value_is_spelt_in_one_way(column, text, value):
    """Another spelling of it is another address, which nothing has."""
    assert typed(column, text) == value
    if not isinstance(value, str):
        for other in (f" {text}", f"{text}\n", f"0{text}", "", f"{text}_0"):
            with pytest.raises(ValueError):
                typed(column, other)


def test_deletes_are_asked_for(engine):
    """By default a record that is deleted at its source stays at the target."""
    assert SqlWriter(engine, parcels, key="tracking").delete is None
