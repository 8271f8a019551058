"""The databases that tests get are what they promise."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, make_url, text
from sqlalchemy.exc import IntegrityError

from tests.support import folding, processes, servers, session
from tests.support.databases import Counters, Database, PostgreSQL, SQLite


def _kind(database: Database) -> str:
    with database.bare_engine().connect() as connection:
        return connection.dialect.name


def test_each_database_is_of_its_kind(database: Database) -> None:
    """`database` runs a test once on each database."""
    assert _kind(database) == database.kind == make_url(database.url).get_backend_name()


def test_marks_follow_the_fixtures(request: pytest.FixtureRequest, database: Database) -> None:
    """A test carries the mark of the database that it runs on, and of no other."""
    marks = {mark.name for mark in request.node.iter_markers()}
    assert marks & {"sqlite", "postgresql"} == {database.kind}


def test_a_fixture_of_one_database_marks_too(
    request: pytest.FixtureRequest, unmigrated_sqlite: Database
) -> None:
    """A test that asks for one database by name carries its mark."""
    assert request.node.get_closest_marker("sqlite")
    assert not request.node.get_closest_marker("postgresql")


def test_an_unmigrated_database_is_empty(unmigrated: Database) -> None:
    """There is no table in it, whatever ran before; twice, so that the second sees what the first left."""
    engine = unmigrated.bare_engine()
    for _ in range(2):
        with engine.begin() as connection:
            assert inspect(connection).get_table_names() == []
            connection.execute(text("CREATE TABLE host (id INTEGER PRIMARY KEY)"))
        unmigrated.clear()


@pytest.mark.parametrize("round_", [1, 2])
def test_nothing_is_left_between_tests(unmigrated: Database, round_: int) -> None:
    """What one test makes, the next one does not find."""
    with unmigrated.bare_engine().begin() as connection:
        connection.execute(text("CREATE TABLE host (id INTEGER PRIMARY KEY)"))


@pytest.mark.postgresql
def test_a_worker_has_databases_of_its_own() -> None:
    """The name of a database tells the run, so that two runs on one server never meet."""
    name = str(servers.create_database("named").database)
    assert session.session_id() in name


def _migrate_by_hand(url: str) -> None:
    database = Database("postgresql" if url.startswith("postgresql") else "sqlite", url, lambda: None)
    with database.bare_engine().begin() as connection:
        identity = (
            "INTEGER PRIMARY KEY AUTOINCREMENT" if database.kind == "sqlite" else "BIGSERIAL PRIMARY KEY"
        )
        connection.execute(text(f"CREATE TABLE parcels (id {identity}, name TEXT)"))
        connection.execute(text("CREATE TABLE sr_schema_version (version INTEGER)"))
        connection.execute(text("INSERT INTO sr_schema_version VALUES (1)"))
    database.dispose()


@pytest.fixture(
    params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("sqlite", "postgresql")]
)
def by_hand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with tables of this module's own."""
    if request.param == "sqlite":
        (tmp_path / "copies").mkdir()
        database = SQLite(tmp_path, _migrate_by_hand).fresh(tmp_path / "copies")
    else:
        database = PostgreSQL(f"by_hand_{os.urandom(4).hex()}", _migrate_by_hand).fresh()
    yield database
    database.dispose()


@pytest.mark.parametrize("rows", [2, 2000])
def test_clear_empties_and_begins_again(by_hand: Database, rows: int) -> None:
    """Rows are gone, identities begin at 1, the version row stays; however many rows there were."""
    insert = text(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows)"
        " INSERT INTO parcels (name) SELECT 'a' FROM numbers"
    )
    for _ in range(2):
        with by_hand.bare_engine().begin() as connection:
            assert connection.execute(text("SELECT count(*) FROM parcels")).scalar_one() == 0
            connection.execute(insert, {"rows": rows})
            found = connection.scalars(text("SELECT id FROM parcels ORDER BY id")).all()
            assert found == list(range(1, rows + 1))
            assert connection.execute(text("SELECT version FROM sr_schema_version")).scalar_one() == 1
        by_hand.clear()


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE host (id INTEGER)",
        "ALTER TABLE parcels ADD COLUMN weight INTEGER",
        "ALTER TABLE parcels RENAME COLUMN name TO label",
        "CREATE INDEX host_index ON parcels (name)",
        "DROP TABLE parcels",
    ],
)
def test_what_a_test_changes_is_undone(by_hand: Database, change: str) -> None:
    """A test that alters tables leaves them as they were for the next one."""
    with by_hand.bare_engine().begin() as connection:
        connection.execute(text(change))
    by_hand.clear()
    with by_hand.bare_engine().connect() as connection:
        found = inspect(connection)
        assert sorted(found.get_table_names()) == ["parcels", "sr_schema_version"]
        assert [column["name"] for column in found.get_columns("parcels")] == ["id", "name"]
        assert found.get_indexes("parcels") == []


def test_a_left_over_lock_does_not_stop_the_next_test(unmigrated_postgresql: Database) -> None:
    """A connection that was left in a transaction is ended by the server."""
    engine = unmigrated_postgresql.bare_engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE host (id INTEGER)"))
    with engine.connect() as left_over:
        left_over.execute(text("LOCK TABLE host"))
        unmigrated_postgresql.clear()
        left_over.invalidate()


def test_errors_are_seen(unmigrated_postgresql: Database) -> None:
    """An error shows in the counters of any server, and in the log where there is one to read."""
    engine = unmigrated_postgresql.bare_engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE host (id INTEGER PRIMARY KEY)"))
    before = unmigrated_postgresql.counters()
    assert unmigrated_postgresql.logged_errors() == []
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO host VALUES (1)"))
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(text("INSERT INTO host VALUES (1)"))
    # The second insert alone was rolled back; SQLAlchemy's own look at a new connection commits nothing.
    assert (unmigrated_postgresql.counters() - before).rollbacks >= 1
    assert before.deadlocks == 0
    errors = unmigrated_postgresql.logged_errors()
    assert len(errors) == (1 if servers.server_log() else 0)


def test_counters_subtract() -> None:
    """The difference of two readings is what happened between them."""
    assert Counters(5, 3, 1) - Counters(2, 3, 0) == Counters(3, 0, 1)


@pytest.mark.postgresql
def test_every_process_of_a_run_shares_the_server() -> None:
    """A child process finds the server that its parent uses."""
    assert processes.run("tests.test_support_servers:_server") == _server()


def _server() -> str:
    return servers.server_url().render_as_string(hide_password=False)


def test_a_closed_directory_is_noticed(tmp_path: Path) -> None:
    """A server that runs as another user gets no directory that only root may enter."""
    for place in (tmp_path / "open", tmp_path / "open" / "closed"):
        place.mkdir()
    (tmp_path / "open" / "closed").chmod(0o700)
    assert not session.reachable(tmp_path / "open" / "closed")
    assert session.reachable(Path("/"))


@pytest.mark.postgresql
def test_the_wheels_server_does_not_run_as_root() -> None:
    """PostgreSQL refuses root, so a run by root uses a user without rights."""
    if servers.server_log() is None:
        assert servers.server_url().get_backend_name() == "postgresql"
    else:
        owner = (session.directory() / "data").stat().st_uid
        assert owner == (os.geteuid() or pwd.getpwnam("nobody").pw_uid)


def test_a_config_without_tables_has_nothing_to_fold(unmigrated: Database) -> None:
    """The fold passes over a database in which there are no tables."""
    configs = folding.Configs()
    configs(unmigrated)
    assert configs.fold() == 0
