"""One hot key with 8 writers, against 8 keys with a writer each, in the same run.

    python bench/hot.py

Deliveries to one execution are stepped one after the other, from lock to commit.
"""

from __future__ import annotations

import json
from typing import Any

import measuring
import setting
import workers
import workload

WRITERS = 8


def measured(url: str, rounds: int, seconds: float) -> dict[str, Any]:
    made = workload.config(url)
    workload.migrate(made)
    workload.fill(made, keys=WRITERS)
    recount = workload.Recount(made)
    ways: dict[str, measuring.Way] = {
        "8 writers, 8 keys": lambda seconds: workers.at_once(
            url, [[str(n + 1)] for n in range(WRITERS)], seconds
        ),
        "8 writers, one key": lambda seconds: workers.at_once(url, [["1"]] * WRITERS, seconds),
    }
    rates = measuring.take_turns(
        ways, rounds=rounds, seconds=seconds, checked=lambda name, count: recount.check(delivered=count)
    )
    made.engine.dispose()
    return {"hot key": measuring.table("A hot key", rates, "8 writers, 8 keys")}


def main() -> None:
    options = setting.arguments(__doc__).parse_args()
    setting.pin(options.core)
    with setting.server(options.url) as server, setting.database(server) as url:
        print(json.dumps(measured(url, options.rounds, options.seconds)))


if __name__ == "__main__":
    main()
