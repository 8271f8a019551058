"""`statifier-router explain`: why an event did, or did not, arrive."""

from __future__ import annotations

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from statifier_router.cli import explaining, instants
from statifier_router.cli.answers import REFUSED, Answer, Screen, cell, clean, plain, table
from statifier_router.cli.commanding import command
from statifier_router.cli.explaining import Explanation, Held, Part, Reached
from statifier_router.cli.showing import change
from statifier_router.cli.waiting_commands import waits_for
from statifier_router.config import Config
from statifier_router.ledger import CONTENT_DIFFERS, LedgerRow

_MEANINGS = {
    "created_and_delivered": "its execution was created and stepped with the event",
    "delivered": "its execution was stepped with the event",
    "duplicate": "it had been taken before, so nothing was stepped",
    "deferred": "its execution does not take the event now; it is kept and offered again",
    "dropped: no_execution": "there was no execution, and this binding creates none",
    "dropped: finished": "its execution had ended",
    "dropped: unmatched_event": "its execution did not react to the event",
    "dropped: deferral_full": "too many events were kept for its execution already",
    "key_refused": "the binding could not be judged on it, so nothing was delivered",
    "unrouted": "no binding took it",
    "send_refused": "a chart's send was not handed off",
    "timer_fired": "a delayed send came due and was delivered",
    "timer_discarded": "a delayed send came due for an execution that no longer wanted it",
}


# Bindings of nobody's: sends to executions and refused sends, and timers.
_OWN = frozenset({"execution", "timer"})


@command("explain")
@click.argument("message_id", metavar="MESSAGE_ID")
@click.option("--scope", metavar="SCOPE", help="Only what happened in this scope.")
def explain(config: Config, *, message_id: str, scope: str | None) -> Answer:
    """Tell why a message did, or did not, arrive.

    Shows for every binding the ledger rows, the claim, the address, the execution, and the input the
    message became with the states before and after it and what that step sent. Exit code 1 when nothing
    is known of it.
    """
    found = explaining.explain(config, message_id, scope)
    code = 0 if found.known else REFUSED
    return Answer(plain(found), lambda screen: _show(found, scope, screen), code)


def _show(found: Explanation, scope: str | None, screen: Screen) -> None:
    title = Text(f"Message {clean(found.message_id)}", style="bold")
    scopes = [each or "(empty)" for each in found.scopes]
    if scopes:
        title.append(f"  scope {clean(', '.join(scopes))}", style="not bold dim")
    if not found.known:
        where = "" if scope is None else f" in scope {clean(scope) or '(empty)'}"
        screen.say(f"Nothing is known of message {clean(found.message_id)}{where}.", "bold")
        screen.say(
            "There is no claim and no ledger row: it was never handed over, or its delivery failed and "
            "left nothing, or its rows were reaped and pruned."
        )
        return
    screen.print(title)
    for row in found.unrouted:
        _show_row(row, screen)
    for part in found.bindings:
        if part.known:
            screen.say()
            _show_part(part, screen)
    silent = [part for part in found.bindings if not part.known]
    if silent:
        screen.say()
        screen.say("Not for these bindings (another source, or no match; that leaves no row):", "dim")
        for part in silent:
            screen.print(Padding(Text(_declared(part), style="dim"), (0, 0, 0, 2), expand=False))


def _declared(part: Part) -> str:
    if part.declared is None:
        whose = "the library's own" if part.binding_id in _OWN else "not in this configuration"
        return f"{clean(part.binding_id)}: {whose}"
    said = part.declared
    off = "" if said.enabled else ", disabled"
    return clean(
        f"{part.binding_id}: from {said.source}, event {said.event} to {said.document} "
        f"(create {said.create}{off})"
    )


def _show_part(part: Part, screen: Screen) -> None:
    screen.say(_declared(part), "bold")
    for row in part.ledger:
        _show_row(row, screen)
    if not part.ledger:
        screen.say("  no ledger row: pruned")
    facts = table("", "")
    facts.show_header = False
    for claim in part.claims:
        facts.add_row("claim", cell(_claim(claim)))
    if part.ledger and not part.claims and any(row.outcome != "key_refused" for row in part.ledger):
        facts.add_row("claim", cell("reaped: a further copy would be delivered"))
    for kept in part.kept:
        facts.add_row("kept", cell(f"until {instants.shown(kept.until)}, for {waits_for(kept)}"))
    for reached in part.executions:
        _add_reached(facts, reached)
    if facts.row_count:
        screen.print(Padding(facts, (0, 0, 0, 2), expand=False))


def _show_row(row: LedgerRow, screen: Screen) -> None:
    meaning = _MEANINGS.get(row.outcome, "")
    if row.reason == CONTENT_DIFFERS:
        meaning += ", although its content differs"
    elif row.reason:
        meaning += f" ({row.reason})"
    line = Text("  ")
    line.append(f"{instants.shown(row.inserted_at)}  ", style="dim")
    line.append(clean(row.outcome), style="cyan")
    line.append(f": {clean(meaning)}" if meaning else "")
    line.append(f"  [row {row.id}]", style="dim")
    screen.print(line, soft_wrap=True)


def _claim(claim: Held) -> str:
    until = instants.shown(claim.expires_at)
    scope = f" in scope {claim.scope}" if claim.scope else ""
    if claim.expired:
        return f"expired {until}{scope}: a further copy would be delivered"
    return f"until {until}{scope}: a further copy before that is a duplicate"


def _add_reached(facts: Table, reached: Reached) -> None:
    add = facts.add_row
    address = reached.address
    if address is not None:
        seen = address.terminal_seen_at
        ended = "" if seen is None else f", seen ended {instants.shown(seen)}"
        where = f"{address.document}, key {address.key}, scope {address.scope or '(empty)'}"
        add("address", cell(f"{where} (since {instants.shown(address.inserted_at)}{ended})"))
    else:
        add("address", cell("none names its execution"))
    execution = reached.execution
    if execution is None:
        add("execution", cell(f"{reached.execution_id}: its row is gone"))
        return
    states = ", ".join(execution.active) or "no state"
    add("execution", cell(f"{execution.id}: {execution.status} in {states}, revision {execution.revision}"))
    for moment in reached.inputs:
        row = moment.input
        what = row.event.name if row.event is not None else row.door
        errors = f" (errors: {'; '.join(row.errors)})" if row.errors else ""
        add(f"input {row.seq}", cell(f"{what}: {change(moment) or 'states not told'}{errors}"))
    for sent in reached.sends:
        told = " ".join(each for each in (sent.event, sent.to and f"to {sent.to}") if each)
        add("send", cell(f"{told}: {sent.became}" if told else sent.became))
    if not reached.inputs:
        add("input", cell("none: this message did not step it"))
    if reached.states_not_told is not None:
        add("states", cell(f"not told: {reached.states_not_told}", "yellow"))
