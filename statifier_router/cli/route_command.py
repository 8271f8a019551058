"""`statifier-router route`: messages from a file, or from another program's output."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click
from attrs import define, field, frozen
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from statifier_router.batches import Routed, route_each
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
from statifier_router.cli.commanding import command
from statifier_router.cli.faults import delivery_fault, line_and_code
from statifier_router.cli.lines import Arriving, Line, read
from statifier_router.cli.tallies import Tally
from statifier_router.config import Config
from statifier_router.errors import DatabaseFault, DeliveryError
from statifier_router.outcomes import KeyRefused, Outcome
from statifier_router.refusals import one_line

# Most messages that are committed together, and their bytes, beyond which they are held no longer.
_CHUNK = 100
_CHUNK_BYTES = 1_000_000


@frozen
class Problem:
    """A line, or one binding's view of it, that was refused or failed."""

    line: int
    message_id: str | None
    error: str
    detail: str

    def __str__(self) -> str:
        what = f"line {self.line}: "
        if self.message_id is not None:
            what += f"message {self.message_id}: "
        return one_line(f"{what}{self.error}: {self.detail}", 2_000)


@frozen
class Stop:
    """Why the rest of the lines was not read, and the line that was not finished."""

    line: int
    reason: str
    code: int


@define
class Routing:
    """One run over the lines: its counts, and everything that went wrong.

    `at` is the line that is being worked on, or was last; the others of its chunk follow it.
    """

    config: Config
    tally: Tally = field(factory=Tally)
    lines: int = 0
    problems: list[Problem] = field(factory=list)
    stopped: Stop | None = None
    at: int = 0
    _unfinished: bool = False

    def take(self, chunk: Sequence[Line]) -> Iterator[Line]:
        """Route the messages of these lines; yields each line that is done. Raises what ends the run."""
        for line, routed in self._routed(chunk):
            self._finish(line, self._problems(line.number, routed))
            yield line

    def refuse(self, line: Line) -> None:
        """Tell of a line that holds no message."""
        self._finish(line, [Problem(line.number, None, "bad line", line.problem or "")])

    def stop(self, reason: str, code: int) -> None:
        """Note why the rest is not read."""
        self.lines += self._unfinished
        self.stopped = Stop(self.at, reason, code)

    def _finish(self, line: Line, problems: list[Problem]) -> None:
        self.at, self._unfinished = line.number, False
        self.lines += 1
        self.problems += problems
        for problem in problems:
            complain(str(problem))

    def _routed(self, chunk: Sequence[Line]) -> Iterator[tuple[Line, Routed]]:
        """The lines with what became of them: in one transaction, or in one each where that fails."""
        self.at, self._unfinished = chunk[0].number, True
        messages = [(line.message, line.now) for line in chunk if line.message is not None]
        try:
            instants = [(message, now or self.config.now()) for message, now in messages]
            answers = route_each(self.config, instants)
        except DatabaseFault:
            raise
        except Exception as error:
            if len(chunk) > 1:
                # What is sound is done all the same, and the fault is told where it lies.
                for line in chunk:
                    yield from self._routed([line])
                return
            if not isinstance(error, DeliveryError):
                raise
            answers = [Routed(messages[0][0], list(error.outcomes), error)]
        yield from zip(chunk, answers, strict=True)

    def _problems(self, number: int, routed: Routed) -> list[Problem]:
        message_id, error = routed.message.message_id, routed.error
        problems = list(self._refusals(number, message_id, routed.outcomes))
        if error is None:
            self.tally.add(routed.outcomes)
            return problems
        self.tally.add_part(routed.outcomes)
        where = f"binding {error.binding_id}: " if error.binding_id else ""
        told = where + delivery_fault(error)
        return [*problems, Problem(number, message_id, type(error).__name__, told)]

    def _refusals(self, number: int, message_id: str, outcomes: Any) -> Iterator[Problem]:
        for outcome in outcomes:
            if isinstance(outcome, KeyRefused):
                yield Problem(number, message_id, outcome.recorded, _refusal(outcome))

    def failures(self) -> dict[str, int]:
        """Problems by their name, refusals of a key aside: those are outcomes."""
        counts = Counter(problem.error for problem in self.problems if problem.error != "key_refused")
        return dict(sorted(counts.items()))

    @property
    def code(self) -> int:
        """The exit code: non-zero when anything was refused, failed, or left undone."""
        if self.stopped is not None:
            return self.stopped.code
        return REFUSED if self.problems else 0


