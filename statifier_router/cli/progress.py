"""A bar on the terminal while something takes its time; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statifier_router.cli.answers import Screen


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A function that is told how many are done, and of how many (None where nobody knows)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Screen(sys.stderr),
        transient=True,
        redirect_stdout=False,
    ) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
