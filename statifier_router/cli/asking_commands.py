"""`statifier-router ledger` and `execution`: what is written down, as it is."""

from __future__ import annotations

import json
from pathlib import Path

import click

from statifier_router.cli import diagrams, instants, reading
from statifier_router.cli.answers import Answer, Screen, cell, clean, table
from statifier_router.cli.commanding import command
from statifier_router.cli.outgoing import Outgoing, outgoing_of
from statifier_router.cli.reading import Story
from statifier_router.cli.showing import show_moments, show_sends, show_waiting, status_cell
from statifier_router.config import Config
from statifier_router.errors import ConfigError, ExecutionNotFound
from statifier_router.ledger import LedgerRow
from statifier_router.ledger import rows as ledger_rows

_INPUTS_SHOWN = 50


@command("ledger")
@click.option("--binding", "--binding-id", "binding_id", metavar="ID", help="Of this binding only.")
@click.option("--message", "--message-id", "message_id", metavar="ID", help="Of this message only.")
@click.option("--scope", metavar="SCOPE", help="Of this scope only.")
@click.option("--outcome", metavar="OUTCOME", help='Such as "delivered" or "dropped: unmatched_event".')
@click.option("--execution", "--execution-id", "execution_id", metavar="ID", help="Of this execution only.")
@click.option("--limit", type=int, default=100, show_default=True, help="At most so many rows.")
@click.option("--after", type=int, metavar="ROW", help="Only rows behind this one: the next page.")
def ledger(
    config: Config,
    *,
    binding_id: str | None,
    message_id: str | None,
    scope: str | None,
    outcome: str | None,
    execution_id: str | None,
    limit: int,
    after: int | None,
) -> Answer:
    """Show what became of messages.

    Ledger rows, oldest first; filters add up.
    """
    found = ledger_rows(
        config,
        binding_id=binding_id,
        message_id=message_id,
        scope=scope,
        outcome=outcome,
        execution_id=execution_id,
        limit=limit,
        after=after,
    )
    following = found[-1].id if len(found) == limit else None
    document = {"rows": found, "next": following}
    return Answer(document, lambda screen: _show_ledger(found, following, screen))


def _show_ledger(found: list[LedgerRow], following: int | None, screen: Screen) -> None:
    if not found:
        screen.say("no rows")
        return
    columns: dict[str, list[str | None]] = {
        "binding": [row.binding_id for row in found],
        "message": [row.message_id for row in found],
        "outcome": [row.outcome for row in found],
        "scope": [row.scope for row in found],
        "key": [row.key for row in found],
        "execution": [row.execution_id for row in found],
        "reason": [row.reason for row in found],
    }
    # What every row says is said once, so that a row has a chance to fit on its line.
    said = {name: values[0] for name, values in columns.items() if len(found) > 1 and len(set(values)) == 1}
    if common := [f"{name} {clean(value)}" for name, value in said.items() if value]:
        screen.say("every row: " + ", ".join(common), "dim")
    one_day = len({row.inserted_at.date() for row in found}) == 1
    when = f"{found[0].inserted_at:%Y-%m-%d}" if one_day else "at (UTC)"
    kept = [name for name in columns if name not in said and any(columns[name])]
    shown = table("row", when, *kept, numbers=["row"])
    for index, row in enumerate(found):
        at = f"{row.inserted_at:%H:%M:%S}" if one_day else instants.shown(row.inserted_at)
        shown.add_row(cell(row.id), cell(at), *(cell(columns[name][index]) for name in kept))
    screen.print(shown)
    if following is not None:
        screen.say(f"there may be more: --after {following}", "dim")


@command("execution")
@click.argument("execution_id", metavar="ID")
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--all", "everything", is_flag=True, help=f"Every input, not the last {_INPUTS_SHOWN} only.")
@click.option(
    "--diagram",
    "form",
    is_flag=False,
    flag_value="mermaid",
    type=click.Choice(diagrams.FORMATS),
    help="Print the state diagram in Mermaid instead; --diagram=svg writes it to FILE.",
)
def execution(
    config: Config, *, execution_id: str, file: Path | None, everything: bool, form: str | None
) -> Answer:
    """Show one execution, every input it took, and what it sent.

    Its status, position and active states; for each input the states before and after; what became of
    each send; pending timers, and events that are kept for it. With
    --diagram, its chart with the active states marked: in Mermaid, or as an SVG where Graphviz is there.
    """
    if form is not None:
        return diagrams.diagram(config, execution_id, form, file)
    if file is not None:
        raise ConfigError("a FILE goes with --diagram=svg")
    story = reading.story_of(config, execution_id)
    if story is None:
        raise ExecutionNotFound(execution_id)
    outgoing = outgoing_of(config, execution_id)
    document = {
        "execution": story.execution,
        "address": story.address,
        "inputs": story.moments,
        "states_not_told": story.gap,
        "sends": outgoing.sends,
        "timers": outgoing.timers,
        "kept": outgoing.kept,
    }
    return Answer(document, lambda screen: _show_execution(story, outgoing, screen, everything=everything))


def _show_execution(story: Story, outgoing: Outgoing, screen: Screen, *, everything: bool) -> None:
    found = story.execution
    screen.say(f"Execution {clean(found.id)}", "bold")
    facts = table("", "")
    facts.show_header = False
    facts.add_row("status", status_cell(found.status))
    if found.failure:
        facts.add_row("failure", cell(found.failure))
    facts.add_row("active", cell(", ".join(found.active)))
    facts.add_row("at", cell(f"{found.document} · key {found.key} · scope {found.scope or '(empty)'}"))
    if story.address is None:
        facts.add_row("address", cell("none names it (made by always_new, or reaped)"))
    else:
        seen = story.address.terminal_seen_at
        ended = "" if seen is None else f", seen ended {instants.shown(seen)}"
        facts.add_row("address", cell(f"since {instants.shown(story.address.inserted_at)}{ended}"))
    facts.add_row("created", cell(instants.shown(found.created_at)))
    if found.ended_at is not None:
        facts.add_row("ended", cell(instants.shown(found.ended_at)))
    facts.add_row("revision", cell(found.revision))
    facts.add_row("chart", cell(f"{found.content_hash[:12]}… ({found.interpreter})"))
    pruned = found.position is None and not story.moments
    facts.add_row("position", cell("pruned" if pruned else json.dumps(found.position, ensure_ascii=False)))
    screen.print(facts)
    screen.say()
    show_moments(story.moments, screen, last=None if everything else _INPUTS_SHOWN)
    if story.gap is not None:
        screen.say(f"states are not told: {clean(story.gap)}", "yellow")
    show_sends(outgoing.sends, screen, last=None if everything else _INPUTS_SHOWN)
    show_waiting(outgoing, screen)
