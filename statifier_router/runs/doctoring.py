"""`doctor`: what is wrong with the outbound half now, or will be at the next run, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from statifier_router.runs import asking, horizon
from statifier_router.runs import asking_statements as statements
from statifier_router.runs.bracket import reading
from statifier_router.runs.chains import is_dead, last_sign
from statifier_router.runs.findings import Finding
from statifier_router.runs.standing import PARKED, ChainStatus, RuleStatus
from statifier_router.runs.states import command

if TYPE_CHECKING:
    from statifier_router.runs.outbound import Outbound

# A row that is due for so many tick intervals is one that no run comes to.
_OVERDUE = 3
# Doubt that lasts longer than the retries of a rule is not settled by them.
_DOUBT = timedelta(days=1)


def doctor(outbound: Outbound) -> list[Finding]:
    """See `Outbound.doctor`."""
    now = outbound.config.now()
    found: list[Finding] = []
    for status in asking.rules(outbound):
        for examine in (_state, _chain, _work, _failed, _lease):
            found += examine(outbound, status, now)
    found += _doubts(outbound, now)
    found += horizon.findings(outbound)
    return found


def _state(outbound: Outbound, status: RuleStatus, now: datetime) -> Iterator[Finding]:
    """What the state of the rule says by itself."""
    name, state = status.name, status.state
    if state.startswith("failing: "):
        kind = state.removeprefix("failing: ")
        last = status.last_chain
        since = "" if last is None else f" at {last.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC"
        yield _problem(
            "failing", status, f"rule {name!r} fails at every tick, last{since}: {kind}", status.advice
        )
    elif state == "not defined here":
        yield _notice(
            "not_defined_here", status, f"rule {name!r} is saved, and not defined here", status.advice
        )
    elif state == "defined differently":
        text = f"rule {name!r} has another definition here than the one that was saved"
        yield _problem("defined_differently", status, text, status.advice)
    elif state == "paused":
        yield _notice("paused", status, f"rule {name!r} is paused", status.advice)
    elif state == "route closed":
        since = "" if status.closed_since is None else f" since {status.closed_since:%Y-%m-%d %H:%M:%S} UTC"
        yield _problem(
            "route_closed", status, f"a connection of rule {name!r} is closed{since}", status.advice
        )
    elif state == "suspect rule":
        yield _problem("suspect_rule", status, f"rule {name!r} ended as suspect", status.advice)
    breaker = status.breaker
    if breaker is not None and breaker.state == "open":
        text = f"the breaker of target {breaker.target!r} is open, for the {breaker.trips}. time in a row"
        yield _problem("breaker_open", status, text, command("breaker", "reset", breaker.target))


def _chain(outbound: Outbound, status: RuleStatus, now: datetime) -> Iterator[Finding]:
    """A chain that died, and a rule that nobody ticks."""
    chain = status.chain
    if chain is not None and is_dead(chain.heartbeat_at, now, outbound.lease):
        text = (
            f"the run of rule {status.name!r} that began at {chain.started_at:%Y-%m-%d %H:%M:%S} UTC has "
            f"given {last_sign(chain.heartbeat_at, now)}"
        )
        yield _problem("dead_chain", status, text, f"the next tick cancels it: {command('tick')}")
    if chain is not None or status.paused or not status.known_here:
        return
    advice = f"have {command('tick')} run from time to time, or {command('work')} all the time"
    last = status.last_chain
    if last is None:
        if not status.state.startswith("failing"):
            yield _problem("never_ran", status, f"no run of rule {status.name!r} ever began", advice)
    elif last.heartbeat_at + _OVERDUE * outbound.tick_interval < now:
        text = (
            f"no run of rule {status.name!r} began after the one of "
            f"{last.started_at:%Y-%m-%d %H:%M:%S} UTC, {_OVERDUE} tick intervals ago or more"
        )
        yield _problem("not_ticked", status, text, advice)


def _work(outbound: Outbound, status: RuleStatus, now: datetime) -> Iterator[Finding]:
    """Records that wait: for an operator, or for a run."""
    parked = status.counts["parked"]
    if parked:
        text = (
            f"{parked:,} record{'s wait' if parked > 1 else ' waits'} for an operator at rule {status.name!r}"
        )
        yield _problem("parked", status, text, command("parked", status.name))
    oldest = status.oldest_due
    if oldest is not None and not status.paused and oldest + _OVERDUE * outbound.tick_interval < now:
        text = (
            f"{status.due:,} failed of rule {status.name!r} are due, the oldest since "
            f"{oldest:%Y-%m-%d %H:%M:%S} UTC"
        )
        yield _problem(
            "overdue", status, text, f"see why no run comes to them: {command('rules', status.name)}"
        )


def _failed(outbound: Outbound, status: RuleStatus, now: datetime) -> Iterator[Finding]:
    """Records that are tried again: what happens every day, unless the target takes none."""
    name, failed = status.name, status.counts["failed"]
    if not failed:
        return
    advice = command("records", name, "--status", "failed")
    each = "record failed and is" if failed == 1 else "records failed and are"
    text = f"{failed:,} {each} tried again at rule {name!r}"
    # One that fails alone, where others were delivered, is that record's own matter.
    of_all = failed > 1 or not status.counts["delivered"]
    if of_all and _delivered_none(asking.chains(outbound, name)):
        text += ", and its last run that called the target delivered none"
        yield _problem("none_delivered", status, text, advice)
    else:
        yield _notice("failed", status, text, advice)


def _delivered_none(chains: Sequence[ChainStatus]) -> bool:
    """Whether the newest of these chains that tried any record delivered none of them."""
    for chain in chains:
        delivered, *failed = (chain.counters.get(each) or 0 for each in ("delivered", "failed", *PARKED))
        if delivered or any(failed):
            return not delivered
    return False


def _lease(outbound: Outbound, status: RuleStatus, now: datetime) -> Iterator[Finding]:
    """A lease that another process's rule could outlast, for this one would take that rule for dead."""
    timeout: Any = status.definition["call_timeout"]
    least = 2 * timedelta(seconds=timeout)
    if outbound.lease < least:
        text = (
            f"this process's lease ({outbound.lease}) is shorter than twice the call timeout of rule "
            f"{status.name!r} ({least / 2}), which another process has saved"
        )
        advice = f"Outbound(..., lease=...) of at least {least}, the same in every process"
        yield _problem("lease_too_short", status, text, advice)


