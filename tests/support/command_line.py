"""The command line under test: in this process with click's runner, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner

_ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "statifier_router.cli"]


@attrs.frozen
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """Standard error, which must be one line."""
        assert self.err.endswith("\n"), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removesuffix("\n")


def run(*arguments: str, stdin: str | bytes | None = None, env: dict[str, str | None] | None = None) -> Ran:
    """Run a command in this process; nothing but an exit may come out of it."""
    from statifier_router.cli.program import program

    # However wide the terminal of whoever runs the tests.
    variables = {"COLUMNS": None, **(env or {})}
    result = CliRunner().invoke(program, list(arguments), input=stdin, env=variables)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def environment(**more: str) -> dict[str, str]:
    """This process's environment for a child: the package importable, no configuration, no colours."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("STATIFIER_ROUTER_")
    }
    inherited.pop("COLUMNS", None)
    return inherited | {"PYTHONPATH": str(_ROOT), "NO_COLOR": "1"} | more


def process(*arguments: str, cwd: Path, stdin: str = "", env: dict[str, str] | None = None) -> Ran:
    """Run a command as a process of its own, in this directory."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        input=stdin,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
