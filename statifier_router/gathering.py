"""What a step hands off by rows of the library's own, gathered to be written together with the step."""

from __future__ import annotations

from typing import Any

from attrs import define, field

Row = dict[str, Any]


@define
class Gathered:
    """Rows of the outbox, of changes and of timers, as one delivery's execution handed them off, in order."""

    outbox: list[Row] = field(factory=list)
    changes: list[Row] = field(factory=list)
    timers: list[Row] = field(factory=list)

    def cancel(self, send_id: str) -> None:
        """Cancel the timers of this id that are among them."""
        for row in self.timers:
            if row["send_id"] == send_id:
                row["state"] = "cancelled"
