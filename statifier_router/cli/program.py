"""The program `statifier-router`: its commands, and how every one of them ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from statifier_router.cli.answers import CLOSED_PIPE, INTERRUPTED, complain, silence
from statifier_router.cli.asking_commands import execution, ledger
from statifier_router.cli.commanding import config_option, outbound_option
from statifier_router.cli.demo_command import demo
from statifier_router.cli.doctor_command import doctor
from statifier_router.cli.explain_command import explain
from statifier_router.cli.faults import TRACEBACK_VARIABLE, line_and_code
from statifier_router.cli.keeping_commands import prune, reap
from statifier_router.cli.records_commands import park, parked, records, release, replay, why
from statifier_router.cli.route_command import route
from statifier_router.cli.rules_commands import breaker, pause, rebase, resume, rules
from statifier_router.cli.run_commands import run, tick, work
from statifier_router.cli.schema_commands import migrate, verify
from statifier_router.cli.waiting_commands import deferrals, timers

NAME = "statifier-router"


class _Program(click.Group):
    """Ends in one line on standard error and an exit code, never in a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a host meets them."""
        return list(self.commands)

    def main(
        self, args: Sequence[str] | None = None, *_: Any, standalone_mode: bool = True, **kw: Any
    ) -> Any:
        """Run, and exit with the code (`standalone_mode`) or answer it."""
        kw.setdefault("prog_name", NAME)
        try:
            code = super().main(args, standalone_mode=False, **kw)
        except click.Abort:
            complain("interrupted")
            code = INTERRUPTED
        except BrokenPipeError:
            silence(sys.stdout)
            code = CLOSED_PIPE
        except SystemExit:
            raise
        except BaseException as error:
            if os.environ.get(TRACEBACK_VARIABLE):
                traceback.print_exception(error)
            line, code = line_and_code(error)
            complain(f"error: {line}")
        code = code if isinstance(code, int) else 0
        if standalone_mode:
            sys.exit(code)
        return code


@click.group(
    cls=_Program, invoke_without_command=True, name=NAME, context_settings={"max_content_width": 100}
)
@config_option
@outbound_option
@click.version_option(package_name=NAME, message="%(prog)s %(version)s")
@click.pass_context
def program(context: click.Context, reference: str | None, outbound_reference: str | None) -> None:
    """Deliver events of other systems to the one durable state machine each belongs to.

    Begin with: statifier-router demo
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


_COMMANDS = (
    demo, migrate, verify, route, ledger, explain, execution, timers, deferrals,
    run, tick, work, rules, why, parked, records, release, park, replay, pause, resume, breaker,
    doctor, rebase, reap, prune,
)  # fmt: skip

for each in _COMMANDS:
    program.add_command(each)
