"""`statifier_router.aio`: the plain doors' own bodies, awaited."""

import asyncio
import inspect
import os
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import attrs
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.util import greenlet_spawn

import statifier_router
from statifier_router import (
    ChartRegistry,
    ChartStore,
    Config,
    ConfigError,
    DatabaseFault,
    ExecutionBusy,
    Plan,
    ReentrantStep,
    SchemaError,
    StepFailed,
    Unresolved,
    UnresolvedDocument,
    aio,
    ambient,
    deliver_event,
    dialect,
    executions,
    route,
)
from statifier_router.aio import bridge
from statifier_router.dialect import bridging, engines
from tests.support import charts
from tests.support.awaiting import an_engine, beside, check_nothing_left, turns, url_of
from tests.support.databases import migrate
from tests.support.proxy import Proxy
from tests.support.racing import MOMENT, disposing
from tests.support.rows import everything, written

SCANS = charts.scans()
JOBS = Plan("jobs", "parcel")
MODULES = ("addresses", "claims", "deferrals", "executions", "ledger", "migrations", "timers")
DOORS = ("route", "deliver", "deliver_event", "route_many", "deliver_many")


@pytest.fixture
def relay():
    return charts.Calling("relay")


@pytest.fixture
def twin(database, make_config, relay):
    """The configuration of the plain doors that stands beside the asynchronous one."""
    return make_config(
        database, charts=charts.registry(parcel=charts.obedient(), relay=relay), bindings=[SCANS]
    )


@pytest.fixture
def awaited(twin, database):
    """`awaited(work, **engine)`: run `work(config)` over an engine with one connection."""

    def run(work, *, pool_size=1, **changes):
        async def main():
            async with beside(twin, database, pool_size=pool_size, max_overflow=0) as config:
                answer = await work(attrs.evolve(config, **changes))
                check_nothing_left(config, database)
                return answer

        return asyncio.run(main())

    return run


def first(config, key="P7", **kw):
    return aio.deliver(config, SCANS, key, charts.delivery(f"m-1 {key}"), **kw)


def relayed(config, **kw):
    return aio.deliver(config, charts.scans(document="relay"), "P1", charts.delivery("m-2"), **kw)


# --- what there is ----------------------------------------------------------------------------------


def test_every_function_is_there():
    """Whatever the plain doors and modules have for a user, `aio` has as a coroutine of the same shape."""
    pairs = {
        name: (getattr(statifier_router, name), getattr(aio, name))
        for name in DOORS
        if hasattr(statifier_router, name)
    }
    for name in MODULES:
        module = getattr(statifier_router, name)
        for each in module.__all__:
            if inspect.isfunction(getattr(module, each)):
                pairs[f"{name}.{each}"] = (getattr(module, each), getattr(getattr(aio, name), each))
    assert len(pairs) > 20
    for name, (plain, awaited) in pairs.items():
        assert inspect.iscoroutinefunction(awaited), name
        assert list(inspect.signature(awaited).parameters) == list(inspect.signature(plain).parameters), name
        assert awaited.__doc__, name
        assert ">>>" not in awaited.__doc__, name


