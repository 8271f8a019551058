"""How executions and their inputs are shown, by every command that shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from statifier_router.cli import instants
from statifier_router.cli.answers import Screen, cell, clean, table
from statifier_router.cli.outgoing import Outgoing, Sent
from statifier_router.cli.reading import Moment


def status_cell(status: str) -> Text:
    """A status, coloured by whether anything is still to come."""
    style = {"active": "green", "completed": "blue", "suspended": "yellow"}.get(status, "red")
    return cell(status, style)


def show_moments(moments: tuple[Moment, ...], screen: Screen, *, last: int | None = None) -> None:
    """The inputs as a table, or only the `last` of them."""
    shown = moments if last is None else moments[-last:]
    if not shown:
        return
    if len(shown) < len(moments):
        screen.say(f"{len(moments) - len(shown):,} earlier inputs; --all shows them", "dim")
    made = table("input", "at (UTC)", "door", "event", "message", "states", numbers=["input"])
    for moment in shown:
        row = moment.input
        event = row.event.name if row.event is not None else row.actor and f"by {row.actor}"
        errors = f" (errors: {'; '.join(row.errors)})" if row.errors else ""
        made.add_row(
            cell(row.seq),
            cell(instants.shown(row.at)),
            cell(row.door),
            cell(event),
            cell(row.message_id),
            cell(change(moment) + errors),
        )
    screen.print(made)


def show_sends(sends: Sequence[Sent], screen: Screen, *, last: int | None = None) -> None:
    """What was sent as a table, or only the `last` of it; nothing where nothing was."""
    shown = sends if last is None else sends[-last:]
    if not shown:
        return
    screen.say()
    if len(shown) < len(sends):
        screen.say(f"{len(sends) - len(shown):,} earlier sends; --all shows them", "dim")
    made = table("sent in step", "event", "to", "became", numbers=["sent in step"])
    for sent in shown:
        style = "yellow" if sent.kind == "refused" else ""
        made.add_row(cell(sent.revision), cell(sent.event), cell(sent.to), cell(sent.became, style))
    screen.print(made)


def show_waiting(outgoing: Outgoing, screen: Screen) -> None:
    """Which timers are pending and what is kept, a line each."""
    if not (outgoing.timers or outgoing.kept):
        return
    screen.say()
    for timer in outgoing.timers:
        to = "" if timer.target is None else f" to {timer.target}"
        line = f"timer: {timer.event.name}{to}, due {instants.shown(timer.due_at)}"
        if timer.last_error is not None:
            line += (
                f"; tried {timer.tries} times, again {instants.shown(timer.next_try_at)}: {timer.last_error}"
            )
        screen.say(clean(line))
    for kept in outgoing.kept:
        screen.say(
            clean(f"kept: {kept.event.name} of message {kept.message_id}, until {instants.shown(kept.until)}")
        )


def change(moment: Moment) -> str:
    """What an input changed: `ordered → moving`."""
    if moment.after is None:
        return ""
    after = ", ".join(moment.after) or "(no state)"
    if moment.before is None:
        return after
    if moment.answer in ("refused", "ignored"):
        return f"{after} ({moment.answer})"
    before = ", ".join(moment.before) or "(no state)"
    return f"{before} → {after}"
