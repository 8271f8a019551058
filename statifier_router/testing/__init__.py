"""Helpers for users' tests: the contracts, scripted charts and targets, a clock, outcomes asserted.

The pytest plugin (`statifier_router.testing.plugin`) is found by pytest itself; its fixtures start no server.
"""

from __future__ import annotations

from statifier_router.testing.assertions import assert_outcomes
from statifier_router.testing.clock import Clock
from statifier_router.testing.contract import InterpreterContract
from statifier_router.testing.scripted import (
    ANY,
    Heard,
    Reply,
    ScriptedChart,
    completes,
    fails,
    ignores,
    moves,
    raises,
    refuses,
    scripted,
)
from statifier_router.testing.targets import (
    Held,
    Reaction,
    Request,
    ScriptedTarget,
    ScriptedWriter,
    breaks,
    gone,
    hangs,
    lands,
    rejects,
    throttles,
    times_out,
    unavailable,
)
from statifier_router.testing.writer_contract import WriterContract

__all__ = [
    "ANY",
    "Clock",
    "Heard",
    "Held",
    "InterpreterContract",
    "Reaction",
    "Reply",
    "Request",
    "ScriptedChart",
    "ScriptedTarget",
    "ScriptedWriter",
    "WriterContract",
    "assert_outcomes",
    "breaks",
    "completes",
    "fails",
    "gone",
    "hangs",
    "ignores",
    "lands",
    "moves",
    "raises",
    "refuses",
    "rejects",
    "scripted",
    "throttles",
    "times_out",
    "unavailable",
]
