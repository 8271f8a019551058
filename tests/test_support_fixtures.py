"""The fixtures on the real tables: migrated, empty, and every input log folded at the end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

import statifier_router as sr
from statifier_router import migrations
from statifier_router.interpreters import function
from tests.support import databases
from tests.support.databases import Database
from tests.support.folding import Configs

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def _counter() -> sr.Chart:
    return function.chart(
        "counter",
        create=lambda data, now: sr.Step({"count": 0}),
        step=lambda position, event, now: sr.Step({"count": position["count"] + 1}),
    )


def _deliver(config: sr.Config, message_id: str) -> sr.Outcome:
    plan = sr.Plan("scans", "parcel")
    envelope = sr.Envelope(sr.Event("scan"), message_id, "tenant", NOW)
    return sr.deliver_event(config, plan, "parcel-1", envelope)


def _charts() -> sr.ChartRegistry:
    charts = sr.ChartRegistry()
    charts.publish("parcel", _counter())
    return charts


def _config(make_config: Configs, database: Database) -> sr.Config:
    config: sr.Config = make_config(database, charts=_charts())
    return config


@pytest.mark.parametrize("round_", [1, 2])
def test_a_database_is_migrated_and_empty(database: Database, make_config: Configs, round_: int) -> None:
    """Each test finds the newest tables, no rows, and identities that begin at 1."""
    config = _config(make_config, database)
    with config.engine.connect() as connection:
        assert migrations.current(connection) == migrations.LATEST
    assert isinstance(_deliver(config, "m1"), sr.CreatedAndDelivered)
    assert [row.id for row in sr.ledger.rows(config)] == [1]


def test_a_database_can_be_cleared_within_a_test(database: Database, make_config: Configs) -> None:
    """The examples of a property test begin with empty tables each."""
    config = _config(make_config, database)
    for _ in range(3):
        assert isinstance(_deliver(config, "m1"), sr.CreatedAndDelivered)
        assert isinstance(_deliver(config, "m1"), sr.Duplicate)
        database.clear()


def test_each_log_is_folded(database: Database, make_config: Configs) -> None:
    """The fold visits every execution that still has a position."""
    config = _config(make_config, database)
    assert make_config.fold() == 0
    _deliver(config, "m1")
    _deliver(config, "m2")
    assert make_config.fold() == 1


def test_a_relative_path_is_found_again(
    unmigrated_sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration made in another directory is folded on the file that it meant there."""
    configs = Configs()
    monkeypatch.chdir(tmp_path)
    databases.migrate("sqlite:///here.db")
    config = configs(unmigrated_sqlite, engine=sr.create_engine("sqlite:///here.db"), charts=_charts())
    _deliver(config, "m1")
    config.engine.dispose()
    monkeypatch.chdir("/")
    assert configs.fold() == 1


@pytest.mark.no_fold("the position is damaged, to see that the fold notices")
def test_a_damaged_position_is_noticed(database: Database, make_config: Configs) -> None:
    """A position that is not what the log folds to fails the test that left it."""
    config = _config(make_config, database)
    _deliver(config, "m1")
    with config.engine.begin() as connection:
        connection.execute(text("UPDATE statifier_router_executions SET position = '{\"count\": 7}'"))
    with pytest.raises(AssertionError, match="does not fold"):
        make_config.fold()


def test_an_unmigrated_database_is_refused(unmigrated: Database, make_config: Configs) -> None:
    """Without tables a door raises `SchemaError`."""
    with pytest.raises(sr.SchemaError):
        _deliver(_config(make_config, unmigrated), "m1")


def test_a_clean_delivery_rolls_nothing_back(postgresql: Database, make_config: Configs) -> None:
    """The counters and the log of the server tell a clean delivery from a faulty one."""
    config = _config(make_config, postgresql)
    _deliver(config, "m1")
    before = postgresql.counters()
    _deliver(config, "m2")
    after = postgresql.counters() - before
    assert after.deadlocks == 0
    assert postgresql.logged_errors() == []
