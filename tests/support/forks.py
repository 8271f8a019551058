"""Many short-lived processes: forked from one that has imported everything, so that each costs little.

The parent of the forks is a program with a single thread and no connection; a fork shares nothing with
its siblings but what it imported.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import attrs

TIMEOUT = 60.0

_ROOT = Path(__file__).parents[2]


@attrs.frozen
class Ended:
    """How a fork ended: what its function answered, or the traceback of what it raised, or neither.

    `signal` is the signal that killed it.
    """

    result: Any = None
    error: str | None = None
    signal: int | None = None


class Forks:
    """Runs functions, named `package.module:function`, in a fork each; a context manager.

    `module` is imported once, before the first fork. Arguments and results are JSON.
    """

    def __init__(self, module: str) -> None:
        reports, for_program = os.pipe()
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks", str(for_program), module],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            pass_fds=[for_program],
        )
        os.close(for_program)
        self._reports = reports
        self._unread = b""

    def run(self, function: str, *args: Any, **kwargs: Any) -> Ended:
        """Run the function in a fork of its own and wait until that process is gone."""
        return self._ended({"function": function, "args": args, "kwargs": kwargs})

    def warm(self, function: str, *args: Any) -> None:
        """Run the function in the program that forks, which the forks find as it was left.

        Statements are compiled then, as in a process that has long been at work. The function leaves no
        connection open.
        """
        ended = self._ended({"function": function, "args": args, "kwargs": {}, "here": True})
        assert ended.error is None, ended.error

    def _ended(self, order: dict[str, Any]) -> Ended:
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps(order).encode() + b"\n")
        self._program.stdin.flush()
        told: dict[str, Any] = {}
        while "signal" not in told:
            told |= self._report()
        return Ended(**told)

    def close(self) -> None:
        """End the program that forks."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        self._program.wait(TIMEOUT)
        os.close(self._reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _report(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._reports], [], [], TIMEOUT)
            assert ready, f"the fork said nothing for {TIMEOUT} seconds"
            piece = os.read(self._reports, 65536)
            assert piece, "the program that forks has ended"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report


# --- in the program ---------------------------------------------------------------------------------


def _serve(pipe: int, module: str) -> None:
    importlib.import_module(module)
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if order.get("here"):
            _report(pipe, order)
            _write(pipe, {"signal": None})
            continue
        child = os.fork()
        if child == 0:
            _run(pipe, order)
        _, status = os.waitpid(child, 0)
        _write(pipe, {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None})


def _run(pipe: int, order: dict[str, Any]) -> NoReturn:
    try:
        _report(pipe, order)
    finally:
        # Not by way of the interpreter's end: that would flush and close what the program still needs.
        os._exit(0)


def _report(pipe: int, order: dict[str, Any]) -> None:
    module, _, name = order["function"].partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        _write(pipe, {"result": function(*order["args"], **order["kwargs"])})
    except BaseException:
        _write(pipe, {"error": traceback.format_exc()})


def _write(pipe: int, report: dict[str, Any]) -> None:
    line = json.dumps(report).encode() + b"\n"
    while line:
        line = line[os.write(pipe, line) :]


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