@pytest.mark.parametrize("absent", ["greenlet", "aiosqlite"])
def test_without_the_extra(absent, tmp_path):
    """What is missing is named with the extra that brings it; the plain doors need none of it."""
    program = f"""
import sys
sys.modules[{absent!r}] = None
from statifier_router import ChartRegistry, Config, MissingExtra, create_engine, ledger, migrations
engine = create_engine("sqlite:///plain.db")
with engine.begin() as connection:
    migrations.up(connection)
assert ledger.rows(Config(engine, charts=ChartRegistry())) == []
try:
    from statifier_router import aio
    aio.create_engine("postgresql://host/name")
    aio.create_engine("sqlite:///plain.db")
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("needs the extra 'asyncio': pip install 'statifier-router[asyncio]'")


# --- engines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///parcels.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:///parcels.db", "sqlite+aiosqlite"),
        ("postgresql://host/name", "postgresql+psycopg"),
        ("postgresql+psycopg://host/name", "postgresql+psycopg"),
        ("postgresql+psycopg_async://host/name", "postgresql+psycopg_async"),
    ],
)
def test_an_engine_is_made_of_any_url_of_ours(url, driver):
    """The driver is chosen where the URL leaves it open."""
    engine = aio.create_engine(url)
    assert engine.url.drivername == driver
    assert engine.dialect.is_async
    assert dialect.is_prepared(engine.sync_engine)
    assert aio.prepare_engine(engine) is engine


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite+pysqlite:///parcels.db", "url must use the driver sqlite+aiosqlite"),
        ("postgresql+asyncpg://host/name", "url must use the driver postgresql+psycopg"),
        ("mysql+aiomysql://host/name", "url must be one to PostgreSQL or SQLite"),
        ("sqlite+aiosqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("no url", "url is not a database URL"),
    ],
)
def test_other_urls_are_refused(url, words):
    """As by the plain `create_engine`, before anything is connected to."""
    with pytest.raises(ConfigError) as caught:
        aio.create_engine(url)
    assert words in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite+aiosqlite:///parcels.db", "postgresql+psycopg_async://host/name"])
def test_the_plain_door_refuses_an_asynchronous_url(url):
    """It would make an engine that nobody can work."""
    with pytest.raises(ConfigError, match=r"asynchronous: statifier_router\.aio"):
        statifier_router.create_engine(url)


def test_engines_are_not_confused(database):
    """Each door takes its own kind, each message says which one was meant."""
    plain, bare = database.engine(), create_async_engine(url_of(database))
    with pytest.raises(ConfigError, match=r"engine was not prepared: make it with statifier_router\.aio\."):
        Config(bare, charts=ChartRegistry())
    with pytest.raises(ConfigError, match="engine must be an AsyncEngine, not Engine"):
        aio.prepare_engine(plain)
    with pytest.raises(ConfigError, match="engine is the one behind an AsyncEngine"):
        statifier_router.prepare_engine(bare.sync_engine)
    assert aio.prepare_engine(bare) is bare
    assert Config(bare, charts=ChartRegistry()).engine is bare
    with pytest.raises(ConfigError, match="hand over the AsyncEngine itself"):
        Config(bare.sync_engine, charts=ChartRegistry())
    with pytest.raises(ConfigError, match="engine must be a SQLAlchemy Engine, not str"):
        Config("sqlite:///parcels.db", charts=ChartRegistry())


def test_each_door_refuses_the_others_configuration(database, twin):
    """Before anything is sent: an AsyncEngine is for coroutines, and a plain one would block the loop."""

    async def main():
        with pytest.raises(ConfigError, match="engine is a plain Engine"):
            await aio.route(twin, charts.message())
        with pytest.raises(ConfigError, match="engine is a plain Engine"):
            await aio.executions.fetch(twin, "ex_1")
        async with beside(twin, database) as config:
            for call in (
                lambda: route(config, charts.message()),
                lambda: executions.fetch(config, "ex_1"),
                lambda: executions.cancel(config, "ex_1"),
                lambda: statifier_router.ledger.rows(config=config),
            ):
                with pytest.raises(ConfigError, match=r"in statifier_router\.aio"):
                    call()
            with pytest.raises(ConfigError, match=r"in statifier_router\.aio"):
                await asyncio.to_thread(route, config, charts.message())
            with pytest.raises(ConfigError, match="config must be a Config"):
                await aio.route("config", charts.message())

    asyncio.run(main())


def test_the_command_line_wants_a_plain_engine(tmp_path, monkeypatch):
    """It says so, in one line."""
    from statifier_router.cli.loading import load

    (tmp_path / "awaited_config.py").write_text(
        "from statifier_router import ChartRegistry, Config, aio\n"
        "config = Config(aio.create_engine('sqlite:///parcels.db'), charts=ChartRegistry())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="--config awaited_config:config: its engine is an AsyncEngine"):
        load("awaited_config:config")


@pytest.mark.parametrize("name", ["clock", "mint_execution_id", "around_delivery", "bindings_resolver"])
def test_the_callables_of_a_configuration_are_plain(database, name):
    """Nobody would await what a coroutine function answers."""

    async def asked(*arguments):
        pass

    with pytest.raises(ConfigError, match=f"{name} must be a plain function"):
        Config(database.engine(), charts=ChartRegistry(), **{name: asked})


def test_charts_are_asked_plainly(database):
    """So are the two resolvers, and the methods of a chart source."""

    async def asked(*arguments):
        pass

    class Awaited:
        resolve = by_hash = asked

    engine = database.engine()
    for arguments in (
        {"resolver": asked, "chart_resolver": print},
        {"resolver": print, "chart_resolver": asked},
        {"charts": Awaited()},
    ):
        with pytest.raises(ConfigError, match="must be a plain function"):
            Config(engine, **arguments)


def test_sqlite_connections_are_made_ready(sqlite):
    """WAL, foreign keys, a bounded wait; transactions begin IMMEDIATE, our own readers deferred."""

    async def main():
        async with an_engine(sqlite) as engine:
            sent = []
            async with engine.connect() as connection:
                driver = (await connection.get_raw_connection()).driver_connection
                await driver.set_trace_callback(sent.append)
                pragmas = [
                    (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
                    for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
                ]
                assert driver.in_transaction
            config = Config(engine, charts=ChartRegistry())
            assert await aio.ledger.rows(config) == []
            return pragmas, [each for each in sent if each.startswith("BEGIN")]

    assert asyncio.run(main()) == (["wal", 1, 1, 5000], ["BEGIN IMMEDIATE", "BEGIN"])


@pytest.mark.parametrize("told", [False, True])
def test_a_connection_that_was_told_autocommit(told):
    """Python 3.12's setting can only be made at connect: told False a transaction is always open, told True
    nothing rolls back.
    """

    class Told:
        in_transaction = told is False
        driver_connection = property(lambda self: self)

        def execute(self, sql):
            self.in_transaction = True

        def rollback(self):
            pass

    with pytest.raises(ConfigError, match="autocommit"):
        engines._check_taken_over(Told())


def test_connections_that_the_pool_had_already(sqlite):
    """An engine that was used before it was prepared keeps no connection that was not."""

    async def main():
        engine = create_async_engine(url_of(sqlite))
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        config = Config(aio.prepare_engine(engine), charts=charts.registry(parcel=charts.obedient()))
        try:
            async with engine.connect() as connection:
                assert (await connection.execute(text("PRAGMA foreign_keys"))).scalar_one() == 1
            return (await first(config)).recorded
        finally:
            await engine.dispose()

    assert asyncio.run(main()) == "created_and_delivered"


# --- transactions -----------------------------------------------------------------------------------


def test_a_delivery_of_its_own(awaited, twin):
    """It opens, commits, and hands its connection back."""

    async def work(config):
        with written(twin) as wrote:
            outcome = await first(config)
        return outcome.recorded, wrote.summary()

    assert awaited(work) == (
        "created_and_delivered",
        "+claims +addresses +executions +inputs +inputs +ledger",
    )


@pytest.mark.parametrize("lender", ["connection", "session", "scoped session"])
def test_a_lent_transaction(awaited, twin, lender):
    """Whatever asynchronous face it has: the caller commits, and a fault undoes the delivery alone."""

    async def work(config):
        sessions = async_sessionmaker(config.engine)
        scoped = async_scoped_session(sessions, scopefunc=asyncio.current_task)
        lent = {"connection": config.engine.connect, "session": sessions, "scoped session": scoped}[lender]()
        given = scoped if lender == "scoped session" else lent
        async with lent:
            assert (await first(config, connection=given)).recorded == "created_and_delivered"
            assert everything(twin).empty
            await lent.rollback()
            assert (await first(config, connection=given)).recorded == "created_and_delivered"
            with pytest.raises(UnresolvedDocument):
                await first(attrs.evolve(config, charts=ChartRegistry()), "P8", connection=given)
            assert len(await aio.ledger.rows(config, connection=given)) == 1
            assert everything(twin).empty
            await lent.commit()
        await scoped.remove()

    awaited(work)
    assert everything(twin).counts() == {
        "claims": 1,
        "addresses": 1,
        "executions": 1,
        "inputs": 2,
        "ledger": 1,
    }


def test_what_cannot_be_lent(awaited, twin):
    """A plain connection would block the loop; one that is not open has no transaction."""

    async def work(config):
        unopened = config.engine.connect()
        with pytest.raises(ConfigError, match="connection is not open"):
            await first(config, connection=unopened)
        no_plain_one = pytest.raises(ConfigError, match="or AsyncSession, not a plain Connection")
        with twin.engine.connect() as plain, no_plain_one:
            await first(config, connection=plain)
        with pytest.raises(ConfigError, match="AsyncConnection or AsyncSession, not str"):
            await first(config, connection="connection")
        async with config.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(ConfigError, match="autocommit"):
                await first(config, connection=connection)

    awaited(work)
    assert everything(twin).empty


def test_a_plain_door_inside_run_sync(awaited, twin):
    """A host's own function across the bridge calls the plain doors, lent connection or none."""

    async def work(config):
        def ours(connection):
            (outcome,) = route(config, charts.message(), connection=connection)
            return outcome.recorded

        async with config.engine.begin() as connection:
            assert await connection.run_sync(ours) == "created_and_delivered"
            assert everything(twin).empty

    awaited(work)
    assert everything(twin).counts()["executions"] == 1


