"""Deliveries a second on SQLite, against the raw driver doing the same statements, in the same run.

    python bench/sqlite.py --core 0

Both write to one file, in WAL mode with synchronous NORMAL.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
import setting
import workload

CLAIM = """INSERT INTO statifier_router_claims (binding_id, scope, message_id, digest, expires_at)
VALUES (?, '', ?, ?, ?) ON CONFLICT (binding_id, scope, message_id) DO UPDATE
SET digest = excluded.digest, expires_at = excluded.expires_at
WHERE statifier_router_claims.expires_at < ? RETURNING binding_id"""
LOOK_UP = """SELECT (SELECT execution_id FROM statifier_router_addresses
WHERE scope = ? AND document = ? AND key = ?) AS execution_id, 'read committed' AS isolation"""
READ = """SELECT id, document, scope, key, content_hash, interpreter, status, position, active, revision,
failure, created_at, ended_at, deferred FROM statifier_router_executions WHERE id = ?"""
LOG = """INSERT INTO statifier_router_inputs
(execution_id, seq, door, event, message_id, actor, errors, context, details, at)
VALUES (?, (SELECT coalesce(max(seq) + 1, 0) FROM statifier_router_inputs AS own
WHERE own.execution_id = ?), 'deliver', ?, ?, NULL, NULL, NULL, NULL, ?)"""
MOVE = """UPDATE statifier_router_executions SET status = 'active', position = ?, active = ?,
revision = revision + 1, failure = NULL, ended_at = NULL WHERE id = ? AND revision = ?"""
RECORD = """INSERT INTO statifier_router_ledger
(binding_id, message_id, scope, outcome, key, execution_id, reason, inserted_at)
VALUES (?, ?, 'acme', 'delivered', ?, ?, NULL, ?)"""


def bare(file: Path) -> Callable[[], None]:
    """The same statements by the driver alone."""
    connection = sqlite3.connect(file, isolation_level=None)
    for pragma in ("busy_timeout = 5000", "journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    name = workload.binding().id
    now, expires = "2026-03-01T12:00:00.123456Z", "2026-03-04T12:00:00.123456Z"
    event = '{"name":"scanned","data":{"depot":"Lyon","weight":12,"scanner":{"id":"S-4711","line":3}}}'

    def work() -> None:
        number = str(next(workload.numbers))
        key = str(int(number) % workload.KEYS + 1)
        run = connection.execute
        run("BEGIN IMMEDIATE")
        assert run(CLAIM, (name, number, "5" * 64, expires, now)).fetchall()
        ((execution_id, _),) = run(LOOK_UP, ("acme", "parcel", key)).fetchall()
        (row,) = run(READ, (execution_id,)).fetchall()
        run(LOG, (execution_id, execution_id, event, number, now))
        run(MOVE, ('{"scans":1,"depot":"Lyon"}', '["moving"]', execution_id, row[9]))
        run(RECORD, (name, number, key, execution_id, now))
        run("COMMIT")

    return work


def measured(rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="statifier_router_bench_") as place:
        file = Path(place) / "bench.db"
        made = workload.config(f"sqlite:///{file}")
        workload.migrate(made)
        workload.fill(made)
        recount = workload.Recount(made)
        ways = {
            "the driver alone": measuring.repeating(bare(file)),
            "deliver": measuring.repeating(workload.delivering(made)),
            "route": measuring.repeating(workload.routing(made)),
        }
        rates = measuring.take_turns(
            ways, rounds=rounds, seconds=seconds, checked=lambda name, count: recount.check(delivered=count)
        )
        made.engine.dispose()
    return {"sqlite": measuring.table(f"SQLite {sqlite3.sqlite_version}", rates, "the driver alone")}


def main() -> None:
    options = setting.arguments(__doc__).parse_args()
    setting.pin(options.core)
    print(json.dumps(measured(options.rounds, options.seconds)))


if __name__ == "__main__":
    main()
