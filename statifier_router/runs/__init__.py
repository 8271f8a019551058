"""Delivery runs: carry changed records and outbox messages to other systems, every failure accounted for."""

from __future__ import annotations

from statifier_router.runs.faults import (
    Gone,
    ImpossibleCandidate,
    LedgerRowAppeared,
    NoWriter,
    RecordFault,
    Rejected,
    RuleFault,
    Throttled,
    TimedOut,
    Unavailable,
    UnsupportedVerb,
)
from statifier_router.runs.records import ChangeSource, Position, Record
from statifier_router.runs.rules import Policy, RetryPolicy, Rule
from statifier_router.runs.writers import (
    Created,
    SupportsBulkCreate,
    SupportsBulkUpdate,
    SupportsCreate,
    SupportsDelete,
    SupportsLookup,
    SupportsPing,
    SupportsUpdate,
    WriteContext,
    Writer,
    WriterTraits,
)

__all__ = [
    "ChangeSource",
    "Created",
    "Gone",
    "ImpossibleCandidate",
    "LedgerRowAppeared",
    "NoWriter",
    "Policy",
    "Position",
    "Record",
    "RecordFault",
    "Rejected",
    "RetryPolicy",
    "Rule",
    "RuleFault",
    "SupportsBulkCreate",
    "SupportsBulkUpdate",
    "SupportsCreate",
    "SupportsDelete",
    "SupportsLookup",
    "SupportsPing",
    "SupportsUpdate",
    "Throttled",
    "TimedOut",
    "Unavailable",
    "UnsupportedVerb",
    "WriteContext",
    "Writer",
    "WriterTraits",
]
