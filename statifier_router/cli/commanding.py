"""What every command shares: its configuration, `--json`, and an answer that is printed at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from typing import Any

import click

from statifier_router.cli import loading
from statifier_router.cli.answers import Answer, write

_CONFIG_HELP = (
    "Where the configuration is: a Config, or a callable that answers one. "
    f"The environment variable {loading.VARIABLE} says the same."
)


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--config`, on the program and on each command."""
    return click.option("--config", "reference", metavar="PACKAGE.MODULE:ATTRIBUTE", help=_CONFIG_HELP)(
        function
    )


def command(name: str, *, configured: bool = True) -> Callable[[Callable[..., Answer | None]], click.Command]:
    """Make a command of a function that is given a `Config` (where `configured`) and its options.

    The function answers an `Answer`, or None where there is nothing to print. Its docstring is the
    help.
    """

    def decorate(work: Callable[..., Answer | None]) -> click.Command:
        @wraps(work)
        def callback(*, as_json: bool, reference: str | None = None, **given: Any) -> int:
            if configured:
                answer = _configured(work, reference, given)
            else:
                with redirect_stdout(sys.stderr):
                    answer = work(**given)
            if answer is None:
                return 0
            write(answer, sys.stdout, as_json=as_json)
            return answer.code

        made: Callable[..., Any] = click.option(
            "--json", "as_json", is_flag=True, help="Print one JSON document, for programs."
        )(callback)
        if configured:
            made = config_option(made)
        return click.command(name)(made)

    return decorate


def _configured(
    work: Callable[..., Answer | None], reference: str | None, given: dict[str, Any]
) -> Answer | None:
    given_before = click.get_current_context().find_root().params.get("reference")
    # Standard output is the answer's alone: whatever a host's own code prints goes beside it.
    with redirect_stdout(sys.stderr):
        config = loading.load(reference or given_before or os.environ.get(loading.VARIABLE))
        try:
            return work(config, **given)
        finally:
            config.engine.dispose()
