"""`statifier-router doctor`: the charts that the next messages would miss."""

from __future__ import annotations

import sys
import types

import attrs
import pytest
from sqlalchemy import text

from statifier_router import (
    ChartNotResolved,
    ChartRegistry,
    ChartStore,
    Plan,
    Unresolved,
    deliver_event,
    executions,
)
from statifier_router.executions import in_use
from statifier_router.executions.in_use import HashInUse, hashes_in_use
from statifier_router.interpreters import statemachine
from tests.support.charts import envelope, obedient, registry
from tests.support.command_line import process, run

CONFIG = ("--config", "the_host:config")

old = obedient(version="old")
older = statemachine.scxml('<scxml initial="a"><state id="a"/></scxml>')
new = obedient(version="new")


@pytest.fixture
def given(database, make_config, monkeypatch):
    """`given(**kw)`: the configuration that the commands find; the logs are folded by one that knows all."""
    charts = registry(parcel=old)
    charts.publish("older", older)
    charts.publish("newer", new)
    whole = make_config(database, charts=charts)

    def given(**kw):
        module = types.ModuleType("the_host")
        module.config = attrs.evolve(whole, **kw)
        monkeypatch.setitem(sys.modules, "the_host", module)
        return module.config

    return given


def put(config, key, name="scanned", document="parcel"):
    return deliver_event(
        config, Plan("jobs", document), key, envelope(name, f"e {name} {document} {key}")
    ).execution_id


def test_nothing_in_use(given):
    config = given()
    assert hashes_in_use(config) == []
    done = run("doctor", *CONFIG)
    assert (done.code, done.out) == (0, "0 executions on 0 charts: every chart is to be had\n")
    assert run("doctor", "--json", *CONFIG).json == {
        "charts_in_use": 0,
        "executions": 0,
        "missing_charts": [],
        "cures": [],
    }


def test_what_is_in_use(given):
    """Active and suspended executions, by hash; those that have ended use nothing any more."""
    config = given()
    first = put(config, "P1")
    put(config, "P2")
    executions.suspend(config, put(config, "P3"))
    for end in ("finished", "broken"):
        put(config, f"P {end}", end)
    executions.cancel(config, put(config, "P4"))
    other = put(config, "P1", document="older")
    assert hashes_in_use(config) == sorted(
        [HashInUse(old.content_hash, 3, first), HashInUse(older.content_hash, 1, other)],
        key=lambda each: each.content_hash,
    )
    done = run("doctor", *CONFIG)
    assert (done.code, done.out) == (0, "4 executions on 2 charts: every chart is to be had\n")


def test_a_chart_that_is_gone(given):
    """Its hash, how many executions, one of them, and the two cures; exit code 1; nothing is changed."""
    config = given()
    ids = [put(config, key) for key in ("P1", "P2")]
    put(config, "P1", document="newer")
    given(charts=registry(parcel=new))
    done = run("doctor", *CONFIG)
    assert (done.code, done.err) == (1, "")
    assert done.out == (
        "2 executions of 3 run on 1 chart not to be had:\n"
        "\n"
        f"chart {old.content_hash}\n"
        f"  2 executions, such as {ids[0]}\n"
        "  the charts do not have it\n"
        "\n"
        "Two cures:\n"
        "  publish that revision beside the newer one (its text, or its code under a name of its own)\n"
        "  or move its executions: executions.migrate(config, id, to, mapping=...)\n"
    )
    done = run("doctor", "--json", *CONFIG)
    assert done.code == 1
    assert done.json["missing_charts"] == [
        {
            "content_hash": old.content_hash,
            "executions": 2,
            "example": ids[0],
            "problem": "the charts do not have it",
        }
    ]
    assert (done.json["charts_in_use"], done.json["executions"], len(done.json["cures"])) == (2, 3, 2)


def test_each_cure_cures(given):
    """Publishing the old revision beside the new; or moving its executions."""
    config = given()
    ids = [put(config, key) for key in ("P1", "P2")]
    newer = registry(parcel=new)
    config = given(charts=newer)
    assert run("doctor", *CONFIG).code == 1
    for id in ids:
        executions.migrate(config, id, new, mapping={})
    assert run("doctor", *CONFIG).code == 0
    config = given()
    put(config, "P3")
    beside = ChartRegistry()
    beside.publish("parcel", old)
    beside.publish("parcel", new)
    given(charts=beside)
    assert run("doctor", *CONFIG).code == 0


def raising(content_hash):
    raise LookupError("the chart\nservice is away \x1b[2J")


def unresolved(content_hash):
    raise Unresolved("it was deleted")


@pytest.mark.parametrize(
    ("by_hash", "problem"),
    [
        (lambda content_hash: None, "the charts do not have it"),
        (unresolved, "it was deleted"),
        (lambda content_hash: new, f"the charts answer another one for it, {new.content_hash}"),
        (lambda content_hash: "chart", "asking the charts raised TypeError: the chart resolver's answer"),
        (raising, "asking the charts raised LookupError: the chart service is away \\x1b[2J"),
    ],
)
def test_whatever_the_charts_answer(given, by_hash, problem):
    """A host's own resolvers are asked as a delivery would, and whatever they do is told in one line."""
    put(given(), "P1")
    given(charts=None, resolver=lambda scope, document: new, chart_resolver=by_hash)
    done = run("doctor", *CONFIG)
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if problem in line]
    assert line.startswith("  ")
    assert run("doctor", "--json", *CONFIG).code == 1


def test_a_store_says_why(given, database):
    """Of a chart that was saved and no longer loads, the reason is the store's own."""
    config = given()
    store = ChartStore(config.engine)
    store.save(old, document="parcel")
    store.save(older, document="older")
    id = put(given(charts=store), "P1")
    put(config, "P1", document="older")
    with config.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE statifier_router_charts SET source = 'no_module:chart' WHERE interpreter = 'function'"
            )
        )
    fresh = given(charts=ChartStore(config.engine))
    missing = run("doctor", "--json", *CONFIG).json["missing_charts"]
    why = "it does not load: ModuleNotFoundError: No module named 'no_module'"
    assert missing == [{"content_hash": old.content_hash, "executions": 1, "example": id, "problem": why}]
    with pytest.raises(ChartNotResolved, match="no_module"):
        put(fresh, "P1", "again")


@pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.sqlite)], indirect=True)
def test_in_a_process_of_its_own(database, given, tmp_path):
    """As an operator runs it: one page, exit code 1."""
    put(given(), "P1")
    (tmp_path / "the_host.py").write_text(
        "from statifier_router import ChartRegistry, Config, create_engine\n"
        f"config = Config(create_engine({database.url!r}), charts=ChartRegistry())\n"
    )
    done = process("doctor", *CONFIG, cwd=tmp_path)
    assert (done.code, done.err) == (1, "")
    assert f"chart {old.content_hash}" in done.out


def test_without_tables(unmigrated, make_config, monkeypatch):
    """One line, and nothing on standard output."""
    module = types.ModuleType("the_host")
    module.config = make_config(unmigrated)
    monkeypatch.setitem(sys.modules, "the_host", module)
    done = run("doctor", *CONFIG)
    assert (done.code, done.out) == (1, "")
    assert "migrate" in done.error


def test_the_question_takes_the_partial_index(postgresql, make_config):
    """Executions that have ended are not read, however many they are."""
    config = make_config(postgresql)
    statement = in_use._in_use(config.schema).compile(config.engine)
    with config.engine.connect() as connection:
        connection.execute(text("SET enable_seqscan = off"))
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}").scalars())
    assert "statifier_router_executions_content_hash" in plan
