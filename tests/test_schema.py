"""The tables: their names, and the two types whose values must come back exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Column,
    MetaData,
    Table,
    bindparam,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.exc import StatementError

from statifier_router import jsontext
from statifier_router.errors import ConfigError
from statifier_router.schema import Instant, JsonText, schema_of
from statifier_router.tables import IDENTIFIER_LIMIT, PREFIX_LIMIT, SUFFIX_LIMIT, Tables

# 15-schema, for the tables of version 1.
COLUMNS = {
    "claims": "binding_id scope message_id digest expires_at",
    "addresses": "id scope document key execution_id inserted_at terminal_seen_at?",
    "executions": "id document scope key content_hash interpreter status position? active revision "
    "deferred failure? created_at ended_at?",
    "inputs": "execution_id seq door event? message_id? actor? errors? context? details? at",
    "ledger": "id binding_id? message_id scope outcome key? execution_id? reason? inserted_at",
    "charts": "content_hash interpreter document? version? source created_at retired_at?",
    "timers": "key execution_id send_id? target? event context? due_at state tries next_try_at last_error?",
    "outbox": "id queue key execution_id scope event context? created_at xid",
    "deferred": "id scope document key execution_id? binding_id message_id event context? until created_at",
    "publications": "document everywhere scope content_hash published_at",
    "changes": "seq xid entity source_id signal data? deleted created_at",
    "rules": "name digest definition cursor? paused lease_owner? lease_token lease_until? closed_since?",
    "records": "rule source_id status remote_id? signal attempts next_attempt_at? error_kind? last_error? "
    "parked_at? acknowledged_at? generation row_version updated_at",
    "operations": "rule source_id verb key signal payload? in_doubt lease_token chain_id row_version? "
    "started_at",
    "chains": "id rule state phase due_before digest job_seq heartbeat_at position? end? fault_kind? "
    "fault_source_id? fault_text? counters",
    "breakers": "target state failures open_until? probe_until? trips",
    "audit": "id actor action selection count reason? at",
    "schema_version": "version applied_at",
}
LATE = timezone(timedelta(hours=-11, minutes=-30))

mild = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def identifiers(tables):
    for table in schema_of(tables).metadata.tables.values():
        yield table.name
        yield from (constraint.name for constraint in table.constraints)
        yield from (index.name for index in table.indexes)
        # What PostgreSQL makes up for an identity.
        yield from (f"{table.name}_{column.name}_seq" for column in table.columns if column.identity)


@pytest.fixture
def values(database):
    """A table of one instant and one JSON text, on a connection that is rolled back at the end."""
    made = Table("host_values", MetaData(), Column("at", Instant()), Column("data", JsonText()))
    with database.engine().connect() as connection:
        made.create(connection)
        yield connection, made
        connection.rollback()


# --- names ------------------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_specification():
    """Names, order and nullability are as 15-schema lists them."""
    found = {
        name.removeprefix("statifier_router_"): " ".join(
            column.name + ("?" if column.nullable else "") for column in table.columns
        )
        for name, table in schema_of(Tables()).metadata.tables.items()
    }
    assert found == COLUMNS


def test_everything_is_named_and_short_enough():
    """Every table, constraint and index has a name of at most 63 bytes under the default prefix."""
    for name in identifiers(Tables()):
        assert isinstance(name, str)
        assert len(name.encode()) <= IDENTIFIER_LIMIT


def test_the_longest_prefix_leaves_room_for_every_name():
    """A prefix that is taken never makes a name that PostgreSQL would cut."""
    longest = Tables(prefix="p" * PREFIX_LIMIT)
    names = list(identifiers(longest))
    assert max(len(name) for name in names) <= IDENTIFIER_LIMIT
    assert all(len(name) - PREFIX_LIMIT <= SUFFIX_LIMIT for name in names)
    assert len(set(names)) == len(names)


def test_prefix_and_schema_are_on_every_table():
    """Two `Tables` never share a name, and equal ones share their Core tables."""
    own = schema_of(Tables(prefix="sr_", schema="events"))
    assert own.claims.fullname == "events.sr_claims"
    assert own is schema_of(Tables("sr_", "events"))
    assert own is not schema_of(Tables("sr_"))
    for name in identifiers(Tables(prefix="sr_")):
        assert name.startswith("sr_")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"prefix": 1}, "tables.prefix"),
        ({"prefix": "Sr_"}, "tables.prefix"),
        ({"prefix": "sr-"}, "tables.prefix"),
        ({"prefix": "1sr"}, "tables.prefix"),
        ({"prefix": "sr_\n"}, "tables.prefix"),
        ({"prefix": "é"}, "tables.prefix"),
        ({"prefix": 'x"'}, "tables.prefix"),
        ({"prefix": "sqlite_x"}, "tables.prefix"),
        ({"prefix": "p" * (PREFIX_LIMIT + 1)}, "tables.prefix"),
        ({"schema": ""}, "tables.schema"),
        ({"schema": 3}, "tables.schema"),
        ({"schema": "a.b"}, "tables.schema"),
        ({"schema": "pg_mine"}, "tables.schema"),
        ({"schema": "s" * 64}, "tables.schema"),
    ],
)
def test_a_name_that_could_not_stand_is_refused(given, field):
    """A bad prefix or schema is one line that names the field."""
    with pytest.raises(ConfigError) as caught:
        Tables(**given)
    assert str(caught.value).startswith(field)
    assert "\n" not in str(caught.value)


# --- instants ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instant",
    [
        datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        datetime(2024, 5, 6, 7, 8, 9, 1, tzinfo=UTC),
        datetime(2024, 5, 6, 7, 8, 9, 999_999, tzinfo=LATE),
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1),
    ],
)
def test_an_instant_comes_back_exact_and_in_utc(values, instant):
    """Microseconds, early years and foreign zones survive, in RETURNING and in SELECT."""
    connection, made = values
    returned = connection.execute(insert(made).values(at=instant).returning(made.c.at)).scalar_one()
    read = connection.execute(select(made.c.at)).scalar_one()
    for found in (returned, read):
        assert found == instant
        assert found.tzinfo is UTC


def test_an_instant_comes_back_in_utc_whatever_the_session_speaks(postgresql):
    """PostgreSQL answers in the session's time zone; we do not."""
    instant = datetime(2024, 7, 1, 12, tzinfo=UTC)
    with postgresql.engine().connect() as connection:
        connection.execute(text("SET LOCAL TimeZone = 'Asia/Kathmandu'"))
        found = connection.execute(select(literal(instant, Instant()))).scalar_one()
    assert found == instant
    assert found.tzinfo is UTC


