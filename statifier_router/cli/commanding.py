"""What every command shares: its configuration, `--json`, and an answer that is printed at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from typing import Any, Literal

import click

from statifier_router.cli import loading
from statifier_router.cli.answers import Answer, write

# What a command is given beside its options: nothing, the `Config`, the `Outbound`, or the `Config` and the
# `Outbound` or None.
Given = Literal["nothing", "config", "outbound", "both"]

_CONFIG_HELP = (
    "Where the configuration is: a Config, or a callable that answers one. "
    f"The environment variable {loading.VARIABLE} says the same."
)
_OUTBOUND_HELP = (
    "Where the Outbound is, or a callable that answers one; by default the attribute "
    f"'{loading.BESIDE}' beside the configuration. The environment variable {loading.OUTBOUND_VARIABLE} "
    "says the same."
)


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--config`, on the program and on each command."""
    return click.option("--config", "reference", metavar="PACKAGE.MODULE:ATTRIBUTE", help=_CONFIG_HELP)(
        function
    )


def outbound_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--outbound`, on the program and on each command that needs one."""
    return click.option(
        "--outbound", "outbound_reference", metavar="PACKAGE.MODULE:ATTRIBUTE", help=_OUTBOUND_HELP
    )(function)


def command(
    name: str, *, configured: bool = True, given: Given | None = None
) -> Callable[[Callable[..., Answer | None]], click.Command]:
    """Make a command of a function that is handed what `given` says, and its options.

    The function answers an `Answer`, or None where there is nothing to print. Its docstring is the
    help.
    """
    needs: Given = given or ("config" if configured else "nothing")

    def decorate(work: Callable[..., Answer | None]) -> click.Command:
        @wraps(work)
        def callback(
            *,
            as_json: bool,
            reference: str | None = None,
            outbound_reference: str | None = None,
            **options: Any,
        ) -> int:
            # Standard output is the answer's alone: whatever a host's own code prints goes beside it.
            with redirect_stdout(sys.stderr), _handed(needs, reference, outbound_reference) as handed:
                answer = work(*handed, **options)
            if answer is None:
                return 0
            write(answer, sys.stdout, as_json=as_json)
            return answer.code

        made: Callable[..., Any] = click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON document, for programs."
        )(callback)
        if needs in ("outbound", "both"):
            made = outbound_option(made)
        if needs != "nothing":
            made = config_option(made)
        return click.command(name)(made)

    return decorate


def outbound_command(name: str) -> Callable[[Callable[..., Answer | None]], click.Command]:
    """A command that is handed the host's `Outbound`."""
    return command(name, given="outbound")


@contextmanager
def _handed(needs: Given, reference: str | None, outbound_reference: str | None) -> Iterator[tuple[Any, ...]]:
    """What a command is given; its pooled connections are closed at the end."""
    if needs == "nothing":
        yield ()
        return
    before = click.get_current_context().find_root().params
    reference = reference or before.get("reference") or os.environ.get(loading.VARIABLE)
    if needs == "config":
        config = loading.load(reference)
        engines = [config.engine]
        handed: tuple[Any, ...] = (config,)
    else:
        named = outbound_reference or before.get("outbound_reference")
        named = named or os.environ.get(loading.OUTBOUND_VARIABLE)
        if needs == "outbound":
            outbound = loading.load_outbound(named, reference)
            handed, engines = (outbound,), [outbound.config.engine]
        else:
            found = loading.find_outbound(named, reference)
            config = found.config if found is not None and not reference else loading.load(reference)
            handed = (config, found)
            engines = [config.engine] if found is None else [config.engine, found.config.engine]
    try:
        yield handed
    finally:
        for engine in engines:
            engine.dispose()
