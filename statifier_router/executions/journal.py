"""Where a step's writes go: at once, or to whoever writes them together with the rest of a delivery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from attrs import field, frozen

from statifier_router.dialect import Link
from statifier_router.executions import rows
from statifier_router.executor import Door, Execution
from statifier_router.jsontext import Json, encode
from statifier_router.messages import Event, event_text
from statifier_router.schema import Schema
from statifier_router.values import made_often


@made_often
class NewInput:
    """An input row that is still to be written; its `seq` follows the last one."""

    door: Door
    at: datetime
    event: Event | None = None
    message_id: str | None = None
    actor: str | None = None
    errors: tuple[str, ...] = ()
    context: Mapping[str, str] = field(factory=dict, repr=False)
    details: Json = field(default=None, repr=False)

    def values(self) -> dict[str, Any]:
        """The columns as they are stored, without execution and number."""
        return {
            "door": self.door,
            "event": None if self.event is None else event_text(self.event),
            "message_id": self.message_id,
            "actor": self.actor,
            "errors": encode(list(self.errors)) if self.errors else None,
            "context": encode(dict(self.context)) if self.context else None,
            "details": None if self.details is None else encode(self.details),
            "at": self.at,
        }


class Journal(Protocol):
    """Takes what an executor wants written. What it took is written before the delivery commits."""

    def create(self, execution: Execution, inputs: Sequence[NewInput]) -> None:
        """Insert the execution and its first input rows; `ExecutionExists` where the id is taken."""
        ...

    def move(self, before: Execution, after: Execution, inputs: Sequence[NewInput], *, moved: bool) -> None:
        """Write what a step made of `before`, and its input rows; `StaleRevision` where it moved on.

        Without `moved` the position and the active states stay as they are.
        """
        ...


@frozen
class WriteAtOnce:
    """Writes each thing when it is told, one statement each."""

    link: Link
    schema: Schema

    def create(self, execution: Execution, inputs: Sequence[NewInput]) -> None:
        """Insert the execution, then its input rows."""
        rows.add(self.link, self.schema, execution)
        self._log(execution.id, inputs)

    def move(self, before: Execution, after: Execution, inputs: Sequence[NewInput], *, moved: bool) -> None:
        """Append the input rows, then update the execution."""
        self._log(before.id, inputs)
        rows.move(self.link, self.schema, before, after, moved=moved)

    def change_chart(self, before: Execution, after: Execution, inputs: Sequence[NewInput]) -> None:
        """Append the input rows, then write another chart and position."""
        self._log(before.id, inputs)
        rows.change_chart(self.link, self.schema, before, after)

    def _log(self, execution_id: str, inputs: Sequence[NewInput]) -> None:
        for row in inputs:
            rows.log(self.link, self.schema, execution_id, row.values())
