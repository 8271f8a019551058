"""`statifier-router why`, `records`, `parked`, `release`, `park` and `replay`: single records of a rule."""

from __future__ import annotations

from typing import Any

import click

from statifier_router.cli import acting_options as options
from statifier_router.cli import instants
from statifier_router.cli.answers import REFUSED, Answer, Screen, cell, clean, table
from statifier_router.cli.commanding import outbound_command
from statifier_router.cli.progress import bar
from statifier_router.errors import ConfigError
from statifier_router.refusals import one_line
from statifier_router.runs import Outbound, Parked, RecordRow, Released, Why

_ERROR_SHOWN = 200
_STATUS = click.option("--status", metavar="STATUS", help='Such as "exhausted" or "remote_gone".')
_KIND = click.option("--error-kind", metavar="KIND", help='Such as "rejected" or "timed_out".')
_LIMIT = click.option("--limit", type=int, default=100, show_default=True, help="At most so many rows.")


# --- Asking ---------------------------------------------------------------------------------------


@outbound_command("why")
@click.argument("rule", metavar="RULE")
@click.argument("source_id", metavar="ID")
def why(outbound: Outbound, *, rule: str, source_id: str) -> Answer:
    """Tell why a record is, or is not, at its target.

    The one reason that holds now, and what to do next.
    """
    found = outbound.why(rule, source_id)
    document = {
        "rule": found.rule,
        "source_id": found.source_id,
        "reason": found.reason,
        "text": found.text,
        "advice": found.advice,
        "facts": found.facts,
    }
    return Answer(document, lambda screen: _show_why(found, screen))


def _show_why(found: Why, screen: Screen) -> None:
    screen.say(clean(f"{found.source_id} of {found.rule}: {found.reason}"), "bold")
    screen.say(f"  {clean(found.text)}")
    if found.advice:
        screen.say(f"  next: {clean(found.advice)}")


@outbound_command("records")
@click.argument("rule", metavar="RULE")
@_STATUS
@_LIMIT
@click.option("--after", metavar="ID", help="Only records behind this one: the next page.")
def records(outbound: Outbound, *, rule: str, status: str | None, limit: int, after: str | None) -> Answer:
    """Show the records of a rule.

    In the order of their ids.
    """
    found = outbound.records(rule, status=status, limit=limit, after=after)
    following = found[-1].source_id if len(found) == limit else None

    def show(screen: Screen) -> None:
        _show_rows(found, screen, named=False)
        if following is not None:
            screen.say(f"there may be more: --after {clean(following)}", "dim")

    return Answer({"rows": found, "next": following}, show)


@outbound_command("parked")
@click.argument("rule", metavar="[RULE]", required=False)
@_STATUS
@_KIND
@click.option("--since", metavar="WHEN", help="Parked since then: an instant, or an age (12h).")
@click.option("--all", "everything", is_flag=True, help="Those that were dismissed, too.")
@_LIMIT
def parked(
    outbound: Outbound,
    *,
    rule: str | None,
    status: str | None,
    error_kind: str | None,
    since: str | None,
    everything: bool,
    limit: int,
) -> Answer:
    """Show the records that wait for an operator.

    Those parked first on top; filters add up. See: why RULE ID, release --help.
    """
    filters: dict[str, Any] = {
        "status": status,
        "error_kind": error_kind,
        "since": None if since is None else instants.parse(since, "--since", outbound.config.now()),
        "acknowledged": None if everything else False,
    }
    found = outbound.parked(rule, limit=limit, **filters)
    count = outbound.count_parked(rule, **filters) if len(found) == limit else len(found)

    def show(screen: Screen) -> None:
        _show_rows(found, screen, named=rule is None, none="nothing is parked")
        if count > len(found):
            screen.say(f"{count - len(found):,} more: --limit", "dim")

    return Answer({"parked": count, "rows": found}, show)


def _show_rows(found: list[RecordRow], screen: Screen, *, named: bool, none: str = "no records") -> None:
    if not found:
        screen.say(none)
        return
    columns = ["id", "status", "at target", "attempts", "since (UTC)", "next attempt", "error"]
    made = table(*(["rule"] if named else []), *columns, numbers=["attempts"], whole=["id"])
    for row in found:
        error = None if row.error_kind is None else f"{row.error_kind}: {row.last_error or ''}"
        due = None if row.next_attempt_at is None else instants.shown(row.next_attempt_at)
        dismissed = " (dismissed)" if row.acknowledged_at is not None else ""
        made.add_row(
            *([cell(row.rule)] if named else []),
            cell(row.source_id),
            cell(row.status + dismissed, "red" if row.is_terminal and not dismissed else ""),
            cell(row.remote_id),
            cell(row.attempts),
            cell(instants.shown(row.parked_at or row.updated_at)),
            cell(due),
            cell(None if error is None else one_line(error, _ERROR_SHOWN), "yellow"),
        )
    screen.show_whole(made)


# --- Acting ---------------------------------------------------------------------------------------


