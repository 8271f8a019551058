"""Trap 26: a task that is cancelled, wherever it waits, leaves nothing behind."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import psycopg
import pytest
from sqlalchemy import delete
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from statifier_router import Config, Plan, aio, deliver_event
from tests.support import charts
from tests.support.awaiting import (
    beside,
    cancelled_at,
    check_nothing_left,
    others_ended,
    turns,
    url_of,
    waits_of,
)
from tests.support.crashes import dump
from tests.support.proxy import Proxy
from tests.support.racing import WritingPlainly
from tests.support.rows import everything

SCANS = charts.scans()
JOBS = Plan("jobs", "parcel")
RELAY = charts.Calling("relay")

CANCELS = 200


# --- what is cancelled ------------------------------------------------------------------------------


async def first(config):
    return await aio.deliver(config, SCANS, "P7", charts.delivery("m-1"))


async def second(config):
    return await aio.deliver(config, SCANS, "P7", charts.delivery("m-2"))


async def routed(config):
    return await aio.route(config, charts.message("m-2"), now=charts.NOW)


async def job(config):
    return await aio.deliver_event(config, JOBS, "P7", charts.envelope("arrived", "m-2"))


async def many(config):
    """Several in one transaction."""
    items = [(SCANS, key, charts.delivery(f"m {key}")) for key in ("P7", "P8", "P9")]
    return await aio.deliver_many(config, items)


async def nested(config):
    """A delivery within a delivery: the step hands an event to another execution."""

    def relay(position, event, now):
        deliver_event(config, JOBS, "P8", charts.envelope("arrived", "m-3"))

    with RELAY.calling(relay):
        return await aio.deliver(config, charts.scans(document="relay"), "P7", charts.delivery("m-2"))


async def borrowed(config):
    """On a caller's own transaction, which is committed after it."""
    async with config.engine.begin() as connection:
        return await aio.deliver(config, SCANS, "P7", charts.delivery("m-2"), connection=connection)


async def in_a_session(config):
    async with AsyncSession(config.engine) as session, session.begin():
        return await aio.deliver(config, SCANS, "P7", charts.delivery("m-2"), connection=session)


async def nothing(config):
    pass


@attrs.frozen
class Scenario:
    """What is cancelled, and what stands in the database before it."""

    before: Callable[[Config], Awaitable[Any]]
    act: Callable[[Config], Awaitable[Any]]
    # Whether the transaction is the library's own, from begin to end.
    own: bool = True


SCENARIOS = {
    "create": Scenario(nothing, first),
    "existing": Scenario(first, second),
    "duplicate": Scenario(first, first),
    "route": Scenario(first, routed),
    "deliver_event": Scenario(first, job),
    "many": Scenario(first, many),
    "nested": Scenario(nothing, nested),
    "borrowed": Scenario(first, borrowed, own=False),
    "session": Scenario(nothing, in_a_session, own=False),
}


# --- trying -----------------------------------------------------------------------------------------


@attrs.define
class Trial:
    """One scenario on one database. `twin` reads through the plain doors' engine."""

    config: Config
    twin: Config
    database: Any
    scenario: Scenario
    before: Any = None
    once: Any = None
    twice: Any = None
    waits: int = 0

    async def prepare(self):
        with self.twin.engine.begin() as connection:
            for table in self.twin.schema.metadata.sorted_tables:
                if table is not self.twin.schema.schema_version:
                    connection.execute(delete(table))
        await self.scenario.before(self.config)

    async def learn(self):
        """What stands before, after, and after handing over again; and how often the scenario waits."""
        await self.prepare()
        await self.scenario.act(self.config)  # Connections are made, and types are known.
        await self.prepare()
        self.before = dump(self.twin)
        self.waits = await waits_of(lambda: self.scenario.act(self.config))
        self.once = dump(self.twin)
        await self.scenario.act(self.config)
        self.twice = dump(self.twin)

    async def cancel(self, at, **kw):
        """Cancel the scenario at one wait and judge what it left; "nothing", "whole" or "in time"."""
        await self.prepare()
        cancelled = await cancelled_at(at, lambda: self.scenario.act(self.config), **kw)
        if not self.scenario.own:
            await others_ended()
        check_nothing_left(self.config, self.database)
        state = dump(self.twin)
        assert state in (self.before, self.once), at
        whole = state == self.once and self.before != self.once
        await self.scenario.act(self.config)
        assert dump(self.twin) == (self.twice if whole else self.once), at
        if not cancelled:
            assert whole
            return "in time"
        return "whole" if whole else "nothing"


