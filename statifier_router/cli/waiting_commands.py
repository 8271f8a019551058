"""`statifier-router timers` and `deferrals`: what waits for its time, and what was kept for later."""

from __future__ import annotations

import click

from statifier_router import deferrals as kept_events
from statifier_router import timers as timer_rows
from statifier_router.cli import instants
from statifier_router.cli.answers import REFUSED, Answer, Screen, cell, table
from statifier_router.cli.commanding import command
from statifier_router.cli.groups import DefaultGroup
from statifier_router.config import Config
from statifier_router.deferrals import KeptEvent, Swept
from statifier_router.errors import ConfigError
from statifier_router.timers import Fired, Timer

_BATCH = 100

_EXECUTION = click.option(
    "--execution", "--execution-id", "execution_id", metavar="ID", help="Of this execution only."
)
_SHOWN = click.option("--limit", type=int, default=100, show_default=True, help="At most so many rows.")


# --- Timers ---------------------------------------------------------------------------------------


@command("pending")
@_EXECUTION
@_SHOWN
def pending(config: Config, *, execution_id: str | None, limit: int) -> Answer:
    """Show the timers that have not fired, those that are due first on top."""
    found = timer_rows.pending(config, execution_id=execution_id)
    shown = found[: _checked(limit)]
    document = {"pending": len(found), "timers": shown}
    return Answer(document, lambda screen: _show_timers(shown, len(found), screen))


@command("fire")
@click.option(
    "--limit", type=int, default=10_000, show_default=True, help="At most so many timers; then exit."
)
def fire(config: Config, *, limit: int) -> Answer:
    """Fire the timers that are due.

    Run it every few seconds; several may run at once. Exit code 1 where one failed: it is tried again by
    a later call, after a pause that grows, and `timers pending` shows why.
    """
    left = _checked(limit)
    total = Fired(fired=0, discarded=0, failed=0)
    while left > 0:
        batch = min(left, _BATCH)
        did = timer_rows.fire_due(config, limit=batch)
        total = Fired(
            fired=total.fired + did.fired,
            discarded=total.discarded + did.discarded,
            failed=total.failed + did.failed,
        )
        handled = did.fired + did.discarded + did.failed
        left -= handled
        if handled < batch:
            break
    document = {"fired": total.fired, "discarded": total.discarded, "failed": total.failed}
    line = f"timers: {total.fired:,} fired, {total.discarded:,} discarded, {total.failed:,} failed"
    return Answer(document, lambda screen: screen.say(line), REFUSED if total.failed else 0)


@click.group("timers", cls=DefaultGroup)
def timers() -> None:
    """Show or fire delayed sends; without a command, `pending`."""


for each in (pending, fire):
    timers.add_command(each)


def _show_timers(found: list[Timer], count: int, screen: Screen) -> None:
    if not found:
        screen.say("no timers")
        return
    tried = any(timer.tries for timer in found)
    columns = ["due (UTC)", "event", "to", "execution", "send id"]
    made = table(*columns, *(["tries", "next try", "last error"] if tried else []), numbers=["tries"])
    for timer in found:
        cells = [
            cell(instants.shown(timer.due_at)),
            cell(timer.event.name),
            cell("itself" if timer.target is None else timer.target),
            cell(timer.execution_id),
            cell(timer.send_id),
        ]
        if tried:
            cells += [
                cell(timer.tries),
                cell(instants.shown(timer.next_try_at)),
                cell(timer.last_error, "yellow"),
            ]
        made.add_row(*cells)
    screen.print(made)
    _say_rest(count - len(found), screen)


# --- Kept events ----------------------------------------------------------------------------------


@command("list")
@_EXECUTION
@_SHOWN
def list_kept(config: Config, *, execution_id: str | None, limit: int) -> Answer:
    """Show the events that came early and are kept, the oldest first."""
    found = kept_events.pending(config, execution_id=execution_id)
    shown = found[: _checked(limit)]
    document = {"kept": len(found), "events": shown}
    return Answer(document, lambda screen: _show_kept(shown, len(found), config, screen))


@command("sweep")
def sweep(config: Config) -> Answer:
    """Offer what found its execution in the meantime, and drop what waited too long.

    Run it every few minutes; several may run at once.
    """
    now = config.now()
    total = Swept(offered=0, landed=0, expired=0)
    while (did := kept_events.sweep(config, now=now)).landed or did.expired:
        total = Swept(
            offered=total.offered + did.offered,
            landed=total.landed + did.landed,
            expired=total.expired + did.expired,
        )
    document = {"offered": total.offered, "landed": total.landed, "expired": total.expired}
    line = f"kept events: {total.offered:,} offered, {total.landed:,} landed, {total.expired:,} expired"
    return Answer(document, lambda screen: screen.say(line))


@click.group("deferrals", cls=DefaultGroup)
def deferrals() -> None:
    """Show or sweep events that came early; without a command, `list`."""


for each in (list_kept, sweep):
    deferrals.add_command(each)


def _show_kept(found: list[KeptEvent], count: int, config: Config, screen: Screen) -> None:
    if not found:
        screen.say("no kept events")
        return
    now = config.now()
    made = table("kept since (UTC)", "until", "binding", "message", "event", "waits for")
    for kept in found:
        over = kept.until < now
        made.add_row(
            cell(instants.shown(kept.created_at)),
            cell(instants.shown(kept.until) + (" (over)" if over else ""), "yellow" if over else ""),
            cell(kept.binding_id),
            cell(kept.message_id),
            cell(kept.event.name),
            cell(waits_for(kept)),
        )
    screen.print(made)
    _say_rest(count - len(found), screen)


def waits_for(kept: KeptEvent) -> str:
    """The execution, or the address at which there is none yet."""
    if kept.execution_id is not None:
        return kept.execution_id
    return f"an execution of {kept.document} at key {kept.key}, scope {kept.scope or '(empty)'}"


def _say_rest(rest: int, screen: Screen) -> None:
    if rest > 0:
        screen.say(f"{rest:,} more: --limit", "dim")


def _checked(limit: int) -> int:
    if limit < 1:
        raise ConfigError(f"--limit must be at least 1, it is {limit}")
    return limit