@outbound_command("release")
@click.argument("rule", metavar="RULE")
@options.source_ids
@click.option(
    "--mode",
    metavar="MODE",
    required=True,
    help='One of retry, recreate, dismiss and "adopt REMOTE_ID".',
)
@_STATUS
@_KIND
@click.option("--since", metavar="WHEN", help="Parked since then: an instant, or an age (12h).")
@click.option("--all", "everything", is_flag=True, help="All that are parked and not dismissed.")
@options.spread
@options.dry_run
@options.actor
@options.reason
def release(
    outbound: Outbound,
    *,
    rule: str,
    source_ids: tuple[str, ...],
    mode: str,
    status: str | None,
    error_kind: str | None,
    since: str | None,
    everything: bool,
    spread: str | None,
    dry_run: bool,
    actor: str,
    reason: str | None,
) -> Answer:
    """Offer parked records again, or dismiss them.

    Name the records ("-" reads ids from standard input, one a line), or choose them with --status,
    --error-kind and --since, or --all. Modes:

    \b
    retry            from the first attempt; a call in doubt again under its key
    recreate         the target has it no more: create it anew
    adopt REMOTE_ID  the target has it, at this address (of one record)
    dismiss          leave it as it is, and list it no more

    Failed records, which are tried again anyway, are chosen by name or by --status failed.
    Exit code 1 where a record that was named was not released.
    """  # noqa: D301 - the escape is the backspace by which click keeps lines apart
    named = options.read_ids(source_ids)
    filtered = [each for each in (status, error_kind, since) if each is not None]
    if not named and not filtered and not everything:
        raise ConfigError(
            "nothing is chosen: name records, or give --status, --error-kind or --since, or --all"
        )
    if everything and (named or filtered):
        raise ConfigError("--all goes with neither names nor filters")
    if mode.strip() == "adopt":
        raise ConfigError(
            "--mode adopt wants the address at the target, as one argument: --mode 'adopt REMOTE_ID'"
        )
    filters: dict[str, Any] = {
        "error_kind": error_kind,
        "since": None if since is None else instants.parse(since, "--since", outbound.config.now()),
    }
    with bar("releasing") as progress:
        done = outbound.release(
            rule,
            mode=mode,
            source_ids=named or None,
            status=status,
            spread=None if spread is None else instants.duration(spread, "--spread"),
            dry_run=dry_run,
            actor=actor,
            reason=reason,
            progress=progress,
            **filters,
        )
    failed = 0
    if not (named or status or done.count or done.busy) and done.mode in ("retry", "recreate"):
        # Those that whoever asked may have meant.
        failed = outbound.release(
            rule, mode=mode, status="failed", dry_run=True, actor=actor, **filters
        ).count
    return _released(done, named=bool(named), failed=failed)


@outbound_command("replay")
@click.argument("rule", metavar="RULE")
@options.source_ids
@click.option(
    "--since", metavar="WHEN", help="Handled since then: an instant with its zone, or an age (12h)."
)
@options.spread
@options.dry_run
@options.actor
@options.reason
def replay(
    outbound: Outbound,
    *,
    rule: str,
    source_ids: tuple[str, ...],
    since: str | None,
    spread: str | None,
    dry_run: bool,
    actor: str,
    reason: str | None,
) -> Answer:
    """Send records again that were delivered.

    A state rule updates them at the target, as they are now; a message rule sends them a second time.
    Name the records ("-" reads ids from standard input, one a line), or give --since, or both.
    """
    named = options.read_ids(source_ids)
    with bar("replaying") as progress:
        done = outbound.replay(
            rule,
            source_ids=named or None,
            since=None if since is None else instants.parse(since, "--since", outbound.config.now()),
            spread=None if spread is None else instants.duration(spread, "--spread"),
            dry_run=dry_run,
            actor=actor,
            reason=reason,
            progress=progress,
        )
    return _released(done, named=bool(named))


def _released(done: Released, *, named: bool, failed: int = 0) -> Answer:
    left = done.busy + ((done.unknown + done.passed_over) if named else 0)
    return Answer(
        {"released": done}, lambda screen: _show_released(done, screen, failed), REFUSED if left else 0
    )


def _show_released(done: Released, screen: Screen, failed: int) -> None:
    doing = "would be " if done.dry_run else ""
    what = {"adopt": "adopted", "dismiss": "dismissed", "replay": "replayed"}.get(done.mode, "released")
    line = f"{done.rule}: {done.count:,} {doing}{what}"
    if done.mode in ("retry", "recreate"):
        line += f" ({done.mode})"
    if done.count and done.due_from is not None and done.due_until is not None:
        line += f", due {instants.shown(done.due_from)}"
        if done.due_until > done.due_from:
            line += f" to {instants.shown(done.due_until)}"
    screen.say(clean(line), "bold")
    if failed:
        screen.say(
            f"  {failed:,} failed, which are not parked but tried again: --status failed chooses them",
            "yellow",
        )
    _say_left(done, screen)


def _say_left(done: Released | Parked, screen: Screen) -> None:
    for count, text in (
        (done.busy, "in flight: ask again in a moment"),
        (done.passed_over, "passed over: their status is one that this does not take"),
        (done.unknown, "unknown: the rule has no row of them"),
    ):
        if count:
            screen.say(f"  {count:,} {text}", "yellow")


@outbound_command("park")
@click.argument("rule", metavar="RULE")
@click.argument("source_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", required=True, help="Why, for its row and the audit row.")
@options.actor
def park(outbound: Outbound, *, rule: str, source_ids: tuple[str, ...], reason: str, actor: str) -> Answer:
    """Set a record aside that holds up its rule.

    No run offers it until it is released. "-" reads ids from standard input, one a line. Exit code 1 where
    one was not parked.
    """
    done = outbound.park(rule, options.read_ids(source_ids), reason=reason, actor=actor)
    left = done.busy + done.passed_over + done.unknown

    def show(screen: Screen) -> None:
        screen.say(clean(f"{done.rule}: {done.count:,} parked"), "bold")
        _say_left(done, screen)

    return Answer({"parked": done}, show, REFUSED if left else 0)
