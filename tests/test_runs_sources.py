"""Sources over the library's own tables: nothing is missed, nothing is read twice."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, text

from statifier_router import (
    ConfigError,
    Envelope,
    Event,
    OutboxRoute,
    Plan,
    SchemaError,
    Tables,
    committed,
    deliver_event,
    migrations,
)
from statifier_router.runs import Changes, Outbox, bracket, record_change, sources
from tests.support.charts import NOW, registry
from tests.support.racing import threads
from tests.support.told import to, told

PARCELS = Changes("parcel")


@pytest.fixture
def config(database, make_config):
    return make_config(database, charts=registry(a=told("a")), routes={"mail": OutboxRoute("notices")})


def scanned(config, source, after=None, limit=100):
    with bracket.reading(config) as connection:
        return source.scan(connection, after, limit)


def drained(config, source, after=None, limit=3):
    """Everything after a position, page by page."""
    found = []
    while page := scanned(config, source, after, limit):
        found += page
        after = page[-1].position
    return found


def loaded(config, source, *source_ids):
    with bracket.reading(config) as connection:
        return source.load(connection, source_ids)


# --- commit order -------------------------------------------------------------------------------------

WRITERS = 8
VERSIONS = 400


class Naive:
    """A reader that goes by one column of a row, which whoever has no better idea would choose."""

    def __init__(self, column):
        self.column = column
        self.cursor = None
        self.seen = []

    def poll(self, connection, table):
        """Read what stands after the cursor."""
        column = table.c[self.column]
        rows = select(table.c.source_id, column).order_by(column)
        if self.cursor is not None:
            rows = rows.where(column > self.cursor)
        for source_id, value in connection.execute(rows).all():
            self.seen.append(source_id)
            self.cursor = value


class Ours:
    """A run's reader: pages of a source, and the position of the last record."""

    def __init__(self, source):
        self.source = source
        self.position = None
        self.seen = []

    def poll(self, connection, table):
        """Read pages until there is none."""
        while page := self.source.scan(connection, self.position, 7):
            self.seen += [record.source_id for record in page]
            self.position = page[-1].position


class Writer:
    """A host's connection, which begins, writes, and ends its transaction as chance has it."""

    def __init__(self, connection):
        self.connection = connection
        self.began = None
        self.wrote = []
        self.committed = set()

    def begin(self, at, chance):
        """Begin at this instant."""
        self.began, self.wrote = at, []
        if chance < 0.3:
            # Its id is drawn long before its rows.
            self.connection.execute(text("SELECT pg_current_xact_id()"))

    def write(self, table, row, number, chance):
        """Write a row with the instant at which its transaction began, as `now()` tells it."""
        with self.connection.begin_nested() as savepoint:
            self.connection.execute(insert(table), row(number) | {"created_at": self.began})
            if chance < 0.05:
                savepoint.rollback()
            else:
                self.wrote.append(str(number))

    def end(self, chance):
        """Commit, mostly."""
        self.began = None
        if chance < 0.9:
            self.connection.commit()
            self.committed.update(self.wrote)
        else:
            self.connection.rollback()


def interleaved(engine, table, row, readers, seed):
    """Write in many transactions that overlap, and read between any two of their steps; answers what was
    committed.
    """
    random_ = random.Random(seed)
    writers = [Writer(engine.connect()) for _ in range(WRITERS)]
    reading = engine.connect()
    numbers = iter(range(VERSIONS))
    left = VERSIONS
    for moment in itertools.count():
        writer, chance = random_.choice(writers), random_.random()
        if writer.began is None and left:
            writer.begin(NOW + timedelta(seconds=moment), chance)
        elif writer.began is not None and left and chance < 0.6:
            writer.write(table, row, next(numbers), chance)
            left -= 1
        elif writer.began is not None:
            writer.end(chance)
        if random_.random() < 0.3 or not left:
            for reader in readers:
                reader.poll(reading, table)
            reading.rollback()
        if not left and all(each.began is None for each in writers):
            break
    for reader in readers:
        reader.poll(reading, table)
    for connection in (reading, *(each.connection for each in writers)):
        connection.close()
    return set().union(*(each.committed for each in writers))


