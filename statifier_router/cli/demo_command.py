"""`statifier-router demo`: one page that shows what the library is for."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text
from sqlalchemy import func, select

from statifier_router import clock, deferrals, timers
from statifier_router.cli import reading
from statifier_router.cli.answers import Answer, Screen, cell, clean, table
from statifier_router.cli.commanding import command
from statifier_router.cli.showing import change
from statifier_router.cli.tallies import Tally, in_order
from statifier_router.config import Config
from statifier_router.transactions import reading as reading_on

_REFERENCE = "statifier_router.demo:config"
_WELCOME = (
    "A shop, a carrier and six depots tell of the same parcels: {messages:,} messages,",
    "which come late, twice and out of order. Each is routed to the one state",
    "machine of its parcel, in one transaction: either it is taken, once, or the",
    "ledger says why not.",
)
_MEANINGS = {
    "created_and_delivered": "first to tell of it: the state machine was created",
    "delivered": "the state machine was stepped",
    "duplicate": "the same message again: nothing was stepped",
    "dropped: finished": "the parcel's life had ended already",
    "dropped: unmatched_event": "not taken: too late, or older than what was known",
    "deferred": "cancelled before it was ordered: kept, if the order is late",
    "unrouted": "no binding is for such a message",
    "key_refused": "a barcode that is a number: told, never guessed",
}
# Below this width the table of outcomes is set closer.
_ROOMY = 88
_WORTH_TELLING = timedelta(minutes=5)


@frozen
class _Page:
    """All that the page shows."""

    database: str
    parcel: str
    execution_id: str
    tally: Tally
    lines: tuple[dict[str, Any], ...]
    commands: tuple[tuple[str, str], ...]
    meanwhile: Mapping[str, int]


@command("demo", configured=False)
@click.option(
    "--database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The SQLite file; by default parcels.db in the current directory. A second run makes it anew.",
)
@click.option("--seed", type=int, default=42, show_default=True, help="Another seed, another day.")
def demo(*, database: Path | None, seed: int) -> Answer:
    """Show in a few seconds what this is for.

    Some 2,000 messages about parcels come late, twice and out of order, and each is routed to the state
    machine of its parcel. It needs no configuration and makes one SQLite file, on which the other
    commands can then be tried.
    """
    from statifier_router import demo as company
    from statifier_router.demo import database as databases
    from statifier_router.demo import messages, running

    # Before the file is made: without their extra there is no demo, and no file of it.
    company.charts()
    path = database or Path(company.DEFAULT_DATABASE)
    arrivals = messages.day(running.start_of_day(clock.system_clock()), seed=seed)
    databases.make_new(path)
    config = company.config(path)
    try:
        with _progress(len(arrivals)) as advance:
            shown = running.run(config, arrivals, advance)
        tally = Tally()
        for outcomes in shown.outcomes:
            tally.add(outcomes)
        page = _Page(
            database=str(path.resolve()),
            parcel=messages.PARCEL,
            execution_id=shown.execution_id,
            tally=tally,
            lines=tuple(_lines(config, shown)),
            commands=tuple(_commands(database, shown)),
            meanwhile=_meanwhile(config, shown),
        )
    finally:
        config.engine.dispose()
    return Answer(_document(page), lambda screen: _show(page, screen))


def _meanwhile(config: Config, shown: Any) -> dict[str, int]:
    """What came of messages and of time besides their own outcomes."""
    kept = sum(outcome.recorded == "deferred" for each in shown.outcomes for outcome in each)
    waiting = len(deferrals.pending(config))
    with reading_on(config) as connection:
        notices = connection.execute(select(func.count()).select_from(config.schema.outbox)).scalar_one()
    return {
        "notices": notices,
        "timers_fired": shown.fired,
        "timers_pending": len(timers.pending(config)),
        "kept_landed": kept - waiting - shown.expired,
        "kept_expired": shown.expired,
        "kept": waiting,
    }


def _lines(config: Config, shown: Any) -> Iterator[dict[str, Any]]:
    """The story, a line a message: when, which, what it tells, the outcome, and the states around it."""
    story = reading.story_of(config, shown.execution_id)
    assert story is not None
    stepped = {moment.input.message_id: moment for moment in story.moments if moment.input.event is not None}
    for told in shown.story:
        message = told.arrival.message
        moment = stepped.pop(message.message_id, None)
        yield {
            "arrived": told.arrival.arrived,
            "late_by_seconds": int(told.arrival.late_by.total_seconds()),
            "source": message.source,
            "message_id": message.message_id,
            "binding_id": told.outcome.binding_id,
            "outcome": told.outcome.recorded,
            "before": None if moment is None else moment.before,
            "after": None if moment is None else moment.after,
            "states": "nothing stepped" if moment is None else change(moment),
        }


def _document(page: _Page) -> dict[str, Any]:
    return {
        "database": page.database,
        "messages": page.tally.messages,
        "outcomes": page.tally.outcomes(),
        "by_binding": page.tally.by_binding,
        "meanwhile": page.meanwhile,
        "story": {"parcel": page.parcel, "execution_id": page.execution_id, "messages": page.lines},
        "next": [line for _, line in page.commands],
    }


# --- The page -------------------------------------------------------------------------------------


def _show(page: _Page, screen: Screen) -> None:
    for line in _WELCOME:
        screen.say(line.format(messages=page.tally.messages))
    screen.say()
    screen.say("What became of them, by binding", "bold")
    _show_outcomes(page, screen)
    screen.say()
    told = page.meanwhile
    screen.say(
        f"{told['notices']:,} notices are in the outbox: {told['timers_fired']:,} of parcels that were "
        "quiet for six hours."
    )
    screen.say()
    screen.say(f"The story of parcel {page.parcel}", "bold")
    _show_story(page, screen)
    screen.say()
    screen.say(f"All of it is in the SQLite file {clean(page.database)}. Now try:", "bold")
    for title, line in page.commands:
        screen.say(f"# {title}", "dim")
        # A long line is parted where a shell takes it as one.
        screen.say(line.replace(" | ", " \\\n  | "), "cyan")


def _show_outcomes(page: _Page, screen: Screen) -> None:
    from statifier_router.demo.bindings import BINDINGS

    names = [binding.id for binding in BINDINGS]
    counts = page.tally.by_binding
    gap = 2 if screen.width >= _ROOMY else 1
    shown = table("outcome", *names, "all", numbers=[*names, "all"], gap=gap)
    totals = {name: count for name, count in page.tally.outcomes().items() if name != "no_match"}
    for outcome in in_order(totals):
        cells = [counts[name][outcome] if name in counts else 0 for name in names]
        shown.add_row(
            cell(outcome, "bold"),
            *(cell(f"{count:,}" if count else "·", "" if count else "dim") for count in cells),
            cell(f"{totals[outcome]:,}"),
        )
    screen.print(shown)
    screen.say()
    meanings = table("", "")
    meanings.show_header = False
    for outcome in in_order(totals):
        meanings.add_row(cell(outcome), cell(_MEANINGS.get(outcome), "dim"))
    screen.print(meanings)


def _show_story(page: _Page, screen: Screen) -> None:
    shown = table("came", "late", "message", "outcome", "state of the parcel", numbers=["late"])
    for line in page.lines:
        late = timedelta(seconds=line["late_by_seconds"])
        stepped = line["before"] is not None
        shown.add_row(
            cell(f"{line['arrived']:%H:%M}"),
            Text(_hours(late) if late >= _WORTH_TELLING else ""),
            cell(line["message_id"]),
            cell(line["outcome"], "green" if line["outcome"].endswith("delivered") else "yellow"),
            cell(line["states"], "" if stepped else "dim"),
        )
    screen.print(shown)


def _hours(late: timedelta) -> str:
    hours, minutes = divmod(int(late.total_seconds()) // 60, 60)
    return f"{hours}:{minutes:02}"


# --- What to type next ----------------------------------------------------------------------------


def _commands(database: Path | None, shown: Any) -> Iterator[tuple[str, str]]:
    from statifier_router.demo import VARIABLE

    setting = "" if database is None else f"{VARIABLE}={shlex.quote(str(database))} "
    run = f"{setting}{_program()}"
    config = f"--config {_REFERENCE}"
    twice = next(told for told in shown.story if told.outcome.recorded == "duplicate")
    yield (
        "why did the second copy of a scan do nothing?",
        f"{run} explain {twice.arrival.message.message_id} {config}",
    )
    yield (
        "everything that happened to the parcel, and where it stands",
        f"{run} execution {shown.execution_id} {config}",
    )
    yield (
        "what the state machines did not take",
        f"{run} ledger --outcome 'dropped: unmatched_event' --limit 5 {config}",
    )
    message = '{"source":"carrier","message_id":"m1","scope":"eu","data":{"scan":"pickup","parcel":"P7"}}'
    yield "send a message of your own; then send it again", f"echo '{message}' | {run} route - {config}"


def _program() -> str:
    """How this program was called, so that what is printed can be typed."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m statifier_router.cli"
    on_path = shutil.which("statifier-router")
    if called.exists() and (on_path is None or not called.samefile(on_path)):
        return shlex.quote(str(called))
    return "statifier-router"


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Screen(sys.stderr),
        transient=True,
        redirect_stdout=False,
    ) as progress:
        task = progress.add_task("routing messages", total=total)
        yield lambda: progress.advance(task)
