"""The databases that fixtures hand to tests: one shape for both kinds."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import attrs
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy import create_engine as plain_engine
from sqlalchemy.pool import NullPool

from tests.support import servers

Kind = Literal["sqlite", "postgresql"]


@attrs.frozen
class Counters:
    """What the server counted in one database; rollbacks include transactions that an error ended."""

    commits: int
    rollbacks: int
    deadlocks: int

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.commits - other.commits, self.rollbacks - other.rollbacks, self.deadlocks - other.deadlocks
        )


def _log_size() -> int:
    log = servers.server_log()
    return log.stat().st_size if log is not None and log.exists() else 0


@attrs.define
class Database:
    """One database for one test: migrated, with empty tables, unless the fixture says otherwise.

    Every engine made through it is disposed of at the end of the test.
    """

    kind: Kind
    url: str
    _clear: Callable[[], None]
    _engines: list[Engine] = attrs.field(factory=list)
    _log_start: int = attrs.field(factory=_log_size)

    def engine(self, **kw: Any) -> Engine:
        """An engine of the library's own making with a fresh pool; `kw` goes to `create_engine`."""
        import statifier_router

        engine = statifier_router.create_engine(self.url, **kw)
        self._engines.append(engine)
        return engine

    def bare_engine(self, **kw: Any) -> Engine:
        """An engine as a host would make it, which the library has never seen."""
        engine = plain_engine(self.url, **kw)
        self._engines.append(engine)
        return engine

    def clear(self) -> None:
        """Empty every table and begin every identity again; for the examples of a property test."""
        self.dispose()
        self._clear()

    def dispose(self) -> None:
        """Close the pooled connections of every engine made so far; the engines stay usable."""
        for engine in self._engines:
            engine.dispose()

    # --- what the server saw; PostgreSQL only ------------------------------------------------------

    @property
    def name(self) -> str:
        """The database's name on its server."""
        return str(make_url(self.url).database)

    def logged_errors(self) -> list[str]:
        """The errors that the server logged about this database since the test began.

        Only the wheel's server has a log that can be read: elsewhere the list is empty, so a test that
        relies on it compares `counters` too.
        """
        log = servers.server_log()
        if self.kind != "postgresql" or log is None:
            return []
        with log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").splitlines()
        marks = tuple(f" [{self.name}] {level}:  " for level in ("ERROR", "FATAL", "PANIC"))
        return [line for line in lines if any(mark in line for mark in marks)]

    def counters(self) -> Counters:
        """What the server has counted in this database, once every connection to it is gone.

        Disposes of this test's engines first: a connection reports all it did at the latest at its end.
        """
        self.dispose()
        with servers.administrator().connect() as connection:
            for _ in range(_POLLS):
                if not connection.execute(_CONNECTED, {"name": self.name}).scalar_one():
                    break
                threading.Event().wait(_PAUSE)
            else:
                raise AssertionError(
                    f"connections to {self.name} are still open: its counters are not complete"
                )
            row = connection.execute(_COUNTED, {"name": self.name}).one()
        return Counters(*row)


_CONNECTED = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND backend_type = 'client backend'"
)
_COUNTED = text(
    "SELECT xact_commit, xact_rollback, deadlocks FROM pg_stat_database WHERE datname = :name",
)
_POLLS = 400
_PAUSE = 0.02


class PostgreSQL:
    """One PostgreSQL database of a worker, made on first use and emptied before each test."""

    def __init__(self, suffix: str, migrate: Callable[[str], None] | None) -> None:
        self._suffix = suffix
        self._migrate = migrate
        self._url: str | None = None
        self._engine: Engine | None = None
        # What the catalogue looked like after migrating: where it differs, a test has changed tables.
        self._shape: str | None = None
        self._tables: list[int] = []

    def fresh(self) -> Database:
        """The database for one test, with nothing in it that another test left."""
        if self._url is None:
            url = servers.create_database(self._suffix)
            self._url = url.render_as_string(hide_password=False)
            self._engine = plain_engine(self._url, poolclass=NullPool)
        self._clear()
        return Database("postgresql", self._url, self._clear)

    def _clear(self) -> None:
        assert self._url is not None
        assert self._engine is not None
        with self._engine.begin() as connection:
            # Whoever still holds a lock here was left over by an earlier test.
            connection.execute(_END_OTHERS)
            if self._shape is not None:
                for made in connection.scalars(_MADE, {"known": self._tables}).all():
                    connection.execute(text(f"DROP TABLE {made} CASCADE"))
                if self._shape == _shape(connection):
                    connection.execute(text(_EMPTY_ALL))
                    return
            connection.execute(text(_DROP_ALL))
        if self._migrate is not None:
            self._migrate(self._url)
            with self._engine.begin() as connection:
                self._shape = _shape(connection)
                self._tables = list(connection.scalars(_TABLES))