def test_a_step_joins_with_the_plain_doors(awaited, twin, relay):
    """Host code inside a step is plain code: what it calls joins the delivery, on a pool of one."""

    async def work(config):
        def step(position, event, now):
            assert deliver_event(config, JOBS, "P8", charts.envelope()).recorded == "created_and_delivered"
            with pytest.raises(ReentrantStep):
                executions.cancel(
                    config, statifier_router.addresses.find(config, "acme", "relay", "P1").execution_id
                )
            assert everything(twin).empty

        with relay.calling(step):
            assert (await relayed(config)).recorded == "created_and_delivered"

        def fails(position, event, now):
            deliver_event(config, JOBS, "P9", charts.envelope(message_id="e-2"))
            raise ValueError("no")

        with relay.calling(fails), pytest.raises(StepFailed):
            await aio.deliver(config, charts.scans(document="relay"), "P1", charts.delivery("m-3"))

    awaited(work)
    assert sorted(row["key"] for row in everything(twin).addresses) == ["P1", "P8"]


def test_an_awaited_door_inside_a_delivery_joins_it(awaited, twin, relay):
    """Plain code that awaits across the bridge stays in its delivery's task, and so in its transaction."""

    async def work(config):
        def step(position, event, now):
            from sqlalchemy.util import await_

            await_(aio.deliver_event(config, JOBS, "P8", charts.envelope()))
            assert everything(twin).empty

        with relay.calling(step):
            return (await relayed(config)).recorded

    assert awaited(work) == "created_and_delivered"
    assert everything(twin).counts()["executions"] == 2


