"""What a delivery costs on the wire, statement by statement; and which index each statement takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
import pytest
from sqlalchemy import text

from statifier_router import (
    Config,
    Plan,
    addresses,
    claims,
    create_engine,
    deliver,
    deliver_event,
    executions,
    ledger,
    route,
)
from tests.support.charts import NOW, delivery, envelope, message, obedient, registry, scans
from tests.support.databases import Database
from tests.support.proxy import Proxy
from tests.support.racing import WritingPlainly, disposing

SCANS = scans()
PLAN = Plan("jobs", "parcel")
CHARTS = registry(parcel=obedient())

Act = Callable[[Config, Any], object]


# --- counting -----------------------------------------------------------------------------------------


def _first(config: Config, connection: Any) -> object:
    return deliver(config, SCANS, "P7", delivery("m-1"), connection=connection)


def _second(config: Config, connection: Any) -> object:
    return deliver(config, SCANS, "P7", delivery("m-2"), connection=connection)


def _routed(config: Config, connection: Any) -> object:
    return route(config, message("m-2"), now=NOW, connection=connection)


def _last(config: Config, connection: Any) -> object:
    return deliver(config, SCANS, "P7", delivery("m-1", data={"do": "finished"}), connection=connection)


def _refused(config: Config, connection: Any) -> object:
    return route(config, message("m-2", parcel=7), now=NOW, connection=connection)


def _absent(config: Config, connection: Any) -> object:
    never = scans(create="never")
    return deliver(config, never, "P7", delivery("m-1"), connection=connection)


def _new(config: Config, connection: Any) -> object:
    return deliver(config, scans(create="always_new"), "P7", delivery("m-1"), connection=connection)


def _event(config: Config, connection: Any) -> object:
    return deliver_event(config, PLAN, "P7", envelope("arrived", "m-2"), connection=connection)


def _nothing(config: Config, connection: Any) -> object:
    return None


# What is delivered, what stands before it, and what it costs in a transaction of its own, BEGIN and COMMIT
# included: by the plain plan and by the merged one.
CASES: dict[str, tuple[Act, Act, int, int]] = {
    "delivered": (_first, _second, 8, 4),
    "routed": (_first, _routed, 8, 4),
    "duplicate": (_first, _first, 4, 4),
    "created": (_nothing, _first, 10, 4),
    "created always new": (_nothing, _new, 8, 4),
    "dropped: no execution": (_nothing, _absent, 5, 5),
    "dropped: finished": (_last, _second, 7, 6),
    "key refused": (_nothing, _refused, 3, 3),
    "delivered event": (_first, _event, 10, 6),
    "created by an event": (_nothing, _event, 12, 6),
}


def _prepared(config: Config, before: Act) -> None:
    """A connection in the pool, and everything done once that is done once only."""
    before(config, None)
    with config.engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")


@contextmanager
def _proxied(database: Database, executor: Any = None) -> Iterator[tuple[Config, Proxy]]:
    with (
        Proxy(database.url) as proxy,
        disposing(create_engine(proxy.url, pool_size=1, max_overflow=0)) as engine,
    ):
        yield Config(engine, charts=CHARTS, bindings=[SCANS], executor=executor), proxy


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("plan", ["plain", "merged"])
def test_the_statements_of_a_delivery_of_its_own(postgresql, plan, case, record_property):
    """Counted on the wire: at most 8 to an existing execution, at most 4 for a duplicate, each one trip."""
    before, act, plain, merged = CASES[case]
    with _proxied(postgresql, WritingPlainly() if plan == "plain" else None) as (config, proxy):
        _prepared(config, before)
        proxy.reset()
        act(config, None)
        statements, turns = [one.sql for one in proxy.statements], proxy.turns
    told = f"{plan} plan, {case}: {len(statements)} statements, {turns} trips"
    print(told, *statements, sep="\n")
    record_property("statements", told)
    assert len(statements) == turns == (plain if plan == "plain" else merged)
    assert (statements[0], statements[-1]) == ("BEGIN ISOLATION LEVEL READ COMMITTED", "COMMIT")
    assert not any(sql.startswith(("SET", "SHOW")) for sql in statements)


def test_what_the_specification_allows() -> None:
    """At most 8 statements to an existing execution and 4 for a duplicate, under either plan."""
    assert max(CASES["delivered"][2:]) <= 8
    assert max(CASES["routed"][2:]) <= 8
    assert max(CASES["duplicate"][2:]) <= 4


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("plan", ["plain", "merged"])
def test_the_statements_of_a_borrowed_delivery(postgresql, plan, case):
    """A savepoint in the place of BEGIN and COMMIT; no setting is made, and none of the caller's changed."""
    before, act, plain, merged = CASES[case]
    # `deliver_event` has its savepoint in a transaction of its own already.
    own = 2 if "event" in case else 0
    with _proxied(postgresql, WritingPlainly() if plan == "plain" else None) as (config, proxy):
        _prepared(config, before)
        with config.engine.connect() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '1234ms'")
            settings = _settings(connection)
            proxy.reset()
            act(config, connection)
            statements = [one.sql for one in proxy.statements]
            assert _settings(connection) == settings
            connection.commit()
    assert len(statements) == (plain if plan == "plain" else merged) - own
    assert statements[0].startswith("SAVEPOINT sr_delivery_")
    assert statements[-1] == statements[0].replace("SAVEPOINT", "RELEASE SAVEPOINT")
    assert not any("set_config" in sql or sql.startswith(("SET", "BEGIN", "COMMIT")) for sql in statements)


