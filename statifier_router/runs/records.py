"""Records, and what a source of changed ones has to be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Union, runtime_checkable

from attrs import field, frozen

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from statifier_router.jsontext import Json

# Where a scan stands: whatever its source orders by. None is before everything. Kept as JSON; what comes
# back from there has tuples in the place of lists.
Position = Union[None, int, str, "tuple[Position, ...]"]


@frozen
class Record:
    """One version of one record of the source.

    `signal` tells versions apart and is only ever compared for equality. `position` is where the scan
    stands after it. A `deleted` record is no longer at the source.
    """

    source_id: str
    signal: str
    position: Position = None
    payload: Json = field(default=None, repr=False)
    scope: str | None = None
    deleted: bool = False


@runtime_checkable
class ChangeSource(Protocol):
    """Where a rule's records come from. Both methods read on the connection they are handed, and only read.

    Optional: `identity` (text; what the source is, where rules are compared), `scope` (the one scope
    whose records it hands over), `rewound(after) -> Position` (where a chain's scan begins, for a source
    whose rows may appear behind the place that was reached: it is asked once a chain), and
    `held_back(connection, record) -> str | None` (why a scan does not hand over a version yet, for `why`).
    """

    def scan(self, connection: Connection, after: Position, limit: int) -> Sequence[Record]:
        """At most `limit` changed records with positions greater than `after`, in that order.

        Each record at most once a call. Nothing that may still be joined by an earlier row: what is
        passed is never read again.
        """
        ...

    def load(self, connection: Connection, source_ids: Sequence[str]) -> Mapping[str, Record | None]:
        """The newest version of each record, signal and payload read in one statement; None for none."""
        ...
