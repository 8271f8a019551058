"""Migrations: numbered versions that add up to the schema, in the caller's transaction, one at a time."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

import statifier_router
from statifier_router import migrations
from statifier_router.errors import ConfigError, SchemaError
from statifier_router.schema import schema_of
from statifier_router.tables import Tables
from tests.support.locks import backend_pid, wait_until_blocked
from tests.support.processes import pause, release_together

DEFAULT = Tables()
OTHER = Tables(prefix="other_")


def standing(connection, tables=DEFAULT):
    """Our tables that are there, without their prefix."""
    names = inspect(connection).get_table_names(schema=tables.schema)
    return {name.removeprefix(tables.prefix) for name in names if name.startswith(tables.prefix)}


def shape(connection, tables=DEFAULT):
    """All that the database knows about our tables, under names that neither schema nor prefix colours."""
    if connection.dialect.name == "sqlite":
        return _sqlite_shape(connection, tables)
    return _postgresql_shape(connection, tables)


def _postgresql_shape(connection, tables):
    schema = tables.schema or "public"
    lines = connection.scalars(
        text(
            """
WITH classes AS (
  SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = :schema AND starts_with(c.relname, :prefix)
)
SELECT concat_ws(' ', relname, relkind, reloptions) FROM classes
UNION ALL
SELECT concat_ws(' ', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                 a.attidentity, l.collname, pg_get_expr(d.adbin, d.adrelid))
  FROM classes c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND c.relkind <> 'S'
                      AND NOT a.attisdropped
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT concat_ws(' ', o.conname, o.contype, pg_get_constraintdef(o.oid))
  FROM classes c JOIN pg_constraint o ON o.conrelid = c.oid
