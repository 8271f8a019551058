"""`Config`: what it refuses, when it is made, before anything connects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import pytest
from sqlalchemy import create_engine as plain_engine
from sqlalchemy import event as sa_event
from sqlalchemy.pool import QueuePool

import statifier_router
from statifier_router import (
    BindingError,
    ChartRegistry,
    Config,
    ConfigError,
    CreatedAndDelivered,
    RouterError,
    SQLExecutor,
    Tables,
    create_engine,
    migrations,
    prepare_engine,
    route,
)
from tests.support.charts import NOW, message, obedient, registry, scans

CHARTS = registry(parcel=obedient())


@pytest.fixture
def engine(tmp_path):
    """A prepared engine whose database nobody has made."""
    made = create_engine(f"sqlite:///{tmp_path / 'absent' / 'never.db'}")
    yield made
    made.dispose()


def refused(field, engine, **arguments):
    """The error for these arguments; one line, naming the field."""
    with pytest.raises(ConfigError) as raised:
        Config(engine, **({"charts": CHARTS} | arguments))
    said = str(raised.value)
    assert field in said
    assert "\n" not in said
    return said


# --- it never connects ------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "postgresql://nobody@nowhere.invalid/none"])
def test_it_never_connects(url):
    """A configuration of a database that is not there is made all the same."""
    made = create_engine(url)
    opened = []
    sa_event.listen(made, "do_connect", lambda *_: opened.append(1))
    config = Config(made, charts=CHARTS, bindings=[scans()])
    assert config.engine is made
    assert opened == []


# --- the engine -------------------------------------------------------------------------------------


def test_an_engine_that_was_not_prepared(database):
    """Any engine must be prepared: else one line that says how, and nothing is connected."""
    engine = database.bare_engine()
    said = refused("engine", engine)
    assert "prepare_engine" in said
    assert "create_engine" in said


def test_an_engine_that_was_prepared(database):
    """A host's own engine is made ready in place, before or after its first connection."""
    engine = database.bare_engine()
    with engine.connect():
        pass
    assert prepare_engine(engine) is engine
    assert prepare_engine(engine) is engine
    config = Config(engine, charts=CHARTS, bindings=[scans()])
    assert isinstance(route(config, message())[0], CreatedAndDelivered)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_mark_sits_on_the_pool(database, when):
    """`execution_options` makes another engine over the same pool, which is prepared as well; so is the
    engine after `dispose`.
    """
    engine = database.bare_engine()
    if when == "after":
        other = engine.execution_options(stream_results=False)
        prepare_engine(engine)
    else:
        prepare_engine(engine)
        other = engine.execution_options(stream_results=False)
    Config(other, charts=CHARTS)
    engine.dispose()
    config = Config(other, charts=CHARTS, bindings=[scans()])
    assert route(config, message())[0].recorded == "created_and_delivered"
    engine.dispose()


@pytest.mark.parametrize("value", [None, "sqlite:///x.db", object(), 7])
def test_what_is_no_engine(value):
    """Anything but an engine is refused, naming its type."""
    assert type(value).__name__ in refused("engine", value)


def test_a_connection_is_no_engine(sqlite):
    """Nor is a connection."""
    with sqlite.engine().connect() as connection:
        refused("engine", connection)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:x?mode=memory&cache=shared&uri=true",
    ],
)
def test_sqlite_in_memory(url):
    """SQLite in memory is refused: one database a thread, and no write-ahead log."""
    for make in (create_engine, lambda url: prepare_engine(plain_engine(url, poolclass=QueuePool))):
        with pytest.raises(ConfigError, match="memory") as raised:
            make(url)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("url", ["mysql://u@h/d", "oracle://u@h/d", "mssql://u@h/d"])
def test_another_database(url):
    """Only PostgreSQL and SQLite are known."""
    with pytest.raises(ConfigError, match="PostgreSQL or SQLite"):
        create_engine(url)


@pytest.mark.parametrize("url", ["", "not a url", None, 7, "postgresql://secret:password@host:port/d"])
def test_what_is_no_url(url):
    """What is no URL is refused without repeating it: it may hold a password."""
    with pytest.raises(ConfigError, match="url") as raised:
        create_engine(url)
    assert "password@" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_plain_postgresql_url():
    """`postgresql://` means the driver psycopg; another driver is refused by name."""
    assert create_engine("postgresql://u@h/d").dialect.driver == "psycopg"
    with pytest.raises(ConfigError, match="psycopg"):
        create_engine("postgresql+psycopg2://u@h/d")


