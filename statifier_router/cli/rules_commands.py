"""`statifier-router rules`, `pause`, `resume` and `breaker`: rules and their targets as a whole."""

from __future__ import annotations

import json
from typing import Any

import click

from statifier_router.cli import acting_options as options
from statifier_router.cli import instants
from statifier_router.cli.answers import Answer, Screen, cell, clean, table
from statifier_router.cli.commanding import outbound_command
from statifier_router.cli.groups import DefaultGroup
from statifier_router.errors import ConfigError
from statifier_router.refusals import one_line
from statifier_router.runs import BreakerStatus, ChainStatus, Outbound, RuleStatus

_CHAINS_SHOWN = 10
_TEXT_SHOWN = 400
_COUNTS = ("delivered", "suppressed", "failed", "parked")


@outbound_command("rules")
@click.argument("rule", metavar="[RULE]", required=False)
def rules(outbound: Outbound, *, rule: str | None) -> Answer:
    """Show how rules stand, and what to do next.

    With a RULE: everything about it, and its last runs.
    """
    found = outbound.rules()
    if rule is None:
        return Answer({"rules": found}, lambda screen: _show_rules(found, screen))
    one = next((each for each in found if each.name == rule), None)
    if one is None:
        names = ", ".join(each.name for each in found) or "none"
        raise ConfigError(f"no rule is named {rule!r}; there are: {names}")
    chains = outbound.chains(rule, limit=_CHAINS_SHOWN)
    return Answer({"rule": one, "chains": chains}, lambda screen: _show_rule(one, chains, screen))


def _show_rules(found: list[RuleStatus], screen: Screen) -> None:
    if not found:
        screen.say("no rules")
        return
    made = table("rule", "state", "target", *_COUNTS, "last run (UTC)", "ended", numbers=_COUNTS)
    for each in found:
        last = each.last_chain
        made.add_row(
            cell(each.name),
            state_cell(each.state),
            cell(each.target),
            *(cell(f"{each.counts[name]:,}", _count_style(name, each.counts[name])) for name in _COUNTS),
            cell(None if last is None else instants.shown(last.heartbeat_at)),
            cell(None if last is None else _end(last)),
        )
    screen.print(made)
    for each in found:
        if each.advice:
            screen.say()
            screen.say(clean(f"{each.name}: {each.state}"), "bold")
            screen.say(f"  next: {clean(one_line(each.advice, _TEXT_SHOWN))}")


def state_cell(state: str) -> Any:
    """A rule's state, in the colour that says whether somebody is needed."""
    good = state in ("idle", "running")
    return cell(state, "green" if good else "red" if state.startswith("failing") else "yellow")


def _count_style(name: str, count: int) -> str:
    return "red" if name == "parked" and count else "yellow" if name == "failed" and count else ""


def _end(chain: ChainStatus) -> str:
    end = (chain.end or chain.state).lower().replace("_", " ")
    return end if chain.fault_kind is None else f"{end}: {chain.fault_kind}"


def _show_rule(one: RuleStatus, chains: list[ChainStatus], screen: Screen) -> None:
    screen.say(clean(f"Rule {one.name}"), "bold")
    facts = table("", "")
    facts.show_header = False
    facts.add_row("state", state_cell(one.state))
    if one.advice:
        facts.add_row("next", cell(one_line(one.advice, _TEXT_SHOWN)))
    for name, value in one.definition.items():
        if value is not None:
            facts.add_row(name, cell(value if isinstance(value, str) else json.dumps(value)))
    facts.add_row("cursor", cell(None if one.cursor is None else json.dumps(one.cursor)))
    facts.add_row("records", cell(", ".join(f"{each}: {count:,}" for each, count in one.counts.items())))
    if one.due:
        since = "" if one.oldest_due is None else f", the oldest since {instants.shown(one.oldest_due)}"
        facts.add_row("due", cell(f"{one.due:,}{since}"))
    if one.in_doubt:
        facts.add_row("in doubt", cell(f"{one.in_doubt:,}"))
    if one.breaker is not None:
        facts.add_row("breaker", cell(_breaker(one.breaker)))
    if one.health is not None or one.closed_since is not None:
        since = "" if one.closed_since is None else f"since {instants.shown(one.closed_since)} "
        facts.add_row("closed", cell(f"{since}{one.health or ''}"))
    screen.print(facts)
    _show_chains(chains, screen)