def change(number):
    return {"entity": "parcel", "source_id": str(number), "signal": "s", "deleted": False}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_committed_late_is_not_missed(postgresql, make_config, seed, record_property):
    """Transactions that overlap commit in another order than that in which they wrote. Who follows the
    sequence, or the clock, loses rows; a scan below the horizon loses none and reads none twice.
    """
    config = make_config(postgresql)
    table = config.schema.changes
    sequence, clock, ours = Naive("seq"), Naive("created_at"), Ours(PARCELS)
    engine = postgresql.engine(pool_size=WRITERS + 1)
    committed = interleaved(engine, table, change, [sequence, clock, ours], seed)
    assert len(committed) > VERSIONS / 2
    assert sorted(ours.seen) == sorted(committed)
    assert committed - set(sequence.seen)
    assert committed - set(clock.seen)
    lost = [len(committed - set(naive.seen)) for naive in (sequence, clock)]
    record_property(
        "race", f"commit order: of {len(committed)} rows by sequence {lost[0]}, by clock {lost[1]} lost"
    )


def test_without_the_horizon_rows_are_lost(postgresql, make_config, monkeypatch):
    """The order alone is not enough: what is read above the horizon is passed by later commits."""
    config = make_config(postgresql)
    monkeypatch.setattr(sources, "horizon", lambda connection: 2**62)
    engine = postgresql.engine(pool_size=WRITERS + 1)
    ours = Ours(PARCELS)
    committed = interleaved(engine, config.schema.changes, change, [ours], seed=0)
    assert committed - set(ours.seen)


def test_the_outbox_is_read_in_commit_order_too(postgresql, make_config):
    """The same for messages, each of which is read exactly once."""
    config = make_config(postgresql)

    def row(number):
        return {
            "queue": "notices",
            "key": str(number),
            "execution_id": "ex_1",
            "scope": "",
            "event": '{"name": "notice", "data": null}',
        }

    ours = Ours(Outbox("notices"))
    sequence = Naive("id")
    sequence.poll = lambda connection, table: poll_keys(sequence, connection, table)
    engine = postgresql.engine(pool_size=WRITERS + 1)
    committed = interleaved(engine, config.schema.outbox, row, [ours, sequence], seed=5)
    assert sorted(ours.seen) == sorted(committed)
    assert committed - set(sequence.seen)


def poll_keys(naive, connection, table):
    rows = select(table.c.key, table.c.id).where(table.c.id > (naive.cursor or 0)).order_by(table.c.id)
    for key, naive.cursor in connection.execute(rows).all():
        naive.seen.append(key)


def test_a_transaction_that_is_open_holds_later_ones_back(postgresql, make_config):
    """What was committed beside it waits with it, and comes behind it: in the order of their beginnings."""
    config = make_config(postgresql)
    with config.engine.connect() as early:
        record_change(config, "parcel", "early", 1, connection=early)
        record_change(config, "parcel", "late", 1)
        assert scanned(config, PARCELS) == []
        early.commit()
    assert [record.source_id for record in scanned(config, PARCELS)] == ["early", "late"]