UNION ALL
SELECT pg_get_indexdef(c.oid) FROM classes c WHERE c.relkind = 'i'
"""
        ),
        {"schema": schema, "prefix": tables.prefix},
    )
    plain = re.compile(rf'"?\b{schema}\b"?\.|\b{tables.prefix}')
    return sorted(plain.sub("", line) for line in lines)


def _sqlite_shape(connection, tables):
    lines = []
    inspector = inspect(connection)
    for table in standing(connection, tables):
        name = tables.prefix + table
        sql = _master(connection, name)
        lines.append(f"{table} autoincrement {'AUTOINCREMENT' in sql}")
        columns = connection.execute(text(f'PRAGMA table_xinfo("{name}")'))
        lines += [f"{table} {tuple(column)}" for column in columns]
        for index in connection.execute(text(f'PRAGMA index_list("{name}")')).mappings():
            keyed = [tuple(row) for row in connection.execute(text(f'PRAGMA index_xinfo("{index["name"]}")'))]
            where = re.sub(r"\s+", " ", _master(connection, index["name"])).partition(" WHERE ")[2]
            facts = {key: value for key, value in index.items() if key != "seq"}
            lines.append(f"{table} {facts} {keyed} {where}")
        for found in (inspector.get_unique_constraints(name), inspector.get_check_constraints(name)):
            lines += [f"{table} {constraint}" for constraint in found]
    return sorted(line.replace(tables.prefix, "") for line in lines)


def _master(connection, name):
    found = text("SELECT sql FROM sqlite_master WHERE name = :name")
    return connection.execute(found, {"name": name}).scalar_one() or ""


def rows_of(connection, tables=DEFAULT):
    return connection.scalars(text(f"SELECT version FROM {tables.prefix}schema_version ORDER BY 1")).all()


# --- the sum of the versions ------------------------------------------------------------------------


def test_the_sum_of_the_versions_is_the_schema(unmigrated):
    """Tables, columns, types, defaults, nullability, indexes and constraints are those of `schema`."""
    with unmigrated.engine().begin() as connection:
        migrations.up(connection)
        schema_of(OTHER).metadata.create_all(connection)
        migrated, declared = shape(connection), shape(connection, OTHER)
    assert migrated == declared
    assert len(migrated) > 60


def test_primary_keys_are_named_as_declared(unmigrated):
    """The names of primary keys too, which the other comparison cannot see on SQLite."""
    with unmigrated.engine().begin() as connection:
        migrations.up(connection)
        for name, table in schema_of(DEFAULT).metadata.tables.items():
            assert inspect(connection).get_pk_constraint(name)["name"] == table.primary_key.name


def test_every_identifier_is_short_enough(unmigrated_postgresql):
    """No name reaches 63 bytes, those included that PostgreSQL makes up, so none was cut."""
    with unmigrated_postgresql.engine().begin() as connection:
        migrations.up(connection)
        names = connection.scalars(
            text(
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION ALL "
                "SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace"
            )
        ).all()
    assert names
    assert max(len(name.encode()) for name in names) < 63


# --- up and down ------------------------------------------------------------------------------------


def test_up_down_up(unmigrated):
    """Down leaves nothing, and up after it makes the same tables as the first time."""
    versions = tuple(range(1, migrations.LATEST + 1))
    with unmigrated.engine().begin() as connection:
        assert migrations.current(connection) == 0
        assert migrations.up(connection) == versions
        first = shape(connection)
        assert migrations.current(connection) == migrations.LATEST
        assert rows_of(connection) == list(versions)
        assert migrations.down(connection, to=0) == versions[::-1]
        assert migrations.current(connection) == 0
        assert standing(connection) == set()
        assert migrations.up(connection) == versions
        assert shape(connection) == first


def test_each_version_goes_down_to_the_one_before(unmigrated):
    """Every step down undoes exactly its step up."""
    with unmigrated.engine().begin() as connection:
        seen = []
        for version in range(migrations.LATEST + 1):
            migrations.up(connection, to=version)
            assert migrations.current(connection) == version
            seen.append(shape(connection))
        for version in reversed(range(migrations.LATEST)):
            assert migrations.down(connection) == (version + 1,)
            assert migrations.current(connection) == version
            assert shape(connection) == seen[version]
        assert migrations.down(connection) == ()


def test_up_again_does_nothing(database):
    """On tables that are up to date nothing is written and the rows stay."""
    written = []
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO statifier_router_claims VALUES ('b', '', 'm', 'd', {_NOW})"))
        event.listen(engine, "before_cursor_execute", lambda *args: written.append(args[2]))
        assert migrations.up(connection) == ()
        assert migrations.up(connection, to=0) == ()
        assert not [
            statement for statement in written if re.match(r"\s*(CREATE|DROP|INSERT|DELETE)", statement)
        ]
        assert connection.execute(text("SELECT count(*) FROM statifier_router_claims")).scalar_one() == 1


_NOW = "'2024-01-01T00:00:00.000000Z'"


def test_the_caller_commits(unmigrated):
    """Everything is undone with the caller's transaction, and stands once it commits."""
    engine = unmigrated.engine()
    with engine.connect() as connection:
        migrations.up(connection)
        connection.rollback()
        assert standing(connection) == set()
    with engine.begin() as connection:
        migrations.up(connection)
    with engine.connect() as connection:
        migrations.verify(connection)


def test_a_session_is_a_connection_too(unmigrated):
    """A host may hand over its session."""
    with Session(unmigrated.engine()) as session:
        assert migrations.up(session)
        migrations.verify(session)
        assert migrations.current(session) == migrations.LATEST
        session.commit()


def test_the_version_row_tells_when(unmigrated):
    """`applied_at` is an instant like any other of ours."""
    table = schema_of(DEFAULT).schema_version
    with unmigrated.engine().begin() as connection:
        migrations.up(connection)
        before, after = (
            connection.execute(table.select()).all(),
            connection.scalars(
                text("SELECT CAST(applied_at AS text) FROM statifier_router_schema_version")
            ).all(),
        )
    assert all(row.applied_at.utcoffset().total_seconds() == 0 for row in before)
    if unmigrated.kind == "sqlite":
        assert all(len(spelled) == 27 and spelled.endswith("Z") for spelled in after)


# --- prefix and schema ------------------------------------------------------------------------------


def test_two_prefixes_live_side_by_side(unmigrated):
    """Each prefix has its own tables and its own version."""
    with unmigrated.engine().begin() as connection:
        migrations.up(connection)
        assert migrations.current(connection, tables=OTHER) == 0
        migrations.up(connection, tables=OTHER)
        assert shape(connection) == shape(connection, OTHER)
        migrations.down(connection, to=0)
        assert standing(connection) == set()
        migrations.verify(connection, tables=OTHER)