def _doubts(outbound: Outbound, now: datetime) -> Iterator[Finding]:
    """Calls of which nobody knows whether they took effect, and that no run settles."""
    schema = outbound.config.schema
    with reading(outbound.config) as connection:
        stuck = {row.rule: row for row in connection.execute(statements.stuck_in_doubt(schema))}
        doubts = [tuple(row) for row in connection.execute(statements.in_doubt(schema))]
    for rule, row in sorted(stuck.items()):
        yield Finding(
            kind="stuck_in_doubt",
            severity="problem",
            rule=rule,
            text=(
                f"{row.number:,} parked of rule {rule!r} may be at the target all the same, "
                f"such as {row.example!r}"
            ),
            advice=f"look them up there: {command('why', rule, row.example)}",
        )
    for rule, number, oldest in sorted(doubts):
        if rule not in stuck and oldest + _DOUBT < now:
            yield Finding(
                kind="long_in_doubt",
                severity="problem",
                rule=rule,
                text=(
                    f"{number:,} calls of rule {rule!r} are in doubt, the oldest since "
                    f"{oldest:%Y-%m-%d %H:%M:%S} UTC"
                ),
                advice="see whether the rule runs; a writer with a lookup, or keys that count, end doubt",
            )


def _problem(kind: str, status: RuleStatus, text: str, advice: str) -> Finding:
    return Finding(kind=kind, severity="problem", rule=status.name, text=text, advice=advice)


def _notice(kind: str, status: RuleStatus, text: str, advice: str) -> Finding:
    return Finding(kind=kind, severity="notice", rule=status.name, text=text, advice=advice)
