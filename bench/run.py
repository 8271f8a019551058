"""Every bench over PostgreSQL and SQLite, in one run: the whole table, and one JSON object as the last line.

    python bench/run.py
    python bench/run.py --quick

A server is started for the run with settings that are printed; `--url` takes another one. Rows are counted
after each turn: a figure stands only where every message left what it should. `--quick` shows that it works
and measures nothing.
"""

from __future__ import annotations

import json
import os
from typing import Any

import cost
import deliver
import grow
import hot
import memory
import peers
import processes
import setting
import sqlite


def main() -> None:
    parser = setting.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest of everything")
    parser.add_argument("--rows", type=int, default=200_000, help="of the large database of `grow`")
    parser.add_argument("--messages", type=int, default=50_000, help="of `memory`")
    parser.add_argument("--without", nargs="*", default=[], help="names of benches to leave out")
    options = parser.parse_args()
    rounds, seconds = (2, 1.0) if options.quick else (options.rounds, options.seconds)
    rows, messages = (20_000, 2_000) if options.quick else (options.rows, options.messages)
    everything = os.sched_getaffinity(0)
    core = 0 if options.core is None else options.core
    told: dict[str, Any] = {}

    # The server starts on the one core; where it is to have all of them, another one is started.
    os.sched_setaffinity(0, {core})
    with setting.server(options.url) as server:
        told["about"] = setting.told(server, core)
        print(json.dumps(told["about"], indent=1))
        if "deliver" not in options.without:
            with setting.database(server) as url:
                told |= deliver.measured(url, setting.pgbench(options.pgbench), rounds, seconds)
        if "cost" not in options.without:
            with setting.database(server) as url:
                told |= cost.measured(url, 3 if options.quick else 15)
        if "peers" not in options.without:
            told |= peers.measured(server, rounds, seconds)
        if "sqlite" not in options.without:
            told |= sqlite.measured(rounds, seconds)
    os.sched_setaffinity(0, everything)
    with setting.server(options.url) as server:
        for name, bench in (("hot", hot), ("processes", processes)):
            if name not in options.without:
                with setting.database(server) as url:
                    told |= bench.measured(url, rounds, seconds)
        if "grow" not in options.without:
            with setting.database(server) as few, setting.database(server) as many:
                told |= grow.measured(few, many, rows, rounds, seconds)
        if "memory" not in options.without:
            with setting.database(server) as url:
                told |= memory.measured(url, messages)
        told["load at the end"] = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
