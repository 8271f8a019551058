"""`TableSource`: changed rows of a host's own table, on both databases."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    Uuid,
    event,
    insert,
    select,
    text,
    update,
)

from statifier_router import ConfigError
from statifier_router.columns import Instant
from statifier_router.runs import Policy, Rule, TableSource, bracket, positions
from tests.support.charts import NOW
from tests.support.databases import Database

MINUTE = timedelta(minutes=1)
# As a column without a zone has it.
DAY = datetime(2026, 3, 1, tzinfo=UTC).replace(tzinfo=None)
COLUMNS = ["id", "name"]

tables = MetaData()
# An order of its own, which is not that of Python.
PARCELS = Table(
    "parcels",
    tables,
    Column("id", Text, primary_key=True),
    Column("updated_at", Instant(), index=True),
    Column("name", Text),
    Column("tenant", Text),
    Column("deleted_at", Instant()),
    Column("version", Integer),
)
NUMBERED = Table(
    "numbered",
    tables,
    Column("id", Integer, primary_key=True),
    Column("updated_at", DateTime),
    Column("sum", Numeric(10, 2)),
    Column("day", Date),
    Column("more", JSON),
    Column("gone", Boolean),
    Column("blob", LargeBinary),
)
NAMED = Table(
    "named",
    tables,
    Column("id", Uuid, primary_key=True),
    Column("updated_at", Instant()),
    Column("name", Text),
)


@pytest.fixture
def config(database, make_config):
    config = make_config(database)
    with config.engine.begin() as connection:
        tables.create_all(connection)
    return config


def write(config, table, *rows):
    with config.engine.begin() as connection:
        connection.execute(insert(table), list(rows))


def parcel(id, seconds=0, **more):
    row = {"id": id, "updated_at": NOW + timedelta(seconds=seconds), "name": f"name of {id}"}
    return row | {"tenant": None, "deleted_at": None, "version": None} | more


def source(**kw):
    kw.setdefault("payload", COLUMNS)
    return TableSource(PARCELS, "id", "updated_at", kw.pop("payload"), kw.pop("overlap", 10 * MINUTE), **kw)


def scanned(config, source, after=None, limit=100):
    with bracket.reading(config) as connection:
        return source.scan(connection, after, limit)


def loaded(config, source, *ids):
    with bracket.reading(config) as connection:
        return source.load(connection, ids)


def drained(config, source, after=None, limit=2):
    found = []
    while page := scanned(config, source, after, limit):
        for record in page:
            assert positions.is_after(record.position, after)
            assert positions.read(positions.stored(record.position)) == record.position
            after = record.position
            found.append(record)
    return found


# --- order --------------------------------------------------------------------------------------------


def test_rows_by_instant_and_id(config):
    """Rows of one instant are told apart by their ids, bytewise; a page may end between them."""
    ids = ["a", "B", "ä", "Z", "a b", "_", "\U0001f4e6", "\uffff"]
    write(config, PARCELS, *(parcel(each) for each in ids), parcel("first", -1), parcel("last", 1))
    found = [record.source_id for record in drained(config, source(), limit=3)]
    assert found == ["first", *sorted(ids), "last"]


def test_ids_of_a_column_that_compares_in_its_own_way(unmigrated_sqlite, make_config):
    """The pages are in the order of positions, whatever order the host's column has."""
    config = make_config(unmigrated_sqlite)
    with config.engine.begin() as connection:
        connection.execute(text("CREATE TABLE odd (id TEXT COLLATE NOCASE PRIMARY KEY, updated_at, name)"))
    odd = Table("odd", MetaData(), Column("id", Text), Column("updated_at", Instant()), Column("name", Text))
    ids = ["b", "C", "a", "D", "_", "é", "f"]
    write(config, odd, *({"id": each, "updated_at": NOW, "name": ""} for each in ids))
    own = TableSource(odd, "id", "updated_at", "name", MINUTE)
    assert [record.source_id for record in drained(config, own, limit=1)] == sorted(ids)


def test_ids_are_compared_bytewise_by_postgresql(postgresql, make_config):
    """Its locale may order text in a way that Python does not."""
    config = make_config(postgresql)
    ran = []
    with config.engine.begin() as connection:
        tables.create_all(connection)
    event.listen(config.engine, "before_cursor_execute", lambda *told: ran.append(told[2]))
    with config.engine.connect() as connection:
        source().scan(connection, (NOW.isoformat(), "P1"), 10)
    assert 'ORDER BY parcels.updated_at, parcels.id COLLATE "C"' in ran[-1]


