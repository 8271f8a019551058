"""Charts of python-statemachine (extra `statemachine`): SCXML documents and `StateChart` classes.

Charts are code. The expressions and scripts of a document are evaluated as Python, with everything
this process may do; load only documents that you would import as a module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statifier_router.errors import MissingExtra

if TYPE_CHECKING:
    from statemachine import StateChart

    from statifier_router.interpreters.statemachine.class_charts import ClassChart
    from statifier_router.interpreters.statemachine.scxml_charts import ScxmlChart

__all__ = ["chart", "scxml"]


def scxml(text: str) -> ScxmlChart:
    """A chart of an SCXML document with Python expressions; its content hash is that of `text`'s bytes.

    Expressions see the datamodel, `_event`, `_name`, `_sessionid` (the execution's id), `In(...)`,
    `now` (the instant of the step, as ISO 8601 text in UTC) and `execution` (`execution.id`,
    `.scope`, `.document`, `.key`). `_event.data` is read by field, and a field that is absent is
    an error, never a None; `_event.data.get("field")` asks whether it is there.

    A `<send>` without a target and a delay is the chart's own business, within the step; every other
    is handed on as an effect, and so is `<cancel>`. An error inside a guard or an action is told in
    the step's `errors`, and is an `error.execution` that the chart may handle.

    The datamodel is JSON. Functions, classes and imports of a `<script>` directly under `<scxml>`
    belong to the document; an object of such a class, bound to a variable, is a record of its fields.

    Raises `ConfigError` for a document that does not load, and by name for what is not supported:
    `<invoke>`, a `targetexpr` that may reach outside, `src`. Raises `MissingExtra` without the library.

    >>> from datetime import UTC, datetime
    >>> from statifier_router import Event
    >>> from statifier_router.interpreters import statemachine
    >>> parcel = statemachine.scxml('''
    ...     <scxml name="parcel" initial="moving">
    ...       <datamodel><data id="scans" expr="0"/></datamodel>
    ...       <state id="moving">
    ...         <transition event="scanned"><assign location="scans" expr="scans + 1"/></transition>
    ...         <transition event="handed_over" cond="scans > 0" target="delivered"/>
    ...       </state>
    ...       <final id="delivered"/>
    ...     </scxml>''')
    >>> now = datetime(2026, 1, 2, tzinfo=UTC)
    >>> first = parcel.create(data={}, now=now)
    >>> parcel.step(first.position, Event("handed_over"), event_id="m-1", now=now).outcome
    'refused'
    """
    version = _library_version()
    from statifier_router.interpreters.statemachine import scxml_charts

    return scxml_charts.load(text, version)


def chart(chart_class: type[StateChart[Any]], *, version: str) -> ClassChart:
    """A chart of a `StateChart` class; another `version` is needed whenever what its callbacks do changes.

    The class is made without arguments; its model is the one that its `__init__` makes, or one of
    the class named in `StateChart[...]`. A position keeps every attribute of the model, and those
    that callbacks set on the machine itself: they must be JSON, and what is not is refused. What an
    `__init__` sets that is no data (a function, a client) is not kept: it comes anew with every
    machine. `model.execution` tells the chart who it is.

    A callback may ask for `data` (the event's data, one mapping: never its keys by name), `now`,
    `event_id`, `origin` and `send_id`, beside the library's own names. It may call `emit` and
    `cancel`; a delayed event that it sends to itself is handed on, and arrives with its keyword
    arguments as `data`. What entering the outermost final returns is the donedata.

    Raises `ConfigError` for a class that cannot be stepped (coroutines, an invoke), and
    `MissingExtra` without the library.

    >>> from statemachine import State, StateChart
    >>> from statifier_router.interpreters import statemachine
    >>> class Parcel(StateChart):
    ...     moving = State(initial=True)
    ...     delivered = State(final=True)
    ...     handed_over = moving.to(delivered)
    >>> statemachine.chart(Parcel, version="1").interpreter
    'statemachine'
    """
    library_version = _library_version()
    from statifier_router.interpreters.statemachine import class_charts

    return class_charts.load(chart_class, version=version, library_version=library_version)


def _library_version() -> str:
    try:
        import statemachine
    except ModuleNotFoundError as missing:
        if missing.name != "statemachine":
            raise
        raise MissingExtra("statemachine", "interpreters.statemachine") from missing
    return statemachine.__version__