def _settings(connection: Any) -> list[Any]:
    everything = "SELECT name, setting, source FROM pg_settings ORDER BY name"
    return [tuple(row) for row in connection.exec_driver_sql(everything)]


@pytest.mark.parametrize("case", CASES)
def test_the_statements_of_a_delivery_on_sqlite(sqlite, make_config, case):
    """SQLite runs the plain plan's statements, BEGIN and COMMIT included."""
    before, act, plain, _ = CASES[case]
    engine = sqlite.engine(pool_size=1, max_overflow=0)
    config = make_config(sqlite, engine=engine, charts=CHARTS, bindings=[SCANS])
    _prepared(config, before)
    with _traced(engine) as statements:
        act(config, None)
    print(*statements, sep="\n")
    assert len(statements) == plain
    assert (statements[0], statements[-1]) == ("BEGIN IMMEDIATE", "COMMIT")


def test_a_wait_of_its_own_on_sqlite(sqlite, make_config):
    """The longest wait is set on the driver before BEGIN, and put back: two statements, where it differs."""
    engine = sqlite.engine(pool_size=1, max_overflow=0)
    config = make_config(sqlite, engine=engine, charts=CHARTS, lock_timeout=timedelta(seconds=1))
    _prepared(config, _first)
    with _traced(engine) as statements:
        _second(config, None)
    assert statements[:2] == ["PRAGMA busy_timeout = 1000", "BEGIN IMMEDIATE"]
    assert statements[-2:] == ["COMMIT", "PRAGMA busy_timeout = 5000"]
    assert len(statements) == CASES["delivered"][2] + 2


@contextmanager
def _traced(engine: Any) -> Iterator[list[str]]:
    """The statements that the pool's one connection runs in the block."""
    ran: list[str] = []
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
    driver.set_trace_callback(ran.append)
    try:
        yield ran
    finally:
        driver.set_trace_callback(None)


# --- plans --------------------------------------------------------------------------------------------


class _Recording(psycopg.Cursor[Any]):
    """A cursor that keeps what it is told to execute."""

    ran: ClassVar[list[tuple[Any, Any]]] = []

    def execute(self, query: Any, params: Any = None, **kw: Any) -> Any:
        """As the driver does."""
        self.ran.append((query, params))
        return super().execute(query, params, **kw)


ROWS = 4000
HOUR = timedelta(hours=1)

# One execution an hour; every tenth has ended. Claims of all of them stand, and two ledger rows each.
FILL = [
    """INSERT INTO statifier_router_executions (id, document, scope, key, content_hash, interpreter, status,
         position, active, revision, created_at, ended_at)
       SELECT 'ex_' || n, 'parcel', 'acme', 'key ' || n, :content_hash, 'function',
         CASE WHEN n % 10 = 0 THEN 'completed' ELSE 'active' END, '{"seen": []}', '["open"]', 1,
         :now, CASE WHEN n % 10 = 0 THEN CAST(:now AS timestamptz) + n * interval '1 hour' END
       FROM generate_series(1, :rows) n""",
    """INSERT INTO statifier_router_addresses (scope, document, key, execution_id, inserted_at)
       SELECT 'acme', 'parcel', 'key ' || n, 'ex_' || n, :now FROM generate_series(1, :rows) n""",
    """INSERT INTO statifier_router_inputs (execution_id, seq, door, at)
       SELECT 'ex_' || n, seq, 'deliver', :now FROM generate_series(1, :rows) n, generate_series(0, 3) seq""",
    """INSERT INTO statifier_router_claims (binding_id, scope, message_id, digest, expires_at)
       SELECT 'scans', '', 'old ' || n, 'digest', CAST(:now AS timestamptz) + n * interval '1 hour'
       FROM generate_series(1, :rows) n""",
    """INSERT INTO statifier_router_ledger (binding_id, message_id, scope, outcome, key, execution_id,
         inserted_at)
       SELECT 'binding ' || n % 200, 'old ' || n, 'acme', 'delivered', 'key ' || n, 'ex_' || n, :now
       FROM generate_series(1, :rows) n, generate_series(1, 2)""",
]


@pytest.fixture
def filled(postgresql: Database, make_config: Any) -> Callable[..., Config]:
    """Configurations on a database with some thousand rows, whose statements are recorded."""
    chart = CHARTS.resolve("acme", "parcel")
    with postgresql.engine().begin() as connection:
        for statement in FILL:
            values = {"now": NOW, "rows": ROWS, "content_hash": chart.content_hash}
            connection.execute(text(statement), {k: v for k, v in values.items() if f":{k}" in statement})
    with postgresql.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("ANALYZE")
    engine = postgresql.engine(connect_args={"cursor_factory": _Recording})
    engine.connect().close()
    return lambda executor: Config(engine, charts=CHARTS, bindings=[SCANS], executor=executor)