def _show_chains(chains: list[ChainStatus], screen: Screen) -> None:
    if not chains:
        return
    screen.say()
    faults = any(chain.fault_text for chain in chains)
    made = table(
        "run", "began (UTC)", "last sign", "ended", "pages", "counted", *(["fault"] if faults else []),
        numbers=["pages"],
    )  # fmt: skip
    for chain in chains:
        counted = ", ".join(f"{name} {count}" for name, count in chain.counters.items() if count)
        cells = [
            cell(chain.id),
            cell(instants.shown(chain.started_at)),
            cell(instants.shown(chain.heartbeat_at)),
            cell(_end(chain), "red" if chain.state == "failed" else ""),
            cell(chain.jobs),
            cell(counted),
        ]
        if faults:
            text = None if chain.fault_text is None else one_line(chain.fault_text, _TEXT_SHOWN)
            cells.append(cell(text, "yellow"))
        made.add_row(*cells)
    screen.print(made)


# --- Acting ---------------------------------------------------------------------------------------


@outbound_command("pause")
@click.argument("rule", metavar="RULE")
@options.actor
@options.reason
def pause(outbound: Outbound, *, rule: str, actor: str, reason: str | None) -> Answer:
    """Hold a rule.

    No run of it begins, and one that is under way ends after the call in hand.
    """
    changed = outbound.pause(rule, actor=actor, reason=reason)
    line = f"{rule}: paused" if changed else f"{rule}: was paused already"
    return Answer({"rule": rule, "paused": True, "changed": changed}, lambda screen: screen.say(clean(line)))


@outbound_command("resume")
@click.argument("rule", metavar="RULE")
@options.actor
@options.reason
def resume(outbound: Outbound, *, rule: str, actor: str, reason: str | None) -> Answer:
    """Let a paused rule go on, where it stopped."""
    changed = outbound.resume(rule, actor=actor, reason=reason)
    line = f"{rule}: goes on at the next tick" if changed else f"{rule}: was not paused"
    return Answer({"rule": rule, "paused": False, "changed": changed}, lambda screen: screen.say(clean(line)))


@outbound_command("rebase")
@options.actor
@options.reason
def rebase(outbound: Outbound, *, actor: str, reason: str | None) -> Answer:
    """Mend the order of changes after a dump and restore.

    Into another server of PostgreSQL, that is, whose transaction ids begin anew: all changes and
    messages that are there come before every new one, and the rules go on where they had read everything.
    Stop whatever runs rules first. It does no harm where nothing was to be mended.
    """
    done = outbound.rebase(actor=actor, reason=reason)
    line = f"{done.changes:,} changes and {done.outbox:,} messages were given a new place"
    if done.rules:
        line += f"; cursors moved: {', '.join(done.rules)}"
    return Answer({"rebased": done}, lambda screen: screen.say(clean(line)))


@outbound_command("list")
def list_breakers(outbound: Outbound) -> Answer:
    """Show the breakers of all targets that ever failed."""
    found = outbound.breakers()
    return Answer({"breakers": found}, lambda screen: _show_breakers(found, screen))


def _show_breakers(found: list[BreakerStatus], screen: Screen) -> None:
    if not found:
        screen.say("no target ever failed")
        return
    made = table("target", "breaker", "faults in a row", "tried again (UTC)", numbers=["faults in a row"])
    for each in found:
        until = None if each.open_until is None else instants.shown(each.open_until)
        style = "red" if each.state == "open" else ""
        made.add_row(cell(each.target), cell(each.state, style), cell(each.failures), cell(until))
    screen.print(made)


def _breaker(each: BreakerStatus) -> str:
    until = "" if each.open_until is None else f" until {instants.shown(each.open_until)}"
    return f"{each.state}{until}, {each.failures} faults in a row"


@outbound_command("reset")
@click.argument("target", metavar="TARGET")
@options.actor
@options.reason
def reset(outbound: Outbound, *, target: str, actor: str, reason: str | None) -> Answer:
    """Close a breaker.

    The next run calls the target again.
    """
    changed = outbound.reset_breaker(target, actor=actor, reason=reason)
    line = f"{target}: closed" if changed else f"{target}: was closed already"
    return Answer({"target": target, "changed": changed}, lambda screen: screen.say(clean(line)))


@click.group("breaker", cls=DefaultGroup)
def breaker() -> None:
    """Show or reset the breakers of targets; without a command, `list`."""


for each in (list_breakers, reset):
    breaker.add_command(each)
