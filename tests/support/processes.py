"""Python functions in real child processes: started, paused, released, killed. Nothing sleeps.

A child is forked from a server of multiprocessing, which has imported the library and nothing else: an
interpreter of its own would take longer to import it than most children live. Orders and reports are JSON,
on a pipe of their own, so that whatever a child prints disturbs nobody.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT = 120.0

_ROOT = Path(__file__).parents[2]
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [f"tests.support.{name}" for name in ("conforming", "runs_workers", "workers")]
)


class ChildFailed(AssertionError):
    """The child raised, ended early, or did not come to the point that the test waits for."""


class Child:
    """One function, named `package.module:function`, running in a process of its own.

    Arguments and result are JSON. The child runs at once; `result` waits for its end. As a context
    manager it is killed at the end of the block unless it has ended by itself.
    """

    def __init__(self, function: str, *args: Any, **kwargs: Any) -> None:
        self._line, theirs = _server.Pipe()
        order = {"function": function, "args": args, "kwargs": kwargs}
        self._process = _server.Process(
            target=_child, args=(theirs, json.dumps(order), dict(os.environ)), daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process id."""
        pid = self._process.pid
        assert pid is not None
        return pid

    def wait_for(self, point: str, *, timeout: float = TIMEOUT) -> Any:
        """Return once the child has called `pause(point)`; answers the facts that it gave."""
        report = self._report(timeout)
        if report is None or report.get("paused") != point:
            raise ChildFailed(f"the child did not pause at {point!r}: {_told(report)}")
        return report["facts"]

    def release(self) -> None:
        """Let the child go on from where it paused."""
        self._line.send_bytes(b"go")

    def result(self, *, timeout: float = TIMEOUT) -> Any:
        """What the function answered; `ChildFailed` with its traceback where it raised."""
        report = self._report(timeout)
        if report is None or "result" not in report:
            raise ChildFailed(_told(report))
        self._process.join(timeout)
        if self._process.is_alive():
            raise ChildFailed(f"the child gave its result and had not ended after {timeout} seconds")
        return report["result"]

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone; nothing where it has ended already."""
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self._process.join()

    def close(self) -> None:
        """Kill the child if it still runs, and close the pipe."""
        self.kill()
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _report(self, timeout: float) -> dict[str, Any] | None:
        """The child's next report; None when it ended without one."""
        try:
            if not self._line.poll(timeout):
                raise ChildFailed(f"the child said nothing for {timeout} seconds")
            report: dict[str, Any] = json.loads(self._line.recv_bytes())
        except (EOFError, ConnectionError):
            return None
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

# The pipe to the parent, in a child.
_parent: Connection | None = None


def pause(point: str, facts: Any = None) -> None:
    """In a child: tell the parent that this point is reached, and wait until it releases us."""
    assert _parent is not None, "pause() is for a function that runs in a child"
    _tell(_parent, {"paused": point, "facts": facts})
    try:
        _parent.recv_bytes()
    except (EOFError, ConnectionError):
        # The parent is gone, so nobody will ever ask for the rest.
        os._exit(1)


def _tell(parent: Connection, report: dict[str, Any]) -> None:
    parent.send_bytes(json.dumps(report).encode())


def _child(parent: Connection, told: str, environment: dict[str, str]) -> None:
    global _parent  # noqa: PLW0603 - of a process that does nothing else
    _parent = parent
    os.chdir(_ROOT)
    os.environ.clear()
    os.environ.update(environment)
    order = json.loads(told)
    module, _, name = order["function"].partition(":")
    try:
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        report = {"result": function(*order["args"], **order["kwargs"])}  # type: ignore[operator]  # a module's attribute
        _tell(parent, report)
    except BaseException:
        _tell(parent, {"error": traceback.format_exc()})
        sys.exit(1)


def _told(report: dict[str, Any] | None) -> str:
    if report is None:
        return "it ended without a word"
    return str(report.get("error") or report)
