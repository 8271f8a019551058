"""Chains killed with SIGKILL, the long form of tests/test_runs_crash.py.

    python bench/runs_crash.py                     # the wheel's PostgreSQL, and SQLite
    python bench/runs_crash.py --kind sqlite
    STATIFIER_ROUTER_TEST_URL=postgresql+psycopg://… python bench/runs_crash.py

For each kind of target: killed at every statement, on both sides of it, and on both sides of every call;
after each kill once the next chain takes the dead one's place, and once another process goes on with the
same chain. On PostgreSQL every connection is also cut at every statement while the process lives on.
Each point at which something was wrong is printed. Ends with 1 where anything was.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.crash import database_of
from tests.support import runs_workers, servers, session
from tests.support.forks import Forks
from tests.support.runs_crashes import Report, kill_at_every_point, lose_every_commit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=["sqlite", "postgresql"], help="only this database")
    only = parser.parse_args().kind
    run = session.Session()
    try:
        return 1 if sum(_one(kind) for kind in ("sqlite", "postgresql") if only in (None, kind)) else 0
    finally:
        servers.drop_databases()
        run.end()


def _one(kind: str) -> int:
    wrong = 0
    with Forks(runs_workers.__name__) as forks:
        for variant in runs_workers.VARIANTS:
            with database_of(kind) as database:
                begun = time.perf_counter()
                report = kill_at_every_point(database, variant, forks, thorough=True)
                wrong += _tell(kind, report, begun)
        if kind == "postgresql":
            with database_of(kind) as database:
                begun = time.perf_counter()
                report = lose_every_commit(database, forks, thorough=True)
                wrong += _tell(kind, report, begun)
    return wrong


def _tell(kind: str, report: Report, begun: float) -> int:
    print(f"{kind}, {report}, {time.perf_counter() - begun:.0f} s", flush=True)
    for tried in report.wrong:
        print(f"    {tried}", flush=True)
    return len(report.wrong) + (report.points != report.counted)


if __name__ == "__main__":
    sys.exit(main())
