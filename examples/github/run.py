"""Route webhooks that GitHub recorded, all of them twice, and tell what became of them.

    python examples/github/run.py            the payloads of the npm package @octokit/webhooks-examples
    python examples/github/run.py FILE…      the payloads of these files, which have the package's format
    python examples/github/run.py --check    fail unless the counts are the expected ones
    python examples/github/run.py --url postgresql://postgres@localhost/test

The last line is one JSON object: the counts by outcome, of both passes together and of each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from bindings import BINDINGS, ROUTES
from charts import charts
from payloads import Unusable, default_file, message, read
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from statifier_router import (
    Config,
    DeliveryError,
    Message,
    RouterError,
    Tables,
    create_engine,
    executions,
    ledger,
    migrations,
    route,
    timers,
)

EXPECTED = Path(__file__).with_name("expected.json")
# Names of their own, because a run begins by dropping them.
TABLES = Tables(prefix="github_example_")


def main() -> int:
    arguments = _arguments()
    try:
        files = arguments.files or [default_file()]
        messages = [message(event, payload) for file in files for event, payload in read(file)]
        with tempfile.TemporaryDirectory() as folder:
            config = _configure(arguments.url or f"sqlite:///{folder}/github.db")
            try:
                summary = _run(config, messages)
            finally:
                config.engine.dispose()
    except (Unusable, RouterError, SQLAlchemyError) as error:
        # The driver's own words, without the statement and the hints around them.
        said = str(getattr(error, "orig", None) or error)
        print(f"error: {' '.join(said.split())}", file=sys.stderr)
        return 2
    if arguments.check and summary != json.loads(EXPECTED.read_text()):
        print(f"error: the counts are not those of {EXPECTED}", file=sys.stderr)
        return 1
    return 1 if any(name.startswith("error: ") for name in summary) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Route recorded GitHub webhooks, all of them twice.")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="payloads in the format of @octokit/webhooks-examples "
        "(default: its api.github.com/index.json, which npm fetches)",
    )
    parser.add_argument(
        "--url",
        help=f"a database, whose tables {TABLES.prefix}* are dropped and made anew "
        "(default: a temporary SQLite file)",
    )
    parser.add_argument(
        "--check", action="store_true", help=f"fail unless the counts are those of {EXPECTED.name}"
    )
    return parser.parse_args()


def _configure(url: str) -> Config:
    engine = create_engine(url)
    with engine.begin() as connection:
        migrations.down(connection, tables=TABLES, to=0)
        migrations.up(connection, tables=TABLES)
    return Config(engine, charts=charts(), bindings=BINDINGS, routes=ROUTES, tables=TABLES)


def _run(config: Config, messages: list[Message]) -> dict[str, object]:
    events = {each.source for each in messages}
    print(f"{len(messages)} webhooks of {len(events)} events, {len(BINDINGS)} bindings\n")
    passes = []
    for title in ("first pass", "second pass: the same messages again"):
        by_event = _route_all(config, messages)
        passes.append(_total(by_event.values()))
        _print_table(title, by_event)
    _print_executions(config)
    _print_two_days_later(config)
    summary: dict[str, object] = {**_total(passes), "passes": passes}
    print(json.dumps(summary))
    return summary


def _route_all(config: Config, messages: list[Message]) -> dict[str, Counter[str]]:
    by_event: dict[str, Counter[str]] = defaultdict(Counter)
    for each in messages:
        counts = by_event[each.source.removeprefix("github.")]
        try:
            outcomes = route(config, each)
        except DeliveryError as error:
            counts.update(outcome.recorded for outcome in error.outcomes)
            counts[f"error: {type(error).__name__}"] += 1
            print(f"error: {each.source}: {error}", file=sys.stderr)
            continue
        taken = [outcome.recorded for outcome in outcomes if outcome.recorded != "no_match"]
        # A message that no binding took is one fact, however many bindings looked at it.
        counts.update(taken or ["no_match" if outcomes else "unrouted"])
    return by_event


def _total(counts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return Counter(dict(sorted(total.items())))


def _print_table(title: str, by_event: dict[str, Counter[str]]) -> None:
    print(title)
    others: Counter[str] = Counter()
    for event, counts in sorted(by_event.items()):
        if set(counts) == {"unrouted"}:
            others.update(counts)
        else:
            print(f"  {event:28} {_told(counts)}")
    if others:
        print(f"  {'events that no binding names':28} {_told(others)}")
    print()


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _print_executions(config: Config) -> None:
    print("final states")
    for execution_id in _seen(config):
        execution = executions.fetch(config, execution_id)
        assert execution is not None
        who = f"{execution.document:14} {execution.key:44}"
        print(f"  {who} {', '.join(execution.active):18} {execution.revision:3} steps, {execution.status}")
    print()


def _print_two_days_later(config: Config) -> None:
    """What a job that fires timers would have found by then: pull requests that nobody has reviewed."""
    fired = timers.fire_due(config, now=config.now() + timedelta(days=2))
    print(f"two days later: {fired.fired} timers fire")
    outbox = config.schema.outbox
    with config.engine.connect() as connection:
        for event in connection.execute(select(outbox.c.event).order_by(outbox.c.id)).scalars():
            told = json.loads(event)
            print(f"  {told['name']:14} {told['data']['pull_request']}")
    print()


def _seen(config: Config) -> list[str]:
    """The executions that the ledger names, each once, oldest first."""
    rows = ledger.rows(config, limit=1_000_000)
    return list(dict.fromkeys(row.execution_id for row in rows if row.execution_id is not None))


if __name__ == "__main__":
    sys.exit(main())