def test_names_that_are_words_of_sql_are_names(unmigrated):
    """A prefix or schema that SQL reads as a word of its own does no harm."""
    schema = "select" if unmigrated.kind == "postgresql" else None
    for tables in (Tables(prefix="order", schema=schema), Tables(prefix="", schema=schema)):
        with unmigrated.engine().begin() as connection:
            migrations.up(connection, tables=tables)
            migrations.verify(connection, tables=tables)
            schema_of(tables).metadata.create_all(connection, checkfirst=True)
            migrations.down(connection, tables=tables, to=0)


def test_an_absent_schema_is_created(unmigrated_postgresql):
    """`up` creates the schema and everything in it, and the schema of the session stays empty."""
    tables = Tables(schema="events")
    with unmigrated_postgresql.engine().begin() as connection:
        migrations.up(connection, tables=tables)
        migrations.verify(connection, tables=tables)
        assert standing(connection) == set()
        in_schema = shape(connection, tables)
        migrations.up(connection)
        assert in_schema == shape(connection)
        migrations.down(connection, tables=tables, to=0)
        migrations.up(connection, tables=tables)


def test_an_existing_schema_needs_no_right_to_create_one(unmigrated_postgresql):
    """A role that may create tables in a schema, but no schema, can migrate in it."""
    role = f"{unmigrated_postgresql.name}_modest"
    tables = Tables(schema="granted")
    with unmigrated_postgresql.engine().connect() as connection:
        connection.execute(text(f'CREATE ROLE "{role}"'))
        connection.execute(text("CREATE SCHEMA granted"))
        connection.execute(text(f'GRANT USAGE, CREATE ON SCHEMA granted TO "{role}"'))
        connection.execute(text(f'SET LOCAL ROLE "{role}"'))
        migrations.up(connection, tables=tables)
        migrations.verify(connection, tables=tables)
        with pytest.raises(DBAPIError) as caught, connection.begin_nested():
            migrations.up(connection, tables=Tables(schema="refused"))
        assert caught.value.orig.sqlstate == "42501"
        connection.rollback()


def test_a_schema_of_sqlite_is_an_attached_database(unmigrated_sqlite, tmp_path):
    """The schema names a database attached to every connection; one that is not attached is refused."""
    tables = Tables(schema="beside")
    engine = unmigrated_sqlite.engine()
    with engine.begin() as connection, pytest.raises(ConfigError, match=r"tables\.schema"):
        migrations.up(connection, tables=tables)
    event.listen(
        engine.pool,
        "connect",
        lambda driver, _: driver.execute("ATTACH ? AS beside", (str(tmp_path / "beside.db"),)),
    )
    engine.dispose()
    with engine.begin() as connection:
        migrations.up(connection, tables=tables)
        migrations.verify(connection, tables=tables)
        assert standing(connection) == set()
        assert "claims" in standing(connection, tables)


# --- two at once ------------------------------------------------------------------------------------


def migrate_at_once(url):
    engine = statifier_router.create_engine(url)
    pause("ready")
    with engine.begin() as connection:
        return list(migrations.up(connection))


def test_of_many_processes_that_migrate_at_once_one_does(unmigrated, children):
    """One applies the versions, the others wait and find nothing to do; nobody sees an error."""
    started = [children.start("tests.test_migrations:migrate_at_once", unmigrated.url) for _ in range(4)]
    release_together(started, "ready")
    applied = sorted(child.result() for child in started)
    assert applied == [[], [], [], list(range(1, migrations.LATEST + 1))]
    assert unmigrated.logged_errors() == []


def migrate_beside(url):
    engine = statifier_router.create_engine(url)
    with engine.begin() as connection:
        pause("ready", backend_pid(connection))
        return list(migrations.up(connection))


def test_the_second_waits_for_the_first_to_commit(unmigrated_postgresql, children):
    """While one migration is open the other is blocked on the server, and then does nothing."""
    engine = unmigrated_postgresql.engine()
    with engine.connect() as connection:
        migrations.up(connection)
        child = children.start("tests.test_migrations:migrate_beside", unmigrated_postgresql.url)
        pid = child.wait_for("ready")
        child.release()
        wait_until_blocked(engine, pid, by=backend_pid(connection))
        connection.commit()
    assert child.result() == []