def test_instants_compare_exactly(values):
    """A time with and one without microseconds compare as the instants they are, in the database."""
    connection, made = values
    whole = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    later = whole + timedelta(microseconds=1)
    connection.execute(insert(made), [{"at": later}, {"at": whole.astimezone(LATE)}])
    assert connection.scalars(select(made.c.at).order_by(made.c.at)).all() == [whole, later]
    assert connection.scalars(select(made.c.at).where(made.c.at < later)).all() == [whole]
    assert connection.scalars(select(made.c.at).where(made.c.at <= whole)).all() == [whole]
    assert connection.scalars(select(func.max(made.c.at))).all() == [later]


@given(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=2, max_size=10))
def test_the_order_of_the_text_is_the_order_of_time(instants):
    """SQLite's text has one width, so that comparing text compares time."""
    from sqlalchemy.dialects import sqlite

    process = Instant().dialect_impl(sqlite.dialect()).bind_processor(sqlite.dialect())
    spelled = [process(instant) for instant in instants]
    assert [process(instant) for instant in sorted(instants)] == sorted(spelled)
    assert {len(spelling) for spelling in spelled} == {27}


def test_a_naive_instant_is_refused(values):
    """Nothing says which zone a naive time was read in, so it never reaches the database."""
    connection, made = values
    with pytest.raises(StatementError, match="an instant"):
        connection.execute(insert(made).values(at=datetime(2024, 1, 1)))  # noqa: DTZ001 -- the case


# --- JSON -------------------------------------------------------------------------------------------

