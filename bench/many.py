"""`deliver_many` against `deliver` one by one, on PostgreSQL, in one run; and how the set form scales.

    python bench/many.py --url postgresql+psycopg://postgres@127.0.0.1/postgres

Makes a database of its own on that server, and drops it. Each round delivers the same number of messages
in both ways, to existing executions of a chart that does next to nothing, the two ways taking turns. The
rows are counted afterwards. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import create_engine as plain_engine
from sqlalchemy import make_url, text

from statifier_router import (
    Binding,
    ChartRegistry,
    Config,
    Delivery,
    Step,
    create_engine,
    deliver,
    deliver_many,
    migrations,
)
from statifier_router.interpreters import function

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCANS = Binding(id="scans", source="carrier", match={}, key="parcel", document="parcel", event="scanned")


def chart() -> Any:
    return function.chart(
        "parcel",
        create=lambda data, now: Step({"scans": 0}, active=["moving"]),
        step=lambda position, event, now: Step({"scans": position["scans"] + 1}, active=["moving"]),
    )


@contextmanager
def database(url: str) -> Iterator[str]:
    name = f"many_{secrets.token_hex(4)}"
    server = plain_engine(url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


class Feed:
    """Messages that were never delivered before, to as many executions as a batch has items."""

    def __init__(self, executions: int) -> None:
        self.executions = executions
        self.count = 0

    def take(self, many: int) -> list[tuple[Binding, str, Delivery]]:
        items = []
        for _ in range(many):
            self.count += 1
            key = f"P{self.count % self.executions}"
            delivery = Delivery(f"m-{self.count}", "acme", NOW, {"depot": "Lyon", "weight": 12})
            items.append((SCANS, key, delivery))
        return items


def one_by_one(config: Config, items: list[Any], batch: int) -> None:
    for binding, key, delivery in items:
        deliver(config, binding, key, delivery)


def as_batches(config: Config, items: list[Any], batch: int) -> None:
    for start in range(0, len(items), batch):
        for outcome in deliver_many(config, items[start : start + batch]):
            assert not isinstance(outcome, Exception), outcome


def rate(work: Callable[..., None], config: Config, feed: Feed, messages: int, batch: int) -> float:
    items = feed.take(messages)
    begun = time.perf_counter()
    work(config, items, batch)
    return messages / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="postgresql+psycopg://postgres@127.0.0.1/postgres")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--messages", type=int, default=500, help="in each round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with database(options.url) as url:
        engine = create_engine(url, connect_args={"options": "-c synchronous_commit=off"})
        with engine.begin() as connection:
            migrations.up(connection)
        charts = ChartRegistry()
        charts.publish("parcel", chart())
        config = Config(engine, charts=charts, bindings=[SCANS])
        print(json.dumps(measured(config, options)))
        engine.dispose()


def measured(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    feed = Feed(options.batch)
    rates: dict[str, list[float]] = {"deliver": [], "deliver_many": []}
    # Creates the executions, and warms everything up.
    as_batches(config, feed.take(options.batch * 8), options.batch)
    one_by_one(config, feed.take(options.batch), options.batch)
    for _ in range(options.rounds):
        rates["deliver"].append(rate(one_by_one, config, feed, options.messages, 1))
        rates["deliver_many"].append(rate(as_batches, config, feed, options.messages, options.batch))
    check(config, feed.count)
    medians = {name: round(statistics.median(each)) for name, each in rates.items()}
    ratios = [many / one for many, one in zip(rates["deliver_many"], rates["deliver"], strict=True)]
    print(f"{'':14} {'median /s':>10} {'lowest':>8} {'highest':>8}")
    for name, each in rates.items():
        print(f"{name:14} {medians[name]:>10,} {min(each):>8,.0f} {max(each):>8,.0f}")
    print(f"ratio (median of the rounds): {statistics.median(ratios):.2f}")
    return {
        "batch": options.batch,
        "rounds": options.rounds,
        "per_second": medians,
        "ratio": round(statistics.median(ratios), 2),
    }


def check(config: Config, messages: int) -> None:
    """Every message left its row, and every execution its steps."""
    with config.engine.connect() as connection:
        counts = {
            table.name: connection.execute(text(f"SELECT count(*) FROM {table.name}")).scalar_one()
            for table in (config.schema.claims, config.schema.ledger)
        }
        steps = connection.execute(
            text(f"SELECT sum((position->>'scans')::int) FROM {config.schema.executions.name}")
        ).scalar_one()
    assert set(counts.values()) == {messages}, counts
    assert steps == messages, steps


if __name__ == "__main__":
    main()
