"""What a command answers, and how it reaches the person or the program that asked.

Names, ids and keys come from other systems: nothing of them is taken for markup, and nothing that a
terminal would obey reaches it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from typing import IO, Any

import attrs
import click
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text

REFUSED = 1
MISUSED = 2
INTERRUPTED = 130
CLOSED_PIPE = 141

# Without a terminal every row of a table keeps to one line, for `grep` and its like.
_UNBOUNDED = 2_000
# What a column that wraps is left beside one that does not: at least, and where the terminal is too narrow.
_NARROWEST = 8
_NARROW = 20


@attrs.frozen
class Answer:
    """`document` is what `--json` prints, `show` prints the same for a person."""

    document: Mapping[str, Any]
    show: Callable[[Screen], None]
    code: int = 0


class Screen(Console):
    """A console whose reader may go away, and which shows texts as they are."""

    def __init__(self, file: IO[str], **kw: Any) -> None:
        terminal = file.isatty()
        bounded = terminal or "COLUMNS" in os.environ
        super().__init__(
            file=file,
            width=None if bounded else _UNBOUNDED,
            force_terminal=None if terminal else False,
            markup=False,
            highlight=False,
            emoji=False,
            **kw,
        )

    def on_broken_pipe(self) -> None:
        """Let the fault through: the command line ends in one place."""
        raise BrokenPipeError

    def say(self, line: str = "", style: str | None = None) -> None:
        """One line of text."""
        self.print(Text(line, style=style or ""), soft_wrap=True)

    def show_whole(self, made: Table) -> None:
        """A table; columns that never wrap may make it wider than the terminal, which then breaks lines."""
        before = self.size
        if _width(made, _NARROWEST) > before.width:
            self.size = ConsoleDimensions(_width(made, _NARROW), before.height)
        try:
            self.print(made)
        finally:
            self.size = before


def _width(made: Table, most: int) -> int:
    """How wide a table is whose columns that wrap get so much each at most."""
    total = 0
    for column in made.columns:
        widest = max(cell_len(str(text)) for text in [column.header, *column.cells])
        total += 2 + (widest if column.no_wrap else min(widest, most))
    return total


def write(answer: Answer, file: IO[str], *, as_json: bool) -> None:
    """Print it. Exits with `CLOSED_PIPE` where nobody reads any more."""
    try:
        if as_json:
            # ASCII, so that the document is the same whatever the terminal's encoding.
            file.write(json.dumps(plain(answer.document), indent=2) + "\n")
        else:
            reconfigure = getattr(file, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
            _show(answer, file)
        file.flush()
    except BrokenPipeError:
        silence(file)
        raise click.exceptions.Exit(CLOSED_PIPE) from None


def _show(answer: Answer, file: IO[str]) -> None:
    if file.isatty():
        answer.show(Screen(file))
        return
    page = StringIO()
    answer.show(Screen(page))
    # Tables fill their last column with spaces, which only a terminal hides.
    file.writelines(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def silence(file: IO[str]) -> None:
    """Point a closed pipe to nowhere, so that the interpreter's last flush finds no fault."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


def complain(line: str) -> None:
    """One line on standard error."""
    with suppress(BrokenPipeError):
        click.echo(clean(line), file=sys.stderr)


def clean(text: str) -> str:
    r"""`text` with whatever a terminal would obey, or not show, written as an escape.

    >>> print(clean("P7" + chr(27) + "[2J"))
    P7\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def plain(value: Any) -> Any:
    """Values as JSON has them: attrs classes as objects, instants as ISO text in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if attrs.has(type(value)):
        return {name.name: plain(getattr(value, name.name)) for name in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def table(*columns: str, numbers: Iterable[str] = (), whole: Iterable[str] = (), gap: int = 2) -> Table:
    """A plain table: a heading, a rule, rows; nothing is cut off, long cells go on below.

    Columns that are to stay `whole`, so that what they hold can be copied, want `Screen.show_whole`.
    """
    made = Table(
        box=box.SIMPLE_HEAD,
        # The box's own line between columns is one of the gap's spaces.
        padding=(0, gap - 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    right, unbroken = set(numbers), set(whole)
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            overflow="fold",
            no_wrap=column in unbroken,
        )
    return made


def cell(value: object, style: str = "") -> Text:
    """A value in a table: cleaned, and a dash where there is none."""
    return Text("–" if value is None or value == "" else clean(str(value)), style=style)
