"""Compiling a stored chart again: from its text, or by importing it."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from statifier_router.errors import ConfigError
from statifier_router.steps import Chart

# Interpreters whose charts are a text of their own.
_TEXTS = frozenset({"scxml"})


def source_of(chart: Chart) -> str:
    """What it takes to compile the chart again: its text, or `module:name`. Raises `ConfigError`."""
    if chart.interpreter in _TEXTS:
        text = getattr(chart, "source", None)
        if isinstance(text, str):
            return text
    bound = sorted(set(_bindings(chart)))
    if not bound:
        raise ConfigError(
            f"chart {chart.content_hash} cannot be imported by another process: bind it to a name of a "
            "module (not of the main script, nor inside a list or a function) before it is saved"
        )
    if len(bound) > 1:
        # The module that makes it goes before those that only import it.
        bound.sort(key=lambda each: not _makes(*each))
    return ":".join(bound[0])


def load(interpreter: str, source: str) -> Any:
    """What `source` compiles to; raises whatever compiling or importing it raises."""
    if interpreter in _TEXTS:
        from statifier_router.interpreters import statemachine

        return statemachine.scxml(source)
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)


def _bindings(chart: Chart) -> Iterator[tuple[str, str]]:
    """Every module and name that the chart is bound to."""
    for name, module in list(sys.modules.items()):
        # Its type, not what it says of itself: an extension may stand there that has no names of a module's.
        if name in ("__main__", "__mp_main__") or not issubclass(type(module), ModuleType):
            continue
        # Past the module's own attribute access, which may load what was to be loaded later.
        names = list(object.__getattribute__(module, "__dict__").items())
        yield from ((name, bound) for bound, value in names if value is chart)


def _makes(module: str, name: str) -> bool:
    """Whether the module's own text assigns the name at its top."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):
        return False
    for statement in tree.body:
        targets: list[Any] = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return True
    return False
