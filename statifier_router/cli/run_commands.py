"""`statifier-router run`, `tick` and `work`: runs of rules, once or for ever."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import click
from attrs import frozen

from statifier_router.cli import instants
from statifier_router.cli.answers import (
    INTERRUPTED,
    REFUSED,
    Answer,
    Screen,
    cell,
    clean,
    complain,
    table,
)
from statifier_router.cli.commanding import outbound_command
from statifier_router.cli.faults import line_and_code
from statifier_router.cli.logs import on_standard_error
from statifier_router.cli.progress import bar
from statifier_router.errors import ConfigError, RouterError, SchemaError
from statifier_router.refusals import one_line
from statifier_router.runs import BUSY, MORE, ChainEnd, ChainStatus, Outbound
from statifier_router.runs.chains import start

# What a chain counts, in the order in which it is told.
_COUNTED = ("delivered", "suppressed", "failed", "exhausted", "remote_gone", "passed_over")
_DONE = ("COMPLETED", "YIELDED")
_TEXT_SHOWN = 400


@frozen(kw_only=True)
class Ran:
    """What became of one rule. `end` is that of its run; None where none began, and `problem` says why."""

    rule: str
    chain_id: str | None
    end: str | None
    counters: Mapping[str, int]
    problem: str | None

    @property
    def failed(self) -> bool:
        """Whether a fault ended it."""
        return self.end in ("FAILED", "SUSPECT_RULE") or (self.end is None and self.problem is not None)


@outbound_command("run")
@click.argument("rule", metavar="RULE")
def run(outbound: Outbound, *, rule: str) -> Answer:
    """Run a rule once.

    What is due is tried again, then what changed since the last run is sent. A run that another process
    began and left is carried on. Exit code 0 where the run came to its end, 1 where something
    ended it before: a fault, a closed connection, an open breaker, a pause, another process that has
    the rule.
    """
    chain = _begun_or_running(outbound, rule)
    with on_standard_error(), _stopping() as stop, bar(f"running {clean(rule)}") as progress:
        ran = _run(outbound, rule, chain, stop, lambda done: progress(done, None))
    code = INTERRUPTED if stop.is_set() else 0 if ran.end in _DONE else REFUSED
    return Answer({"run": ran}, lambda screen: _show_ran([ran], screen), code)


@outbound_command("tick")
def tick(outbound: Outbound) -> Answer:
    """Run every rule once.

    For cron and its like: one run of each rule of this process, one after the other, unless it is paused
    or another process runs it. A rule that fails hinders no other. Exit code 1 where one failed.
    """
    if not outbound.known_rules:
        raise ConfigError("this Outbound has no rules: Outbound(..., rules=[...])")
    done: list[Ran] = []
    with on_standard_error(), _stopping() as stop, bar("running") as progress:
        for number, name in enumerate(sorted(outbound.known_rules)):
            progress(number, len(outbound.known_rules))
            if not stop.is_set():
                done.append(_ticked(outbound, name, stop))
    code = REFUSED if any(ran.failed for ran in done) else INTERRUPTED if stop.is_set() else 0
    return Answer({"runs": done}, lambda screen: _show_ran(done, screen), code)


@outbound_command("work")
@click.option(
    "--every",
    metavar="TIME",
    default="300",
    show_default=True,
    help="Begin a run of each rule so often: seconds, or a number and its unit (30s, 5m).",
)
def work(outbound: Outbound, *, every: str) -> Answer:
    """Run every rule again and again.

    Until it is interrupted or terminated: it then waits for the call in hand, and the next run resumes
    from there; a second signal does not wait. Rules that fail are logged on standard error, and the others
    go on. Exit code 1 where any failed.
    """
    interval = _interval(every)
    if not outbound.known_rules:
        raise ConfigError("this Outbound has no rules: Outbound(..., rules=[...])")
    with on_standard_error(), _stopping() as stop:
        failed = outbound.work(every=interval, stop=stop)
    line = "stopped; something failed meanwhile" if failed else "stopped"
    return Answer({"failed": failed}, lambda screen: screen.say(line), REFUSED if failed else 0)


def _interval(text: str) -> timedelta:
    interval = timedelta(seconds=int(text)) if text.isascii() and text.isdigit() else None
    if interval is None:
        interval = instants.duration(text, "--every")
    if not timedelta(0) < interval <= timedelta(days=1):
        raise ConfigError(f"--every must be from one second to a day, not {text}")
    return interval


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first signal sets; the second one interrupts."""
    stop = threading.Event()

    def heard(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        complain("stopping after the call in hand; once more to stop at once")

    before = {each: signal.signal(each, heard) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# --- One run --------------------------------------------------------------------------------------


def _begun_or_running(outbound: Outbound, rule: str) -> str:
    """A chain of the rule: a new one, or the one that is under way."""
    chain_id = start(outbound, rule, outbound.config.now())
    if chain_id is not None:
        return chain_id
    running = _running(outbound, rule)
    if running is None:
        status = next(each for each in outbound.rules() if each.name == rule)
        raise RouterError(f"rule {rule!r} is {status.state}; next: {status.advice}")
    return running.id


def _running(outbound: Outbound, rule: str) -> ChainStatus | None:
    return next((chain for chain in outbound.chains(rule, limit=1) if chain.running), None)


def _run(
    outbound: Outbound,
    rule: str,
    chain_id: str,
    stop: threading.Event,
    progress: Callable[[int], object],
) -> Ran:
    """Run a chain to its end, or until it is to stop. Raises the fault that ended it."""
    answer = outbound.run_job(chain_id, stopping=stop.is_set)
    while answer is MORE:
        progress(sum(_counters(_chain(outbound, rule, chain_id)).values()))
        answer = outbound.run_job(chain_id, stopping=stop.is_set)
    chain = _chain(outbound, rule, chain_id)
    end = ChainEnd.BUSY.name if answer is BUSY or chain.end is None else chain.end
    problem = _busy(outbound, rule) if end == ChainEnd.BUSY.name else _PROBLEMS.get(end)
    return Ran(rule=rule, chain_id=chain_id, end=end, counters=_counters(chain), problem=problem)


def _busy(outbound: Outbound, rule: str) -> str:
    """Who has the rule until when, and when somebody else goes on."""
    status = next(each for each in outbound.rules() if each.name == rule)
    return f"a run of it is under way: {status.advice}" if status.state == "running" else _PROBLEMS["BUSY"]


_PROBLEMS = {
    "ROUTE_CLOSED": "a connection of the rule is closed",
    "BREAKER_OPEN": "the breaker of its target is open: statifier-router breaker",
    "SUPERSEDED": "another definition of the rule was saved meanwhile",
    "PAUSED": "the rule is paused",
    "SUSPECT_RULE": "its records were refused alike, one after the other",
    "CANCELLED": "it was taken for dead, and another run took its place",
    "BUSY": "another process has the rule",
}


def _chain(outbound: Outbound, rule: str, chain_id: str) -> ChainStatus:
    return next(chain for chain in outbound.chains(rule) if chain.id == chain_id)


def _counters(chain: ChainStatus) -> dict[str, int]:
    counted: Mapping[str, Any] = chain.counters
    return {name: int(counted[name]) for name in _COUNTED if counted.get(name)}


def _ticked(outbound: Outbound, rule: str, stop: threading.Event) -> Ran:
    """The same for one rule among others: what it raises is told, and hinders nobody."""
    chain_id = None
    try:
        chain_id = start(outbound, rule, outbound.config.now())
        if chain_id is None:
            return _not_begun(outbound, rule)
        return _run(outbound, rule, chain_id, stop, lambda done: None)
    except SchemaError:
        # The same for all of them: told once.
        raise
    except Exception as error:
        line, _ = line_and_code(error)
        complain(f"rule {rule}: {line}")
        counters = {} if chain_id is None else _counters(_chain(outbound, rule, chain_id))
        end = None if chain_id is None else ChainEnd.FAILED.name
        return Ran(rule=rule, chain_id=chain_id, end=end, counters=counters, problem=line)


def _not_begun(outbound: Outbound, rule: str) -> Ran:
    running = _running(outbound, rule)
    if running is None:
        end = ChainEnd.PAUSED if next(each.paused for each in outbound.rules() if each.name == rule) else None
        problem = _PROBLEMS["PAUSED"] if end is not None else "another definition of it was saved"
        return Ran(rule=rule, chain_id=None, end=end and end.name, counters={}, problem=problem)
    busy = _busy(outbound, rule)
    return Ran(rule=rule, chain_id=running.id, end=ChainEnd.BUSY.name, counters={}, problem=busy)


def _show_ran(done: list[Ran], screen: Screen) -> None:
    counted = [name for name in _COUNTED if any(ran.counters.get(name) for ran in done)]
    problems = any(ran.problem for ran in done)
    made = table("rule", "ended", *counted, *(["why"] if problems else []), numbers=counted)
    for ran in done:
        ended = "not begun" if ran.end is None else ran.end.lower().replace("_", " ")
        style = "red" if ran.failed else "green" if ran.end in _DONE else "yellow"
        cells = [cell(ran.rule), cell(ended, style)]
        cells += [cell(f"{ran.counters.get(name, 0):,}") for name in counted]
        if problems:
            cells.append(cell(one_line(ran.problem or "", _TEXT_SHOWN), "yellow"))
        made.add_row(*cells)
    screen.print(made)
