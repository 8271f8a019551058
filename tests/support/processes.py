"""Python functions in real child processes: started, paused, released, killed. Nothing sleeps.

The child runs this module as a program. It reads its orders from standard input, a line of JSON each,
and reports on a pipe of its own, so that whatever it prints disturbs nobody.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

TIMEOUT = 120.0

_ROOT = Path(__file__).parents[2]


class ChildFailed(AssertionError):
    """The child raised, ended early, or did not come to the point that the test waits for."""


class Child:
    """One function, named `package.module:function`, running in a process of its own.

    Arguments and result are JSON. The child runs at once; `result` waits for its end. As a context
    manager it is killed at the end of the block unless it has ended by itself.
    """

    def __init__(self, function: str, *args: Any, **kwargs: Any) -> None:
        reports, for_child = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes", str(for_child)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            pass_fds=[for_child],
        )
        os.close(for_child)
        self._reports = reports
        self._unread = b""
        self._tell({"function": function, "args": args, "kwargs": kwargs})

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_for(self, point: str, *, timeout: float = TIMEOUT) -> Any:
        """Return once the child has called `pause(point)`; answers the facts that it gave."""
        report = self._report(timeout)
        if report is None or report.get("paused") != point:
            raise ChildFailed(f"the child did not pause at {point!r}: {_told(report)}")
        return report["facts"]

    def release(self) -> None:
        """Let the child go on from where it paused."""
        self._tell({"go": True})

    def result(self, *, timeout: float = TIMEOUT) -> Any:
        """What the function answered; `ChildFailed` with its traceback where it raised."""
        report = self._report(timeout)
        if report is None or "result" not in report:
            raise ChildFailed(_told(report))
        self._process.wait(timeout)
        return report["result"]

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone; nothing where it has ended already."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill the child if it still runs, and close the pipes."""
        self.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._reports >= 0:
            os.close(self._reports)
            self._reports = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _report(self, timeout: float) -> dict[str, Any] | None:
        """The child's next report; None when it ended without one."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._reports], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ChildFailed(f"the child said nothing for {timeout} seconds")
            piece = os.read(self._reports, 65536)
            if not piece:
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report


class Children:
    """The children of one test; those that still run at its end are killed."""

    def __init__(self) -> None:
        self._started: list[Child] = []

    def start(self, function: str, *args: Any, **kwargs: Any) -> Child:
        """A new child; see `Child`."""
        child = Child(function, *args, **kwargs)
        self._started.append(child)
        return child

    def close(self) -> None:
        """End every child."""
        for child in self._started:
            child.close()


def run(function: str, *args: Any, timeout: float = TIMEOUT, **kwargs: Any) -> Any:
    """Run a function in a child of its own and answer its result."""
    with Child(function, *args, **kwargs) as child:
        return child.result(timeout=timeout)


def release_together(children: Iterable[Child], point: str) -> None:
    """Wait until every child has paused at `point`, then let all of them go: a barrier."""
    waiting = list(children)
    for child in waiting:
        child.wait_for(point)
    for child in waiting:
        child.release()


# --- in the child -----------------------------------------------------------------------------------

# The pipe to the parent; it is set where this module runs as a program.
_pipe: int | None = None


def pause(point: str, facts: Any = None) -> None:
    """In a child: tell the parent that this point is reached, and wait until it releases us."""
    # The child runs this module as `__main__`; a function under test imports it by its name.
    pipe = getattr(sys.modules["__main__"], "_pipe", None)
    assert pipe is not None, "pause() is for a function that runs in a child"
    _write(pipe, {"paused": point, "facts": facts})
    if not sys.stdin.buffer.readline():
        # The parent is gone, so nobody will ever ask for the rest.
        os._exit(1)


def _write(pipe: int, report: dict[str, Any]) -> None:
    with os.fdopen(os.dup(pipe), "wb") as file:
        file.write(json.dumps(report).encode() + b"\n")


def _child(pipe: int) -> NoReturn:
    order = json.loads(sys.stdin.buffer.readline())
    module, _, name = order["function"].partition(":")
    try:
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        report = {"result": function(*order["args"], **order["kwargs"])}  # type: ignore[operator]  # a module's attribute
        _write(pipe, report)
    except BaseException:
        _write(pipe, {"error": traceback.format_exc()})
        sys.exit(1)
    sys.exit(0)


def _told(report: dict[str, Any] | None) -> str:
    if report is None:
        return "it ended without a word"
    return str(report.get("error") or report)


if __name__ == "__main__":
    _pipe = int(sys.argv[1])
    _child(_pipe)
