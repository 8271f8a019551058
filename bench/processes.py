"""1, 2, 4 and 8 processes that deliver at once, to keys of their own.

python bench/processes.py
"""

from __future__ import annotations

import json
from typing import Any

import measuring
import setting
import workers
import workload

EACH = 100


def measured(url: str, rounds: int, seconds: float) -> dict[str, Any]:
    made = workload.config(url)
    workload.migrate(made)
    workload.fill(made, keys=8 * EACH)
    recount = workload.Recount(made)

    def way(many: int) -> measuring.Way:
        keys = [[str(process * EACH + n + 1) for n in range(EACH)] for process in range(many)]
        return lambda seconds: workers.at_once(url, keys, seconds)

    ways = {f"{many} process{'es' if many > 1 else ''}": way(many) for many in (1, 2, 4, 8)}
    rates = measuring.take_turns(
        ways, rounds=rounds, seconds=seconds, checked=lambda name, count: recount.check(delivered=count)
    )
    made.engine.dispose()
    return {"processes": measuring.table("Processes", rates, "1 process")}


def main() -> None:
    options = setting.arguments(__doc__).parse_args()
    setting.pin(options.core)
    with setting.server(options.url) as server, setting.database(server) as url:
        print(json.dumps(measured(url, options.rounds, options.seconds)))


if __name__ == "__main__":
    main()