def test_a_task_that_a_step_started(awaited, twin, relay):
    """It has the step's context and is not in its transaction: it opens its own, and outlives it."""
    started = []

    async def work(config):
        def step(position, event, now):
            started.append(asyncio.get_running_loop().create_task(first(config)))
            raise ValueError("no")

        with relay.calling(step), pytest.raises(StepFailed):
            await relayed(config)
        return (await started[0]).recorded

    assert awaited(work) == "created_and_delivered"
    assert [row["document"] for row in everything(twin).executions] == ["parcel"]


def test_a_task_runs_beside_the_step_that_started_it(awaited, twin, relay):
    """While the delivery is still open, too: it waits its turn on a connection of its own."""
    started = []

    async def work(config):
        def step(position, event, now):
            started.append(asyncio.get_running_loop().create_task(first(config)))
            started.append(asyncio.get_running_loop().create_task(aio.ledger.rows(config)))
            # Statements of the delivery, during which the others get their turn.
            for key in ("P8", "P9"):
                deliver_event(config, JOBS, key, charts.envelope(message_id=f"e {key}"))

        with relay.calling(step):
            outcomes = [await relayed(config), *await asyncio.gather(*started)]
        return [outcomes[0].recorded, outcomes[1].recorded]

    assert awaited(work, pool_size=3) == ["created_and_delivered"] * 2
    assert everything(twin).counts()["executions"] == 4


