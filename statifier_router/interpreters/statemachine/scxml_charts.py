"""Charts of SCXML documents."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from statifier_router.errors import ConfigError
from statifier_router.interpreters.statemachine import documents
from statifier_router.interpreters.statemachine.charts import Position, StateMachineChart
from statifier_router.interpreters.statemachine.engine import Engine
from statifier_router.interpreters.statemachine.expressions import Datamodel
from statifier_router.interpreters.statemachine.machines import Machine, Machines
from statifier_router.interpreters.statemachine.scxml_engine import ScxmlEngine
from statifier_router.interpreters.statemachine.structure import Structure
from statifier_router.interpreters.statemachine.values import as_json, kept
from statifier_router.jsontext import Json


@attrs.frozen(eq=False, kw_only=True)
class ScxmlChart(StateMachineChart):
    """A chart made from an SCXML document; `source` is its text."""

    source: str = attrs.field(repr=False)
    _document: documents.Document = attrs.field(repr=False)

    def _begin(self, lent: Machine, execution: Json) -> None:
        engine = _engine_of(lent)
        engine.sends = 0
        self._machines.seat(lent, (), {}, {"execution": kept(execution)}, {})
        model = lent.machine.model
        for variable in self._document.variables:
            if variable.name == "execution":
                # Declared so that the document says what it reads; its value is the host's.
                continue
            value = kept(variable.literal)
            if variable.expression is not None:
                value = None
                try:
                    value = variable.expression(machine=lent.machine)
                except Exception as error:
                    engine.heard(error)
            setattr(model, variable.name, value)
        for script in self._document.scripts:
            try:
                script(machine=lent.machine)
            except Exception as error:
                engine.heard(error)
        engine.begin()

    def _seat(self, lent: Machine, read: Position) -> None:
        _engine_of(lent).sends = read.sends
        self._machines.seat(lent, read.states, read.history, kept(read.data), {})

    def _kept(self, lent: Machine) -> dict[str, Json]:
        sends = _engine_of(lent).sends
        data = as_json(vars(lent.machine.model), "data")
        return {"data": data, "sends": sends} if sends else {"data": data}


def load(text: str, version: str) -> ScxmlChart:
    """Compile `text`. Raises `ConfigError`."""
    if not isinstance(text, str):
        raise ConfigError(f"text must be the document as text, not {type(text).__name__}")
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ConfigError("text holds a lone surrogate, which is not Unicode text") from None
    document = documents.read(text)

    def make_engine(machine: Any, structure: Structure) -> Engine:
        return ScxmlEngine(machine, structure, document.name, document.donedata)

    machines = Machines(document.chart_class, make_engine, Datamodel, state_field="_active")
    return ScxmlChart(
        name=document.name,
        content_hash=hashlib.sha256(content).hexdigest(),
        interpreter="scxml",
        interpreter_version=version,
        chart_class=document.chart_class,
        machines=machines,
        source=text,
        document=document,
    )


def _engine_of(lent: Machine) -> ScxmlEngine:
    engine = lent.engine
    assert isinstance(engine, ScxmlEngine)
    return engine