def test_rows_without_an_instant_are_not_scanned(config):
    """They were never changed, as far as the column says; they can be loaded."""
    write(config, PARCELS, parcel("P1"), parcel("P2") | {"updated_at": None})
    assert [record.source_id for record in drained(config, source())] == ["P1"]
    assert loaded(config, source(), "P2")["P2"].payload == {"id": "P2", "name": "name of P2"}


def test_numbers_as_ids(config):
    """They are ordered as numbers, and named in their own spelling; an id that no number has is not there."""
    rows = [{"id": each, "updated_at": DAY, "sum": None} for each in (2, 10, -3, 100)]
    write(config, NUMBERED, *rows)
    own = TableSource(NUMBERED, NUMBERED.c.id, NUMBERED.c.updated_at, ["id"], MINUTE)
    assert [record.source_id for record in drained(config, own, limit=1)] == ["-3", "2", "10", "100"]
    asked = ["10", "010", " 10", "1e1", "x", "99999999999", "9" * 30, ""]
    found = loaded(config, own, *asked)
    assert {name for name, record in found.items() if record is not None} == {"10"}
    assert list(found) == asked


def test_uuids_as_ids(config):
    """They are named in the usual spelling, and ordered by it."""
    ids = [uuid.UUID(int=number << 100) for number in (7, 3, 200)]
    write(config, NAMED, *({"id": each, "updated_at": NOW, "name": "n"} for each in ids))
    own = TableSource(NAMED, "id", "updated_at", "name", MINUTE)
    assert [record.source_id for record in drained(config, own, limit=1)] == sorted(map(str, ids))
    assert loaded(config, own, str(ids[0]), str(ids[0]).upper(), "7")[str(ids[0])].payload == "n"


# --- the overlap --------------------------------------------------------------------------------------


def test_a_chain_begins_an_overlap_before_its_cursor(config):
    """What was committed late, with an instant that was passed, is found as long as the overlap reaches."""
    own = source()
    write(config, PARCELS, parcel("P1", 0), parcel("P2", 3600))
    cursor = drained(config, own)[-1].position
    write(config, PARCELS, parcel("late", 3600 - 599), parcel("edge", 3000), parcel("too late", 2999))
    assert scanned(config, own, cursor) == []
    again = drained(config, own, own.rewound(cursor))
    assert [record.source_id for record in again] == ["edge", "late", "P2"]


def test_where_an_overlap_leads_to():
    """Before every row of that instant; before everything where there is no such instant, or no cursor."""
    own = source(overlap=timedelta(hours=1))
    assert own.rewound(("2026-03-01T12:00:00.000001Z", "P1")) == ("2026-03-01T11:00:00.000001Z",)
    assert own.rewound(("2026-03-01T12:00:00.000001", 7)) == ("2026-03-01T11:00:00.000001",)
    assert own.rewound(None) is None
    assert own.rewound(("0001-01-01T00:10:00.000000", "P1")) is None
    assert positions.is_after(("2026-03-01T11:00:00.000001Z", "P1"), ("2026-03-01T11:00:00.000001Z",))


@pytest.mark.parametrize("after", [7, (), ("x", "P1"), ("2026-03-01", 1, 2), (1, 2)])
def test_a_position_of_another_source(config, after):
    """It is refused with a message of its own."""
    for ask in (lambda: scanned(config, source(), after), lambda: source().rewound(after)):
        with pytest.raises(ConfigError, match="after must be None or the position of a row"):
            ask()


