"""Helpers for users' tests: the contract of interpreters, scripted charts, a clock, outcomes asserted.

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

__all__ = [
    "ANY",
    "Clock",
    "Heard",
    "InterpreterContract",
    "Reply",
    "ScriptedChart",
    "assert_outcomes",
    "completes",
    "fails",
    "ignores",
    "moves",
    "raises",
    "refuses",
    "scripted",
]