def test_a_thread_that_a_step_started(awaited, twin, relay):
    """A thread has no loop to wait in: the plain door says so, and writes nothing."""
    said = []

    async def work(config):
        def beside():
            try:
                deliver_event(config, JOBS, "P8", charts.envelope())
            except ConfigError as error:
                said.append(str(error))

        def step(position, event, now):
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join(30)

        with relay.calling(step):
            await relayed(config)

    awaited(work)
    assert len(said) == 1
    assert everything(twin).counts()["executions"] == 1


def test_nothing_is_in_force_afterwards(awaited, relay):
    """Neither for the caller's task nor for another, whether it went well or not."""

    async def work(config):
        seen = []

        def step(position, event, now):
            seen.append(ambient.any_here())

        with relay.calling(step):
            await relayed(config)
        assert seen == [True]
        assert not ambient.any_here()

    awaited(work)


def test_many_tasks_and_one_key(awaited, twin):
    """Twenty at once on three connections: one execution, each told the same id."""

    async def work(config):
        return await asyncio.gather(
            *(aio.deliver(config, SCANS, "P7", charts.delivery(f"m-{n}")) for n in range(20))
        )

    outcomes = awaited(work, pool_size=3)
    assert sorted(each.recorded for each in outcomes) == ["created_and_delivered"] + ["delivered"] * 19
    assert len({each.execution_id for each in outcomes}) == 1
    assert everything(twin).counts()["executions"] == 1


def test_the_loop_runs_on_while_a_delivery_waits(awaited, twin, database):
    """A lock that somebody else holds is awaited, in its bounds, and then told as the plain door does."""
    turned = 0

    async def work(config):
        async def turn():
            nonlocal turned
            while True:
                await turns(1)
                turned += 1

        other = asyncio.create_task(turn())
        with twin.engine.begin() as held:
            statifier_router.deliver(twin, SCANS, "P7", charts.delivery("m-1"), connection=held)
            with pytest.raises(ExecutionBusy):
                await aio.deliver(config, SCANS, "P7", charts.delivery("m-1"))
        other.cancel()
        await asyncio.wait([other])

    awaited(work, lock_timeout=MOMENT)
    assert turned > 10


@pytest.mark.parametrize("call", ["deliver", "route", "in a session"])
def test_one_bridge_a_call(awaited, monkeypatch, call):
    """However many statements a delivery is, the bridge is crossed once."""
    spawned = []

    def spawn(function, *arguments):
        spawned.append(function)
        return greenlet_spawn(function, *arguments)

    async def work(config):
        async with AsyncSession(config.engine) as session:
            await session.connection()
            monkeypatch.setattr(bridge, "greenlet_spawn", spawn)
            if call == "in a session":
                await first(config, connection=session)
            await session.commit()
        if call != "in a session":
            await (first(config) if call == "deliver" else aio.route(config, charts.message()))

    awaited(work)
    assert len(spawned) == 1


