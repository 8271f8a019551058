"""What runs are fed with, under asyncio."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from statifier_router import ConfigError, Plan, RecordRoute, aio
from statifier_router.aio import runs
from statifier_router.runs import Changes, bracket, record_change
from tests.support.awaiting import beside, check_nothing_left
from tests.support.charts import envelope, registry
from tests.support.told import to, told


@pytest.fixture
def twin(database, make_config):
    """The configuration whose runs read what is written here."""
    return make_config(
        database,
        charts=registry(a=told("a")),
        routes={"records": RecordRoute("parcel", record_id="parcel")},
    )


def offered(config):
    """The records and their data."""
    with bracket.reading(config) as connection:
        return [(each.source_id, each.payload) for each in Changes("parcel").scan(connection, None, 99)]


def awaited(twin, database, work, **changes):
    async def main():
        async with beside(twin, database, pool_size=1, max_overflow=0) as config:
            await work(attrs.evolve(config, **changes))
            check_nothing_left(config, database)

    asyncio.run(main())


def test_changes_are_recorded(twin, database):
    """In a transaction of its own, or in one that was lent, with whose commit they are there."""

    async def work(config):
        await runs.record_change(config, "parcel", "P1", {"n": 1})
        async with config.engine.connect() as connection:
            await runs.record_change(config, "parcel", "P2", {"n": 2}, connection=connection)
            await connection.rollback()
            await runs.record_change(config, "parcel", "P3", {"n": 3}, connection=connection)
            await connection.commit()
        with pytest.raises(ConfigError, match="source_id must not be empty"):
            await runs.record_change(config, "parcel", "", None)

    awaited(twin, database, work)
    assert offered(twin) == [("P1", {"n": 1}), ("P3", {"n": 3})]


def test_a_step_records(twin, database):
    """`RecordRoute` does what it does over a plain engine."""

    async def work(config):
        sent = envelope("go", "e-1", data={"effects": [to("records", "parcel", {"parcel": "P1", "n": 1})]})
        await aio.deliver_event(config, Plan("jobs", "a"), "K1", sent)

    awaited(twin, database, work)
    assert offered(twin) == [("P1", {"parcel": "P1", "n": 1})]


def test_a_route_records(twin, database):
    """A plain call inside a step joins its transaction."""
    held = []

    def own(event, key, context):
        record_change(held[0], "parcel", "P1", event.data)

    async def work(config):
        held.append(config)
        sent = envelope("go", "e-1", data={"effects": [to("own", "parcel", {"n": 1})]})
        await aio.deliver_event(config, Plan("jobs", "a"), "K1", sent)

    awaited(twin, database, work, routes={"own": own})
    assert offered(twin) == [("P1", {"n": 1})]


def test_the_plain_function_wants_a_plain_engine(twin, database):
    """Nobody would await its statements; and the other way round."""

    async def work(config):
        with pytest.raises(ConfigError, match=r"in statifier_router\.aio"):
            record_change(config, "parcel", "P1", None)
        with pytest.raises(ConfigError, match="engine is a plain Engine"):
            await runs.record_change(twin, "parcel", "P1", None)

    awaited(twin, database, work)
    assert offered(twin) == []
