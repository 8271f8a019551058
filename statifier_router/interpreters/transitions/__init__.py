"""Charts of the library `transitions` (extra `transitions`): flat and hierarchical machines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from statifier_router.errors import ConfigError, MissingExtra
from statifier_router.text import NAME_LIMIT, checked

if TYPE_CHECKING:
    from statifier_router.interpreters.transitions.charts import TransitionsChart

__all__ = ["chart"]


def chart(
    name: str,
    *,
    states: Sequence[Any] | type[Enum],
    transitions: Sequence[Sequence[Any] | Mapping[str, Any]],
    initial: str | Enum | Sequence[str],
    model: Callable[[], Any] | None = None,
    version: str,
    hierarchical: bool = False,
) -> TransitionsChart:
    """A chart of the library's states and transitions, in the library's own notation.

    A state with `final=True` completes the execution; of a hierarchical chart every active state
    must be final (the library's own rule).

    `model` is a class, or a function without arguments that makes one: every step has an instance
    of its own. What it keeps between steps is its dict `data`, which must be JSON; another
    attribute that a step sets is refused, since it would be lost. `execution` tells it who it is.
    When the chart completes, an attribute or method `donedata` of the model is the donedata.

    A callback takes nothing, or one argument: the library's `EventData` with the event's `name`,
    `data` (one mapping), `origin`, `send_id`, `event_id` and `now`. It may call `emit` and `cancel`.
    An event triggered inside a callback (`self.trigger("next")`) waits until its transition is
    over; a thousand of them in one step fail it. There are no `to_<state>` triggers of the library's.
    What a guard or an action raises fails the step.

    The content hash covers the definition, the names of its callables and `version`: give another
    `version` whenever what the callables do changes. Raises `ConfigError` for a definition that
    cannot be stepped, and `MissingExtra` without the library.

    >>> from statifier_router.interpreters import transitions
    >>> parcel = transitions.chart(
    ...     "parcel",
    ...     states=["moving", {"name": "delivered", "final": True}],
    ...     transitions=[["scanned", "moving", "="], ["handed_over", "moving", "delivered"]],
    ...     initial="moving",
    ...     version="1",
    ... )
    >>> parcel.interpreter
    'transitions'
    """
    try:
        from statifier_router.interpreters.transitions import charts, checking, machines
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.startswith("statifier_router"):
            raise
        raise MissingExtra("transitions", "interpreters.transitions") from missing
    from statifier_router.interpreters.transitions import definition

    checked(name, "name", ConfigError, limit=NAME_LIMIT)
    checked(version, "version", ConfigError, limit=NAME_LIMIT)
    if not isinstance(hierarchical, bool):
        raise ConfigError(f"hierarchical must be True or False, not {type(hierarchical).__name__}")
    factory = _factory(model, machines.CLASSES)
    read = definition.read(states, transitions, initial, hierarchical=hierarchical, library=machines.CLASSES)
    machine = machines.build(read)
    checking.check_names(machine)
    probe = factory()
    if not hasattr(probe, "__dict__"):
        raise ConfigError(f"model: {type(probe).__name__} has no room for attributes; drop its __slots__")
    machine.bind(probe)
    checking.check_callbacks(machine, probe)
    return charts.TransitionsChart(
        name=name,
        content_hash=read.content_hash(name, version, model),
        interpreter_version=machines.VERSION,
        definition=read,
        factory=factory,
        version=version,
    )


def _factory(model: Any, classes: Any) -> Callable[[], Any]:
    from statifier_router.interpreters.transitions.charts import Model

    if model is None:
        return Model
    if isinstance(model, classes.machine) or (isinstance(model, type) and issubclass(model, classes.machine)):
        raise ConfigError(
            "model is a Machine of the library: give the class of the model, the chart makes the machine"
        )
    if not callable(model):
        raise ConfigError(
            f"model must be a class or a function that makes one, not a {type(model).__name__}: "
            "one instance would be shared by all executions"
        )
    if inspect.iscoroutinefunction(model):
        raise ConfigError("model must not be a coroutine function: a step waits for nothing")
    factory: Callable[[], Any] = model
    return factory