def test_the_second_does_it_where_the_first_rolls_back(unmigrated_postgresql, children):
    """A migration that is given up leaves the work to the one that waited."""
    engine = unmigrated_postgresql.engine()
    with engine.connect() as connection:
        migrations.up(connection)
        child = children.start("tests.test_migrations:migrate_beside", unmigrated_postgresql.url)
        pid = child.wait_for("ready")
        child.release()
        wait_until_blocked(engine, pid, by=backend_pid(connection))
        connection.rollback()
    assert child.result() == list(range(1, migrations.LATEST + 1))


def test_other_tables_do_not_wait(unmigrated_postgresql):
    """A migration of other tables in the same database goes on beside an open one."""
    engine = unmigrated_postgresql.engine()
    with engine.connect() as one, engine.begin() as other:
        migrations.up(one)
        other.execute(text("SET LOCAL lock_timeout = '5s'"))
        assert migrations.up(other, tables=OTHER)
        one.rollback()


# --- what is refused --------------------------------------------------------------------------------


def refused(call, *args, **kw):
    with pytest.raises(SchemaError) as caught:
        call(*args, **kw)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_absent_tables_are_refused_with_the_line_that_mends_it(unmigrated):
    """A database that was not migrated says what to type."""
    with unmigrated.engine().connect() as connection:
        message = refused(migrations.verify, connection)
        other = refused(migrations.verify, connection, tables=OTHER)
    assert "statifier-router migrate" in message
    assert "migrations.up(connection)" in message
    assert "tables=Tables(prefix='other_', schema=None)" in other


def test_outdated_tables_are_refused(database, monkeypatch):
    """Tables of an earlier version say from where to where."""
    monkeypatch.setattr(migrations, "LATEST", migrations.LATEST + 1)
    with database.engine().connect() as connection:
        message = refused(migrations.verify, connection)
    assert f"at version {migrations.LATEST - 1}" in message
    assert f"needs {migrations.LATEST}" in message
    assert "statifier-router migrate" in message


def test_newer_tables_are_refused_everywhere(database):
    """Tables that a later release made are left alone by `up` and `down` too."""
    with database.engine().connect() as connection:
        connection.execute(
            text(
                "INSERT INTO statifier_router_schema_version (version, applied_at) "
                "SELECT :newer, applied_at FROM statifier_router_schema_version WHERE version = 1"
            ),
            {"newer": migrations.LATEST + 1},
        )
        assert migrations.current(connection) == migrations.LATEST + 1
        for call in (migrations.verify, migrations.up, migrations.down):
            assert "newer" in refused(call, connection)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("DROP TABLE statifier_router_ledger", "statifier_router_ledger"),
        ("ALTER TABLE statifier_router_inputs RENAME COLUMN actor TO who", "statifier_router_inputs.actor"),
        ("DELETE FROM statifier_router_schema_version", "schema_version"),
        ("UPDATE statifier_router_schema_version SET version = version + 5", "schema_version"),
        ("ALTER TABLE statifier_router_schema_version RENAME COLUMN version TO v", "schema_version"),
    ],
)
def test_foreign_tables_are_refused(database, damage, named):
    """Tables that are not what their version row says are refused by what is wrong with them."""
    with database.engine().connect() as connection:
        connection.execute(text(damage))
        assert named in refused(migrations.verify, connection)
        connection.rollback()
        migrations.verify(connection)


def test_a_host_table_of_our_name_is_not_taken_for_ours(unmigrated):
    """Where a name is taken already, `up` says so before it creates anything."""
    with unmigrated.engine().connect() as connection:
        Table("claims", MetaData(), Column("id", Integer())).create(connection)
        assert "claims" in refused(migrations.up, connection, tables=Tables(prefix=""))
        assert standing(connection, Tables(prefix="")) == {"claims"}
        connection.rollback()


@pytest.mark.parametrize("number", [-1, migrations.LATEST + 1, "1", True, 1.0])
def test_a_version_that_there_is_not_is_refused(database, number):
    """`to` and `since` are versions that this release knows; anything else names the field."""
    with database.engine().connect() as connection:
        for call in (migrations.up, migrations.down):
            with pytest.raises(ConfigError, match=r"^to must be"):
                call(connection, to=number)
    with pytest.raises(ConfigError, match=r"^since must be"):
        migrations.sql(database.kind, since=number)