# --- charts -----------------------------------------------------------------------------------------


def _resolver(scope, document):
    return obedient()


def _chart_resolver(content_hash):
    return obedient()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"charts": None}, "charts"),
        ({"charts": None, "resolver": _resolver}, "chart_resolver"),
        ({"charts": None, "chart_resolver": _chart_resolver}, "resolver"),
        ({"resolver": _resolver, "chart_resolver": _chart_resolver}, "charts"),
        ({"resolver": _resolver}, "charts"),
        ({"charts": None, "resolver": "x", "chart_resolver": _chart_resolver}, "resolver"),
        ({"charts": None, "resolver": _resolver, "chart_resolver": {}}, "chart_resolver"),
        ({"charts": object()}, "resolve"),
        ({"charts": {"parcel": obedient()}}, "resolve"),
    ],
)
def test_charts(engine, arguments, field):
    """One object, or the two callables in its place; one of the two alone, neither, or both ways is
    refused.
    """
    refused(field, engine, **arguments)


def test_charts_by_two_callables(engine):
    """The two callables are a chart source."""
    config = Config(engine, resolver=_resolver, chart_resolver=_chart_resolver)
    assert config.charts is None


# --- bindings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("scans", "str"),
        (None, "NoneType"),
        ({"scans": scans()}, "dict"),
        ([scans(), 7], "int"),
        ([scans(), scans(source="other")], "'scans'"),
        ({scans()}, "set"),
    ],
)
def test_bindings(engine, value, word):
    """A sequence of bindings with distinct ids."""
    assert word in refused("bindings", engine, bindings=value)


def test_bindings_are_kept_as_they_were(engine):
    """A list that its owner changes later changes no configuration."""
    given = [scans()]
    config = Config(engine, charts=CHARTS, bindings=given)
    given.append(scans(id="more"))
    assert [each.id for each in config.bindings] == ["scans"]


def test_bindings_and_a_resolver(engine):
    """A list and a resolver exclude each other; an empty list is none."""
    refused("bindings_resolver", engine, bindings=[scans()], bindings_resolver=lambda scope: [])
    assert Config(engine, charts=CHARTS, bindings=[], bindings_resolver=lambda scope: []).bindings == ()


# --- everything else --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bindings_resolver", "x"),
        ("executor", object()),
        ("executor", SQLExecutor.fetch),
        ("routes", ["x"]),
        ("route_overrides", "x"),
        ("tables", "statifier_"),
        ("tables", None),
        ("lock_timeout", 5),
        ("lock_timeout", True),
        ("lock_timeout", None),
        ("lock_timeout", timedelta(0)),
        ("lock_timeout", -timedelta(seconds=1)),
        ("lock_timeout", timedelta(days=25)),
        ("retries", -1),
        ("retries", True),
        ("retries", 1.5),
        ("retries", None),
        ("on_chart_error", "ignore"),
        ("on_chart_error", None),
        ("record_unrouted", 1),
        ("record_unrouted", None),
        ("pipeline", "yes"),
        ("clock", NOW),
        ("mint_execution_id", "ex_1"),
        ("around_delivery", True),
    ],
)
def test_other_fields(engine, name, value):
    """A bad value is a `ConfigError` naming its field."""
    refused(name, engine, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("routes", ["bank"], "mapping"),
        ("routes", {"": print}, "empty"),
        ("routes", {"b" * 129: print}, "129"),
        ("routes", {7: print}, "int"),
        ("routes", {"bank": "a url"}, "bank"),
        ("routes", {"bank": None}, "bank"),
        ("routes", {"execution": print}, "execution"),
        ("route_overrides", {"acme": {"bank": print}}, "routes does not have"),
        ("route_overrides", {"acme": ["bank"]}, "mapping"),
        ("route_overrides", ["acme"], "mapping"),
        ("send_type", 7, "int"),
        ("send_type", "", "empty"),
        ("on_complete", "bank", "routes does not have"),
    ],
)
def test_faulty_sends(engine, name, value, word):
    """Where sends go is judged with the configuration: a scope may have another instance of a route,
    never a route of its own, and the completion hook is one of the routes.
    """
    assert word in refused(name, engine, **{name: value})


