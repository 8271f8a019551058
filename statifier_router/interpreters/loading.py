"""Compiling a stored chart again: from its text, or by importing it."""

from __future__ import annotations

import importlib
from typing import Any

from statifier_router.steps import Chart


def text_of(chart: Chart) -> str | None:
    """The chart's definition where that is a text of its own (SCXML); None for one made in Python."""
    text = getattr(chart, "source", None)
    return text if isinstance(text, str) else None


def load(interpreter: str, source: str) -> Any:
    """What `source` compiles to; raises whatever compiling or importing it raises."""
    if interpreter == "scxml":
        from statifier_router.interpreters import statemachine

        return statemachine.scxml(source)
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)
