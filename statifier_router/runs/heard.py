"""What a job asks of a target, and what it hears."""

from __future__ import annotations

from attrs import frozen

from statifier_router.runs.calling import Refused
from statifier_router.runs.faults import RecordFault
from statifier_router.runs.settling import Answer
from statifier_router.runs.visits import Opened


@frozen
class Pinging:
    """The target is asked whether it is back, before the call for this record."""

    source_id: str


@frozen
class Answered:
    """What a call answered, before it is written."""

    opened: Opened
    answer: Answer

    @property
    def fault(self) -> RecordFault | None:
        """The fault of the record, where there was one."""
        return self.answer.fault if isinstance(self.answer, Refused) else None


@frozen
class Pinged:
    """What the target said to a ping."""

    fault: RecordFault | None


Asked = Opened | Pinging
Heard = Answered | Pinged