@pytest.fixture
def twin(database, make_config):
    return make_config(
        database, charts=charts.registry(parcel=charts.obedient(), relay=RELAY), bindings=[SCANS]
    )


def on_trial(twin, database, judge, **engine):
    async def main():
        async with beside(twin, database, pool_size=1, max_overflow=0, **engine) as config:
            return await judge(config)

    return asyncio.run(main())


@pytest.mark.parametrize("name", SCENARIOS)
def test_cancelled_at_each_wait(database, twin, name):
    """At every wait: nothing of the delivery remains, or all; handing over again makes it whole."""

    async def judge(config):
        trial = Trial(config, twin, database, SCENARIOS[name])
        await trial.learn()
        assert trial.waits > 3
        return [await trial.cancel(at) for at in range(1, trial.waits + 1)]

    ends = on_trial(twin, database, judge)
    assert "nothing" in ends


@pytest.mark.parametrize("seed", range(10))
def test_random_cancels(database, twin, seed):
    """Two hundred cancels at random waits of random scenarios, some of them insisted on."""

    async def judge(config):
        draw = random.Random(f"cancels {seed}")
        trials = {}
        for _ in range(CANCELS // 10):
            name = draw.choice(list(SCENARIOS))
            if name not in trials:
                trials[name] = Trial(config, twin, database, SCENARIOS[name])
                await trials[name].learn()
            trial = trials[name]
            at, late = draw.randint(1, trial.waits), draw.randrange(4)
            # The end of a caller's own block is SQLAlchemy's, which does not withstand that.
            insisting = draw.random() < 0.5 and trial.scenario.own
            try:
                await trial.cancel(at, turns=late, insisting=insisting)
            except AssertionError as error:
                error.add_note(f"{name}, wait {at} of {trial.waits}, turns {late}, insisting {insisting}")
                raise

    on_trial(twin, database, judge)


# --- while the server is at work --------------------------------------------------------------------


class Canceller:
    """Cancels the task `cancelling` at a statement, before the server sees it; the server then does it."""

    def __init__(self):
        self.statements = []
        self.at = None
        self._cancel = None

    def watch(self, at=None):
        """Forget what came by, and cancel the current task at statement `at` from here."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self.statements, self.at = [], at

        def cancel():
            told = threading.Event()
            loop.call_soon_threadsafe(task.cancel)
            # What the cancelling task does first of all, it has done when this turn comes.
            loop.call_soon_threadsafe(loop.call_soon, told.set)
            assert told.wait(60)

        self._cancel = cancel

    def __call__(self, n, sql):
        self.statements.append(sql)
        if len(self.statements) == self.at:
            self._cancel()


@pytest.mark.parametrize("plan", ["merged", "plain"])
def test_cancelled_while_the_server_is_at_work(postgresql, make_config, plan):
    """At each statement, COMMIT among them, the server hears of the cancel while it has the statement."""
    twin = make_config(
        postgresql,
        charts=charts.registry(parcel=charts.obedient()),
        executor=None if plan == "merged" else WritingPlainly(),
    )
    canceller = Canceller()

    async def main():
        async with beside(twin, postgresql, pool_size=1, max_overflow=0) as straight:
            trial = Trial(straight, twin, postgresql, SCENARIOS["existing"])
            await trial.learn()
            with Proxy(postgresql.url, canceller) as proxy:
                engine = aio.create_engine(proxy.url, pool_size=1, max_overflow=0)
                config = attrs.evolve(twin, engine=engine)
                # Connected, and the server's types known.
                await first(config)
                await trial.prepare()
                canceller.watch()
                await second(config)
                statements = list(canceller.statements)
                whole = []
                for at in range(1, len(statements) + 1):
                    await trial.prepare()
                    await second_cancelled(config, canceller, at)
                    assert engine.pool.checkedout() == 0
                    check_nothing_left(straight, postgresql)
                    state = dump(twin)
                    assert state in (trial.before, trial.once), statements[at - 1]
                    whole.append(state == trial.once)
                    await second(config)
                    assert dump(twin) == (trial.twice if whole[-1] else trial.once)
                await engine.dispose()
        return statements, whole

    async def second_cancelled(config, canceller, at):
        async def held():
            canceller.watch(at)
            await second(config)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(held())

    statements, whole = asyncio.run(main())
    assert statements[-1] == "COMMIT"
    # Before the commit there is never anything of it.
    assert not any(whole[:-1])


def test_cancelled_while_it_waits_for_the_pool(database, twin):
    """Whoever waits for a free connection ends at once, and the connection stays whoever's it is."""

    async def judge(config):
        async with config.engine.connect() as held:
            waiting = asyncio.create_task(first(config))
            await turns(20)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert held.in_transaction() is False
        check_nothing_left(config, database)
        return (await first(config)).recorded

    assert on_trial(twin, database, judge) == "created_and_delivered"


class Unlucky(charts.Asked):
    """Charts whose every answer ends in a serialization failure."""

    def resolve(self, scope, document):
        raise OperationalError("SELECT 1", {}, psycopg.errors.SerializationFailure())


def test_cancelled_while_it_waits_for_another_try(database, twin, monkeypatch):
    """Between two tries nothing is held: no connection, no transaction."""
    paused = []

    async def judge(config):
        async def never(seconds):
            paused.append(seconds)
            assert config.engine.pool.checkedout() == 0
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio, "sleep", never)
        unlucky = attrs.evolve(config, charts=Unlucky())
        waiting = asyncio.create_task(first(unlucky))
        while not paused:
            await turns(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        check_nothing_left(config, database)
        return (await first(config)).recorded

    assert on_trial(twin, database, judge) == "created_and_delivered"


def test_a_loop_that_shuts_down(database, twin):
    """The end of the loop cancels everything at once; what is under way is undone before it ends."""

    async def main():
        engine = aio.create_engine(url_of(database), pool_size=1, max_overflow=0)
        config = attrs.evolve(twin, engine=engine)
        await first(config)
        deliveries = [aio.deliver(config, SCANS, each, charts.delivery(each)) for each in ("P7", "P8", "P9")]
        tasks = [asyncio.create_task(each) for each in deliveries]
        await turns(4)
        return engine, tasks

    with asyncio.Runner() as runner:
        engine, tasks = runner.run(main())
        asyncio.runners._cancel_all_tasks(runner.get_loop())
        assert all(task.done() for task in tasks)
        assert engine.pool.checkedout() == 0
        runner.run(engine.dispose())
    found = everything(twin)
    whole = {row["message_id"] for row in found.claims}
    assert whole < {"m-1", "P7", "P8", "P9"}
    for rows in (found.ledger, [row for row in found.inputs if row["door"] == "deliver"]):
        assert sorted(row["message_id"] for row in rows) == sorted(whole)


def test_cancelled_while_it_is_undone(database, twin):
    """An error is on its way out when the cancel comes: the caller was cancelled, and is told so."""

    class Broken(charts.Asked):
        def resolve(self, scope, document):
            task.cancel()
            raise LookupError("broken, too")

    async def judge(config):
        nonlocal task
        task = asyncio.create_task(first(attrs.evolve(config, charts=Broken())))
        with pytest.raises(asyncio.CancelledError):
            await task
        check_nothing_left(config, database)

    task = None
    on_trial(twin, database, judge)
    assert everything(twin).empty