def test_it_waits_for_the_server_no_oftener(postgresql, make_config):
    """A delivery takes as many turns of the server as the plain door's, whatever its parameters' numbers."""
    twin = make_config(postgresql, charts=charts.registry(parcel=charts.obedient()))

    def seen_by(proxy):
        return [re.sub(r"\$\d+", "$", statement.sql) for statement in proxy.statements], proxy.turns

    async def main(proxy):
        engine = aio.create_engine(proxy.url, pool_size=1, max_overflow=0)
        config = attrs.evolve(twin, engine=engine)
        await first(config)
        # From here on the connection expects the address.
        await aio.deliver(config, SCANS, "P7", charts.delivery("m-2"))
        proxy.reset()
        await aio.deliver(config, SCANS, "P7", charts.delivery("m-3"))
        seen = seen_by(proxy)
        await engine.dispose()
        return seen

    with Proxy(postgresql.url) as proxy:
        awaited = asyncio.run(main(proxy))
        with disposing(statifier_router.create_engine(proxy.url)) as engine:
            plain = attrs.evolve(twin, engine=engine)
            statifier_router.deliver(plain, SCANS, "P7", charts.delivery("m-4"))
            proxy.reset()
            statifier_router.deliver(plain, SCANS, "P7", charts.delivery("m-5"))
            assert seen_by(proxy) == awaited
    assert awaited[1] == 4


# --- retries ----------------------------------------------------------------------------------------


class Unlucky(charts.Asked):
    """Charts whose first answers end in a serialization failure."""

    def __init__(self, failures):
        super().__init__(parcel=charts.obedient())
        self.failures = [
            OperationalError("SELECT 1", {}, psycopg.errors.SerializationFailure()) for _ in range(failures)
        ]


@pytest.fixture
def slept(monkeypatch):
    """The pauses that were awaited; one that would block is an error."""
    paused = []

    async def sleep(seconds, *rest):
        paused.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(bridging.time, "sleep", lambda seconds: pytest.fail("it blocked the loop"))
    return paused


def test_another_try_is_awaited(awaited, twin, slept):
    """The pauses grow, the loop runs on meanwhile, and the id minted first is kept."""

    async def work(config):
        return (await first(config)).recorded

    assert awaited(work, charts=Unlucky(3)) == "created_and_delivered"
    assert len(slept) == 3
    assert everything(twin).counts()["executions"] == 1


def test_the_last_try(awaited, twin, slept):
    """No more of them than are configured."""

    async def work(config):
        with pytest.raises(DatabaseFault) as caught:
            await first(config)
        return caught.value.sqlstate, caught.value.binding_id

    assert awaited(work, charts=Unlucky(9), retries=2) == ("40001", "scans")
    assert len(slept) == 2
    assert everything(twin).empty


@pytest.mark.parametrize(("verdict", "recorded"), [("cut", "delivered"), ("cut_after", "duplicate")])
def test_the_connection_is_lost_during_commit(postgresql, make_config, slept, verdict, recorded):
    """Whether the server did it or not, the delivery is tried again and steps once."""
    twin = make_config(postgresql, charts=charts.registry(parcel=charts.obedient()))
    cut = []

    def at_commit(n, sql):
        if sql == "COMMIT" and armed and not cut:
            cut.append(n)
            return verdict
        return None

    async def main():
        with Proxy(postgresql.url, at_commit) as proxy:
            engine = aio.create_engine(proxy.url, pool_size=1, max_overflow=0)
            config = attrs.evolve(twin, engine=engine)
            await first(config)
            armed.append(True)
            outcome = await aio.deliver(config, SCANS, "P7", charts.delivery("m-2"))
            await engine.dispose()
            return outcome.recorded

    armed = []
    assert asyncio.run(main()) == recorded
    assert cut
    assert everything(twin).executions[0]["revision"] == 2


# --- the rest of a configuration --------------------------------------------------------------------


def test_around_delivery(awaited):
    """It is a plain function, called once around the whole door, and `work()` is the delivery."""
    calls = []

    def around(scope, door, work):
        calls.append((scope, door, asyncio.current_task() is not None))
        outcome = work()
        calls.append(ambient.any_here())
        return outcome

    async def work(config):
        await aio.route(config, charts.message())
        await first(config)
        await aio.deliver_event(config, JOBS, "P7", charts.envelope())

    awaited(work, around_delivery=around)
    assert calls == [
        ("acme", "route", True),
        False,
        ("acme", "deliver", True),
        False,
        ("acme", "deliver_event", True),
        False,
    ]


