"""Processes killed with SIGKILL, the long form of tests/test_crash.py.

    python bench/crash.py                  # the wheel's PostgreSQL, and SQLite
    python bench/crash.py --storm 40       # more kills of the second part
    STATIFIER_ROUTER_TEST_URL=postgresql+psycopg://… python bench/crash.py

First every statement of every scenario: killed before it and after it, the message handed over again,
the state compared with that of one clean delivery; each point is printed. Then a storm: processes that
route the same messages are killed at random instants and begin again, until each has come through;
every message must have been stepped once, and every input log must fold to its position.
Ends with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sqlalchemy import select
from sqlalchemy.pool import NullPool

from statifier_router import executions, route
from tests.support import charts, databases, processes, servers, session, workers
from tests.support.crashes import kill_at_every_statement
from tests.support.forks import Forks

KEYS = 7
_numbers = itertools.count(1)


def main() -> int:
    arguments = _arguments()
    run = session.Session()
    try:
        wrong = sum(_one(kind, plan, arguments) for kind, plan in _kinds(arguments.kind))
        return 1 if wrong else 0
    finally:
        servers.drop_databases()
        run.end()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=["sqlite", "postgresql"], help="only this database")
    parser.add_argument("--storm", type=int, default=25, help="kills of each process in the storm")
    parser.add_argument("--processes", type=int, default=4, help="processes in the storm")
    parser.add_argument("--messages", type=int, default=400, help="messages that each of them routes")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _kinds(only: str | None) -> Iterator[tuple[str, str]]:
    for kind, plan in (("sqlite", "plain"), ("postgresql", "merged"), ("postgresql", "plain")):
        if only in (None, kind):
            yield kind, plan


@contextmanager
def database_of(kind: str) -> Iterator[databases.Database]:
    """A migrated database with nothing in it."""
    with tempfile.TemporaryDirectory(prefix="sr_bench_") as directory:
        if kind == "sqlite":
            template = Path(directory) / "template"
            template.mkdir()
            database = databases.SQLite(template, databases.migrate).fresh(Path(directory))
        else:
            database = databases.PostgreSQL(f"bench_{next(_numbers)}", databases.migrate).fresh()
        yield database
        database.dispose()


def _one(kind: str, plan: str, arguments: argparse.Namespace) -> int:
    wrong = kills = points = 0
    with database_of(kind) as database:
        with Forks("tests.support.workers") as forks:
            for scenario in workers.SCENARIOS:
                report = kill_at_every_statement(database, scenario, forks, plan, thorough=True)
                print(f"{kind}, {plan} plan, {report}", flush=True)
                wrong += not report.all_clean or report.points != report.counted
                kills += len(report.tried)
                points += report.points
        print(f"{kind}, {plan} plan: {points} points, {kills} kills, {wrong} scenarios differ", flush=True)
        database.clear()
        wrong += _storm(database, plan, arguments)
    return wrong


# --- the storm ----------------------------------------------------------------------------------------


def _storm(database: databases.Database, plan: str, arguments: argparse.Namespace) -> int:
    """Answers how many executions are not as they would be had nobody died."""
    started = [
        processes.Child(
            "bench.crash:route_through_deaths",
            database.url,
            plan,
            arguments.messages,
            arguments.storm,
            arguments.seed * 1000 + number,
        )
        for number in range(arguments.processes)
    ]
    deaths = 0
    for child in started:
        with child:
            deaths += child.result(timeout=3600)
    config = workers.config_of(database.url, plan, engine={"poolclass": NullPool})
    wrong = []
    schema = config.schema
    with config.engine.connect() as connection:
        outcomes = Counter(connection.scalars(select(schema.ledger.c.outcome)))
        addresses = connection.execute(select(schema.addresses.c.execution_id, schema.addresses.c.key)).all()
        made = len(connection.execute(select(schema.executions.c.id)).all())
    for execution_id, key in addresses:
        taken = [row.message_id for row in executions.inputs(config, execution_id) if row.seq > 0]
        wanted = [message for message, parcel in _messages(arguments.messages) if parcel == key]
        if sorted(taken) != sorted(wanted) or not executions.replay(config, execution_id).agrees:
            wrong.append(key)
    new = outcomes["created_and_delivered"] + outcomes["delivered"]
    if (made, len(addresses), new) != (KEYS, KEYS, arguments.messages):
        wrong.append(f"{made} executions, {len(addresses)} addresses, {new} deliveries")
    print(f"{database.kind}, {plan} plan, storm: {deaths} deaths, {dict(outcomes)}, wrong: {wrong or 'none'}")
    return len(wrong)


def _messages(count: int) -> list[tuple[str, str]]:
    return [(f"m-{number}", f"P{number % KEYS}") for number in range(count)]


def route_through_deaths(url: str, plan: str, count: int, deaths: int, seed: int) -> int:
    """In a child: fork a process that routes every message, kill it, fork another; the last one lives."""
    chance = random.Random(seed)
    for death in range(deaths + 1):
        heard, told = os.pipe()
        router = os.fork()
        if router == 0:
            _route_all(url, plan, count, random.Random(seed + death), told)
        os.close(told)
        # It has routed its first message; what comes then is an instant, and not a statement: the other
        # tests choose those.
        os.read(heard, 1)
        os.close(heard)
        if death < deaths:
            time.sleep(chance.uniform(0.0, 0.2))
            os.kill(router, signal.SIGKILL)
        _, status = os.waitpid(router, 0)
        assert status in (0, signal.SIGKILL), f"a router ended with {status}"
    assert status == 0, "the last router was killed"
    return deaths


def _route_all(url: str, plan: str, count: int, chance: random.Random, told: int) -> None:
    status = 1
    try:
        config = workers.config_of(url, plan, lock_timeout=workers.PATIENCE)
        messages = _messages(count)
        chance.shuffle(messages)
        for message_id, parcel in messages:
            route(config, charts.message(message_id, parcel), now=charts.NOW)
            if told >= 0:
                os.write(told, b".")
                os.close(told)
                told = -1
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
