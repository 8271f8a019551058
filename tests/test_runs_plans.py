"""Which index each page of a run takes: of what changed, of what is due, of what is parked."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from sqlalchemy import Column, MetaData, Table, Text, event, text

from statifier_router.columns import Instant
from statifier_router.runs import (
    Changes,
    Outbound,
    Outbox,
    Policy,
    Rule,
    TableSource,
    bracket,
    pages,
    prune_changes,
)
from statifier_router.runs.own_sources import Reader
from statifier_router.runs.rebasing import safe_place
from tests.support.charts import NOW

ROWS = 4000
MINUTE = timedelta(minutes=1)

# A fortieth of the rows is of what is asked for. Every tenth record has failed, every twentieth is parked.
FILL = {
    "changes": """INSERT INTO statifier_router_changes (entity, source_id, signal, data, deleted, created_at)
        SELECT 'entity ' || (n % 40), 'record ' || (n % 400), 's' || n, '{}', false, :now FROM numbers""",
    "outbox": """INSERT INTO statifier_router_outbox (queue, key, execution_id, scope, event, created_at)
        SELECT 'queue ' || (n % 40), 'key ' || n, 'ex_1', 'acme', '{"name": "n", "data": null}', :now
        FROM numbers""",
    "records": """INSERT INTO statifier_router_records (rule, source_id, status, remote_id, signal, attempts,
          next_attempt_at, last_error, parked_at, generation, row_version, updated_at)
        SELECT 'rule ' || (n % 4), 'record ' || n,
          CASE WHEN n % 100 < 10 THEN 'failed' WHEN n % 100 < 15 THEN 'exhausted' ELSE 'delivered' END,
          'r', 's', 1, CASE WHEN n % 100 < 10 THEN :now END, 'it failed', :now, 1, 1, :now FROM numbers""",
    "parcels": """INSERT INTO parcels (id, updated_at, name)
        SELECT 'P' || n, :now, 'n' FROM numbers""",
}
NUMBERS = {
    "postgresql": "WITH numbers (n) AS (SELECT generate_series(1, :rows))",
    "sqlite": "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows)",
}
# An instant for each number, a second after the other.
START = NOW.replace(microsecond=0)
AT = {
    "postgresql": ("(CAST(:now AS timestamptz) + n * interval '1 second')", START),
    "sqlite": (
        "(strftime('%Y-%m-%dT%H:%M:%S', :now, '+' || n || ' seconds') || '.000000Z')",
        START.strftime("%Y-%m-%d %H:%M:%S"),
    ),
}
PARCELS = Table(
    "parcels",
    MetaData(),
    Column("id", Text, primary_key=True),
    Column("updated_at", Instant(), index=True),
    Column("name", Text),
)


@pytest.fixture
def config(database, make_config):
    """A database with some thousand rows a table."""
    return filled(make_config(database, clock=lambda: NOW))


@pytest.fixture
def postgresql_config(postgresql, make_config):
    """The same on PostgreSQL."""
    return filled(make_config(postgresql))


def filled(config):
    """Fill the tables."""
    kind = config.engine.dialect.name
    at, now = AT[kind]
    with config.engine.begin() as connection:
        PARCELS.metadata.create_all(connection)
        for statement in FILL.values():
            insert, selected = statement.replace(":now", at).split("SELECT", 1)
            filling = text(f"{insert} {NUMBERS[kind]} SELECT {selected}")
            values = {"rows": ROWS, "now": now}
            connection.execute(filling, {name: values[name] for name in filling._bindparams})
    with config.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")
    return config


PAST = (1, 1)
# Some seconds before the last row.
LATE = (NOW + timedelta(seconds=ROWS - 30)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
OVERLAP = TableSource(PARCELS, "id", "updated_at", "name", MINUTE)


def _rule(source=None):
    source = source or Changes("entity 7")
    return Rule("rule 1", entity="entity 7", source=source, target="t", driver="d", policy=Policy.UPSERT)


def _drain(connection, config):
    due = NOW + 10 * MINUTE
    return pages.drain(connection, config.schema, _rule(), token=1, due_before=due)


def _outbound(config):
    outbound = Outbound(config, writers={})
    outbound.save_rule(_rule())
    return outbound


# What is asked, and the indexes that it takes.
ASKED = {
    "a page of changes": (
        lambda connection, config: Changes("entity 7").scan(connection, PAST, 20),
        {"changes_entity_xid_seq"},
    ),
    "the first page of changes": (
        lambda connection, config: Changes("entity 7").scan(connection, None, 20),
        {"changes_entity_xid_seq"},
    ),
    "records of changes": (
        lambda connection, config: Changes("entity 7").load(connection, ["record 7", "record 47"]),
        {"changes_entity_source_id_seq"},
    ),
    "a page of messages": (
        lambda connection, config: Outbox("queue 7").scan(connection, PAST, 20),
        {"outbox_queue_xid_id"},
    ),
    "messages": (
        lambda connection, config: Outbox("queue 7").load(connection, ["key 7", "key 47"]),
        {"outbox_key"},
    ),
    "a page of what is due": (_drain, {"records_due"}),
    "a page of a host's table": (
        lambda connection, config: OVERLAP.scan(connection, (LATE, "P1"), 20),
        {"updated_at"},
    ),
    "where a chain begins in a host's table": (
        lambda connection, config: OVERLAP.scan(connection, (LATE,), 20),
        {"updated_at"},
    ),
}


@pytest.mark.parametrize("asked", ASKED)
def test_each_page_takes_its_index(config, asked):
    """On tables of some thousand rows, no page reads one from end to end."""
    ask, wanted = ASKED[asked]
    ran = _listen(config)
    with bracket.reading(config) as connection:
        assert ask(connection, config) is not None
    _check(config, ran, wanted)


def test_the_page_of_what_is_parked_takes_its_index(config):
    """Of one rule, those of one status or of both; the first ones, and those behind them."""
    outbound = _outbound(config)
    ran = _listen(config)
    first = outbound.parked("rule 1", status="exhausted", limit=5)
    outbound.parked("rule 1", limit=5, after=first[-1])
    assert len(first) == 5
    _check(config, ran, {"records_parked"})


def test_pruning_takes_its_indexes(config):
    """A page by number, and one probe a row for a newer one."""
    ran = _listen(config)
    assert prune_changes(config, before=NOW + 10 * MINUTE, limit=20).deleted == 20
    _check(config, ran, {"changes_entity_source_id_seq"})


def test_a_rebase_takes_its_index(postgresql_config):
    """Of one entity's rows alone it looks for those that were not read, by either index of theirs."""
    config = postgresql_config
    reader = Reader(rule="r", kind="state", table="changes", name="entity 7", scope=None, cursor=PAST)
    ran = _listen(config)
    with bracket.reading(config) as connection:
        assert safe_place(connection, config.schema, reader, (1, ROWS)) == (0, 6)
    _check(config, ran, set())