# Of the view `pg_stat_activity` what is needed here, without the catalogues that it reads besides.
_END_OTHERS = text(
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_get_activity(NULL)"
    " WHERE datid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)

_TABLES = text(
    "SELECT oid::bigint FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace('public')"
)

# The tables of a test's own, most often a host's. Whatever else went with them shows in the shape.
_MADE = text(
    "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'"
    " AND relnamespace = to_regnamespace('public') AND oid::bigint <> ALL (:known)"
)

# What a test may have made: schemas of its own, anything in the public one.
_DROP_ALL = """
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT nspname FROM pg_namespace
   WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', name);
  END LOOP;
  CREATE SCHEMA public;
END $$
"""

_SHAPE = """
WITH spaces AS (
  SELECT oid, nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
), classes AS (
  SELECT c.* FROM pg_class c JOIN spaces s ON s.oid = c.relnamespace
), lines (line) AS (
  SELECT ROW (oid, nspname)::text FROM spaces
  UNION ALL SELECT ROW (oid, relname, relkind, reloptions, relhastriggers)::text FROM classes
  UNION ALL SELECT ROW (a.attrelid, a.attnum, a.attname, a.atttypid, a.attnotnull, a.attcollation)::text
    FROM pg_attribute a JOIN classes c ON c.oid = a.attrelid
  UNION ALL SELECT ROW (o.oid, o.conname)::text FROM pg_constraint o JOIN classes c ON c.oid = o.conrelid
  UNION ALL SELECT ROW (t.oid, t.tgname)::text FROM pg_trigger t JOIN classes c ON c.oid = t.tgrelid
  UNION ALL SELECT ROW (r.oid, r.rulename)::text FROM pg_rewrite r JOIN classes c ON c.oid = r.ev_class
  UNION ALL SELECT ROW (p.oid, p.proname)::text FROM pg_proc p JOIN spaces s ON s.oid = p.pronamespace
)
SELECT md5(string_agg(line, '|' ORDER BY line)) FROM lines
"""

_VERSIONS = "statifier_router_schema_version"


def _shape(connection: Connection) -> str:
    """A digest of all that a test may change and TRUNCATE does not mend."""
    shape = str(connection.execute(text(_SHAPE)).scalar_one())
    if connection.execute(text(f"SELECT to_regclass('{_VERSIONS}')")).scalar_one() is not None:
        rows = connection.execute(
            text(f"SELECT string_agg(v::text, '|' ORDER BY v::text) FROM {_VERSIONS} v")
        )
        shape += f" {rows.scalar_one()}"
    return shape


# The version row stays: the tables are still those of that version. TRUNCATE makes new files for a table and
# each index, far more work than deleting a few rows. It is for tables beyond one page, where what is written
# next may land before what was written last, and for those that the planner has statistics of.
_EMPTY_ALL = """
DO $$
DECLARE
  spot record;
BEGIN
  FOR spot IN
    SELECT format('%I.%I', n.nspname, c.relname) AS name,
           c.relpages > 0 OR c.reltuples >= 0 OR pg_relation_size(c.oid) > 8192 AS grown
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
       AND c.relkind = 'r' AND c.relname !~ 'schema_version$' AND pg_relation_size(c.oid) > 0
  LOOP
    IF spot.grown THEN
      EXECUTE 'TRUNCATE ' || spot.name || ' CASCADE';
    ELSE
      EXECUTE 'DELETE FROM ' || spot.name;
    END IF;
  END LOOP;
  PERFORM setval(seqrelid, seqstart, false) FROM pg_sequence
    WHERE pg_sequence_last_value(seqrelid) IS NOT NULL;
END $$
"""


class SQLite:
    """SQLite databases of a worker: each test gets a copy of one migrated file."""

    def __init__(self, directory: Path, migrate: Callable[[str], None] | None) -> None:
        self._template = directory / "template.db"
        self._migrate = migrate

    def fresh(self, directory: Path) -> Database:
        """A database for one test, in its own directory."""
        file = directory / "statifier_router.db"
        database = Database("sqlite", f"sqlite:///{file}", lambda: self._lay(file))
        self._lay(file)
        return database

    def _lay(self, file: Path) -> None:
        for leftover in file.parent.glob(file.name + "*"):
            leftover.unlink()
        if self._migrate is None:
            return
        if not self._template.exists():
            new = self._template.with_suffix(".new")
            self._migrate(f"sqlite:///{new}")
            new.rename(self._template)
        shutil.copyfile(self._template, file)


def migrate(url: str) -> None:
    """Bring a database to the newest version, under the default names."""
    import statifier_router
    from statifier_router import migrations

    engine = statifier_router.create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        migrations.up(connection)
