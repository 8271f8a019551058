"""Bad input: each a one-line error that names the field, with no row written."""

from __future__ import annotations

import math
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from statifier_router import (
    Binding,
    BindingError,
    ConfigError,
    Dedupe,
    Defer,
    Delivery,
    Envelope,
    Event,
    KeyInvalid,
    Message,
    MessageError,
    MissingExtra,
    Plan,
    RouterError,
    SchemaError,
    Tables,
    addresses,
    claims,
    deliver,
    deliver_event,
    executions,
    ledger,
    migrations,
    route,
)
from tests.support.charts import NOW, delivery, envelope, message, obedient, registry, scans
from tests.support.rows import everything, written

NAIVE = NOW.replace(tzinfo=None)

_TEXTS = {
    "empty": "",
    "NUL": "a\x00b",
    "lone surrogate": "a\ud800b",
    "not text": 7,
    "bytes": b"a",
    "None": None,
}
_NOT_JSON = {
    "set": {1},
    "tuple": (1,),
    "NaN": math.nan,
    "infinity": -math.inf,
    "datetime": NOW,
    "date": date(2026, 1, 1),
    "Decimal": Decimal("1.5"),
    "bytes": b"x",
    "object": object(),
    "lone surrogate": "\ud800",
    "key that is no text": {1: 2},
    "key with a lone surrogate": {"\ud800": 1},
}


def one_line(error):
    """The error's text, which must be one line."""
    said = str(error)
    assert said
    assert "\n" not in said
    return said


@pytest.fixture
def configure(database, make_config):
    """`configure(**kw)`: a configuration on each database."""

    def make(**kw):
        kw.setdefault("bindings", [scans()])
        return make_config(database, charts=registry(parcel=obedient()), **kw)

    return make


# --- values that cannot be built --------------------------------------------------------------------


def _message(**kw):
    given = {"source": "carrier", "message_id": "m-1", "scope": "acme", "data": {}} | kw
    return Message(**given)


def _delivery(**kw):
    return Delivery(**({"message_id": "m-1", "scope": "acme", "now": NOW, "data": {}} | kw))


def _envelope(**kw):
    return Envelope(**({"event": Event("e"), "message_id": "m-1", "scope": "acme", "now": NOW} | kw))


def _event(**kw):
    return Event(**({"name": "e"} | kw))


_TEXT_FIELDS = [
    (_message, "source", 128),
    (_message, "message_id", 255),
    (_message, "scope", 128),
    (_delivery, "message_id", 255),
    (_delivery, "scope", 128),
    (_envelope, "message_id", 255),
    (_envelope, "scope", 128),
    (_event, "name", 128),
    (_event, "origin", 128),
    (_event, "send_id", 255),
]