def test_routes_that_are_taken(engine):
    """A callable, or anything with a method `hand_off`, is a route; an override replaces one of them."""

    class Bank:
        def hand_off(self, event, key, context):
            """Nothing."""

    config = Config(
        engine,
        charts=CHARTS,
        routes={"bank": Bank(), "notices": print},
        route_overrides={"acme": {"bank": print}},
        send_type="http",
        on_complete="notices",
    )
    assert sorted(config.routes) == ["bank", "notices"]
    with pytest.raises(TypeError):
        config.routes["other"] = print


def test_an_argument_nobody_knows(engine):
    """An unknown argument is the language's own error."""
    with pytest.raises(TypeError, match="lock_time"):
        Config(engine, charts=CHARTS, lock_time=timedelta(seconds=1))


def test_it_is_frozen(engine):
    """A configuration never changes; `attrs.evolve` makes another, checked again."""
    config = Config(engine, charts=CHARTS)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.retries = 1
    assert attrs.evolve(config, retries=0).retries == 0
    with pytest.raises(ConfigError, match="retries"):
        attrs.evolve(config, retries=-1)


def test_the_defaults(engine):
    """What the specification gives as defaults."""
    config = Config(engine, charts=ChartRegistry())
    assert config.tables == Tables(prefix="statifier_router_", schema=None)
    assert config.lock_timeout == timedelta(seconds=5)
    assert (config.retries, config.on_chart_error) == (5, "commit")
    assert (config.record_unrouted, config.pipeline) == (True, False)


def test_errors_are_one_family():
    """Everything raised on purpose is a `RouterError`; a binding's error is a configuration's."""
    assert issubclass(BindingError, ConfigError)
    assert issubclass(ConfigError, RouterError)


# --- the clock --------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [NOW.replace(tzinfo=None), "2026", None, 1.0])
def test_a_clock_that_tells_no_instant(engine, answer):
    """A clock answers an aware datetime; anything else is refused by name when it is asked."""
    config = Config(engine, charts=CHARTS, clock=lambda: answer)
    with pytest.raises(ConfigError, match="clock"):
        config.now()


def test_a_clock_in_another_zone(engine):
    """Its instant is converted to UTC."""
    from datetime import timezone

    there = NOW.astimezone(timezone(timedelta(hours=9, minutes=30)))
    assert Config(engine, charts=CHARTS, clock=lambda: there).now() == NOW
    assert Config(engine, charts=CHARTS, clock=lambda: there).now().tzinfo == UTC


def test_the_systems_clock(engine):
    """Without a clock it is the system's, in UTC."""
    assert isinstance(Config(engine, charts=CHARTS).now(), datetime)
    assert Config(engine, charts=CHARTS).now().utcoffset() == timedelta(0)


# --- tables under other names -----------------------------------------------------------------------


def test_two_prefixes_side_by_side(database, make_config):
    """Two configurations under two prefixes share a database and nothing else."""
    engine = database.engine()
    other = Tables(prefix="other_")
    with engine.begin() as connection:
        migrations.up(connection, tables=other)
    one = make_config(database, engine=engine, charts=CHARTS, bindings=[scans()])
    two = make_config(database, engine=engine, charts=CHARTS, bindings=[scans()], tables=other)
    assert route(one, message())[0].recorded == "created_and_delivered"
    assert route(two, message())[0].recorded == "created_and_delivered"
    assert route(two, message())[0].recorded == "duplicate"
    assert len(statifier_router.ledger.rows(one)) == 1
    assert len(statifier_router.ledger.rows(two)) == 2


def test_a_schema_of_its_own(postgresql, make_config):
    """The tables may stand in another schema; a transaction's search path makes no difference."""
    engine = postgresql.engine()
    tables = Tables(prefix="", schema="events")
    with engine.begin() as connection:
        migrations.up(connection, tables=tables)
    config = make_config(postgresql, engine=engine, charts=CHARTS, bindings=[scans()], tables=tables)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL search_path = pg_catalog")
        told = [route(config, message(id), connection=connection)[0].recorded for id in ("m-1", "m-2", "m-1")]
    assert told == ["created_and_delivered", "delivered", "duplicate"]
    assert len(statifier_router.ledger.rows(config)) == 3