def test_a_write_transaction_that_is_open_for_long_is_warned_of(postgresql: Database, make_config, caplog):
    """Where a chain begins: its rows may come too late for the overlap. One that has not written, or is
    younger than half the overlap, is not; nor is the own one.
    """
    config = make_config(postgresql)
    with config.engine.begin() as connection:
        tables.create_all(connection)
    own, short = source(overlap=timedelta(days=1)), source(overlap=timedelta(microseconds=2))
    with (
        postgresql.bare_engine(connect_args={"application_name": "importer"}).connect() as other,
        postgresql.bare_engine().connect() as idle,
        config.engine.connect() as mine,
    ):
        pid = other.execute(text("SELECT pg_backend_pid() FROM pg_current_xact_id()")).scalar_one()
        idle.execute(text("SELECT 1"))
        mine.execute(text("SELECT pg_current_xact_id()"))
        for place in (None, short.rewound(("2026-03-01T12:00:00.000000Z", "P1"))):
            caplog.clear()
            short.scan(mine, place, 10)
            (warned,) = [each for each in caplog.records if each.levelno == logging.WARNING]
            assert warned.message == "write transaction is open for long"
            facts = vars(warned)
            assert facts["statifier_router.pid"] == pid
            assert facts["statifier_router.application"] == "importer"
            assert facts["statifier_router.table"] == "parcels"
            assert facts["statifier_router.age"] > 0
            assert facts["statifier_router.count"] == 1
        caplog.clear()
        short.scan(mine, ("2026-03-01T12:00:00.000000Z", "P1"), 10)
        own.scan(mine, None, 10)
        assert caplog.records == []


# --- versions -----------------------------------------------------------------------------------------


def test_versions_are_told_by_what_they_say(config):
    """The signal is the digest of the payload: a change of what it leaves out is none, and one that is
    taken back is the old version again.
    """
    own = source()
    write(config, PARCELS, parcel("P1"))
    signals = []
    for name, tenant in (("A", "x"), ("B", "x"), ("A", "y")):
        with config.engine.begin() as connection:
            connection.execute(update(PARCELS).values(name=name, tenant=tenant))
        (record,) = scanned(config, own)
        assert loaded(config, own, "P1") == {"P1": record}
        signals.append(record.signal)
    assert signals[0] == signals[2] != signals[1]


def test_a_signal_of_the_hosts_own(config):
    """A column tells versions apart; a NULL there is no signal. A deletion is another version anyway."""
    own = source(signal="version", deleted="deleted_at")
    write(config, PARCELS, parcel("P1", version=7), parcel("P2"), parcel("P3", version=7, deleted_at=NOW))
    assert [record.signal for record in scanned(config, own)] == ["7", "", "7 deleted"]


def test_deleted_rows(config):
    """Marked ones are handed over as deleted, however they are marked; those that are gone are not there."""
    write(config, PARCELS, parcel("P1", deleted_at=NOW), parcel("P2"))
    own = source(deleted="deleted_at")
    assert [record.deleted for record in scanned(config, own)] == [True, False]
    first, second = scanned(config, own)
    assert first.signal != second.signal
    with config.engine.begin() as connection:
        connection.execute(PARCELS.delete().where(PARCELS.c.id == "P2"))
    assert loaded(config, own, "P1", "P2") == {"P1": first, "P2": None}
    write(
        config,
        NUMBERED,
        *(
            {"id": n, "updated_at": DAY + timedelta(days=n), "gone": gone}
            for n, gone in enumerate([None, False, True])
        ),
    )
    marked = TableSource(NUMBERED, "id", "updated_at", ["id"], MINUTE, deleted="gone")
    assert [record.deleted for record in scanned(config, marked)] == [False, False, True]


# --- scopes -------------------------------------------------------------------------------------------


def test_rows_of_one_scope(config):
    """With a column for it, one scope's rows alone are scanned and loaded; or all, each with its own. Without
    one, every row is of the scope that the source has.
    """
    write(config, PARCELS, parcel("P1", tenant="acme"), parcel("P2", tenant="globex"), parcel("P3"))

    def scopes(own):
        return [(record.source_id, record.scope) for record in scanned(config, own)]

    acme = source(scope="acme", scope_column="tenant")
    assert scopes(acme) == [("P1", "acme")]
    assert loaded(config, acme, "P2") == {"P2": None}
    assert scopes(source(scope_column="tenant")) == [("P1", "acme"), ("P2", "globex"), ("P3", None)]
    assert scopes(source(scope="acme")) == [("P1", "acme"), ("P2", "acme"), ("P3", "acme")]
    assert scopes(source()) == [("P1", None), ("P2", None), ("P3", None)]
    rule = {"entity": "parcel", "target": "t", "driver": "d", "policy": Policy.UPSERT}
    assert Rule("r", source=acme, **rule).definition["source"] == 'table["parcels","id","updated_at","acme"]'


# --- payloads -----------------------------------------------------------------------------------------