def _refusal(outcome: Outcome) -> str:
    assert isinstance(outcome, KeyRefused)
    return f"binding {outcome.binding_id}: {outcome.stage}: {outcome.detail}"


@command("route")
@click.argument("file", metavar="FILE.jsonl", type=click.File("rb"))
def route(config: Config, *, file: IO[bytes]) -> Answer:
    """Route the messages of a file, or of standard input.

    The file holds one JSON object a line; "-" reads standard input. A line holds source, message_id,
    scope and data, and may hold context and now (an instant with its zone; without it the clock's).
    Lines are routed in order. Those that have arrived, up to a hundred, are committed together; whatever
    was done before an interruption stays done, and handing the file over again finds it duplicate.

    A bad line, a refused key and a delivery that fails are told on standard error by line number,
    counted, and the rest goes on. Only a database that does not answer (after the configured retries),
    an interruption, or a fault that is no delivery's own stops the run.

    Exit code: 0 when every line was routed, 1 when anything was refused or failed.
    """
    run = Routing(config)
    with _progress(file) as advance:
        try:
            for size in _route_all(run, Arriving(file)):
                advance(size)
        except KeyboardInterrupt:
            run.stop("interrupted", INTERRUPTED)
        except Exception as error:
            run.stop(*line_and_code(error))
    if run.stopped is not None:
        complain(
            f"stopped at line {run.stopped.line}: {run.stopped.reason}; what came before is done: "
            "hand the whole over again"
        )
    return Answer(_document(run), lambda screen: _show(run, screen), run.code)


def _route_all(run: Routing, arriving: Arriving) -> Iterator[int]:
    """Route every line, in chunks; yields the size of each that is done."""
    chunk: list[Line] = []

    def routed() -> Iterator[int]:
        if chunk:
            yield from [line.size for line in run.take(chunk)]
            chunk.clear()

    for line in read(arriving):
        if line.message is None:
            # Problems are told in the order of the lines.
            yield from routed()
            run.refuse(line)
            yield line.size
            continue
        chunk.append(line)
        full = len(chunk) == _CHUNK or sum(each.size for each in chunk) > _CHUNK_BYTES
        if full or arriving.drained:
            yield from routed()
    yield from routed()


def _document(run: Routing) -> dict[str, Any]:
    return {
        "lines": run.lines,
        "messages": run.tally.messages,
        "outcomes": run.tally.outcomes(),
        "by_binding": run.tally.by_binding,
        "failed": run.failures(),
        "problems": run.problems,
        "stopped": run.stopped,
    }


def _show(run: Routing, screen: Screen) -> None:
    counts = table("outcome", "count", numbers=["count"])
    for outcome, count in run.tally.outcomes().items():
        counts.add_row(cell(outcome, "red" if outcome == "key_refused" else ""), f"{count:,}")
    for name, count in run.failures().items():
        counts.add_row(cell(f"failed: {name}", "red"), f"{count:,}")
    if counts.row_count:
        screen.print(counts)
        screen.say()
    verdict = f"{run.tally.messages:,} of {run.lines:,} lines routed"
    if run.problems:
        verdict += f", {len(run.problems):,} refused or failed"
    if run.stopped is not None:
        verdict += f", stopped at line {run.stopped.line:,}: {clean(run.stopped.reason)}"
    screen.say(verdict, "bold red" if run.code else "bold")


# --- Progress -------------------------------------------------------------------------------------


class _Bar:
    """Advances by a line of `size` bytes; draws nothing until told to."""

    def __init__(self, progress: Progress | None = None, total: int | None = None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task("routing", total=total, lines=0)
        self._lines = 0

    def __call__(self, size: int) -> None:
        if self._progress is None or self._task is None:
            return
        self._lines += 1
        self._progress.update(self._task, advance=size, lines=self._lines)


@contextmanager
def _progress(file: IO[bytes]) -> Iterator[_Bar]:
    """A bar on a terminal, by the bytes of the file; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield _Bar()
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeElapsedColumn(),
        console=Screen(sys.stderr),
        transient=True,
        redirect_stdout=False,
    ) as progress:
        yield _Bar(progress, _size(file))


def _size(file: IO[bytes]) -> int | None:
    try:
        found = os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
