"""The memory of a process that routes message after message.

    python bench/memory.py --messages 1000000

Resident memory is read at ten points after a warm-up of a tenth; what counts is how much it grew from
the first of them to the last.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import setting
import workload


def resident() -> float:
    """Megabytes of this process that are in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not tell a process's resident memory")


def measured(url: str, messages: int) -> dict[str, Any]:
    made = workload.config(url)
    workload.migrate(made)
    workload.fill(made)
    recount = workload.Recount(made)
    work = workload.routing(made)
    part = max(messages // 10, 1)
    points = []
    print("\nMemory")
    for at in range(1, 11):
        for _ in range(part):
            work()
        gc.collect()
        points.append(round(resident(), 1))
        print(f"  after {at * part:>9,} messages {points[-1]:>7.1f} MB")
    recount.check(delivered=10 * part)
    made.engine.dispose()
    return {"memory": {"messages": 10 * part, "MB": points, "grew_MB": round(points[-1] - points[0], 1)}}


def main() -> None:
    parser = setting.arguments(__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    options = parser.parse_args()
    setting.pin(options.core)
    with setting.server(options.url) as server, setting.database(server) as url:
        print(json.dumps(measured(url, options.messages)))


if __name__ == "__main__":
    main()