SPELLINGS = [
    '{"b": 1.00,  "a": 1e2, "b": "twice"}',
    '"\\u0000"',
    '{"\\u0000": ["a\\u0000b"]}',
    "null",
    "12345678901234567890.000000000000000000001",
    '"%s :name ? \\\\ \\" $1"',
    jsontext.encode("\U0001f4e6 \u00e9 \ufffd \u2028 \U0010ffff"),
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_json_comes_back_as_the_text_it_was(values, spelling):
    """Key order, numbers and escaped NULs are untouched, whichever statement carries them."""
    connection, made = values
    returned = connection.execute(insert(made).values(data=spelling).returning(made.c.data)).scalar_one()
    copied = connection.execute(
        insert(made)
        .from_select(["at", "data"], select(literal(None, Instant()), literal(spelling, JsonText())))
        .returning(made.c.data)
    ).scalar_one()
    between = connection.execute(
        insert(made).from_select(["data"], select(made.c.data).limit(1)).returning(made.c.data)
    ).scalar_one()
    updated = connection.scalars(
        update(made).values(data=bindparam("to", type_=made.c.data.type)).returning(made.c.data),
        {"to": spelling},
    ).all()
    read = connection.scalars(select(made.c.data)).all()
    aliased = connection.scalars(select(select(made.c.data).subquery().c.data)).all()
    assert {returned, copied, between, *updated, *read, *aliased} == {spelling}
    assert len(updated) == len(read) == len(aliased) == 3


def test_many_rows_of_json_come_back_in_order(values):
    """A batch of rows is written and returned as one row is."""
    connection, made = values
    returning = insert(made).returning(made.c.data, sort_by_parameter_order=False)
    rows = connection.scalars(returning, [{"data": spelling} for spelling in SPELLINGS]).all()
    assert sorted(rows) == sorted(SPELLINGS)


def test_absent_json_is_null_and_not_the_word(values):
    """None is SQL NULL; JSON's own null is the text."""
    connection, made = values
    connection.execute(insert(made), [{"data": None}, {"data": "null"}])
    absent = select(func.count()).select_from(made).where(made.c.data.is_(None))
    assert connection.execute(absent).scalar_one() == 1
    assert set(connection.scalars(select(made.c.data))) == {None, "null"}


@mild
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_json_survives(values, value):
    """Whatever JSON we encode is what we decode, on both databases."""
    connection, made = values
    spelling = jsontext.encode(value)
    found = connection.execute(insert(made).values(data=spelling).returning(made.c.data)).scalar_one()
    assert found == spelling
    assert jsontext.decode(found) == value


def test_a_megabyte_of_json_survives(values):
    """A position of 1 MiB is nothing special."""
    connection, made = values
    spelling = jsontext.encode({"data": "\u00e9" * 524_288})
    assert (
        connection.execute(insert(made).values(data=spelling).returning(made.c.data)).scalar_one() == spelling
    )


# --- text -------------------------------------------------------------------------------------------


def test_text_is_compared_bytewise(database):
    """Case, composition and trailing spaces tell keys apart, and order is the order of bytes."""
    addresses = schema_of(Tables()).addresses
    keys = ["a", "A", "a ", "\u00e9", "e\u0301", "z", "Z", "_"]
    row = {
        "scope": "",
        "document": "d",
        "execution_id": "ex_1",
        "inserted_at": datetime(2024, 1, 1, tzinfo=UTC),
    }
    with database.engine().begin() as connection:
        connection.execute(insert(addresses), [row | {"key": key} for key in keys])
        found = connection.scalars(select(addresses.c.key).order_by(addresses.c.key)).all()
        one = connection.scalars(select(addresses.c.key).where(addresses.c.key == "a")).all()
    assert found == sorted(keys, key=str.encode)
    assert one == ["a"]


def test_identities_are_never_given_twice(database):
    """After the newest row is deleted the next one has a higher id: cursors walk by it."""
    ledger = schema_of(Tables()).ledger
    row = {
        "message_id": "m",
        "scope": "",
        "outcome": "delivered",
        "inserted_at": datetime(2024, 1, 1, tzinfo=UTC),
    }
    with database.engine().begin() as connection:
        first = connection.execute(insert(ledger).values(row).returning(ledger.c.id)).scalar_one()
        connection.execute(ledger.delete())
        second = connection.execute(insert(ledger).values(row).returning(ledger.c.id)).scalar_one()
    assert second > first


def test_identities_hold_64_bits(database):
    """An id beyond 32 bits is an id."""
    ledger = schema_of(Tables()).ledger
    large = 2**62
    row = {
        "id": large,
        "message_id": "m",
        "scope": "",
        "outcome": "x",
        "inserted_at": datetime(2024, 1, 1, tzinfo=UTC),
    }
    with database.engine().begin() as connection:
        connection.execute(insert(ledger).values(row))
        assert connection.scalars(select(ledger.c.id).where(ledger.c.id == large)).all() == [large]


def test_the_stored_text_of_sqlite_is_plain(sqlite):
    """A person with the SQLite shell reads instants as they are."""
    claims = schema_of(Tables()).claims
    instant = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=2)))
    with sqlite.engine().begin() as connection:
        connection.execute(
            insert(claims).values(binding_id="b", scope="", message_id="m", digest="d", expires_at=instant)
        )
        spelled = connection.execute(text("SELECT expires_at FROM statifier_router_claims")).scalar_one()
    assert spelled == "2024-05-06T05:08:09.000000Z"