def _listen(config):
    """The statements that are run from now on, with their parameters."""
    ran = []

    def keep(connection, cursor, statement, parameters, *rest):
        if "EXPLAIN" not in statement and re.match(r"\s*(SELECT|WITH|DELETE|UPDATE)", statement):
            ran.append((statement, parameters))

    # Whichever engine it is opened by.
    for engine in {config.engine, config.reader, config.opener, config.writer}:
        event.listen(engine, "before_cursor_execute", keep)
    return ran


def _check(config, ran, wanted):
    plan = _of_sqlite if config.engine.dialect.name == "sqlite" else _of_postgresql
    taken, wrong = set(), []
    with config.engine.connect() as connection:
        for sql, parameters in {each[0]: each for each in ran}.values():
            indexes, whole = plan(connection.connection.driver_connection, sql, parameters)
            taken |= indexes
            wrong += [f"{told}:\n{sql}" for told in whole]
    print(", ".join(sorted(taken)))
    assert not wrong, "\n".join(wrong)
    assert {each for each in wanted if not any(index.endswith(each) for index in taken)} == set()


# The rules are few, and so are the operations.
FEW = ("pg_", "statifier_router_rules", "statifier_router_operations")


def _of_postgresql(driver, sql, parameters):
    """The indexes that a statement takes, and the tables that it reads whole."""
    (plan,) = driver.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters).fetchone()
    nodes = list(_nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))
    whole = [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"]
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    return indexes, [name for name in whole if not name.startswith(FEW)]


def _of_sqlite(driver, sql, parameters):
    """The same."""
    told = [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    indexes = {found[1] for line in told if (found := re.search(r"INDEX (\S+)", line))}
    whole = [line for line in told if re.match(r"SCAN (?!.*INDEX)", line)]
    # A constraint's own has no name there.
    return {index.replace("sqlite_autoindex_statifier_router_outbox_1", "outbox_key") for index in indexes}, [
        line for line in whole if not any(name in line for name in FEW)
    ]


def _nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
