"""The engine of a document: system variables, sends to itself, and the donedata of its end."""

# ruff: noqa: SLF001 - an engine is the inside of a machine

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any

from attrs import frozen
from statemachine.event_data import TriggerData
from statemachine.state import State

from statifier_router.interpreters.statemachine.engine import Engine
from statifier_router.interpreters.statemachine.faults import ERROR_EXECUTION
from statifier_router.interpreters.statemachine.structure import Structure
from statifier_router.interpreters.statemachine.targets import SESSION
from statifier_router.interpreters.statemachine.values import (
    SCXML_PROCESSOR,
    OriginType,
    Record,
    SystemEvent,
    as_json,
)
from statifier_router.jsontext import Json
from statifier_router.steps import NO_DATA, NoData, Send


@frozen
class _Result:
    """What the donedata of a nested final came to, on its way to the event that tells of it."""

    value: Any


class ScxmlEngine(Engine):
    """Runs a machine made from a document named `name`."""

    def __init__(
        self, sm: Any, structure: Structure, name: str, donedata: Mapping[str, Callable[..., Any]]
    ) -> None:
        self._name = name
        self._donedata_of = donedata
        self._variables: dict[str, Any] = {}
        self._variables_of: Any = self
        self.sends = 0
        super().__init__(sm, structure)

    @property
    def session(self) -> str:
        """The id of the session: that of the execution, where the chart was told who it is."""
        execution = vars(self.sm.model).get("execution")
        found = execution.get("id") if isinstance(execution, dict) else None
        return found if isinstance(found, str) and found else self._name

    @property
    def location(self) -> str:
        """The target that names the session itself."""
        return f"{SESSION}{self.session}"

    def open(self, **kwargs: Any) -> None:
        """Forget the last step and prepare for one, before the datamodel is seated."""
        super().open(**kwargs)
        self._variables_of = self

    def next_send_id(self) -> str:
        """An id for a send that asks for one: counted in the position, so that no two are alike."""
        self.sends += 1
        return f"send.{self.sends}"

    def send_to_itself(self, send: Send, *, internal: bool) -> None:
        """Queue the event for this step; a delayed one is the executor's to bring back."""
        if send.delay:
            self.effects.append(Send(send.event, send.data, send_id=send.send_id, delay=send.delay))
            return
        trigger = self.trigger(send.event, send.data, internal=internal, send_id=send.send_id)
        self.put(trigger, internal=internal)

    def system_variables(self) -> dict[str, Any]:
        """The system variables while the present event is being handled."""
        if self._variables_of is not self.current:
            self._variables_of = self.current
            location = Record(location=self.location)
            assert self.now is not None
            self._variables = {
                "_event": self._system_event(self.current),
                "_sessionid": self.session,
                "_name": self._name,
                "_ioprocessors": Record({SCXML_PROCESSOR: location, "scxml": location}),
                "In": self._is_in,
                "now": self.now.astimezone(UTC).isoformat(timespec="microseconds"),
            }
        return self._variables

    def _is_in(self, state: str) -> bool:
        return state in self.sm._config.values

    def _system_event(self, trigger: TriggerData | None) -> SystemEvent | None:
        if trigger is None or trigger.event is None:
            return None
        name = str(trigger.event)
        if name.startswith("error."):
            kind = "platform"
        else:
            kind = "internal" if trigger.event.internal else "external"
        if trigger is self._first:
            origin = self.origin or ""
        else:
            origin = self.location if kind == "external" else ""
        return SystemEvent(
            name,
            self.data_of(trigger),
            kind=kind,
            origin=origin,
            origintype=OriginType("scxml") if kind == "external" else "",
            sendid=trigger.send_id,
        )

    def data_of(self, trigger: TriggerData | None) -> Any:
        """The data of an event; that of a nested final goes by any name its parameters have."""
        data = super().data_of(trigger)
        return data.value if isinstance(data, _Result) else data

    def _handle_final_state(self, target: State, on_entry_result: list[Any]) -> None:
        # As keyword arguments, parameters named like the library's own would be lost.
        results = [_Result(result) for result in on_entry_result if result is not None and result != {}]
        super()._handle_final_state(target, results)

    def _donedata(self, target: State, on_entry_result: list[Any]) -> Json | NoData:
        evaluate = self._donedata_of.get(target.id)
        if evaluate is None:
            return NO_DATA
        try:
            return as_json(evaluate(machine=self.sm), "donedata")
        except Exception as error:
            self.raise_error(ERROR_EXECUTION, error)
            return NO_DATA