def test_a_transaction_in_another_database_is_not_waited_for(postgresql, unmigrated_postgresql, make_config):
    """It writes none of our rows, however long it lasts: rows that are younger than it are read."""
    config = make_config(postgresql)
    with unmigrated_postgresql.bare_engine().connect() as stranger, config.engine.connect() as connection:
        theirs = int(stranger.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
        record_change(config, "parcel", "P1", 1)
        (record,) = scanned(config, PARCELS)
        assert record.position[0] > theirs
        oldest = int(connection.execute(text("SELECT pg_snapshot_xmin(pg_current_snapshot())")).scalar_one())
        assert oldest <= theirs


def test_the_own_transaction_holds_its_scan_back(postgresql, make_config):
    """What it may still write would stand before rows that others have committed since it began."""
    config = make_config(postgresql)
    with bracket.writing(config) as connection:
        connection.execute(text("SELECT pg_current_xact_id()"))
        record_change(config, "parcel", "P1", 1)
        assert PARCELS.scan(connection, None, 9) == []
    assert len(scanned(config, PARCELS)) == 1


def test_who_began_since_the_last_look_is_looked_up_anew(postgresql, unmigrated_postgresql, make_config):
    """The list of sessions stays the same within a transaction; a scan that meets one it does not know asks
    again.
    """
    config = make_config(postgresql)
    with unmigrated_postgresql.bare_engine().connect() as stranger, config.engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM pg_stat_activity"))
        stranger.execute(text("SELECT pg_current_xact_id()"))
        record_change(config, "parcel", "P1", 1)
        assert len(PARCELS.scan(connection, None, 9)) == 1


def test_whoever_may_have_been_one_of_ours_is_waited_for(postgresql, unmigrated_postgresql, make_config):
    """In an old snapshot a transaction is open that nobody knows any more: nothing behind it is read."""
    config = make_config(postgresql)
    engine = config.engine.execution_options(isolation_level="REPEATABLE READ")
    with unmigrated_postgresql.bare_engine().connect() as stranger, engine.connect() as connection:
        theirs = int(stranger.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
        record_change(config, "parcel", "P1", 1)
        connection.execute(text("SELECT 1"))
        stranger.rollback()
        assert committed.horizon(connection) <= theirs
        assert PARCELS.scan(connection, None, 9) == []
        connection.rollback()
        assert len(PARCELS.scan(connection, None, 9)) == 1


def test_a_user_who_may_see_no_sessions(postgresql, unmigrated_postgresql, make_config):
    """A role without privileges reads the same: in which database a transaction is, everybody is told."""
    config = make_config(postgresql)
    with unmigrated_postgresql.bare_engine().connect() as stranger, config.engine.connect() as connection:
        theirs = int(stranger.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
        record_change(config, "parcel", "P1", 1)
        connection.execute(text("SET LOCAL ROLE pg_signal_backend"))
        told = text("SELECT count(xact_start) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert connection.execute(told).scalar_one() == 0
        assert committed.horizon(connection) > theirs


def test_sqlite_reads_in_the_order_of_its_one_writer(sqlite, make_config):
    """Numbers are drawn in the order of commits, so their order is enough; every row's transaction is 0."""
    config = make_config(sqlite)
    names = [f"p{number}" for number in range(10)]
    with threads() as beside:
        for each in [beside(record_change, config, "parcel", name, 1) for name in names]:
            each.result()
    found = drained(config, PARCELS)
    assert sorted(record.source_id for record in found) == names
    assert [record.position for record in found] == [(0, number) for number in range(1, 11)]


# --- pages --------------------------------------------------------------------------------------------


def test_a_page_names_each_record_once(config):
    """However many versions of it stand there: placed at its last row, with the signal of the newest one."""
    with config.engine.begin() as connection:
        for number in range(30):
            record_change(config, "parcel", "busy", number, connection=connection)
            if number in (3, 20):
                record_change(config, "parcel", f"calm {number}", number, connection=connection)
        record_change(config, "letter", "L1", 1, connection=connection)
    page = scanned(config, PARCELS, limit=3)
    assert [record.source_id for record in page] == ["calm 3", "calm 20", "busy"]
    assert [record.payload for record in page] == [3, 20, 29]
    assert scanned(config, PARCELS, page[-1].position) == []
    assert [record.source_id for record in drained(config, PARCELS, limit=1)] == [
        "busy", "calm 3", "busy", "calm 20", "busy",
    ]  # fmt: skip


def test_a_page_is_full_where_there_is_more(config):
    """`limit` records are handed over wherever so many have changed: a short page is the last one."""
    with config.engine.begin() as connection:
        for number in range(60):
            record_change(config, "parcel", f"p{number // 20}", number, connection=connection)
        record_change(config, "parcel", "p9", 1, connection=connection)
    assert [len(scanned(config, PARCELS, limit=limit)) for limit in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]


def test_the_newest_version_is_the_one_that_was_written_last(postgresql, make_config):
    """Two transactions write one record in turn, the one that began later first: its row comes later in the
    scan, and the other's version is the current one. The page tells that one's signal.
    """
    config = make_config(postgresql)
    with config.engine.connect() as older, config.engine.connect() as younger:
        older.execute(text("SELECT pg_current_xact_id()"))
        record_change(config, "parcel", "P1", "first", connection=younger)
        younger.commit()
        record_change(config, "parcel", "P1", "second", connection=older)
        older.commit()
    (record,) = scanned(config, PARCELS)
    assert record.payload == "second"
    assert loaded(config, PARCELS, "P1")["P1"].signal == record.signal
    first, second = drained(config, PARCELS, limit=1), loaded(config, PARCELS, "P1")["P1"]
    assert [each.payload for each in first] == ["second"]
    assert record.position > second.position


def test_the_newest_version_is_loaded_whatever_is_open(postgresql, make_config):
    """The horizon holds back scans, not loads: what is sent is current."""
    config = make_config(postgresql)
    record_change(config, "parcel", "P1", "old")
    with config.engine.connect() as other:
        record_change(config, "parcel", "P2", "open", connection=other)
        record_change(config, "parcel", "P1", "new")
        assert [record.payload for record in scanned(config, PARCELS)] == ["old"]
        assert loaded(config, PARCELS, "P1")["P1"].payload == "new"


def test_versions_are_told_by_their_signals(config):
    """A, B, A: three rows, two signals; the first and the last are the same version. A deletion is another
    one, with its last data or without.
    """
    for data in ("A", "B", "A"):
        record_change(config, "parcel", "P1", data)
    record_change(config, "parcel", "P1", "A", deleted=True)
    record_change(config, "parcel", "P1", None, deleted=True)
    record_change(config, "parcel", "P1", None)
    rows = stored_changes(config)
    first, second, third, *rest = [row.signal for row in rows]
    assert first == third != second
    assert len({first, second, *rest}) == 5
    (record,) = scanned(config, PARCELS)
    assert (record.payload, record.deleted) == (None, False)


def stored_changes(config):
    with config.engine.connect() as connection:
        table = config.schema.changes
        return connection.execute(select(table).order_by(table.c.seq)).all()


def test_a_deleted_record(config):
    """It is offered, and loaded, as deleted."""
    record_change(config, "parcel", "P1", {"n": 1})
    record_change(config, "parcel", "P1", {"n": 1}, deleted=True)
    (record,) = scanned(config, PARCELS)
    assert record.deleted
    assert record.payload == {"n": 1}
    assert loaded(config, PARCELS, "P1", "P2") == {"P1": record, "P2": None}


def test_many_are_loaded_at_once(config):
    """As many as are asked for, twice the same included; what is not there is None."""
    with config.engine.begin() as connection:
        for number in range(1200):
            record_change(config, "parcel", f"p{number % 600}", number, connection=connection)
    found = loaded(config, PARCELS, *(f"p{number}" for number in range(700)), "p1", 'a "quoted", {name}')
    assert len(found) == 701
    assert [found[f"p{number}"].payload for number in range(600)] == list(range(600, 1200))
    assert {found[name] for name in found if name not in {f"p{n}" for n in range(600)}} == {None}
    assert loaded(config, PARCELS) == {}


@pytest.mark.parametrize("after", [7, (1,), (1, "2"), ("2026", 3), (1, 2, 3), ()])
def test_a_position_of_another_source(config, after):
    """It is refused before any statement."""
    for source in (PARCELS, Outbox("notices")):
        with pytest.raises(ConfigError, match="after must be None or the position of a row"):
            scanned(config, source, after)


def test_other_names_of_the_tables(unmigrated, make_config):
    """A source finds its table by the configuration whose run reads it."""
    tables = Tables(prefix="mine_")
    with unmigrated.engine().begin() as connection:
        migrations.up(connection, tables=tables)
    config = make_config(unmigrated, tables=tables)
    record_change(config, "parcel", "P1", 1)
    assert len(scanned(config, PARCELS)) == 1
    assert loaded(config, PARCELS, "P1")["P1"].payload == 1
    with bracket.writing(config) as connection:
        assert len(PARCELS.scan(connection, None, 9)) == 1


# --- the outbox ---------------------------------------------------------------------------------------


def send(config, message_id, *names, scope="acme", context=None):
    effects = [to("mail", name, {"n": 1}, send_id="s-1") for name in names]
    sent = Envelope(Event("go", {"effects": effects}), message_id, scope, NOW, context=context or {})
    return deliver_event(config, Plan("jobs", "a"), "K1", sent)


def test_a_message(config):
    """Its id and signal are the key of the send; the payload is the event, and when and where it was sent."""
    outcome = send(config, "e-1", "hello", context={"trace": "t-1"})
    (record,) = scanned(config, Outbox("notices"))
    assert record.source_id == record.signal
    assert record.source_id.startswith(outcome.execution_id)
    assert record.payload == {
        "name": "hello",
        "data": {"n": 1},
        "origin": outcome.execution_id,
        "send_id": "s-1",
        "scope": "acme",
        "at": NOW.isoformat(),
        "context": {"trace": "t-1"},
    }
    assert (record.scope, record.deleted) == ("acme", False)
    key = record.source_id
    assert loaded(config, Outbox("notices"), key, "none") == {key: record, "none": None}
    assert loaded(config, Outbox("letters"), key) == {key: None}


def test_messages_of_one_scope(config):
    """A source with a scope hands over, and loads, that scope's messages alone."""
    send(config, "e-1", "one", "two")
    send(config, "e-2", "three", scope="globex")
    everything = drained(config, Outbox("notices"), limit=1)
    assert [record.payload["name"] for record in everything] == ["one", "two", "three"]
    (other,) = scanned(config, Outbox("notices", scope="globex"))
    assert other == everything[2]
    first = everything[0].source_id
    assert loaded(config, Outbox("notices", scope="globex"), first) == {first: None}
    assert loaded(config, Outbox("notices", scope="acme"), first) == {first: everything[0]}
    assert scanned(config, Outbox("notices", scope="")) == []


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"entity": ""}, "entity must not be empty"),
        ({"entity": "e" * 129}, "entity is 129 bytes long in UTF-8, the limit is 128"),
        ({"entity": 7}, "entity must be text"),
        ({"source_id": ""}, "source_id must not be empty"),
        ({"source_id": 7}, "source_id must be text, not int"),
        ({"source_id": "ü" * 257}, "source_id is 514 bytes long in UTF-8, the limit is 512"),
        ({"source_id": "a\x00b"}, "source_id holds a NUL"),
        ({"source_id": "\ud800"}, "source_id holds a lone surrogate"),
        ({"signal": ""}, "signal must not be empty"),
        ({"signal": 7}, "signal must be text"),
        ({"signal": "s" * 513}, "signal is 513 bytes"),
        ({"data": {"at": datetime(2026, 1, 1, tzinfo=UTC)}}, r"data\['at'\] datetime is not JSON"),
        ({"data": [1, float("nan")]}, r"data\[1\] nan is not a number"),
        ({"data": "\ud800"}, "data holds a lone surrogate"),
        ({"deleted": 1}, "deleted must be True or False"),
    ],
)
def test_what_cannot_be_recorded(config, arguments, named):
    """It is refused with the name of the argument, and nothing is written."""
    given = {"entity": "parcel", "source_id": "P1", "data": None} | arguments
    with pytest.raises(ConfigError, match=named):
        record_change(config, **given)
    assert stored_changes(config) == []