def test_payloads(config):
    """Several columns, one, or what a function makes of the whole row; values that JSON has no word for
    become text.
    """
    row = {
        "id": 1,
        "updated_at": DAY + timedelta(hours=12),
        "sum": Decimal("7.50"),
        "day": date(2026, 3, 1),
        "more": {"a": [1, None]},
        "gone": False,
    }
    write(config, NUMBERED, row)

    def payload(wanted):
        (record,) = scanned(config, TableSource(NUMBERED, "id", "updated_at", wanted, MINUTE))
        return record.payload

    assert payload(["id", NUMBERED.c.sum, "day", "more", "gone", "updated_at"]) == {
        "id": 1,
        "sum": "7.50",
        "day": "2026-03-01",
        "more": {"a": [1, None]},
        "gone": False,
        "updated_at": "2026-03-01T12:00:00",
    }
    assert payload("more") == {"a": [1, None]}
    assert payload(NUMBERED.c.day) == "2026-03-01"
    assert payload(lambda row: {"twice": row["id"] * 2, "names": sorted(row)}) == {
        "twice": 2,
        "names": ["blob", "day", "gone", "id", "more", "sum", "updated_at"],
    }


def test_payloads_that_are_no_json(config):
    """The record is named, and what of it cannot be carried."""
    write(config, NUMBERED, {"id": 1, "updated_at": DAY, "blob": b"x"})

    async def never(row):
        """No plain function."""

    for wanted, told in (
        (["blob"], r"record '1': payload\['blob'\] bytes is not JSON"),
        (lambda row: {"x": float("inf")}, r"record '1': payload\['x'\] inf is not a number"),
        (lambda row: {"x": {1, 2}}, r"record '1': payload\['x'\] set is not JSON"),
        (never, "payload answered an awaitable"),
    ):
        own = TableSource(NUMBERED, "id", "updated_at", wanted, MINUTE)
        with pytest.raises(ConfigError, match=told):
            scanned(config, own)


def test_a_selection_is_a_table_too(config):
    """What can be selected from can be a source: joined, filtered, renamed."""
    write(config, PARCELS, parcel("P1"), parcel("P2"))
    named = select(PARCELS.c.id, PARCELS.c.updated_at.label("at"), PARCELS.c.name).where(PARCELS.c.id != "P1")
    own = TableSource(named.subquery("named_ones"), "id", "at", "name", MINUTE)
    (record,) = drained(config, own)
    assert record.payload == "name of P2"
    assert own.identity == 'table["named_ones","id","at"]'


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"table": "parcels"}, "table must be a SQLAlchemy table, not str"),
        ({"id": "nothing"}, "id names 'nothing'; the table has id, updated_at"),
        ({"id": NUMBERED.c.id}, "id must be a column of the table, which numbered.id is not"),
        ({"id": 7}, "id must be a column or the name of one, not int"),
        ({"id": None}, "id must be a column"),
        ({"id": "deleted_at"}, "id must be a column of text, integers or UUIDs, not of datetime"),
        ({"updated_at": None}, "updated_at must be a column"),
        ({"updated_at": "version"}, "updated_at must be a column of instants, not of int"),
        ({"payload": []}, "payload must be columns"),
        ({"payload": ["id", "nothing"]}, r"payload\[1\] names 'nothing'"),
        ({"payload": 7}, "payload must be columns"),
        ({"overlap": timedelta(0)}, "overlap must be a positive timedelta"),
        ({"overlap": 60}, "overlap must be a positive timedelta, not 60"),
        ({"scope": 7}, "scope must be text"),
        ({"scope_column": "nothing"}, "scope_column names 'nothing'"),
        ({"deleted": "nothing"}, "deleted names 'nothing'"),
        ({"signal": "nothing"}, "signal names 'nothing'"),
    ],
)
def test_a_source_that_cannot_be(arguments, named):
    """What is wrong is told where the source is made, by the name of the argument."""
    given = {"table": PARCELS, "id": "id", "updated_at": "updated_at", "payload": COLUMNS, "overlap": MINUTE}
    with pytest.raises(ConfigError, match=named):
        TableSource(**given | arguments)


def test_instants_come_back_in_utc(config):
    """Whatever zone the session has: the position is the same text."""
    write(config, PARCELS, parcel("P1"))
    (record,) = scanned(config, source(payload="updated_at"))
    assert record.position == (NOW.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "P1")
    assert record.payload == NOW.isoformat()