def test_a_connection_on_which_nothing_could_be_undone_is_refused(unmigrated):
    """Autocommit would leave half a migration behind."""
    engine = unmigrated.engine().execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for call in (migrations.up, migrations.down):
            with pytest.raises(ConfigError, match="autocommit"):
                call(connection)
        assert standing(connection) == set()


def test_an_unprepared_sqlite_connection_is_refused(unmigrated_sqlite):
    """Its driver commits before DDL as it pleases; the message says how to prepare the engine."""
    with unmigrated_sqlite.bare_engine().connect() as connection:
        with pytest.raises(ConfigError, match="prepare_engine"):
            migrations.up(connection)
        # To look needs no preparation.
        assert migrations.current(connection) == 0


def test_what_is_no_connection_is_refused(unmigrated):
    """An engine in the place of a connection is named."""
    for call in (migrations.up, migrations.down, migrations.current, migrations.verify):
        with pytest.raises(ConfigError, match=r"^connection must be"):
            call(unmigrated.engine())


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_is_no_place_to_migrate_in(unmigrated_postgresql, level):
    """A stricter level might not see what the process before it committed, so it is refused."""
    engine = unmigrated_postgresql.engine(isolation_level=level)
    with engine.begin() as connection, pytest.raises(ConfigError, match="READ COMMITTED"):
        migrations.up(connection)


def test_verify_writes_nothing_and_needs_no_right_to_write(postgresql):
    """A read-only transaction can ask."""
    with postgresql.engine().connect() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        migrations.verify(connection)
        assert migrations.current(connection) == migrations.LATEST


# --- the script -------------------------------------------------------------------------------------


def run_script(database, script):
    """Run it through the driver alone, as a person with a shell would."""
    url = make_url(database.url)
    if database.kind == "sqlite":
        with closing(sqlite3.connect(url.database)) as driver:
            driver.executescript(script)
        return
    with psycopg.connect(
        host=url.host or url.query.get("host"),
        port=url.port,
        user=url.username,
        password=url.password,
        dbname=url.database,
        autocommit=True,
    ) as driver:
        driver.execute(script)


@pytest.mark.parametrize("tables", [DEFAULT, OTHER])
def test_the_script_does_what_up_does(unmigrated, tables):
    """Run without the library it makes the same tables, and leads back to none."""
    run_script(unmigrated, migrations.sql(unmigrated.kind, tables=tables))
    with unmigrated.engine().connect() as connection:
        migrations.verify(connection, tables=tables)
        scripted = shape(connection, tables)
        migrations.down(connection, tables=tables, to=0)
        migrations.up(connection, tables=tables)
        assert scripted == shape(connection, tables)
        connection.rollback()
    run_script(unmigrated, migrations.sql(unmigrated.kind, since=migrations.LATEST, to=0, tables=tables))
    with unmigrated.engine().connect() as connection:
        assert standing(connection, tables) == set()


def test_the_script_creates_the_schema(unmigrated_postgresql):
    """A schema in the names is created by the script as by `up`."""
    tables = Tables(schema="scripted")
    run_script(unmigrated_postgresql, migrations.sql("postgresql", tables=tables))
    with unmigrated_postgresql.engine().connect() as connection:
        migrations.verify(connection, tables=tables)


def test_the_script_goes_by_steps(unmigrated):
    """One script a version leads as far as one script for all."""
    for version in range(migrations.LATEST):
        run_script(unmigrated, migrations.sql(unmigrated.kind, since=version, to=version + 1))
    with unmigrated.engine().connect() as connection:
        migrations.verify(connection)


def test_a_script_that_fails_leaves_nothing(unmigrated_sqlite):
    """It is one transaction: a second run fails at its first statement and changes nothing."""
    script = migrations.sql("sqlite")
    run_script(unmigrated_sqlite, script)
    with pytest.raises(sqlite3.OperationalError):
        run_script(unmigrated_sqlite, script)
    with unmigrated_sqlite.engine().connect() as connection:
        migrations.verify(connection)


def test_another_database_has_no_script():
    """The name of the dialect is one of two."""
    with pytest.raises(ConfigError, match=r"^dialect must be"):
        migrations.sql("oracle")


def test_another_database_cannot_be_migrated():
    """A connection to a third kind of database is refused before anything is sent."""
    engine = create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with engine.connect() as connection, pytest.raises(ConfigError, match="oracle"):
        migrations.verify(connection)
    engine.dispose()
