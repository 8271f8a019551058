"""`statifier-router doctor`: what is wrong now, or will be at the next message, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from statifier_router import charts
from statifier_router.cli.answers import REFUSED, Answer, Screen, clean
from statifier_router.cli.commanding import command
from statifier_router.config import Config
from statifier_router.errors import ChartMismatch, ChartNotResolved
from statifier_router.executions.in_use import HashInUse, hashes_in_use
from statifier_router.refusals import one_line, told

if TYPE_CHECKING:
    from statifier_router.runs import Finding, Outbound

_CURES = (
    "publish that revision beside the newer one (its text, or its code under a name of its own)",
    "or move its executions: executions.migrate(config, id, to, mapping=...)",
)


@frozen
class MissingChart:
    """A chart that executions run on, and that the configuration's charts do not give."""

    content_hash: str
    executions: int
    example: str
    problem: str


@command("doctor", given="both")
def doctor(config: Config, outbound: Outbound | None) -> Answer:
    """Tell what the next messages will meet.

    Lists each chart that executions still run on and that the configuration no longer gives: their next
    message would fail. Where an Outbound is found, also what is wrong with its rules, records, targets
    and runs. Nothing is changed. Exit code 1 where something was found.
    """
    in_use = hashes_in_use(config)
    missing = [
        MissingChart(each.content_hash, each.executions, each.example, problem)
        for each in in_use
        if (problem := _problem(config, each)) is not None
    ]
    document: dict[str, Any] = {
        "charts_in_use": len(in_use),
        "executions": sum(each.executions for each in in_use),
        "missing_charts": missing,
        "cures": _CURES if missing else (),
    }
    found = [] if outbound is None else outbound.doctor()
    if outbound is not None:
        document["outbound"] = found

    def show(screen: Screen) -> None:
        _show(in_use, missing, screen)
        if outbound is not None:
            _show_findings(found, screen)

    bad = missing or any(finding.severity == "problem" for finding in found)
    return Answer(document, show, REFUSED if bad else 0)


def _problem(config: Config, used: HashInUse) -> str | None:
    """Why the chart is not to be had, or None where it is."""
    try:
        charts.for_hash(config, used.content_hash, used.example)
    except ChartNotResolved as error:
        return error.reason or "the charts do not have it"
    except ChartMismatch as error:
        return f"the charts answer another one for it, {error.found}"
    except Exception as error:
        # A host's own resolver may raise anything; it would at the next message.
        return f"asking the charts raised {told(error)}"
    return None


def _show(in_use: list[HashInUse], missing: list[MissingChart], screen: Screen) -> None:
    count = sum(each.executions for each in in_use)
    if not missing:
        screen.say(f"{_many(count, 'execution')} on {_many(len(in_use), 'chart')}: every chart is to be had")
        return
    stuck = sum(each.executions for each in missing)
    screen.say(
        f"{_many(stuck, 'execution')} of {count:,} run on {_many(len(missing), 'chart')} not to be had:",
        "bold red",
    )
    for each in missing:
        screen.say()
        screen.say(f"chart {clean(each.content_hash)}", "bold")
        screen.say(f"  {_many(each.executions, 'execution')}, such as {clean(each.example)}")
        screen.say(f"  {clean(one_line(each.problem, 400))}")
    screen.say()
    screen.say("Two cures:", "bold")
    for line in _CURES:
        screen.say(f"  {line}")


def _show_findings(found: list[Finding], screen: Screen) -> None:
    if not found:
        screen.say("runs: nothing is wrong")
    for finding in found:
        screen.say()
        screen.say(
            clean(one_line(finding.text, 400)), "bold red" if finding.severity == "problem" else "bold"
        )
        if finding.advice:
            screen.say(f"  next: {clean(one_line(finding.advice, 400))}")


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
