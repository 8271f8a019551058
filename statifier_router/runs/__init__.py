"""Delivery runs: carry changed records and outbox messages to other systems, every failure accounted for."""

from __future__ import annotations

from statifier_router.runs.changing import record_change
from statifier_router.runs.ends import BUSY, ENDED, MORE, ChainEnd, ChainId, JobEnd
from statifier_router.runs.faults import (
    Gone,
    ImpossibleCandidate,
    JobTimedOut,
    LedgerRowAppeared,
    NoWriter,
    RecordFault,
    Rejected,
    RuleFault,
    Throttled,
    TimedOut,
    Unavailable,
    Unclassified,
    UnsupportedVerb,
)
from statifier_router.runs.file_writer import FileWriter
from statifier_router.runs.findings import Finding
from statifier_router.runs.health import ALWAYS_OPEN, ConnectionHealth
from statifier_router.runs.horizon import Horizon
from statifier_router.runs.http_answers import HttpAnswer, InHeader, InJson
from statifier_router.runs.http_writer import HttpWriter
from statifier_router.runs.open_transactions import OpenTransaction
from statifier_router.runs.outbound import Outbound
from statifier_router.runs.parking import Parked
from statifier_router.runs.pruning import Pruned, prune_chains, prune_changes
from statifier_router.runs.rebasing import Rebased
from statifier_router.runs.records import ChangeSource, Position, Record
from statifier_router.runs.releasing import Released
from statifier_router.runs.rules import Policy, RetryPolicy, Rule
from statifier_router.runs.signing import StandardWebhooks
from statifier_router.runs.sources import Changes, Outbox
from statifier_router.runs.sql_writer import SqlWriter
from statifier_router.runs.standing import BreakerStatus, ChainStatus, RecordRow, RuleStatus
from statifier_router.runs.table_source import TableSource
from statifier_router.runs.whys import Why
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
    "ALWAYS_OPEN",
    "BUSY",
    "ENDED",
    "MORE",
    "BreakerStatus",
    "ChainEnd",
    "ChainId",
    "ChainStatus",
    "ChangeSource",
    "Changes",
    "ConnectionHealth",
    "Created",
    "FileWriter",
    "Finding",
    "Gone",
    "Horizon",
    "HttpAnswer",
    "HttpWriter",
    "ImpossibleCandidate",
    "InHeader",
    "InJson",
    "JobEnd",
    "JobTimedOut",
    "LedgerRowAppeared",
    "NoWriter",
    "OpenTransaction",
    "Outbound",
    "Outbox",
    "Parked",
    "Policy",
    "Position",
    "Pruned",
    "Rebased",
    "Record",
    "RecordFault",
    "RecordRow",
    "Rejected",
    "Released",
    "RetryPolicy",
    "Rule",
    "RuleFault",
    "RuleStatus",
    "SqlWriter",
    "StandardWebhooks",
    "SupportsBulkCreate",
    "SupportsBulkUpdate",
    "SupportsCreate",
    "SupportsDelete",
    "SupportsLookup",
    "SupportsPing",
    "SupportsUpdate",
    "TableSource",
    "Throttled",
    "TimedOut",
    "Unavailable",
    "Unclassified",
    "UnsupportedVerb",
    "Why",
    "WriteContext",
    "Writer",
    "WriterTraits",
    "prune_chains",
    "prune_changes",
    "record_change",
]
