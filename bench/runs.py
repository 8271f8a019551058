"""Delivery runs: what a record costs, pages of a large database, and a large release.

    python bench/runs.py
    python bench/runs.py --rows 2000000 --parked 100000

The writer answers at once, so that what is measured is the library's overhead. The rows are counted after
each part: a figure stands only where every record was delivered once.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import setting
import workload

from statifier_router import ChartRegistry, create_engine, migrations
from statifier_router.runs import Changes, Created, Outbound, Policy, Rule, record_change
from statifier_router.runs.bracket import reading
from statifier_router.runs.pages import drain, scan

RECORDS = 1_000

FILL = [
    """INSERT INTO statifier_router_changes (xid, entity, source_id, signal, data, deleted, created_at)
       SELECT '1', 'parcel', 'p' || n, 'first', '{"state":"held"}', false, now()
       FROM generate_series(1, %(rows)s::bigint) n""",
    """INSERT INTO statifier_router_records (rule, source_id, status, remote_id, signal, attempts,
         next_attempt_at, error_kind, last_error, parked_at, generation, row_version, updated_at)
       SELECT 'parcels', 'p' || n,
         CASE WHEN n <= %(parked)s THEN 'exhausted' WHEN n %% 20 = 0 THEN 'failed' ELSE 'delivered' END,
         'r' || n, 'first', 1,
         CASE WHEN n > %(parked)s AND n %% 20 = 0 THEN now() + interval '1 hour' END,
         CASE WHEN n <= %(parked)s OR n %% 20 = 0 THEN 'rejected' END,
         CASE WHEN n <= %(parked)s OR n %% 20 = 0 THEN 'no' END,
         CASE WHEN n <= %(parked)s THEN now() END,
         1, 1, now()
       FROM generate_series(1, %(rows)s::bigint) n""",
]


class Instant:
    """A writer whose target answers at once."""

    def __init__(self) -> None:
        self.calls = 0

    def create(self, payload: Any, context: Any) -> Created:
        del payload
        self.calls += 1
        return Created(f"r-{context.source_id}")

    def update(self, remote_id: str, payload: Any, context: Any) -> None:
        del remote_id, payload, context
        self.calls += 1


def parcels(batch_size: int = 100) -> Rule:
    return Rule(
        "parcels", entity="parcel", source=Changes("parcel"), target="carrier", driver="instant",
        policy=Policy.UPSERT, batch_size=batch_size,
    )  # fmt: skip


def outbound(url: str) -> tuple[Outbound, Instant]:
    kw = {"connect_args": {"options": "-c synchronous_commit=off"}} if url.startswith("postgresql") else {}
    engine = create_engine(url, **kw)
    made = workload.Config(engine, charts=ChartRegistry())
    writer = Instant()
    runs = Outbound(made, writers={"instant": writer}, tick_interval=timedelta(hours=1))
    with engine.begin() as connection:
        migrations.up(connection)
    runs.save_rule(parcels())
    return runs, writer


def run(runs: Outbound) -> None:
    for chain_id in runs.tick():
        runs.run_chain(chain_id)


def touch(runs: Outbound, version: int) -> None:
    with runs.config.engine.begin() as connection:
        for number in range(RECORDS):
            data = {"state": "held", "version": version}
            record_change(runs.config, "parcel", f"p{number}", data, connection=connection)


def overhead(url: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of a run for each record that it creates, updates, and passes over."""
    runs, writer = outbound(url)
    spent: dict[str, list[float]] = {"created": [], "updated": [], "passed over": []}
    version = 0
    for at in range(rounds):
        # New records in each round, in place of the last one's.
        with runs.config.engine.begin() as connection:
            for table in ("records", "changes"):
                connection.exec_driver_sql(f"DELETE FROM statifier_router_{table}")
        for name, each in spent.items():
            if name != "passed over":
                version += 1
            touch(runs, version)
            before, begun = writer.calls, time.perf_counter()
            run(runs)
            took = time.perf_counter() - begun
            expected = 0 if name == "passed over" else RECORDS
            assert writer.calls - before == expected, (name, at, writer.calls - before)
            each.append(took / RECORDS * 1e3)
    assert len(runs.records("parcels", status="delivered", limit=RECORDS + 1)) == RECORDS
    runs.config.engine.dispose()
    return {name: round(statistics.median(each), 3) for name, each in spent.items()}


def large(url: str, rows: int, parked: int) -> dict[str, Any]:
    """Milliseconds of one page of a large database, and seconds of a large release."""
    runs, _ = outbound(url)
    schema, rule = runs.config.schema, parcels()
    with psycopg.connect(setting.conninfo(url), autocommit=True) as connection:
        for statement in FILL:
            connection.execute(statement, {"rows": rows, "parked": parked})
        connection.execute("VACUUM ANALYZE")
    told: dict[str, Any] = {"rows": rows, "parked": parked}
    now = runs.config.now()

    def timed(work: Any) -> float:
        each = []
        for _ in range(30):
            begun = time.perf_counter()
            with reading(runs.config) as connection:
                work(connection)
            each.append((time.perf_counter() - begun) * 1e3)
        return round(statistics.median(each), 2)

    told["due page, none due, ms"] = timed(lambda c: drain(c, schema, rule, token=1, due_before=now))
    late = now + timedelta(hours=2)
    told["due page, all due, ms"] = timed(lambda c: drain(c, schema, rule, token=1, due_before=late))
    middle = json.dumps([1, rows // 2])
    told["scan page in the middle, ms"] = timed(lambda c: scan(c, schema, rule, cursor=middle, position=None))
    told["parked page, ms"] = timed(lambda _: runs.parked("parcels"))
    begun = time.perf_counter()
    released = runs.release("parcels", mode="retry", status="exhausted", actor="bench")
    told["release, s"] = round(time.perf_counter() - begun, 2)
    assert released.count == parked, released
    runs.config.engine.dispose()
    return told


def measured(server: str, rounds: int, rows: int, parked: int) -> dict[str, Any]:
    told: dict[str, Any] = {}
    with setting.database(server) as url:
        told["PostgreSQL, ms a record"] = overhead(url, rounds)
    with tempfile.TemporaryDirectory(prefix="statifier_router_bench_") as place:
        told["SQLite, ms a record"] = overhead(f"sqlite:///{Path(place) / 'runs.db'}", rounds)
    with setting.database(server) as url:
        told["large"] = large(url, rows, parked)
    print("\nDelivery runs")
    for name, figures in told.items():
        print(f"  {name}")
        for what, figure in figures.items():
            print(f"    {what:32}{figure:>12,}")
    return {"runs": told}


def main() -> None:
    parser = setting.arguments(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--parked", type=int, default=10_000)
    options = parser.parse_args()
    setting.pin(options.core)
    with setting.server(options.url) as server:
        print(
            json.dumps(
                {"about": setting.told(server, options.core)}
                | measured(server, options.rounds, options.rows, options.parked)
            )
        )


if __name__ == "__main__":
    main()
