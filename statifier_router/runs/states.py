"""In which state a rule is, and what an operator does next. Nothing here asks the database."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from attrs import frozen

from statifier_router.refusals import told
from statifier_router.runs import chains, health
from statifier_router.runs.calls import EQUAL_FAULTS
from statifier_router.runs.faults import NoWriter, Unclassified
from statifier_router.runs.progress import fingerprint

if TYPE_CHECKING:
    from statifier_router.jsontext import Json
    from statifier_router.runs.outbound import Outbound
    from statifier_router.runs.rules import Rule
    from statifier_router.runs.standing import BreakerStatus, ChainStatus


@frozen(kw_only=True)
class Seen:
    """What was read about one rule. `row` is empty where it was never saved."""

    now: datetime
    lease: timedelta
    known: Rule | None
    row: Mapping[Any, Any]
    definition: Mapping[str, Json]
    refused: Exception | None
    chains: Sequence[ChainStatus]
    breaker: BreakerStatus | None
    health: str | None
    has_writer: bool

    @property
    def running(self) -> ChainStatus | None:
        """The chain that has not ended."""
        return next((chain for chain in self.chains if chain.running), None)

    @property
    def alive(self) -> ChainStatus | None:
        """The same, unless its process has given no sign for so long that the next tick cancels it."""
        chain = self.running
        return None if chain is None or chains.is_dead(chain.heartbeat_at, self.now, self.lease) else chain

    @property
    def ended(self) -> list[ChainStatus]:
        """Those that have, the newest first."""
        return [chain for chain in self.chains if not chain.running]

    @property
    def last(self) -> ChainStatus | None:
        """The newest chain that has ended."""
        return next(iter(self.ended), None)

    @property
    def failed(self) -> ChainStatus | None:
        """The newest chain that has ended, where a fault of the rule ended it."""
        last = self.last
        return last if last is not None and last.state == "failed" else None


def judged(name: str, seen: Seen) -> tuple[str, str]:
    """The state of the rule, and the advice that goes with it (empty where nothing is to be done)."""
    for judge in (_known, _running, _failing, _held, _ended):
        answer = judge(name, seen)
        if answer is not None:
            return answer
    return "idle", ""


def _known(name: str, seen: Seen) -> tuple[str, str] | None:
    if seen.refused is not None:
        kind = getattr(seen.refused, "kind", "refused")
        return f"failing: {kind}", f"it cannot be saved: {seen.refused}"
    if seen.known is None:
        return "not defined here", "no rule of this name is given to this process's Outbound"
    if seen.row.get("paused"):
        return "paused", command("resume", name)
    if seen.row and seen.row["digest"] != seen.known.digest:
        return "defined differently", (
            "another process has saved another definition, and this one passes the rule over: "
            "bring both to the same code"
        )
    return None


def _running(name: str, seen: Seen) -> tuple[str, str] | None:
    chain = seen.running
    if chain is None:
        return None
    if seen.alive is None:
        return "stalled", (
            f"its process has given {chains.last_sign(chain.heartbeat_at, seen.now)}: "
            "the next tick cancels it and begins anew (statifier-router tick)"
        )
    return "running", advice_on_running(name, seen, chain)


def advice_on_running(name: str, seen: Seen, chain: ChainStatus) -> str:
    """Until when a run's process holds its rule, and when others go on where that has died."""
    until, sooner = seen.row.get("lease_until"), command("run", name)
    dead = shown(chain.heartbeat_at + chains.DEAD_AFTER * seen.lease)
    if until is not None and until >= seen.now:
        return (
            f"its process holds it until {shown(until)}; if that has died, the first tick after {dead} "
            f"goes on by itself (sooner, from {shown(until)} on: {sooner})"
        )
    return f"no process holds it now; the first tick after {dead} goes on by itself (sooner: {sooner})"


def _failing(name: str, seen: Seen) -> tuple[str, str] | None:
    failed = seen.failed
    if failed is not None:
        return f"failing: {failed.fault_kind}", advice_on_fault(name, seen.ended)
    if not seen.has_writer:
        return f"failing: {NoWriter.kind}", str(NoWriter(rule=name, driver=str(seen.definition["driver"])))
    return None


def advice_on_fault(name: str, ended: Sequence[ChainStatus]) -> str:
    """What to do about the fault of the newest of these chains."""
    failed = ended[0]
    text = failed.fault_text or "the chain failed"
    culprit = one_record_at_fault(ended)
    if culprit is None:
        return text
    return f"{text}; the same fault {EQUAL_FAULTS} times at one record: " + command(
        "park", name, culprit, "--reason", "unclassified"
    )


def one_record_at_fault(ended: Sequence[ChainStatus]) -> str | None:
    """The record at which the newest chains all met one unclassified fault; None where there is none."""
    last = ended[:EQUAL_FAULTS]
    same = {(chain.fault_source_id, fingerprint("", chain.fault_text or "")) for chain in last}
    if len(last) < EQUAL_FAULTS or len(same) > 1:
        return None
    if any(chain.state != "failed" or chain.fault_kind != Unclassified.kind for chain in last):
        return None
    return last[0].fault_source_id


def _held(name: str, seen: Seen) -> tuple[str, str] | None:
    closed = seen.health
    if closed is not None or seen.row.get("closed_since") is not None:
        why = closed or "a run found a connection closed"
        return "route closed", f"{why}; the first tick after it is healthy again goes on where it stopped"
    breaker = seen.breaker
    if breaker is not None and breaker.state == "open":
        return "breaker open", advice_on_breaker(breaker, seen.now)
    return None


def advice_on_breaker(breaker: BreakerStatus, now: datetime) -> str:
    """When the target is tried again, and how to have it tried now."""
    if breaker.open_until is None or breaker.open_until <= now:
        when = "the next run tries the target with one call"
    else:
        when = f"the target is tried again at {shown(breaker.open_until)}"
    return f"{when}; sooner: {command('breaker', 'reset', breaker.target)}"


def _ended(name: str, seen: Seen) -> tuple[str, str] | None:
    last = seen.last
    if last is None:
        return "never ran", command("run", name)
    if last.end == "SUSPECT_RULE":
        return "suspect rule", (
            "its records were refused alike, one after the other: mend the rule or its payload, "
            f"then {command('run', name)}"
        )
    return None


def advice_on_failed(name: str, count: int) -> str:
    """Where to see the records that failed and are tried again."""
    each = "record failed and is" if count == 1 else "records failed and are"
    listed = command("records", name, "--status", "failed")
    return f"{count:,} {each} tried again; to see them: {listed}"


def closed_by(outbound: Outbound, rule: Rule | None) -> str | None:
    """Why the host holds the rule's connections for closed; also where asking it fails."""
    if rule is None:
        return None
    try:
        return health.closed(outbound.health, rule)
    except Exception as error:
        # What a run would meet; here it must not hide how the other rules stand.
        return f"asking for its health raised {told(error)}"


def shown(instant: datetime) -> str:
    """An instant as texts have it, to the second."""
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def command(*words: str) -> str:
    """A command line as an operator types it.

    >>> print(command("park", "parcels", "it's 7"))
    statifier-router park parcels 'it'"'"'s 7'
    """
    return shlex.join(["statifier-router", *words])
