"""The contests of tests/test_sends_races.py in the numbers that matter.

    python -m bench.contests postgresql+psycopg://user@host/database

The database must be empty and is filled. Prints one line a contest; any failure is an exception.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine as plain_engine

from statifier_router import Config, create_engine, deliver_event, migrations
from tests.support import contests
from tests.support.charts import envelope
from tests.support.processes import Children, release_together

TIMERS, EARLY, DEADLOCKS, MOST = 500, 1000, 20, 20_000


def main(url: str) -> None:
    """Run every contest over both plans of statements."""
    for plan in ("merged", "plain"):
        for name, contest in CONTESTS.items():
            _told(url, plan, name, contest)


def _timers(url: str, plan: str) -> Any:
    return contests.timer_races(_maker(url), plain_engine(url), TIMERS, plan)


def _early(url: str, plan: str) -> Any:
    return contests.keeping_races(_maker(url), EARLY, plan)


def _maker(url: str) -> Callable[..., Config]:
    def make(plan: str, **kw: Any) -> Config:
        return contests.config_on(create_engine(url), plan, **kw)

    return make


def _told(url: str, plan: str, name: str, contest: Callable[[str, str], Any]) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        if migrations.current(connection):
            migrations.down(connection, to=0)
        migrations.up(connection)
    engine.dispose()
    watcher = plain_engine(url)
    before, began = contests.deadlocks(watcher), time.monotonic()
    answer = contest(url, plan)
    took = time.monotonic() - began
    print(f"{plan:6}  {name:28}  {answer}, {contests.deadlocks(watcher) - before} deadlocks, {took:.0f} s")
    watcher.dispose()


def _crossings(url: str, plan: str) -> Any:
    config = _maker(url)(plan)
    for key in ("K1", "K2"):
        deliver_event(config, contests.PLAN, key, envelope("first", f"first-{key}"))
    until = contests.deadlocks(plain_engine(url)) + DEADLOCKS
    children = Children()
    try:
        both = [
            children.start("tests.support.contests:send_across", url, mine, other, plan, until, MOST)
            for mine, other in (("K1", "K2"), ("K2", "K1"))
        ]
        release_together(both, "ready")
        told = [child.result(timeout=900) for child in both]
    finally:
        children.close()
    contests.check_crossings(config, told, ("K1", "K2"))
    return [each["sent"] for each in told]


CONTESTS = {
    "timer against cancel": _timers,
    "early event against creation": _early,
    "two that send to each other": _crossings,
}


if __name__ == "__main__":
    main(sys.argv[1])