def _explained(database: Database, ran: list[tuple[Any, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The nodes of the plan of each statement that has one."""
    found = []
    with database.bare_engine().connect() as connection:
        driver: Any = connection.connection.driver_connection
        for query, values in ran:
            sql = query if isinstance(query, str) else query.decode()
            if sql.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
                (plan,) = driver.execute(f"EXPLAIN (FORMAT JSON) {sql}", values).fetchone()
                plan = json.loads(plan) if isinstance(plan, str) else plan
                found.append((sql, list(_nodes(plan[0]["Plan"]))))
    return found


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def _existing(config: Config) -> object:
    return deliver(config, SCANS, "key 7", delivery("m-1"))


def _created(config: Config) -> object:
    return deliver(config, SCANS, "new", delivery("m-2"))


def _taken(config: Config) -> object:
    return deliver(config, SCANS, "key 7", delivery("old 4000"))


LATER = NOW + 100 * HOUR
# What is called, and indexes that it takes. A batch is small beside its table, as it is where that counts.
PLANS: dict[str, tuple[Callable[[Config], object], set[str]]] = {
    "deliver to an existing execution": (
        _existing,
        {"addresses_scope_document_key", "executions_pk", "inputs_pk"},
    ),
    "deliver to a new one": (_created, {"addresses_scope_document_key"}),
    "deliver a duplicate": (_taken, {"claims_pk"}),
    "deliver to a finished one": (
        lambda config: deliver(config, SCANS, "key 10", delivery("m-3")),
        {"addresses_scope_document_key", "executions_pk"},
    ),
    "addresses.find": (
        lambda config: addresses.find(config, "acme", "parcel", "key 7"),
        {"addresses_scope_document_key"},
    ),
    "addresses.by_execution": (
        lambda config: addresses.by_execution(config, "ex_7"),
        {"addresses_execution_id"},
    ),
    "addresses.reap": (
        lambda config: addresses.reap(config, now=LATER, limit=20, after=50),
        {"addresses_pk", "executions_pk"},
    ),
    "claims.reap": (
        lambda config: claims.reap(config, now=LATER, limit=5),
        {"claims_expires_at", "claims_pk"},
    ),
    "executions.fetch": (lambda config: executions.fetch(config, "ex_7"), {"executions_pk"}),
    "executions.inputs": (lambda config: executions.inputs(config, "ex_7"), {"inputs_pk"}),
    "executions.cancel": (lambda config: executions.cancel(config, "ex_7"), {"executions_pk", "inputs_pk"}),
    "executions.prune": (
        lambda config: executions.prune(config, before=LATER, limit=20),
        {"executions_ended_at", "executions_pk", "inputs_pk"},
    ),
    "ledger.rows": (lambda config: ledger.rows(config, after=100), {"ledger_pk"}),
    "ledger.rows of a binding": (
        lambda config: ledger.rows(config, binding_id="binding 7", after=100, limit=20),
        {"ledger_binding_id_id"},
    ),
    "ledger.rows of a message": (
        lambda config: ledger.rows(config, message_id="old 7"),
        {"ledger_message_id"},
    ),
    "ledger.rows of an execution": (
        lambda config: ledger.rows(config, execution_id="ex_7"),
        {"ledger_execution_id"},
    ),
    "ledger.prune": (lambda config: ledger.prune(config, before=LATER, limit=20), {"ledger_pk"}),
}


@pytest.mark.no_fold(reason="executions are made up, with no log")
@pytest.mark.parametrize("plan", ["merged", "plain"])
def test_every_statement_takes_its_index(
    postgresql: Database, filled: Callable[..., Config], plan: str
) -> None:
    """On tables of some thousand rows, no statement reads a table from end to end."""
    config = filled(WritingPlainly() if plan == "plain" else None)
    wrong = []
    for call, (act, wanted) in PLANS.items():
        if plan == "plain" and not call.startswith("deliver"):
            continue
        _Recording.ran.clear()
        act(config)
        plans = _explained(postgresql, list(_Recording.ran))
        taken = {name.removeprefix("statifier_router_") for _, nodes in plans for name in _indexes(nodes)}
        print(f"{call}: {len(plans)} statements, {', '.join(sorted(taken))}")
        for sql, nodes in plans:
            scanned = [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"]
            if scanned:
                wrong.append(f"{call} reads {', '.join(scanned)} from end to end:\n{sql}")
        if not plans or not wanted <= taken:
            wrong.append(f"{call} does not take {', '.join(sorted(wanted - taken))}")
    assert not wrong, "\n".join(wrong)


def _indexes(nodes: list[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        if "Index Name" in node:
            yield node["Index Name"]
        yield from node.get("Conflict Arbiter Indexes", ())