SAVED = charts.obedient("saved")


def test_a_chart_store(database, make_config):
    """Over an AsyncEngine it serves deliveries, on their own connection; saving goes over a plain engine."""
    store = ChartStore(database.engine())
    store.save(SAVED, document="parcel")
    twin = make_config(database, charts=store)

    async def main():
        async with beside(twin, database, pool_size=1, max_overflow=0) as config:
            served = ChartStore(config.engine)
            outcome = await first(attrs.evolve(config, charts=served))
            with pytest.raises(ConfigError, match="keep charts with a ChartStore over"):
                served.save(SAVED, document="parcel")
            with pytest.raises(ConfigError, match="keep charts with a ChartStore over"):
                served.resolve("acme", "parcel")
            return outcome.recorded

    assert asyncio.run(main()) == "created_and_delivered"


def test_migrations(unmigrated):
    """Up, down and what stands, in the caller's transaction."""

    async def main():
        async with an_engine(unmigrated) as engine:
            async with engine.begin() as connection:
                with pytest.raises(SchemaError):
                    await aio.migrations.verify(connection)
                assert await aio.migrations.current(connection) == 0
                applied = await aio.migrations.up(connection)
                await connection.rollback()
            async with AsyncSession(engine) as session:
                assert await aio.migrations.current(session) == 0
                await session.rollback()
                assert await aio.migrations.up(session) == applied
                await session.commit()
            async with engine.begin() as connection:
                await aio.migrations.verify(connection)
                assert await aio.migrations.down(connection) == applied[-1:]
        assert applied[-1] == aio.migrations.LATEST

    asyncio.run(main())


def test_absent_tables(unmigrated):
    """A door over a database without tables says how to make them."""

    async def main():
        async with an_engine(unmigrated) as engine:
            config = Config(engine, charts=charts.registry(parcel=charts.obedient()))
            with pytest.raises(SchemaError, match="migrate"):
                await first(config)
            with pytest.raises(SchemaError, match="migrate"):
                await aio.ledger.rows(config)

    asyncio.run(main())
    if unmigrated.kind == "sqlite":
        migrate(unmigrated.url)


def test_an_engine_serves_one_loop_after_another(database, twin):
    """Disposed of in the loop that used it, it works in the next."""
    engine = aio.create_engine(url_of(database))

    async def main(key):
        outcome = await first(attrs.evolve(twin, engine=engine), key)
        await engine.dispose()
        return outcome.recorded

    assert [asyncio.run(main(key)) for key in ("P1", "P2")] == ["created_and_delivered"] * 2


def test_a_resolver_may_ask_the_database(awaited, twin):
    """What a host's plain callable reads, it reads on the delivery's transaction, on a pool of one."""

    class Asking(charts.Asked):
        def resolve(self, scope, document):
            if statifier_router.addresses.find(config, scope, document, "P7") is None:
                raise Unresolved("the address should be there")
            return super().resolve(scope, document)

    async def work(given):
        nonlocal config
        config = attrs.evolve(given, charts=Asking(parcel=charts.obedient()))
        return (await first(config)).recorded

    config = None
    assert awaited(work) == "created_and_delivered"


def test_a_timeout_of_the_callers(awaited, database, twin):
    """`asyncio.timeout` ends a delivery that waits, as the time-out it is."""

    async def work(config):
        with twin.engine.begin() as held:
            statifier_router.deliver(twin, SCANS, "P7", charts.delivery("m-1"), connection=held)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await aio.deliver(config, SCANS, "P7", charts.delivery("m-1"))

    awaited(work, lock_timeout=timedelta(seconds=60))
    assert everything(twin).counts()["executions"] == 1
