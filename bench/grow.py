"""Deliveries a second with few rows in every table, and with many.

    python bench/grow.py --rows 10000000

Two databases on one server, taking turns: one with 10,000 rows in every table that a delivery reads or
writes, one with `--rows` (10,000,000 needs about 20 GB and half an hour to fill).
"""

from __future__ import annotations

import json
from typing import Any

import measuring
import psycopg
import setting
import workload

FEW = 10_000

FILL = [
    """INSERT INTO statifier_router_executions (id, document, scope, key, content_hash, interpreter, status,
         position, active, revision, created_at)
       SELECT 'ex_' || lpad(n::text, 26, '0'), 'parcel', 'acme', n::text, %(hash)s, 'function', 'active',
         '{"scans":1,"depot":"Lyon"}', '["moving"]', 1, now()
       FROM generate_series(%(first)s::bigint, %(last)s::bigint) n""",
    """INSERT INTO statifier_router_addresses (scope, document, key, execution_id, inserted_at)
       SELECT 'acme', 'parcel', n::text, 'ex_' || lpad(n::text, 26, '0'), now()
       FROM generate_series(%(first)s::bigint, %(last)s::bigint) n""",
    """INSERT INTO statifier_router_inputs (execution_id, seq, door, event, message_id, details, at)
       SELECT 'ex_' || lpad(n::text, 26, '0'), 0, 'create', NULL, 'old ' || n, '{"data":null}', now()
       FROM generate_series(%(first)s::bigint, %(last)s::bigint) n""",
    """INSERT INTO statifier_router_claims (binding_id, scope, message_id, digest, expires_at)
       SELECT 'scans of parcel', '', 'old ' || n, repeat('5', 64), now() + interval '3 days'
       FROM generate_series(%(first)s::bigint, %(last)s::bigint) n""",
    """INSERT INTO statifier_router_ledger (binding_id, message_id, scope, outcome, key, execution_id,
         inserted_at)
       SELECT 'scans of parcel', 'old ' || n, 'acme', 'delivered', n::text,
         'ex_' || lpad(n::text, 26, '0'), now()
       FROM generate_series(%(first)s::bigint, %(last)s::bigint) n""",
]
PART = 500_000


def fill(url: str, rows: int) -> None:
    values: dict[str, Any] = {"hash": workload.trivial().content_hash}
    with psycopg.connect(setting.conninfo(url), autocommit=True) as connection:
        for statement in FILL:
            for first in range(1, rows + 1, PART):
                last = min(first + PART - 1, rows)
                connection.execute(statement, {**values, "first": first, "last": last})
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def measured(few: str, many: str, rows: int, rounds: int, seconds: float) -> dict[str, Any]:
    ways: dict[str, measuring.Way] = {}
    recounts: dict[str, workload.Recount] = {}
    configs = []
    for url, size in ((few, FEW), (many, rows)):
        made = workload.config(url)
        configs.append(made)
        workload.migrate(made)
        fill(url, size)
        recounts[f"{size:,} rows"] = workload.Recount(made)
        ways[f"{size:,} rows"] = measuring.repeating(workload.delivering(made, keys=size))
    rates = measuring.take_turns(
        ways,
        rounds=rounds,
        seconds=seconds,
        checked=lambda name, count: recounts[name].check(delivered=count),
    )
    for made in configs:
        made.engine.dispose()
    return {"growth": measuring.table("Growth", rates, f"{FEW:,} rows")}


def main() -> None:
    parser = setting.arguments(__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="in every table of the large database")
    options = parser.parse_args()
    setting.pin(options.core)
    with (
        setting.server(options.url) as server,
        setting.database(server) as few,
        setting.database(server) as many,
    ):
        print(json.dumps(measured(few, many, options.rows, options.rounds, options.seconds)))


if __name__ == "__main__":
    main()
