"""How rules, chains, records and breakers stand: the values that operators are shown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import field, frozen

from statifier_router.jsontext import Json, decode

STATUSES = ("delivered", "suppressed", "failed", "exhausted", "remote_gone")
PARKED = ("exhausted", "remote_gone")
# The error kind of a record that an operator parked.
PARKED_BY_HAND = "parked"


@frozen(kw_only=True)
class RecordRow:
    """What became of one record of a rule, as it stands in the table of records.

    `signal` is that of the version that was handled last. `error_kind` and `last_error` tell of the last
    failure, also after a later success was recorded elsewhere: `status` alone says how the record stands.
    """

    rule: str
    source_id: str
    status: str
    remote_id: str | None
    signal: str
    attempts: int
    next_attempt_at: datetime | None
    error_kind: str | None
    last_error: str | None = field(repr=False)
    parked_at: datetime | None
    acknowledged_at: datetime | None
    generation: int
    row_version: int
    updated_at: datetime

    @property
    def is_terminal(self) -> bool:
        """Whether no run offers it again, whatever its source does: only an operator releases it."""
        return self.status in PARKED


@frozen(kw_only=True)
class ChainStatus:
    """One run of a rule. `end` and the fault are None while it runs.

    `state` is "running", "finished", "failed" or "cancelled"; `end` the name of a `ChainEnd`. `jobs` counts
    the pages that were begun.
    """

    id: str
    rule: str
    state: str
    phase: str
    started_at: datetime
    heartbeat_at: datetime
    jobs: int
    end: str | None
    fault_kind: str | None
    fault_source_id: str | None
    fault_text: str | None
    counters: Mapping[str, Json]

    @property
    def running(self) -> bool:
        """Whether it has not ended; its process may have."""
        return self.state == "running"


@frozen(kw_only=True)
class BreakerStatus:
    """The breaker of one target, shared by every process. `failures` of the target came in a row."""

    target: str
    state: str
    failures: int
    trips: int
    open_until: datetime | None
    probe_until: datetime | None


@frozen(kw_only=True)
class RuleStatus:
    """How one rule stands.

    `state` is one of "running", "idle", "never ran", "paused", "route closed", "breaker open",
    "suspect rule", "stalled" (a chain whose process gives no sign), "not defined here" (in this process),
    "defined differently" (this process has another definition than the one that was saved), and
    "failing: " with the kind of the fault that the last chain met, and the next one will. `advice` says
    what to do next, and while a run is under way how long its process has the rule; it is empty where nothing
    is to be done.

    `counts` has the records by status, and under "parked" those that no operator has dismissed; `due` of
    the failed ones are due now, the oldest since `oldest_due`. `health` is why a connection is closed.
    """

    name: str
    state: str
    advice: str
    definition: Mapping[str, Json] = field(repr=False)
    cursor: Json = field(repr=False)
    paused: bool
    known_here: bool
    chain: ChainStatus | None
    last_chain: ChainStatus | None
    counts: Mapping[str, int]
    due: int
    oldest_due: datetime | None
    in_doubt: int
    breaker: BreakerStatus | None
    closed_since: datetime | None
    health: str | None

    @property
    def target(self) -> str:
        """Where its records go."""
        return str(self.definition["target"])


def record_of(row: Mapping[Any, Any]) -> RecordRow:
    """A row of `records`."""
    return RecordRow(**row)


def chain_of(row: Mapping[Any, Any]) -> ChainStatus:
    """A row of `chains`."""
    counters: Any = decode(row["counters"])
    return ChainStatus(
        id=row["id"],
        rule=row["rule"],
        state=row["state"],
        phase=row["phase"],
        started_at=row["due_before"],
        heartbeat_at=row["heartbeat_at"],
        jobs=row["job_seq"],
        end=row["end"],
        fault_kind=row["fault_kind"],
        fault_source_id=row["fault_source_id"],
        fault_text=row["fault_text"],
        counters=counters,
    )


def breaker_of(row: Mapping[Any, Any]) -> BreakerStatus:
    """A row of `breakers`."""
    return BreakerStatus(**row)
