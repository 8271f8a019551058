"""The fixtures of every test: databases of both kinds, configurations, the fold of the input logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import databases, folding, processes, servers, session

_KINDS = [
    pytest.param("sqlite", marks=pytest.mark.sqlite),
    pytest.param("postgresql", marks=pytest.mark.postgresql),
]
# What tests record of what they counted, for whoever reads the log.
COUNTED = ("crash", "race", "statements")
_SESSION = pytest.StashKey[session.Session]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin the run in the process that began first; its workers find it in their environment."""
    if not hasattr(config, "workerinput"):
        config.stash[_SESSION] = session.Session()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Drop the databases of this run and stop its server."""
    run = config.stash.get(_SESSION, None)
    if run is not None:
        try:
            servers.drop_databases()
        finally:
            run.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test the mark of every database that it asks for by name."""
    for item in items:
        for kind in ("sqlite", "postgresql"):
            if {kind, f"unmigrated_{kind}"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(getattr(pytest.mark, kind))


# --- databases --------------------------------------------------------------------------------------


def _worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "gw")


@pytest.fixture(scope="session")
def _postgresql() -> databases.PostgreSQL:
    return databases.PostgreSQL(_worker(), databases.migrate)


@pytest.fixture(scope="session")
def _unmigrated_postgresql() -> databases.PostgreSQL:
    return databases.PostgreSQL(f"{_worker()}_unmigrated", None)


@pytest.fixture(scope="session")
def _sqlite(tmp_path_factory: pytest.TempPathFactory) -> databases.SQLite:
    return databases.SQLite(tmp_path_factory.mktemp("template"), databases.migrate)


@pytest.fixture
def postgresql(_postgresql: databases.PostgreSQL) -> Iterator[databases.Database]:
    """A migrated PostgreSQL database with empty tables."""
    database = _postgresql.fresh()
    yield database
    database.dispose()


@pytest.fixture
def unmigrated_postgresql(_unmigrated_postgresql: databases.PostgreSQL) -> Iterator[databases.Database]:
    """A PostgreSQL database with nothing in it."""
    database = _unmigrated_postgresql.fresh()
    yield database
    database.dispose()


@pytest.fixture
def sqlite(_sqlite: databases.SQLite, tmp_path: Path) -> Iterator[databases.Database]:
    """A migrated SQLite file with empty tables."""
    database = _sqlite.fresh(tmp_path)
    yield database
    database.dispose()


@pytest.fixture
def unmigrated_sqlite(tmp_path: Path) -> Iterator[databases.Database]:
    """The URL of a SQLite file that is not there yet."""
    (tmp_path / "unmigrated").mkdir()
    database = databases.SQLite(tmp_path, None).fresh(tmp_path / "unmigrated")
    yield database
    database.dispose()


@pytest.fixture(params=_KINDS)
def database(request: pytest.FixtureRequest) -> databases.Database:
    """Each database in turn, migrated, with empty tables."""
    found: databases.Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=_KINDS)
def unmigrated(request: pytest.FixtureRequest) -> databases.Database:
    """Each database in turn, with no table of ours."""
    found: databases.Database = request.getfixturevalue(f"unmigrated_{request.param}")
    return found


# --- configurations and their invariant -------------------------------------------------------------


@pytest.fixture(autouse=True)
def _configs(request: pytest.FixtureRequest) -> Iterator[folding.Configs]:
    """At the end of every test that has an execution, its input log folds to its stored position."""
    configs = folding.Configs()
    yield configs
    marker = request.node.get_closest_marker("no_fold")
    if marker is None:
        configs.fold()
    else:
        assert marker.args or marker.kwargs.get("reason"), "no_fold wants a reason"


@pytest.fixture
def make_config(_configs: folding.Configs) -> folding.Configs:
    """`make_config(database, **kw)`: a `Config` whose executions are folded at the end of the test."""
    return _configs


@pytest.fixture
def children() -> Iterator[processes.Children]:
    """Child processes; whatever still runs at the end of the test is killed."""
    started = processes.Children()
    yield started
    started.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was counted on the way: points killed at, races run, statements seen on the wire."""
    told = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name in COUNTED
    ]
    if told:
        terminalreporter.section("counted")
        for line in told:
            terminalreporter.write_line(line)
