"""Where charts come from, and the guard on what a host's resolvers answer."""

from __future__ import annotations

import threading

from statifier_router.config import Config
from statifier_router.errors import (
    ChartMismatch,
    ChartNotResolved,
    ConfigError,
    Unresolved,
    UnresolvedDocument,
)
from statifier_router.executor import Execution
from statifier_router.steps import Chart
from statifier_router.text import NAME_LIMIT, checked


class ChartRegistry:
    """Charts in memory. Every revision ever published stays reachable by its hash.

    A document has one chart for every scope, and a scope may have one of its own that goes before
    it. Safe to share between threads; a publication is seen whole or not at all.

    >>> from statifier_router import Step
    >>> from statifier_router.interpreters import function
    >>> registry = ChartRegistry()
    >>> light = function.chart(
    ...     "light",
    ...     create=lambda data, now: Step("off", active=["off"]),
    ...     step=lambda position, event, now: Step("on", active=["on"]),
    ... )
    >>> registry.publish("light", light)
    >>> registry.resolve("any scope", "light") is light
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_document: dict[tuple[str | None, str], Chart] = {}
        self._by_hash: dict[str, Chart] = {}

    def publish(self, document: str, chart: Chart, *, scope: str | None = None) -> None:
        """Make `chart` the one on which new executions of `document` run, in `scope` or everywhere.

        Executions that exist keep their own revision. Raises `ConfigError` for what is no chart.
        """
        checked(document, "document", ConfigError, limit=NAME_LIMIT)
        if scope is not None:
            checked(scope, "scope", ConfigError, limit=NAME_LIMIT, empty=True)
        problem = not_a_chart(chart)
        if problem:
            raise ConfigError(f"chart {problem}")
        with self._lock:
            self._by_hash[chart.content_hash] = chart
            self._by_document[scope, document] = chart

    def resolve(self, scope: str, document: str) -> Chart:
        """The chart for a new execution; raises `Unresolved` where none was published."""
        chart = self._by_document.get((scope, document)) or self._by_document.get((None, document))
        if chart is None:
            raise Unresolved("nothing was published for it")
        return chart

    def by_hash(self, content_hash: str) -> Chart | None:
        """The revision with this hash, or None."""
        return self._by_hash.get(content_hash)


def not_a_chart(value: object) -> str | None:
    """Why `value` is no chart, or None where it is one."""
    for name in ("content_hash", "interpreter", "interpreter_version"):
        text = getattr(value, name, None)
        if not isinstance(text, str):
            return f"must be a Chart; {type(value).__name__} has no text {name}"
        try:
            checked(text, name, ConfigError, limit=NAME_LIMIT)
        except ConfigError as fault:
            return f"must be a Chart; its {fault}"
    for name in ("create", "step"):
        if not callable(getattr(value, name, None)):
            return f"must be a Chart; {type(value).__name__} has no method {name}"
    return None


def for_document(config: Config, scope: str, document: str) -> Chart:
    """The chart on which a new execution runs.

    Raises `UnresolvedDocument` where the host's charts say there is none, and `TypeError` for an
    answer that is no chart. What else a resolver raises comes out as it is.
    """
    try:
        chart = config.chart_source.resolve(scope, document)
    except Unresolved as missing:
        raise UnresolvedDocument(document, scope, missing.reason) from missing
    problem = not_a_chart(chart)
    if problem:
        raise TypeError(
            f"the chart resolver's answer for document {document!r} {problem}; "
            "answer a Chart, or raise Unresolved(reason)"
        )
    return chart


def for_execution(config: Config, execution: Execution) -> Chart:
    """The chart that an execution runs on, by the hash on its row, never by its document.

    Raises `ChartNotResolved`, `ChartMismatch`, and `TypeError` for an answer that is no chart.
    """
    return for_hash(config, execution.content_hash, execution.id)


def for_hash(config: Config, content_hash: str, execution_id: str) -> Chart:
    """The chart with this hash, for this execution."""
    try:
        chart = config.chart_source.by_hash(content_hash)
    except Unresolved as missing:
        raise ChartNotResolved(content_hash, execution_id, reason=missing.reason) from missing
    if chart is None:
        why = getattr(config.chart_source, "why_not", None)
        raise ChartNotResolved(content_hash, execution_id, reason=why(content_hash) if why else None)
    # What is published is a chart: it was looked at then.
    problem = None if type(config.chart_source) is ChartRegistry else not_a_chart(chart)
    if problem:
        raise TypeError(
            f"the chart resolver's answer for hash {content_hash} {problem}; "
            "answer a Chart, or None where there is none"
        )
    if chart.content_hash != content_hash:
        raise ChartMismatch(content_hash, execution_id, chart.content_hash)
    return chart
