"""Charts of `StateChart` classes."""

# ruff: noqa: SLF001 - what a class declares and how it is called back has no public names

from __future__ import annotations

import copy
import typing
from typing import Any

import attrs
from statemachine.event_data import TriggerData
from statemachine.statemachine import StateChart

from statifier_router.errors import ConfigError
from statifier_router.interpreters.answers import BadAnswer
from statifier_router.interpreters.statemachine import definition
from statifier_router.interpreters.statemachine.charts import Position, StateMachineChart
from statifier_router.interpreters.statemachine.engine import Engine
from statifier_router.interpreters.statemachine.machines import (
    Machine,
    Machines,
    is_data,
    model_attributes,
    own_attributes,
)
from statifier_router.interpreters.statemachine.values import as_json, copied
from statifier_router.jsontext import Json
from statifier_router.text import NAME_LIMIT, checked


class ClassEngine(Engine):
    """Runs a machine of a user's class; callbacks may ask for the event's data, and for the time."""

    def _offer(self, kwargs: dict[str, Any], trigger: TriggerData) -> None:
        first = trigger is self._first
        data = self.data_of(trigger)
        offered = {
            "data": {} if data is None and not first else data,
            "origin": self.origin if first else None,
            "send_id": trigger.send_id,
            "event_id": self.event_id,
            "now": self.now,
        }
        for name, value in offered.items():
            kwargs.setdefault(name, value)
        prepare = self.sm.prepare.key
        if prepare in self.sm._callbacks:
            for prepared in self.sm._callbacks.call(prepare, *trigger.args, **kwargs):
                kwargs.update(prepared)


@attrs.frozen(eq=False, kw_only=True)
class ClassChart(StateMachineChart):
    """A chart made from a `StateChart` class."""

    version: str

    def _begin(self, lent: Machine, execution: Json) -> None:
        model = {name: copy.deepcopy(value) for name, value in lent.fresh_model.items() if is_data(value)}
        own = {name: copy.deepcopy(value) for name, value in lent.fresh_self.items() if is_data(value)}
        model["execution"] = execution
        self._machines.seat(lent, (), {}, model, own)
        lent.engine.begin()

    def _seat(self, lent: Machine, read: Position) -> None:
        self._machines.seat(lent, read.states, read.history, copied(read.data), copied(read.own))

    def _kept(self, lent: Machine) -> dict[str, Json]:
        kept: dict[str, Json] = {"data": as_json(model_attributes(lent), "data")}
        own = own_attributes(lent)
        if own:
            kept["self"] = as_json(own, "self")
        return kept


def load(chart_class: type[StateChart[Any]], *, version: str, library_version: str) -> ClassChart:
    """A chart of the class. Raises `ConfigError`."""
    _check_class(chart_class)
    checked(version, "version", ConfigError, limit=NAME_LIMIT)
    if chart_class._abstract:
        raise ConfigError(f"{chart_class.__name__} has no states: give the class that declares them")
    model = _model_class(chart_class)
    try:
        machines = Machines(chart_class, ClassEngine, model)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{chart_class.__name__} cannot be made without arguments: {type(error).__name__}: {error}"
        ) from error
    with machines.lent() as lent:
        for what, fresh in (("model", lent.fresh_model), ("self", lent.fresh_self)):
            try:
                as_json({name: value for name, value in fresh.items() if is_data(value)}, what)
            except BadAnswer as fault:
                raise ConfigError(f"what {chart_class.__name__} starts with: {fault}") from None
    return ClassChart(
        name=chart_class.__name__,
        content_hash=definition.digest_of(chart_class, model, version=version),
        interpreter="statemachine",
        interpreter_version=library_version,
        chart_class=chart_class,
        machines=machines,
        version=version,
    )


def _check_class(value: object) -> None:
    if not (isinstance(value, type) and issubclass(value, StateChart)):
        raise ConfigError(f"chart must be given a StateChart class, not {value!r}")


def _model_class(chart_class: type[StateChart[Any]]) -> type[Any] | None:
    """The class named in `StateChart[...]`, unless the chart makes its model itself."""
    if chart_class.__init__ is not StateChart.__init__:
        return None
    for parent in chart_class.__mro__:
        for base in parent.__dict__.get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            if isinstance(origin, type) and issubclass(origin, StateChart):
                (model,) = typing.get_args(base)
                # `Any` is a class from Python 3.11 on, and names no model.
                if isinstance(model, type) and model not in (object, typing.Any):
                    return model
    return None
