"""The options of everything that an operator does: who, why, and to which records."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from statifier_router.errors import ConfigError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

WHEN = (
    "WHEN is an instant with its zone (2026-01-31T12:00:00Z) or an age (30d, 12h, 90m, 2w); "
    "TIME is a number and its unit (30s, 15m, 2h)."
)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "command line"


actor: Decorator = click.option(
    "--actor",
    metavar="NAME",
    default=_user,
    help="Who does it, for the audit row.  [default: whoever is logged in]",
)
reason: Decorator = click.option("--reason", metavar="TEXT", help="Why, for the audit row.")
dry_run: Decorator = click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
spread: Decorator = click.option(
    "--spread", metavar="TIME", help="Have them become due evenly over this time, not all at once."
)
source_ids: Decorator = click.argument("source_ids", metavar="[ID]...", nargs=-1)


def read_ids(given: tuple[str, ...]) -> tuple[str, ...]:
    """The ids that were given; "-" stands for those on standard input, one a line."""
    if "-" not in given:
        return given
    return tuple(each for each in given if each != "-") + tuple(_lines(sys.stdin))


def _lines(lines: Iterable[str]) -> Iterable[str]:
    try:
        yield from (line.strip() for line in lines if line.strip())
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not text: {error}") from None
