"""How jobs and chains end."""

from __future__ import annotations

from enum import Enum

# A lower-case ULID behind `ch_`.
ChainId = str


class JobEnd(Enum):
    """What one job answers."""

    MORE = "more"
    ENDED = "ended"
    BUSY = "busy"


MORE, ENDED, BUSY = JobEnd.MORE, JobEnd.ENDED, JobEnd.BUSY


class ChainEnd(Enum):
    """Why a chain is over; `BUSY` alone says that it is not, because another job has its rule.

    A chain that `FAILED` has the rule's fault in its row.
    """

    COMPLETED = "completed"
    YIELDED = "yielded"
    ROUTE_CLOSED = "route_closed"
    BREAKER_OPEN = "breaker_open"
    SUPERSEDED = "superseded"
    PAUSED = "paused"
    SUSPECT_RULE = "suspect_rule"
    CANCELLED = "cancelled"
    FAILED = "failed"
    BUSY = "busy"
