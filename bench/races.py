"""Processes that route at once, the long form of tests/test_races.py and tests/test_pools.py.

    python bench/races.py                       # the wheel's PostgreSQL, and SQLite
    python bench/races.py --rounds 20 --processes 8 --messages 200
    STATIFIER_ROUTER_TEST_URL=postgresql+psycopg://… python bench/races.py

Each round has a new key: its messages are spread over all processes, which begin together; then one
message of another new key goes to every process. One execution, one address, one created and the rest
delivered, all told the same id; one created and the rest duplicates. No error, and no deadlock.
Then very many deliveries in one transaction, with the time of each thousand.
Ends with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sqlalchemy import func, select

from bench.crash import database_of
from statifier_router import deliver, executions
from tests.support import charts, databases, processes, servers, session, workers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=["sqlite", "postgresql"], help="only this database")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--messages", type=int, default=200, help="messages of a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--many", type=int, default=5000, help="deliveries in one transaction")
    arguments = parser.parse_args()
    run = session.Session()
    wrong = 0
    try:
        for kind, plan in (("sqlite", "plain"), ("postgresql", "merged"), ("postgresql", "plain")):
            if arguments.kind in (None, kind):
                with database_of(kind) as database:
                    wrong += _race(database, plan, arguments)
                    database.clear()
                    _many(database, plan, arguments.many)
    finally:
        servers.drop_databases()
        run.end()
    return 1 if wrong else 0


def _race(database: databases.Database, plan: str, arguments: argparse.Namespace) -> int:
    count, rounds = arguments.processes, arguments.rounds
    before = database.counters() if database.kind == "postgresql" else None
    children = processes.Children()
    begun = time.monotonic()
    try:
        started = []
        for mine in range(count):
            work = [messages for n in range(rounds) for messages in _of_a_round(n, mine, arguments)]
            started.append(children.start("tests.support.workers:route_in_rounds", database.url, work, plan))
        for number in range(2 * rounds):
            processes.release_together(started, f"round {number}")
        answers = [child.result(timeout=3600) for child in started]
    finally:
        children.close()
    spent = time.monotonic() - begun
    wrong = list(_differences(answers, count, arguments))
    wrong += _rows(database, plan, arguments)
    if before is not None:
        wrong += [f"{n} deadlocks" for n in [(database.counters() - before).deadlocks] if n]
        wrong += database.logged_errors()
    total = rounds * (arguments.messages + count)
    print(
        f"{database.kind}, {plan} plan: {count} processes, {rounds} rounds, {total} messages, "
        f"{total / spent:.0f} a second with the start; wrong: {wrong or 'none'}",
        flush=True,
    )
    return len(wrong)


def _of_a_round(n: int, mine: int, arguments: argparse.Namespace) -> Iterator[list[tuple[str, str]]]:
    numbers = range(mine, arguments.messages, arguments.processes)
    yield [(f"{n}-{number}", f"many {n}") for number in numbers]
    yield [(f"same {n}", f"same {n}")]


def _differences(answers: list, count: int, arguments: argparse.Namespace) -> Iterator[str]:
    for n in range(arguments.rounds):
        many = [answer for each in answers for answer in each[2 * n]]
        same = [answer for each in answers for answer in each[2 * n + 1]]
        outcomes = Counter(recorded for recorded, _ in many)
        if outcomes != {"created_and_delivered": 1, "delivered": arguments.messages - 1}:
            yield f"round {n}: {dict(outcomes)}"
        if len({execution_id for _, execution_id in many}) != 1:
            yield f"round {n}: several ids were told"
        outcomes = Counter(recorded for recorded, _ in same)
        if outcomes != {"created_and_delivered": 1, "duplicate": count - 1}:
            yield f"round {n}, one message: {dict(outcomes)}"


def _rows(database: databases.Database, plan: str, arguments: argparse.Namespace) -> Iterator[str]:
    config = workers.config_of(database.url, plan)
    with config.engine.connect() as connection:
        for table in (config.schema.executions, config.schema.addresses):
            found = connection.execute(select(func.count()).select_from(table)).scalar_one()
            if found != 2 * arguments.rounds:
                yield f"{found} {table.name}"
        ids = connection.scalars(select(config.schema.executions.c.id)).all()
    for execution_id in ids:
        if not executions.replay(config, execution_id).agrees:
            yield f"{execution_id} does not fold"
    config.engine.dispose()


def _many(database: databases.Database, plan: str, many: int) -> None:
    config = workers.config_of(database.url, plan)
    times = []
    with config.engine.begin() as connection:
        begun = time.monotonic()
        for number in range(1, many + 1):
            key, message = f"P{number % 100}", charts.delivery(f"m-{number}")
            deliver(config, workers.SCANS, key, message, connection=connection)
            if number % 1000 == 0:
                times.append(time.monotonic() - begun)
                begun = time.monotonic()
    told = ", ".join(f"{spent:.2f} s" for spent in times)
    print(
        f"{database.kind}, {plan} plan: {many} deliveries in one transaction, each thousand: {told}",
        flush=True,
    )
    config.engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