@pytest.mark.parametrize(("build", "field", "limit"), _TEXT_FIELDS)
@pytest.mark.parametrize("what", [*_TEXTS, "too long", "too long in UTF-8"])
def test_text(build, field, limit, what):
    """Empty text, NUL, lone surrogates, what is no text and what is too long are refused when the value is
    built, naming the field; a scope may be empty, and what is optional may be None.
    """
    bad = {"too long": "x" * (limit + 1), "too long in UTF-8": "é" * (limit // 2 + 1)} | _TEXTS
    allowed = (field == "scope" and what == "empty") or (field in ("origin", "send_id") and what == "None")
    if allowed:
        assert getattr(build(**{field: bad[what]}), field) == bad[what]
        return
    with pytest.raises(MessageError, match=field) as raised:
        build(**{field: bad[what]})
    one_line(raised.value)
    assert getattr(build(**{field: "é" * (limit // 2)}), field)


@pytest.mark.parametrize("build", [_message, _delivery, _event])
@pytest.mark.parametrize("what", _NOT_JSON)
@pytest.mark.parametrize("deep", [True, False])
def test_data_that_is_not_json(build, what, deep):
    """Data that JSON cannot carry unchanged is refused, naming where it stands."""
    data = {"parcel": {"list": [0, _NOT_JSON[what]]}} if deep else {"x": _NOT_JSON[what]}
    with pytest.raises(MessageError, match="data") as raised:
        build(data=data)
    said = one_line(raised.value)
    if deep:
        assert "['parcel']['list'][1]" in said


@pytest.mark.parametrize("data", [None, [], "text", 7, [("a", 1)]])
def test_message_data_is_a_mapping(data):
    """A message's data is a mapping."""
    with pytest.raises(MessageError, match="data must be a mapping"):
        _message(data=data)


def test_data_that_contains_itself():
    """Data that contains itself, or is nested without end, is refused."""
    data = {}
    data["self"] = data
    with pytest.raises(MessageError, match="nested too deeply"):
        _message(data=data)


def test_nul_in_data_is_kept(configure):
    """NUL is allowed inside data, and kept."""
    config = configure(bindings=[scans(data=("text",))])
    (outcome,) = route(config, message(text="a\x00b", **{"\x00": 1}))
    assert executions.inputs(config, outcome.execution_id)[1].event.data == {"text": "a\x00b"}


@pytest.mark.parametrize("context", [None, [], {"a": 1}, {1: "a"}, {"a": "\ud800"}, {"a": None}])
def test_context(context):
    """Context is text by name."""
    for build in (_message, _delivery, _envelope):
        with pytest.raises(MessageError, match="context") as raised:
            build(context=context)
        one_line(raised.value)


_NO_INSTANTS = [NAIVE, None, "2026-03-01T12:00:00Z", 1.0, date(2026, 3, 1)]


@pytest.mark.parametrize("now", _NO_INSTANTS)
def test_now(now):
    """`now` is an aware datetime: a naive one, and anything else, is refused."""
    for build in (_delivery, _envelope):
        with pytest.raises(MessageError, match="now") as raised:
            build(now=now)
        one_line(raised.value)


def test_an_event_is_an_event():
    """An envelope carries an `Event`."""
    with pytest.raises(MessageError, match="event"):
        _envelope(event="scanned")


def test_arguments_in_the_wrong_place():
    """They are refused by type, not stored."""
    with pytest.raises(MessageError, match="scope"):
        Message("carrier", "m-1", {"parcel": "P7"}, "acme")


# --- what a door refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("now", [each for each in _NO_INSTANTS if each is not None])
def test_route_now(configure, now):
    """`route(now=…)` is an aware datetime."""
    config = configure()
    with written(config) as rows, pytest.raises(MessageError, match="now") as raised:
        route(config, message(), now=now)
    assert rows.nothing
    one_line(raised.value)


@pytest.mark.parametrize("what", [*_TEXTS, "513 bytes", "513 bytes in UTF-8"])
@pytest.mark.parametrize("door", ["deliver", "deliver_event"])
def test_keys(configure, what, door):
    """A key that is empty, too long, no text, or holds NUL or a lone surrogate is `KeyInvalid` at a door."""
    config = configure()
    key = ({"513 bytes": "x" * 513, "513 bytes in UTF-8": "é" * 256 + "x"} | _TEXTS)[what]
    with written(config) as rows, pytest.raises(KeyInvalid, match="key") as raised:
        if door == "deliver":
            deliver(config, scans(), key, delivery())
        else:
            deliver_event(config, Plan("jobs", "parcel"), key, envelope())
    assert rows.nothing
    one_line(raised.value)


_WRONG = [None, "x", 7, {}, object()]


@pytest.mark.parametrize("wrong", _WRONG)
def test_arguments_of_the_doors(configure, wrong):
    """Each argument of a door is judged by its type before anything is opened."""
    config = configure()
    plan = Plan("jobs", "parcel")
    calls = [
        ("config", ConfigError, lambda: route(wrong, message())),
        ("config", ConfigError, lambda: deliver(wrong, scans(), "P7", delivery())),
        ("config", ConfigError, lambda: deliver_event(wrong, plan, "P7", envelope())),
        ("message", MessageError, lambda: route(config, wrong)),
        ("binding", ConfigError, lambda: deliver(config, wrong, "P7", delivery())),
        ("plan", ConfigError, lambda: deliver_event(config, wrong, "P7", envelope())),
        ("delivery", MessageError, lambda: deliver(config, scans(), "P7", wrong)),
        ("envelope", MessageError, lambda: deliver_event(config, plan, "P7", wrong)),
    ]
    with written(config) as rows:
        for name, error, call in calls:
            with pytest.raises(error, match=f"^{name} must be") as raised:
                call()
            one_line(raised.value)
    assert rows.nothing


def test_a_binding_is_no_plan(configure):
    """The two doors take what is theirs."""
    config = configure()
    with pytest.raises(ConfigError, match="plan"):
        deliver_event(config, scans(), "P7", envelope())
    with pytest.raises(ConfigError, match="binding"):
        deliver(config, Plan("jobs", "parcel"), "P7", delivery())
    with pytest.raises(MessageError, match="delivery"):
        deliver(config, scans(), "P7", envelope())


# --- bindings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"mode": "x"}, "mode"),
        ({"batch": 1}, "batch"),
        ({"window": 1}, "window"),
        ({"id": "execution"}, "execution"),
        ({"id": "timer"}, "timer"),
        ({"id": ""}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"source": None}, "source"),
        ({"document": "a\x00b"}, "document"),
        ({"event": "\ud800"}, "event"),
        ({"match": 7}, "match"),
        ({"match": {"kind": {"a": 1}}}, "match"),
        ({"key": 7}, "key"),
        ({"key": ""}, "key"),
        ({"data": "kind"}, "data"),
        ({"data": 7}, "data"),
        ({"create": "always"}, "create"),
        ({"create": None}, "create"),
        ({"dedupe": timedelta(hours=1)}, "dedupe"),
        ({"unmatched": "keep"}, "unmatched"),
        ({"missing": Defer(timedelta(hours=1))}, "missing"),
        ({"order": "none at all"}, "order"),
        ({"enabled": 1}, "enabled"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bindings(arguments, word):
    """A faulty binding is a `BindingError` at construction, naming the argument; so is a reserved name."""
    with pytest.raises(BindingError, match=word) as raised:
        scans(**arguments)
    one_line(raised.value)


@pytest.mark.parametrize("horizon", [True, 1, 1.5, "1h", None, -timedelta(seconds=1), timedelta(days=40_000)])
def test_horizons(horizon):
    """Trap 23. A horizon is a timedelta: True is refused at construction."""
    with pytest.raises(BindingError, match="horizon"):
        Dedupe(horizon)


@pytest.mark.parametrize("id", ["execution", "timer"])
def test_reserved_ids_of_plans(id):
    """The reserved ids are refused to plans as well."""
    with pytest.raises(BindingError, match=id):
        Plan(id, "parcel")


def test_positional_bindings():
    """A binding takes no positional arguments."""
    with pytest.raises(TypeError):
        Binding("scans", "carrier", {}, "parcel", "parcel", "scanned")


# --- what is not there ------------------------------------------------------------------------------


def test_a_missing_extra(monkeypatch):
    """A match in CEL without its extra names the extra, at construction."""
    monkeypatch.setitem(sys.modules, "cel", None)
    with pytest.raises(MissingExtra, match="statifier-router\\[cel\\]") as raised:
        scans(match="message.kind == 'scan'")
    assert raised.value.extra == "cel"
    assert isinstance(raised.value, RouterError)
    one_line(raised.value)


_FUNCTIONS = {
    "route": lambda c, **kw: route(c, message(), **kw),
    "route, unrouted": lambda c, **kw: route(c, Message("nobody", "m", "s", {}), **kw),
    "route, refused": lambda c, **kw: route(c, message(parcel=7), **kw),
    "deliver": lambda c, **kw: deliver(c, scans(), "P7", delivery(), **kw),
    "deliver, always new": lambda c, **kw: deliver(c, scans(create="always_new"), "P7", delivery(), **kw),
    "deliver, never": lambda c, **kw: deliver(c, scans(create="never"), "P7", delivery(), **kw),
    "deliver_event": lambda c, **kw: deliver_event(c, Plan("p", "parcel"), "P7", envelope(), **kw),
    "addresses.find": lambda c, **kw: addresses.find(c, "s", "d", "k", **kw),
    "addresses.by_execution": lambda c, **kw: addresses.by_execution(c, "ex_1", **kw),
    "addresses.reap": addresses.reap,
    "claims.reap": claims.reap,
    "ledger.rows": ledger.rows,
    "ledger.prune": lambda c, **kw: ledger.prune(c, before=NOW, **kw),
    "executions.fetch": lambda c, **kw: executions.fetch(c, "ex_1", **kw),
    "executions.inputs": lambda c, **kw: executions.inputs(c, "ex_1", **kw),
    "executions.replay": lambda c, **kw: executions.replay(c, "ex_1", **kw),
    "executions.prune": lambda c, **kw: executions.prune(c, before=NOW, **kw),
    "executions.cancel": lambda c, **kw: executions.cancel(c, "ex_1", **kw),
    "executions.fail": lambda c, **kw: executions.fail(c, "ex_1", reason="why", **kw),
    "executions.suspend": lambda c, **kw: executions.suspend(c, "ex_1", **kw),
    "executions.resume": lambda c, **kw: executions.resume(c, "ex_1", **kw),
}


@pytest.mark.parametrize("name", _FUNCTIONS)
@pytest.mark.parametrize("borrowed", [True, False])
def test_a_database_that_was_not_migrated(unmigrated, make_config, name, borrowed):
    """Every door and function answers `SchemaError`, in one line that says how to mend it, whether it
    opened the transaction or joined it.
    """
    config = make_config(unmigrated, charts=registry(parcel=obedient()), bindings=[scans()])
    with pytest.raises(SchemaError, match="migrate") as raised:
        if borrowed:
            with config.engine.connect() as connection:
                _FUNCTIONS[name](config, connection=connection)
        else:
            _FUNCTIONS[name](config)
    one_line(raised.value)


def test_a_pool_of_one_and_no_tables(unmigrated, make_config):
    """To find out takes no second connection."""
    from sqlalchemy.pool import QueuePool

    engine = unmigrated.engine(poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    config = make_config(unmigrated, engine=engine, charts=registry(parcel=obedient()), bindings=[scans()])
    for call in _FUNCTIONS.values():
        with pytest.raises(SchemaError):
            call(config)
        with engine.connect() as connection, pytest.raises(SchemaError):
            call(config, connection=connection)


def test_tables_under_another_prefix(database, make_config):
    """Where the tables stand under another prefix, the error names the one that was looked for."""
    config = make_config(
        database, charts=registry(parcel=obedient()), bindings=[scans()], tables=Tables(prefix="other_")
    )
    with pytest.raises(SchemaError, match="other_"):
        route(config, message())


def test_a_caller_is_told_and_goes_on(unmigrated, make_config):
    """After `SchemaError` from a door a caller's transaction is usable: it may migrate in it."""
    config = make_config(unmigrated, charts=registry(parcel=obedient()), bindings=[scans()])
    with config.engine.begin() as connection:
        with pytest.raises(SchemaError):
            route(config, message(), connection=connection)
        migrations.up(connection)
        assert route(config, message(), connection=connection)[0].recorded == "created_and_delivered"
    assert everything(config).counts()["executions"] == 1


def test_a_missing_table_of_the_hosts_own(database, make_config):
    """A missing table that is not ours is no `SchemaError`: the host's own error comes out."""
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    def resolver(scope, document):
        with config.engine.connect() as connection:
            connection.execute(text("SELECT * FROM nowhere"))

    engine = database.engine()
    config = make_config(
        database,
        engine=engine.execution_options(statifier_router_begin="deferred"),
        bindings=[scans()],
        resolver=resolver,
        chart_resolver=lambda _: None,
    )
    with pytest.raises(DBAPIError, match="nowhere"):
        route(config, message())
    assert everything(config).empty


def test_a_horizon_past_the_end_of_time(configure):
    """A claim whose expiry no datetime can tell is kept for as long as one can."""
    config = configure()
    last = datetime(9999, 12, 30, tzinfo=UTC)
    assert route(config, message(), now=last)[0].recorded == "created_and_delivered"
    assert route(config, message(), now=last)[0].recorded == "duplicate"


def test_an_instant_that_is_none_in_utc(configure):
    """An instant that falls out of the years 1 to 9999 in UTC is refused by name."""
    config = configure()
    west = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
    with written(config) as rows, pytest.raises(MessageError, match="now") as raised:
        route(config, message(), now=west)
    assert rows.nothing
    one_line(raised.value)
