"""Deliveries a second on PostgreSQL, against pgbench doing the same plain statements in the same run.

    python bench/deliver.py --core 0

R is the ratio to pgbench (prepared protocol, one client), which takes turns with the library; the median
of the rounds counts. Everything runs on one core where `--core` says so, as a saturated server does. Rows
are counted after each turn.
"""

from __future__ import annotations

import json
from typing import Any

import measuring
import setting
import workload


def measured(url: str, program: str, rounds: int, seconds: float) -> dict[str, Any]:
    made = workload.config(url)
    workload.migrate(made)
    workload.fill(made)
    workload.fill(made, "machine")
    plain = workload.config(url, plain=True)
    piped = workload.config(url, pipeline=True)
    recount = workload.Recount(made)
    told: dict[str, Any] = {}

    ways = {
        "pgbench, plain statements": measuring.floor("delivered", url, made, program),
        "deliver": measuring.repeating(workload.delivering(made)),
        "deliver, pipelined": measuring.repeating(workload.delivering(piped)),
        "deliver, plain statements": measuring.repeating(workload.delivering(plain)),
        "route": measuring.repeating(workload.routing(made)),
        "route, pipelined": measuring.repeating(workload.routing(piped)),
        "deliver_many, batches of 100": measuring.repeating(workload.delivering_many(made, 100), 100),
    }
    told["delivered"] = measuring.table(
        "Delivered to an existing execution, trivial chart",
        measuring.take_turns(
            ways, rounds=rounds, seconds=seconds, checked=lambda name, count: recount.check(delivered=count)
        ),
        "pgbench, plain statements",
    )
    ways = {
        "pgbench, plain statements": measuring.floor("delivered", url, made, program),
        "deliver": measuring.repeating(workload.delivering(made, "machine")),
        "deliver, pipelined": measuring.repeating(workload.delivering(piped, "machine")),
    }
    told["delivered, python-statemachine"] = measuring.table(
        "Delivered to an existing execution, SCXML by python-statemachine",
        measuring.take_turns(
            ways, rounds=rounds, seconds=seconds, checked=lambda name, count: recount.check(delivered=count)
        ),
        "pgbench, plain statements",
    )
    ways = {
        "pgbench, plain statements": measuring.floor("created", url, made, program),
        "deliver": measuring.repeating(workload.creating(made)),
        "deliver, pipelined": measuring.repeating(workload.creating(piped)),
    }
    told["created"] = measuring.table(
        "Created and delivered, trivial chart",
        measuring.take_turns(
            ways, rounds=rounds, seconds=seconds, checked=lambda name, count: recount.check(created=count)
        ),
        "pgbench, plain statements",
    )
    for each in (made, plain, piped):
        each.engine.dispose()
    return told


def main() -> None:
    options = setting.arguments(__doc__).parse_args()
    setting.pin(options.core)
    with setting.server(options.url) as server, setting.database(server) as url:
        about = setting.told(url, options.core)
        print(json.dumps(about, indent=1))
        told = measured(url, setting.pgbench(options.pgbench), options.rounds, options.seconds)
    print(json.dumps({"about": about, **told}))


if __name__ == "__main__":
    main()