def test_what_can_be_recorded(config):
    """Any JSON, with NUL in its texts; a signal of the host's own; ids of 512 bytes."""
    data = {"text": "a\x00b ü \U0001f4e6", "list": [1, 2.5, None, True], "empty": {}}
    record_change(config, "parcel", "ü" * 256, data, signal="v 7")
    (record,) = scanned(config, PARCELS)
    assert (record.source_id, record.signal, record.payload) == ("ü" * 256, "v 7", data)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Changes(""), "entity must not be empty"),
        (lambda: Changes(7), "entity must be text"),
        (lambda: Outbox("q" * 129), "queue is 129 bytes"),
        (lambda: Outbox("notices", scope=7), "scope must be text"),
    ],
)
def test_a_source_that_cannot_be(make, named):
    """A name that no row can have is refused where the source is made."""
    with pytest.raises(ConfigError, match=named):
        make()


def test_sources_are_told_apart():
    """The identity names the kind, and what it reads."""
    found = [Changes("a"), Changes('a","b'), Outbox("a"), Outbox("a", scope=""), Outbox('a",""')]
    assert len({source.identity for source in found}) == len(found)


# --- in which transaction -----------------------------------------------------------------------------


def test_a_change_exists_with_its_transaction(config):
    """On a connection that was lent: with its commit, and not after a rollback."""
    with config.engine.connect() as connection:
        record_change(config, "parcel", "P1", 1, connection=connection)
        connection.rollback()
        record_change(config, "parcel", "P2", 1, connection=connection)
        connection.commit()
    assert [row.source_id for row in stored_changes(config)] == ["P2"]


def test_a_change_inside_a_route(database, make_config):
    """It joins the delivery that is under way, and goes with it."""
    failures = [RuntimeError("the power is out")]

    def book(event, key, context):
        record_change(config, "parcel", "P1", event.data)
        if failures:
            raise failures.pop()

    config = make_config(database, charts=registry(a=told("a")), routes={"mail": book})
    with pytest.raises(RuntimeError, match="power"):
        send(config, "e-1", "hello")
    assert stored_changes(config) == []
    send(config, "e-1", "hello")
    assert [row.source_id for row in stored_changes(config)] == ["P1"]


def test_a_change_has_the_clocks_time(database, make_config):
    """`created_at` is what the configuration's clock says."""
    config = make_config(database, clock=lambda: NOW)
    record_change(config, "parcel", "P1", 1)
    (row,) = stored_changes(config)
    assert row.created_at == NOW


def test_tables_that_are_not_there(unmigrated, make_config):
    """`SchemaError` says what to do, on scanning and on recording."""
    config = make_config(unmigrated)
    with pytest.raises(SchemaError):
        record_change(config, "parcel", "P1", 1)
    with pytest.raises(SchemaError):
        scanned(config, PARCELS)
